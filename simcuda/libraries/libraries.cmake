# Simulated versions of the libraries that programs load beside the driver and the runtime: shared libraries in simcuda/
# with the real sonames. Functions that affect memory are written by hand; all others are generated from their names in
# the public header, if the Toolkit has it, and in names/<library>.names.

set(libraries ${CMAKE_CURRENT_LIST_DIR})

add_library(simcuda_called OBJECT ${libraries}/called.cpp)
add_library(simcuda_launch OBJECT ${libraries}/launch.cpp)
foreach(part simcuda_called simcuda_launch)
  target_link_libraries(${part} PRIVATE gpumem_build_flags CUDA::toolkit)
  set_target_properties(${part} PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_EXTENSIONS OFF)
endforeach()

# simcuda_library(NAME cublas SOVERSION 13 OF_CUDA12 12 PREFIX cublas REFUSAL 15 [NODE version node] [HEADERS ...] [SOURCES ...])
# STREAMED: pattern of functions that take the handle first and work on its stream.
# REFUSAL: the library's own "not supported". OF_CUDA12: the number in its CUDA 12 soname, if different.
function(simcuda_library)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME;SOVERSION;OF_CUDA12;PREFIX;REFUSAL;NODE;STREAMED" "HEADERS;SOURCES")
  set(name ${arg_NAME})
  set(target simcuda_lib${name})
  list(TRANSFORM arg_SOURCES PREPEND ${libraries}/)
  set(objects "")
  if(arg_SOURCES)
    add_library(${target}_objects OBJECT ${arg_SOURCES})
    target_link_libraries(${target}_objects PRIVATE gpumem_build_flags CUDA::toolkit)
    target_include_directories(${target}_objects PRIVATE ${libraries} ${simcuda_source})
    set_target_properties(${target}_objects PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_EXTENSIONS OFF)
    set(objects $<TARGET_OBJECTS:${target}_objects>)
  endif()
  set(headers "")
  foreach(header IN LISTS arg_HEADERS)
    find_file(SIMCUDA_HEADER_${header} ${header} PATHS ${CUDAToolkit_INCLUDE_DIRS} NO_DEFAULT_PATH)
    mark_as_advanced(SIMCUDA_HEADER_${header})
    if(SIMCUDA_HEADER_${header})
      list(APPEND headers ${SIMCUDA_HEADER_${header}})
    endif()
  endforeach()
  set(names "")
  if(EXISTS ${libraries}/names/${name}.names)
    set(names ${libraries}/names/${name}.names)
  endif()
  set(stubs ${simcuda_dir}/${name}_stubs.cpp)
  add_custom_command(OUTPUT ${stubs}
    COMMAND ${CMAKE_COMMAND} -D NM=${CMAKE_NM} -D LIBRARY=${name} -D PREFIX=${arg_PREFIX} "-D STREAMED=${arg_STREAMED}" -D REFUSAL=${arg_REFUSAL}
            "-D HEADERS=${headers}" "-D NAMES=${names}" "-D OBJECTS=${objects}" -D OUTPUT=${stubs}
            -P ${libraries}/generate.cmake
    DEPENDS ${libraries}/generate.cmake ${headers} ${names} ${objects}
    COMMENT "Stand-ins for lib${name}" VERBATIM)
  if(arg_NODE STREQUAL none)
    set(arg_NODE "")
  elseif(NOT arg_NODE)
    set(arg_NODE lib${name}.so.${arg_SOVERSION})
  endif()
  file(CONFIGURE OUTPUT ${simcuda_dir}/${name}.map
       CONTENT "${arg_NODE} { global: ${arg_PREFIX}*; p${arg_PREFIX}*; local: *; };\n")
  set(launch "")
  if(arg_STREAMED)
    set(launch $<TARGET_OBJECTS:simcuda_launch>)
  endif()
  add_library(${target} SHARED ${objects} ${stubs} $<TARGET_OBJECTS:simcuda_called> ${launch})
  target_include_directories(${target} PRIVATE ${libraries})
  target_link_libraries(${target} PRIVATE gpumem_build_flags ${CMAKE_DL_LIBS})
  target_link_options(${target} PRIVATE LINKER:--version-script,${simcuda_dir}/${name}.map LINKER:-Bsymbolic)
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${name} VERSION ${arg_SOVERSION} SOVERSION ${arg_SOVERSION}
                        LIBRARY_OUTPUT_DIRECTORY ${simcuda_dir} CXX_EXTENSIONS OFF)
  simcuda_contain(${target})
  set_property(GLOBAL APPEND PROPERTY SIMCUDA_LIBRARIES ${target})
  if(NOT TARGET simcudart12_shared OR NOT arg_OF_CUDA12)
    return()
  endif()
  set(node lib${name}.so.${arg_OF_CUDA12})
  file(CONFIGURE OUTPUT ${simcuda_dir}/${name}12.map CONTENT "${node} { global: ${arg_PREFIX}*; local: *; };\n")
  add_library(${target}_of_cuda12 SHARED ${objects} ${stubs} $<TARGET_OBJECTS:simcuda_called> ${launch})
  target_include_directories(${target}_of_cuda12 PRIVATE ${libraries})
  target_link_libraries(${target}_of_cuda12 PRIVATE gpumem_build_flags ${CMAKE_DL_LIBS})
  target_link_options(${target}_of_cuda12 PRIVATE LINKER:--version-script,${simcuda_dir}/${name}12.map LINKER:-Bsymbolic)
  set_target_properties(${target}_of_cuda12 PROPERTIES OUTPUT_NAME ${name} VERSION ${arg_OF_CUDA12}
                        SOVERSION ${arg_OF_CUDA12} LIBRARY_OUTPUT_DIRECTORY ${simcuda_dir}/cuda12 CXX_EXTENSIONS OFF)
  simcuda_contain(${target}_of_cuda12)
  add_dependencies(${target}_of_cuda12 ${target})  # generates the stubs
  set_property(GLOBAL APPEND PROPERTY SIMCUDA_LIBRARIES_OF_CUDA12 ${target}_of_cuda12)
