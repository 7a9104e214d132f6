# What of CUDA takes part: its headers (the CUDA device, the double, the baselines) and nvcc (everything with a kernel).
# Neither needs a GPU or a driver to build. The sanitizer and clang presets leave nvcc out: the kernels' own code is the
# same there, and is compiled as plain C++.

option(GPUMEM_CUDA "Build the CUDA device; needs the CUDA Toolkit's headers" ${CUDAToolkit_FOUND})
if(GPUMEM_CUDA AND NOT CUDAToolkit_FOUND)
  message(FATAL_ERROR "GPUMEM_CUDA=${GPUMEM_CUDA}: no CUDA Toolkit was found; expected one, or GPUMEM_CUDA=OFF")
endif()
if(GPUMEM_CUDA AND CUDAToolkit_VERSION VERSION_LESS 12.4)
  message(FATAL_ERROR "CUDA Toolkit ${CUDAToolkit_VERSION} is too old; expected 12.4 or later, or GPUMEM_CUDA=OFF")
endif()

# Thrust, CUB and cuda::mr, of the Toolkit.
if(GPUMEM_CUDA)
  find_path(GPUMEM_CCCL_INCLUDE cub/util_allocator.cuh PATHS ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES cccl
            NO_DEFAULT_PATH)
  mark_as_advanced(GPUMEM_CCCL_INCLUDE)
  if(GPUMEM_CCCL_INCLUDE)
    # Thrust by its C++ device system, which needs no nvcc; linked after gpumem_build_flags, whose -fsanitize it corrects:
    # its references bind to a null execution policy that nobody reads.
    add_library(gpumem_thrust_cpp INTERFACE)
    target_include_directories(gpumem_thrust_cpp SYSTEM INTERFACE ${GPUMEM_CCCL_INCLUDE} ${CUDAToolkit_INCLUDE_DIRS})
    target_compile_definitions(gpumem_thrust_cpp INTERFACE THRUST_DEVICE_SYSTEM=THRUST_DEVICE_SYSTEM_CPP)
    if(GPUMEM_SANITIZE)
      target_compile_options(gpumem_thrust_cpp INTERFACE -fno-sanitize=null)
    endif()
  endif()
  # RMM, for adapters/rmm.hpp: found where it is installed, or named by this variable. Its wheels bring a CCCL of their own
  # along, in a folder beside it.
  find_path(GPUMEM_RMM_INCLUDE rmm/device_buffer.hpp)
  cmake_path(GET GPUMEM_RMM_INCLUDE PARENT_PATH rmm_prefix)
  find_library(GPUMEM_RMM_LIBRARY rmm HINTS ${rmm_prefix}/lib64 ${rmm_prefix}/lib)
  mark_as_advanced(GPUMEM_RMM_INCLUDE GPUMEM_RMM_LIBRARY)
endif()

set(kernels OFF)  # the library has none; tests and examples do
if(PROJECT_IS_TOP_LEVEL AND GPUMEM_CUDA AND CUDAToolkit_NVCC_EXECUTABLE)
  set(kernels ON)
endif()
option(GPUMEM_CUDA_KERNELS "Compile kernels; needs nvcc" ${kernels})
if(GPUMEM_CUDA_KERNELS)
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80)  # later GPUs run it as PTX; each further one compiles everything once more
  endif()
  if(NOT CMAKE_CUDA_COMPILER AND CUDAToolkit_NVCC_EXECUTABLE)
    set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE})
  endif()
  enable_language(CUDA)
endif()
