# The simulated CUDA runtime: libcudart.so.13 and libcudart_static.a beside the simulated driver, and libcudart.so.12 if
# GPUMEM_CUDA12 names CUDA 12's headers. It loads the driver at run time, so it links neither the driver nor gpumem.

# The functions need CUDA 13's headers.
if(CUDAToolkit_VERSION VERSION_LESS 13)
  return()
endif()

set(runtime ${CMAKE_CURRENT_LIST_DIR})
# As in the real runtime, symbols are visible in the shared library and hidden in the archive.
foreach(kind visible hidden)
  add_library(simcudart_${kind} OBJECT
    ${runtime}/runtime.cpp ${runtime}/runtime_device.cpp ${runtime}/runtime_frameworks.cpp ${runtime}/runtime_launch.cpp ${runtime}/runtime_memory.cpp
    ${runtime}/runtime_streams.cpp)
  target_link_libraries(simcudart_${kind} PRIVATE gpumem_build_flags CUDA::toolkit)
  set_target_properties(simcudart_${kind} PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_EXTENSIONS OFF)
endforeach()
set_target_properties(simcudart_hidden PROPERTIES CXX_VISIBILITY_PRESET hidden)

# A stub for each function of the real runtime that is missing here, so that any program links.
find_library(GPUMEM_CUDART NAMES libcudart.so.13 PATHS ${CUDAToolkit_LIBRARY_DIR} NO_DEFAULT_PATH)
mark_as_advanced(GPUMEM_CUDART)
if(NOT GPUMEM_CUDART)
  message(WARNING "simcuda: '${CUDAToolkit_LIBRARY_DIR}' has no libcudart.so.13; expected NVIDIA's, of which the names are read. "
                  "Without it the double of the CUDA runtime has no stubs, and a program that calls a function that it "
                  "lacks does not start")
endif()
set(stubs ${simcuda_dir}/runtime_stubs.cpp)
set(real_runtime $<IF:$<BOOL:${GPUMEM_CUDART}>,${GPUMEM_CUDART},>)
add_custom_command(OUTPUT ${stubs}
  COMMAND ${CMAKE_COMMAND} -D NM=${CMAKE_NM} -D REAL=${real_runtime} "-D OBJECTS=$<TARGET_OBJECTS:simcudart_visible>"
          -D OUTPUT=${stubs} -P ${runtime}/stubs.cmake
  DEPENDS ${runtime}/stubs.cmake simcudart_visible $<TARGET_OBJECTS:simcudart_visible>
  COMMENT "Stubs for what the double of the CUDA runtime lacks" VERBATIM)

file(CONFIGURE OUTPUT ${simcuda_dir}/libcudart.map CONTENT "libcudart.so.13 { global: cuda*; __cuda*; local: *; };\n")
add_library(simcudart_shared SHARED $<TARGET_OBJECTS:simcudart_visible> ${stubs})
target_link_options(simcudart_shared PRIVATE LINKER:--version-script,${simcuda_dir}/libcudart.map)
set_target_properties(simcudart_shared PROPERTIES OUTPUT_NAME cudart VERSION 13 SOVERSION 13
                                                  LIBRARY_OUTPUT_DIRECTORY ${simcuda_dir})

simcuda_contain(simcudart_shared)

add_library(simcudart_static STATIC $<TARGET_OBJECTS:simcudart_hidden> ${stubs})
set_target_properties(simcudart_static PROPERTIES OUTPUT_NAME cudart_static CXX_VISIBILITY_PRESET hidden
                                                  ARCHIVE_OUTPUT_DIRECTORY ${simcuda_dir})
foreach(library simcudart_shared simcudart_static)
  target_link_libraries(${library} PRIVATE gpumem_build_flags PUBLIC CUDA::toolkit Threads::Threads ${CMAKE_DL_LIBS})
  set_target_properties(${library} PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_EXTENSIONS OFF)
endforeach()

# The runtime of CUDA 12, for programs built with it: the same sources with its headers, 12.4 or later. GPUMEM_CUDA12 is a
# Toolkit, or a folder of its wheels with nvidia/cuda_runtime and nvidia/cuda_nvcc (scripts/cuda_headers --cuda12 makes one).
set(GPUMEM_CUDA12 "" CACHE PATH "CUDA 12's headers, to simulate cards for programs of CUDA 12; empty: not built")
if(GPUMEM_CUDA12)
  set(roots ${GPUMEM_CUDA12} ${GPUMEM_CUDA12}/nvidia/cuda_runtime ${GPUMEM_CUDA12}/nvidia/cuda_nvcc)
  find_path(GPUMEM_CUDA12_RUNTIME cuda_runtime_api.h PATHS ${roots} PATH_SUFFIXES include NO_DEFAULT_PATH REQUIRED)
  find_path(GPUMEM_CUDA12_CRT crt/host_defines.h PATHS ${roots} PATH_SUFFIXES include NO_DEFAULT_PATH REQUIRED)
  find_library(GPUMEM_CUDART12 NAMES libcudart.so.12 PATHS ${roots} PATH_SUFFIXES lib lib64 NO_DEFAULT_PATH REQUIRED)
  mark_as_advanced(GPUMEM_CUDA12_RUNTIME GPUMEM_CUDA12_CRT GPUMEM_CUDART12)
  set(sources runtime.cpp runtime_device.cpp runtime_frameworks.cpp runtime_launch.cpp runtime_memory.cpp
              runtime_streams.cpp)
  list(TRANSFORM sources PREPEND ${runtime}/)
  add_library(simcudart12_visible OBJECT ${sources})
  target_include_directories(simcudart12_visible SYSTEM PRIVATE ${GPUMEM_CUDA12_RUNTIME} ${GPUMEM_CUDA12_CRT})
  target_link_libraries(simcudart12_visible PRIVATE gpumem_build_flags)
  set(stubs ${simcuda_dir}/runtime12_stubs.cpp)
  add_custom_command(OUTPUT ${stubs}
    COMMAND ${CMAKE_COMMAND} -D NM=${CMAKE_NM} -D REAL=${GPUMEM_CUDART12} "-D OBJECTS=$<TARGET_OBJECTS:simcudart12_visible>"
            -D OUTPUT=${stubs} -P ${runtime}/stubs.cmake
    DEPENDS ${runtime}/stubs.cmake simcudart12_visible $<TARGET_OBJECTS:simcudart12_visible>
    COMMENT "Stubs for what the double of CUDA 12's runtime lacks" VERBATIM)
  file(CONFIGURE OUTPUT ${simcuda_dir}/libcudart12.map
       CONTENT "libcudart.so.12 { global: cuda*; __cuda*; local: *; };\n")
  add_library(simcudart12_shared SHARED $<TARGET_OBJECTS:simcudart12_visible> ${stubs})
  target_link_libraries(simcudart12_shared PRIVATE gpumem_build_flags Threads::Threads ${CMAKE_DL_LIBS})
  target_link_options(simcudart12_shared PRIVATE LINKER:--version-script,${simcuda_dir}/libcudart12.map)
  set_target_properties(simcudart12_visible simcudart12_shared PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_EXTENSIONS OFF)
  simcuda_contain(simcudart12_shared)
  set_target_properties(simcudart12_shared PROPERTIES OUTPUT_NAME cudart VERSION 12 SOVERSION 12
                        LIBRARY_OUTPUT_DIRECTORY ${simcuda_dir}/cuda12)
endif()
