/// Takes all device memory that it is given through an adapter of gpumem's, as a program of that framework would:
///   adapters_taker cuda_mr | thrust | pmr | rmm        rmm where it is built with RMM
/// The last line on stdout is `took N`, as taker.cpp has it; for pmr the pinned memory that the pool reserved. Status 2
/// where nothing could be opened.
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>

#include "gpumem/adapters/cuda_mr.hpp"
#include "gpumem/adapters/pmr.hpp"
#include "gpumem/adapters/thrust.hpp"
#include "gpumem/cuda_device.hpp"
#include "gpumem/default_allocator.hpp"
#ifdef GPUMEM_TEST_RMM
#include "gpumem/adapters/rmm.hpp"
#endif

namespace {

constexpr std::size_t piece = std::size_t{16} << 20;
constexpr int most_pieces = 4096;
constexpr int refused = 2;
constexpr std::uint64_t pinned_bytes = std::uint64_t{1} << 30;  // as large as the card

int took(std::uint64_t bytes, int status = 0) {
  std::printf("took %llu\n", static_cast<unsigned long long>(bytes));
  return status;
}

std::uint64_t used_bytes() {
  void* const driver = dlopen(std::getenv("GPUMEM_CUDA_DRIVER"), RTLD_NOW | RTLD_LOCAL);
  auto* const ask = reinterpret_cast<std::uint64_t (*)()>(dlsym(driver, "simcuda_used_bytes"));
  return ask != nullptr ? ask() : 0;
}

int refuse(const gpumem::status& why) {
  std::fprintf(stderr, "%s\n", why.message().c_str());
  return took(used_bytes(), refused);
}

/// Allocates until `allocate` throws an out-of-memory exception.
template <typename Allocate>
void fill(Allocate allocate) {
  try {
    for (int i = 0; i < most_pieces; ++i) allocate();
  } catch (const std::bad_alloc&) {
  }
}

/// The host's staging memory, with the settings of the environment.
int pmr() {
  gpumem::settings with;
  if (const gpumem::status good = with.apply(gpumem::process_environment()); !good) return refuse(good);
  const auto gpu = gpumem::open_cuda_device({.ordinal = 0, .driver = nullptr});
  if (!gpu) return refuse(gpu.why());
  const auto pinned = gpumem::pinned_resource::open(**gpu, pinned_bytes, with);
  if (!pinned) return refuse(pinned.why());
  fill([&] { return (*pinned)->allocate(piece); });
  return took((*pinned)->pool().stats(0)->reserved_bytes);
}

int on_the_card(const std::string& adapter) {
  const auto memory = gpumem::default_allocator();
  if (!memory) return refuse(memory.why());
  if (adapter == "cuda_mr") {
    gpumem::cuda_resource from{**memory};
    fill([&] { return from.allocate_async(piece, cuda::stream_ref{cudaStream_t{}}); });
  } else if (adapter == "thrust") {
    gpumem::thrust_resource from{**memory};
    gpumem::thrust_allocator<char> bytes{&from};
    fill([&] { return bytes.allocate(piece); });
  } else {
#ifdef GPUMEM_TEST_RMM
    gpumem::rmm_resource from{**memory};
    fill([&] { return from.allocate(piece, rmm::cuda_stream_view{}); });
#endif
  }
  return took(used_bytes());
}

}  // namespace

int main(int argc, char** argv) {
  const std::string adapter = argc == 2 ? argv[1] : "";
  if (adapter == "pmr") return pmr();
  if (adapter == "cuda_mr" || adapter == "thrust") return on_the_card(adapter);
#ifdef GPUMEM_TEST_RMM
  if (adapter == "rmm") return on_the_card(adapter);
#endif
  std::fputs("adapters_taker: expected cuda_mr, thrust, pmr, or rmm where it is built with RMM\n", stderr);
  return 64;
}
