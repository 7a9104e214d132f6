# Installs the build tree into a new prefix, moves it, and builds and runs the consumer against it: once with
# find_package and, where pkg-config is installed, once with that. Where NVCC is given, each with a .cu file as well, run over
# the double of the driver in BUILD/simcuda.

foreach(variable BUILD CONSUMER WORK COMPILER)
  if(NOT DEFINED ${variable})
    message(FATAL_ERROR "find_package_test: -D ${variable}=... is missing")
  endif()
endforeach()

set(cuda)
if(NVCC)
  set(cuda -D WITH_CUDA=ON -D CMAKE_CUDA_COMPILER=${NVCC} -D CMAKE_CUDA_ARCHITECTURES=90
           -D CMAKE_EXE_LINKER_FLAGS=-L${BUILD}/simcuda)
endif()

# run_over_double(PROGRAM FOLDER): a CUDA program, with the double and the libraries of FOLDER.
function(run_over_double program folder)
  set(ENV{LD_LIBRARY_PATH} ${BUILD}/simcuda:${folder})
  execute_process(COMMAND ${program} OUTPUT_VARIABLE said COMMAND_ERROR_IS_FATAL ANY)
  message("${said}")
  if(NOT said MATCHES "reserved [0-9.]+ MiB")
    message(FATAL_ERROR "${program} says '${said}', expected 'reserved ... MiB'")
  endif()
endfunction()

file(REMOVE_RECURSE ${WORK})
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/installed
                OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
file(RENAME ${WORK}/installed ${WORK}/moved)

execute_process(COMMAND ${CMAKE_COMMAND} -S ${CONSUMER} -B ${WORK}/build -G Ninja
                        -D CMAKE_PREFIX_PATH=${WORK}/moved -D CMAKE_CXX_COMPILER=${COMPILER} ${cuda}
                COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${WORK}/build COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${WORK}/build/consumer COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${WORK}/build/c_consumer COMMAND_ERROR_IS_FATAL ANY)
if(NVCC)
  run_over_double(${WORK}/build/cuda_consumer "")
endif()

find_program(PKG_CONFIG pkg-config)
if(NOT PKG_CONFIG)
  message(STATUS "pkg-config is not installed: that half is left out")
  return()
endif()
file(GLOB_RECURSE pc_files ${WORK}/moved/*.pc)
list(LENGTH pc_files count)
if(NOT count EQUAL 1)
  message(FATAL_ERROR "expected one .pc file in ${WORK}/moved, found '${pc_files}'")
endif()
cmake_path(GET pc_files PARENT_PATH pc_dir)
set(ENV{PKG_CONFIG_PATH} ${pc_dir})
execute_process(COMMAND ${PKG_CONFIG} --cflags --libs gpumem
                OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
separate_arguments(found UNIX_COMMAND "${found}")
execute_process(COMMAND ${COMPILER} -std=c++20 ${CONSUMER}/main.cpp -o ${WORK}/with_pkg_config ${found}
                COMMAND_ERROR_IS_FATAL ANY)
cmake_path(GET pc_dir PARENT_PATH library_dir)
set(ENV{LD_LIBRARY_PATH} ${library_dir})
execute_process(COMMAND ${WORK}/with_pkg_config COMMAND_ERROR_IS_FATAL ANY)
if(NVCC)
  execute_process(COMMAND ${NVCC} -std=c++20 -arch=sm_90 -L${BUILD}/simcuda ${CONSUMER}/../../../examples/first.cu
                          -o ${WORK}/cuda_with_pkg_config ${found} COMMAND_ERROR_IS_FATAL ANY)
  run_over_double(${WORK}/cuda_with_pkg_config ${library_dir})
endif()
