# Builds gpumem within another project, by add_subdirectory (WAY=subdirectory) or FetchContent (WAY=fetch), and runs its
# programs: one in C++ and, where NVCC is given, one in CUDA over the double in BUILD/simcuda. Objects of the library are
# taken from BUILD where the project would compile them by the same command (in_tree/launcher).

foreach(variable BUILD SOURCE WORK COMPILER WAY TYPE UNITY)
  if(NOT DEFINED ${variable})
    message(FATAL_ERROR "in_tree_test: -D ${variable}=... is missing")
  endif()
endforeach()

file(REMOVE_RECURSE ${WORK})
file(MAKE_DIRECTORY ${WORK})
execute_process(COMMAND ninja -C ${BUILD} -t commands src/libgpumem.so OUTPUT_FILE ${WORK}/commands.txt
                COMMAND_ERROR_IS_FATAL ANY)
set(cuda)
set(programs consumer)
if(NVCC)
  set(cuda -D WITH_CUDA=ON -D CMAKE_CUDA_COMPILER=${NVCC} -D CMAKE_CUDA_ARCHITECTURES=90)
  set(programs consumer cuda_consumer)
endif()
execute_process(
  COMMAND ${CMAKE_COMMAND} -S ${SOURCE}/tests/api/in_tree -B ${WORK}/build -G Ninja -D WAY=${WAY}
          -D GPUMEM_FOLDER=${SOURCE} -D CMAKE_CXX_COMPILER=${COMPILER} -D CMAKE_BUILD_TYPE=${TYPE}
          -D GPUMEM_UNITY=${UNITY} ${cuda}
          "-D CMAKE_CXX_COMPILER_LAUNCHER=${SOURCE}/tests/api/in_tree/launcher;${BUILD};${WORK}/commands.txt"
          "-D CMAKE_EXE_LINKER_FLAGS=-L${BUILD}/simcuda"
  COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${WORK}/build --target ${programs} COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${WORK}/build/consumer COMMAND_ERROR_IS_FATAL ANY)
if(NVCC)
  set(ENV{LD_LIBRARY_PATH} ${BUILD}/simcuda)
  execute_process(COMMAND ${WORK}/build/cuda_consumer OUTPUT_VARIABLE said COMMAND_ERROR_IS_FATAL ANY)
  message("${said}")
  if(NOT said MATCHES "reserved [0-9.]+ MiB")
    message(FATAL_ERROR "cuda_consumer says '${said}', expected 'reserved ... MiB'")
  endif()
endif()
