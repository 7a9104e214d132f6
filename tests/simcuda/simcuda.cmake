# The double of the CUDA driver. It needs the Toolkit's headers and neither a driver nor GoogleTest, so that the bench can
# use it, too: `simcuda_driver` to link, lib/libcuda.so.1 to load. README.md says what it models.

include_guard(GLOBAL)
set(simcuda_source ${CMAKE_CURRENT_LIST_DIR})
set(simcuda_dir ${PROJECT_BINARY_DIR}/simcuda)

add_library(simcuda_driver OBJECT
  ${simcuda_source}/driver/calls.cpp ${simcuda_source}/driver/control.cpp ${simcuda_source}/driver/driver_captures.cpp
  ${simcuda_source}/driver/driver_copies.cpp ${simcuda_source}/driver/driver_device.cpp
  ${simcuda_source}/driver/driver_errors.cpp ${simcuda_source}/driver/driver_memory.cpp
  ${simcuda_source}/driver/driver_per_thread.cpp ${simcuda_source}/driver/driver_pool.cpp
  ${simcuda_source}/driver/driver_programs.cpp ${simcuda_source}/driver/driver_streams.cpp
  ${simcuda_source}/driver/driver_table.cpp ${simcuda_source}/driver/world.cpp)
target_include_directories(simcuda_driver PUBLIC ${simcuda_source} PRIVATE ${simcuda_source}/driver
  $<TARGET_PROPERTY:gpumem_device,INTERFACE_INCLUDE_DIRECTORIES>)
target_link_libraries(simcuda_driver PRIVATE gpumem_build_flags PUBLIC CUDA::toolkit)
set_target_properties(simcuda_driver PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_EXTENSIONS OFF)

# As a program's dynamic linker finds it.
add_library(simcuda_shared SHARED)
target_link_libraries(simcuda_shared PRIVATE simcuda_driver)
gpumem_use_layers(simcuda_shared device base)
file(CONFIGURE OUTPUT ${simcuda_dir}/libcuda.map CONTENT "{ global: cu*; simcuda_*; local: *; };\n")
# Its own calls are its own, whatever stands before it.
target_link_options(simcuda_shared PRIVATE LINKER:--version-script,${simcuda_dir}/libcuda.map LINKER:-Bsymbolic)
set_target_properties(simcuda_shared PROPERTIES OUTPUT_NAME cuda VERSION 1 SOVERSION 1
                                                LIBRARY_OUTPUT_DIRECTORY ${simcuda_dir})

include(${simcuda_source}/runtime/runtime.cmake)
