/// Takes all device memory that one interface of gpumem gives, as a program in that situation would:
///   taker linked | linked_sim | c | torch | cupy      through the library
///   taker careless                                   through the library, without asking whether it could be opened
///   taker driver                                      through the driver, for LD_PRELOAD and `gpumem run`
/// The last line on stdout is `took N`: bytes in use on card 0 of the driver's double (of the simulated card in
/// linked_sim). Status 2 if nothing could be opened.
#include <cuda.h>
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>

#include "gpumem/default_allocator.hpp"
#include "gpumem/gpumem.h"
#include "gpumem/sim_device.hpp"

extern "C" {
void* gpumem_torch_alloc(std::ptrdiff_t bytes, int device, void* stream);
void* gpumem_cupy_malloc(void* param, std::size_t bytes, int device);
}

namespace {

constexpr std::size_t piece = std::size_t{16} << 20;
constexpr int most_pieces = 4096;
constexpr int refused = 2;

int took(std::uint64_t bytes, int status = 0) {
  std::printf("took %llu\n", static_cast<unsigned long long>(bytes));
  return status;
}

std::uint64_t used_bytes() {
  void* const driver = dlopen(std::getenv("GPUMEM_CUDA_DRIVER"), RTLD_NOW | RTLD_LOCAL);
  auto* const ask = reinterpret_cast<std::uint64_t (*)()>(dlsym(driver, "simcuda_used_bytes"));
  return ask != nullptr ? ask() : 0;
}

int refuse(const char* why) {
  std::fprintf(stderr, "%s\n", why);
  return took(used_bytes(), refused);
}

void fill(gpumem::allocator& from) {
  for (int i = 0; i < most_pieces && from.try_allocate({.bytes = piece}); ++i) {
  }
}

int linked() {
  const auto memory = gpumem::default_allocator();
  if (!memory) return refuse(memory.why().message().c_str());
  fill(**memory);
  return took(used_bytes());
}

int careless() {
  gpumem::allocator& memory = **gpumem::default_allocator();
  return took(memory.devices().size());
}

int linked_sim() {
  gpumem::sim_device gpu{{.capacity_bytes = std::uint64_t{1} << 30}};
  gpumem::device* devices[]{&gpu};
  const auto memory = gpumem::open_allocator(devices);
  if (!memory) return refuse(memory.why().message().c_str());
  fill(**memory);
  return took(gpu.used_bytes());
}

int from_c() {
  gpumem_allocator* memory = nullptr;
  if (gpumem_default(&memory) != GPUMEM_OK) return refuse(gpumem_last_message());
  void* block = nullptr;
  for (int i = 0; i < most_pieces && gpumem_allocate(memory, piece, 0, nullptr, &block) == GPUMEM_OK; ++i) {
  }
  return took(used_bytes());
}

int torch() {
  int pieces = 0;
  try {
    while (pieces < most_pieces && gpumem_torch_alloc(piece, 0, nullptr) != nullptr) ++pieces;
  } catch (const std::exception& failed) {
    if (pieces == 0) return refuse(failed.what());
  }
  return took(used_bytes());
}

int cupy() {
  int pieces = 0;
  while (pieces < most_pieces && gpumem_cupy_malloc(nullptr, piece, 0) != nullptr) ++pieces;
  for (int again = 0; pieces == 0 && again < 3; ++again) gpumem_cupy_malloc(nullptr, piece, 0);
  return took(used_bytes(), pieces == 0 ? refused : 0);
}

/// Every kind of call that gives memory, until none of them does.
int driver() {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  const auto call = [library](const char* name, auto* type) {
    return reinterpret_cast<decltype(type)>(dlsym(library, name));
  };
  using allocate = CUresult(CUdeviceptr*, std::size_t);
  using allocate_managed = CUresult(CUdeviceptr*, std::size_t, unsigned int);
  using allocate_async = CUresult(CUdeviceptr*, std::size_t, CUstream);
  using create = CUresult(CUmemGenericAllocationHandle*, std::size_t, const CUmemAllocationProp*, unsigned long long);
  using retain = CUresult(CUcontext*, CUdevice);
  using set_current = CUresult(CUcontext);
  using init = CUresult(unsigned int);
  CUcontext context = nullptr;
  if (library == nullptr || call("cuInit", static_cast<init*>(nullptr))(0) != CUDA_SUCCESS ||
      call("cuDevicePrimaryCtxRetain", static_cast<retain*>(nullptr))(&context, 0) != CUDA_SUCCESS ||
      call("cuCtxSetCurrent", static_cast<set_current*>(nullptr))(context) != CUDA_SUCCESS) {
    return took(used_bytes(), refused);
  }
  const std::uint64_t of_context = used_bytes();
  CUdeviceptr at = 0;
  CUmemGenericAllocationHandle pages = 0;
  CUmemAllocationProp what{};
  what.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  what.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
  bool more = true;
  for (int i = 0; i < most_pieces && more; ++i) {
    more = call("cuMemAllocManaged", static_cast<allocate_managed*>(nullptr))(&at, piece, CU_MEM_ATTACH_GLOBAL) ==
           CUDA_SUCCESS;
    more = call("cuMemCreate", static_cast<create*>(nullptr))(&pages, piece, &what, 0) == CUDA_SUCCESS || more;
    more = call("cuMemAlloc_v2", static_cast<allocate*>(nullptr))(&at, piece) == CUDA_SUCCESS || more;
    more = call("cuMemAllocAsync", static_cast<allocate_async*>(nullptr))(&at, piece, nullptr) == CUDA_SUCCESS || more;
  }
  const std::uint64_t bytes = used_bytes();
  return took(bytes == of_context ? 0 : bytes, bytes == of_context ? refused : 0);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string way = argc == 2 ? argv[1] : "";
  if (way == "linked") return linked();
  if (way == "linked_sim") return linked_sim();
  if (way == "careless") return careless();
  if (way == "c") return from_c();
  if (way == "torch") return torch();
  if (way == "cupy") return cupy();
  if (way == "driver") return driver();
  std::fputs("taker: expected linked, linked_sim, careless, c, torch, cupy or driver\n", stderr);
  return 64;
}
