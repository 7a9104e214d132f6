// A job: processes that each take all memory they can get, by the driver's interface, and keep it until all have.
//   job_program primary|own COUNT    in the primary context, or in one that cuCtxCreate makes
// Prints the MiB that all have together.
#include <cuda.h>
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace {

constexpr std::size_t piece = std::size_t{16} << 20;

template <typename... Arguments>
CUresult call(const char* name, Arguments... arguments) {
  static void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  const auto function = reinterpret_cast<CUresult (*)(Arguments...)>(driver != nullptr ? dlsym(driver, name) : nullptr);
  return function != nullptr ? function(arguments...) : CUDA_ERROR_NOT_FOUND;
}

/// The memory that this process can get; in its own context partly as managed memory, in turns. -1: no context.
int take_all(bool own) {
  CUcontext context = nullptr;
  if (call("cuInit", 0U) != CUDA_SUCCESS) return -1;
  if (own) {
    if (call("cuCtxCreate_v2", &context, 0U, CUdevice{0}) != CUDA_SUCCESS) return -1;
  } else if (call("cuDevicePrimaryCtxRetain", &context, CUdevice{0}) != CUDA_SUCCESS ||
             call("cuCtxSetCurrent", context) != CUDA_SUCCESS) {
    return -1;
  }
  int pieces = 0;
  CUdeviceptr at = 0;
  for (CUresult e = CUDA_SUCCESS; e == CUDA_SUCCESS; pieces += e == CUDA_SUCCESS ? 1 : 0) {
    e = own && pieces % 2 == 1 ? call("cuMemAllocManaged", &at, piece, unsigned{CU_MEM_ATTACH_GLOBAL})
                               : call("cuMemAlloc_v2", &at, piece);
  }
  return pieces;
}

}  // namespace

int main(int count, char** words) {
  if (count != 3) return 2;
  std::array<int, 2> results{};
  std::array<int, 2> end{};
  if (pipe(results.data()) != 0 || pipe(end.data()) != 0) return 3;
  const int processes = std::atoi(words[2]);
  for (int i = 0; i < processes; ++i) {
    if (fork() != 0) continue;
    close(end[1]);
    const int pieces = take_all(std::string_view{words[1]} == "own");
    char until_end = 0;
    if (write(results[1], &pieces, sizeof pieces) != sizeof pieces) _exit(3);
    _exit(read(end[0], &until_end, 1) == 0 ? 0 : 3);
  }
  int all = 0;
  for (int i = 0; i < processes; ++i) {
    int pieces = -1;
    if (read(results[0], &pieces, sizeof pieces) != sizeof pieces || pieces < 0) return 4;
    all += pieces;
  }
  close(end[1]);
  while (wait(nullptr) > 0) {
  }
  std::printf("took %zu MiB\n", static_cast<std::size_t>(all) * piece >> 20);
  return 0;
}