endfunction()

simcuda_library(NAME cublas SOVERSION 13 OF_CUDA12 12 PREFIX cublas REFUSAL 15 STREAMED . SOURCES cublas.cpp
                HEADERS cublas_api.h cublas_v2.h cublas.h cublasXt.h)
simcuda_library(NAME cublasLt SOVERSION 13 OF_CUDA12 12 PREFIX cublasLt REFUSAL 15 STREAMED NONE SOURCES cublas_lt.cpp HEADERS cublasLt.h)
simcuda_library(NAME cudnn SOVERSION 9 PREFIX cudnn REFUSAL 3000 STREAMED Forward|Backward SOURCES cudnn.cpp cudnn_backend.cpp
                HEADERS cudnn_graph.h cudnn_ops.h cudnn_cnn.h cudnn_adv.h cudnn_backend.h)
simcuda_library(NAME cusolver SOVERSION 12 OF_CUDA12 11 PREFIX cusolver REFUSAL 9 SOURCES cusolver.cpp
                HEADERS cusolver_common.h cusolverDn.h cusolverSp.h cusolverRf.h)
simcuda_library(NAME cusparse SOVERSION 12 PREFIX cusparse REFUSAL 10 SOURCES cusparse.cpp HEADERS cusparse.h)
simcuda_library(NAME cusparseLt SOVERSION 0 PREFIX cusparseLt REFUSAL 10)
simcuda_library(NAME cufft SOVERSION 12 OF_CUDA12 11 PREFIX cufft REFUSAL 16 SOURCES cufft.cpp HEADERS cufft.h cufftXt.h)
simcuda_library(NAME curand SOVERSION 10 PREFIX curand REFUSAL 999 HEADERS curand.h)
simcuda_library(NAME cufile SOVERSION 0 PREFIX cuFile REFUSAL 5000)
simcuda_library(NAME nccl SOVERSION 2 PREFIX nccl REFUSAL 5 HEADERS nccl.h
                SOURCES nccl.cpp nccl_communicators.cpp nccl_operations.cpp nccl_values.cpp rank_exchange.cpp ../shared_cards.cpp)
