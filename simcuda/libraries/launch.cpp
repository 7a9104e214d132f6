#include <cuda.h>
#include <dlfcn.h>

#include "called.hpp"

void simcuda_launch(void* stream) {
  using launch_function = CUresult(CUDAAPI*)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                             unsigned, CUstream, void**, void**);
  static const launch_function launch = [] {
    void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW);
    return driver == nullptr ? nullptr : reinterpret_cast<launch_function>(::dlsym(driver, "cuLaunchKernel"));
  }();
  if (launch == nullptr) return;
  static_cast<void>(launch(nullptr, 1, 1, 1, 1, 1, 1, 0, static_cast<CUstream>(stream), nullptr, nullptr));
}

int simcuda_computed_with(const char* name, void* handle) {
  if (handle != nullptr) simcuda_launch(simcuda_stream_of(handle));
  return simcuda_computed(name);
}
