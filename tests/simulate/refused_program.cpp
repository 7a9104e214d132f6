// Programs of public reports that run out of memory, over the CUDA runtime. The argument is the program:
//   scratch                  a scratch block goes, outputs are made while it is free, and it comes again (httomo#667)
//   large_among_small        a large block each step, small ones that stay are cut from its place (pytorch#35901)
//   two_then_one             two blocks go, and one of both sizes comes (DeepSpeed#1611)
//   replaced_layers          every layer is replaced by one that is 5 % larger (vllm#49151)
//   growing                  keeps two of three blocks, for ever
// A program that is refused aborts.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

constexpr std::size_t mib = std::size_t{1} << 20;

void* take(std::size_t bytes) {
  void* block = nullptr;
  if (cudaMalloc(&block, bytes) != cudaSuccess) {
    std::fprintf(stderr, "out of memory: %zu bytes\n", bytes);
    std::abort();
  }
  return block;
}

void give(void* block) {
  if (cudaFree(block) != cudaSuccess) std::abort();
}

void scratch() {
  give(take(4096 * mib));
  for (int i = 0; i < 30; ++i) take(100 * mib);
  give(take(4096 * mib));
}

void large_among_small() {
  for (int step = 0; step < 6; ++step) {
    give(take(11'643'387'904));
    for (int i = 0; i < 5; ++i) take(16'515'072);
  }
}

void two_then_one() {
  void* const halves[]{take(400 * mib), take(400 * mib)};
  for (void* const each : halves) give(each);
  for (int i = 0; i < 14; ++i) take(30 * mib);
  give(take(800 * mib));
}

void replaced_layers() {
  std::vector<void*> layers;
  for (int i = 0; i < 48; ++i) {
    give(take(190 * mib));
    take(3 * mib);
    layers.push_back(take(187 * mib));
  }
  for (void*& each : layers) {
    give(each);
    each = take(197 * mib);
  }
}

void growing() {
  std::uint64_t random = 1;
  for (int i = 0;; ++i) {
    random = random * 6364136223846793005U + 1442695040888963407U;
    void* const block = take(1000 * (1 + (random >> 33) % 50'000));
    if (i % 3 == 0) give(block);
  }
}

}  // namespace

int main(int count, char** words) {
  const std::string program = count > 1 ? words[1] : "";
  if (program == "scratch") return scratch(), 0;
  if (program == "large_among_small") return large_among_small(), 0;
  if (program == "two_then_one") return two_then_one(), 0;
  if (program == "replaced_layers") return replaced_layers(), 0;
  if (program == "growing") return growing(), 0;
  std::fprintf(stderr, "expected the name of a program\n");
  return 2;
}