simcuda_library(NAME nvshmem_host SOVERSION 3 PREFIX nvshmem REFUSAL 7 NODE NVSHMEM)
simcuda_library(NAME nvrtc SOVERSION 13 OF_CUDA12 12 PREFIX nvrtc REFUSAL 11 SOURCES nvrtc.cpp HEADERS nvrtc.h)
simcuda_library(NAME cupti SOVERSION 13 OF_CUDA12 12 PREFIX cupti REFUSAL 27 SOURCES cupti.cpp
                HEADERS cupti_activity.h cupti_callbacks.h cupti_result.h cupti_version.h cupti_events.h cupti_metrics.h)
# Programs of CUDA 12.1 and earlier (PyTorch up to 2.4) load NVTX's first version as a library.
simcuda_library(NAME nvToolsExt SOVERSION 1 PREFIX nvtx REFUSAL 0)
simcuda_library(NAME nvidia-ml SOVERSION 1 PREFIX nvml REFUSAL 3 NODE none SOURCES nvml.cpp ../cards.cpp ../shared_cards.cpp)
# NVML parses sizes as the driver does.
target_include_directories(simcuda_libnvidia-ml_objects PRIVATE $<TARGET_PROPERTY:gpumem_base,INTERFACE_INCLUDE_DIRECTORIES>)
gpumem_use_layers(simcuda_libnvidia-ml base)
target_sources(simcuda_libnvidia-ml PRIVATE ${simcuda_fmt})
target_link_options(simcuda_libnvidia-ml PRIVATE LINKER:--as-needed)

get_property(simcuda_all_libraries GLOBAL PROPERTY SIMCUDA_LIBRARIES)
get_property(simcuda12_libraries GLOBAL PROPERTY SIMCUDA_LIBRARIES_OF_CUDA12)
if(TARGET simcudart12_shared)
  list(APPEND simcuda12_libraries simcudart12_shared)
endif()
add_custom_target(simcuda_libraries
                  DEPENDS simcuda_shared simcudart_shared simcudart_static ${simcuda_all_libraries} ${simcuda12_libraries})

# Modules that Python runs at start under `gpumem simulate`.
foreach(file sitecustomize.py gpumem_doctor.py gpumem_referee.py gpumem_simulated_torch.py gpumem_simulated_xla.py gpumem_values.py)
  configure_file(${simcuda_source}/python/${file} ${simcuda_dir}/python/${file} COPYONLY)
endforeach()
# Sources that gpumem_values.py compiles for the installed torch.
set(simcuda_compile ${PROJECT_SOURCE_DIR}/python/gpumem/torch/_compile.py)
configure_file(${simcuda_compile} ${simcuda_dir}/python/gpumem_compile.py COPYONLY)
file(GLOB simcuda_values CONFIGURE_DEPENDS ${simcuda_source}/values/*.cpp ${simcuda_source}/values/*.hpp)
foreach(file IN LISTS simcuda_values)
  cmake_path(GET file FILENAME name)
  configure_file(${file} ${simcuda_dir}/values/${name} COPYONLY)
endforeach()

# Installed only on request (cli/CMakeLists.txt), in the folder where `gpumem simulate` looks.
if(GPUMEM_INSTALL)
  set(simcuda_installed ${CMAKE_INSTALL_LIBDIR}/gpumem/simcuda)
  install(TARGETS simcuda_shared simcudart_shared ${simcuda_all_libraries} COMPONENT simcuda EXCLUDE_FROM_ALL
          LIBRARY DESTINATION ${simcuda_installed})
  if(simcuda12_libraries)
    install(TARGETS ${simcuda12_libraries} COMPONENT simcuda EXCLUDE_FROM_ALL
            LIBRARY DESTINATION ${simcuda_installed}/cuda12)
  endif()
  install(TARGETS simcudart_static COMPONENT simcuda EXCLUDE_FROM_ALL ARCHIVE DESTINATION ${simcuda_installed})
  install(DIRECTORY ${simcuda_source}/python/ COMPONENT simcuda EXCLUDE_FROM_ALL
          DESTINATION ${simcuda_installed}/python FILES_MATCHING PATTERN "*.py")
  install(FILES ${simcuda_compile} COMPONENT simcuda EXCLUDE_FROM_ALL
          DESTINATION ${simcuda_installed}/python RENAME gpumem_compile.py)
  install(FILES ${simcuda_values} COMPONENT simcuda EXCLUDE_FROM_ALL DESTINATION ${simcuda_installed}/values)
endif()
