// The process's driver, found by GPUMEM_CUDA_DRIVER: the double, with two devices of 256 MiB and two pools on the
// first. All tests of a process share its one allocator.
#pragma once

#include <cstdlib>

namespace gpumem {

inline void use_two_gpus() {
  setenv("GPUMEM_CUDA_DRIVER", GPUMEM_TEST_DRIVER, 1);
  setenv("SIMCUDA_DEVICES", "2", 1);
  setenv("SIMCUDA_BYTES", "256MiB", 1);
  setenv("SIMCUDA_HOST_MEMORY", "0", 1);
  setenv("GPUMEM_POOLS_0", "64MiB,64MiB", 1);
  setenv("GPUMEM_POLICY", "caching", 1);
}

}  // namespace gpumem
