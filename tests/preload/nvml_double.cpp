// A libnvidia-ml.so.1 with one device, the double's first: what it says of memory is what the double has in use.
#include <cuda.h>
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

template <typename Function>
Function* of_double(const char* name) {
  void* const library = dlopen(std::getenv("GPUMEM_CUDA_DRIVER"), RTLD_NOW | RTLD_LOCAL);
  return reinterpret_cast<Function*>(dlsym(library, name));
}
constexpr unsigned long long total_bytes = 1ULL << 30;
unsigned long long used() { return of_double<std::uint64_t()>("simcuda_used_bytes")(); }

}  // namespace

EXPORTED int nvmlDeviceGetUUID(void*, char* text, unsigned int length) {
  CUuuid id{};
  of_double<CUresult(CUuuid*, CUdevice)>("cuDeviceGetUuid_v2")(&id, 0);
  const auto byte = [&id](int i) { return static_cast<unsigned>(static_cast<unsigned char>(id.bytes[i])); };
  char* at = text + std::snprintf(text, length, "GPU-");
  for (int i = 0; i < 16; ++i)
    at += std::snprintf(at, 4, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", byte(i));
  return 0;
}
EXPORTED int nvmlDeviceGetMemoryInfo(void*, unsigned long long* total_free_used) {
  total_free_used[0] = total_bytes;
  total_free_used[1] = total_bytes - used();
  total_free_used[2] = used();
  return 0;
}
EXPORTED int nvmlDeviceGetMemoryInfo_v2(void*, void* version_2) {
  auto* const figures = static_cast<unsigned long long*>(version_2);  // after the version: total, reserved, free, used
  figures[1] = total_bytes;
  figures[2] = 0;
  figures[3] = total_bytes - used();
  figures[4] = used();
  return 0;
}
