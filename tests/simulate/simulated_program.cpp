// A program over the CUDA runtime, for `gpumem simulate`: each argument is an action.
//   take=MIB  free  until_full=MIB  card=N  read  attributes  memory  make=FILE  await=FILE  library=FILE:FUNCTION kill
//   exit=STATUS  dead_stream
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

std::vector<void*> blocks;

int give_up(const char* what, cudaError_t e) {
  std::printf("%s: %s\n", what, cudaGetErrorString(e));
  return 9;
}

int take(std::size_t mib) {
  void* p = nullptr;
  if (const cudaError_t e = cudaMalloc(&p, mib << 20); e != cudaSuccess) return give_up("cudaMalloc", e);
  blocks.push_back(p);
  return 0;
}

int free_all() {
  for (void* const p : blocks) {
    if (const cudaError_t e = cudaFree(p); e != cudaSuccess) return give_up("cudaFree", e);
  }
  blocks.clear();
  return 0;
}

int read_back() {
  int there = 42;
  int here = 0;
  void* p = nullptr;
  if (const cudaError_t e = cudaMalloc(&p, sizeof there); e != cudaSuccess) return give_up("cudaMalloc", e);
  static_cast<void>(cudaMemcpy(p, &there, sizeof there, cudaMemcpyHostToDevice));
  static_cast<void>(cudaMemcpy(&here, p, sizeof here, cudaMemcpyDeviceToHost));
  std::printf("read %d\n", here);
  return cudaFree(p) == cudaSuccess ? 0 : 9;
}

int show_attributes() {
  cudaDeviceProp p;
  if (const cudaError_t e = cudaGetDeviceProperties(&p, 0); e != cudaSuccess) return give_up("properties", e);
  std::printf("%s|%zu|%d.%d|%d|%d|%zu|%d\n", p.name, p.totalGlobalMem >> 20, p.major, p.minor, p.multiProcessorCount,
              p.maxThreadsPerMultiProcessor, p.sharedMemPerBlockOptin, p.l2CacheSize >> 10);
  return 0;
}

int show_memory() {
  std::size_t free = 0;
  std::size_t total = 0;
  if (const cudaError_t e = cudaMemGetInfo(&free, &total); e != cudaSuccess) return give_up("cudaMemGetInfo", e);
  std::printf("%zu of %zu MiB are free\n", free >> 20, total >> 20);
  return 0;
}

int use_dead_stream() {
  cudaStream_t s = nullptr;
  if (const cudaError_t e = cudaStreamCreate(&s); e != cudaSuccess) return give_up("cudaStreamCreate", e);
  static_cast<void>(cudaStreamDestroy(s));
  static_cast<void>(cudaStreamQuery(s));
  return 0;
}

int make_file(const std::string& name) {
  std::FILE* const file = std::fopen(name.c_str(), "w");
  return file != nullptr && std::fclose(file) == 0 ? 0 : 9;
}

int await_file(const std::string& name) {
  for (int i = 0; i < 3000; ++i) {
    if (access(name.c_str(), F_OK) == 0) return 0;
    usleep(10'000);
  }
  return 9;
}

/// Calls a function without meaningful arguments and returns its result.
int call_library(const std::string& word) {
  const auto colon = word.find(':');
  void* const library = dlopen(word.substr(0, colon).c_str(), RTLD_NOW);
  if (library == nullptr) return std::printf("%s\n", dlerror()), 9;
  const auto function = reinterpret_cast<int (*)(void*, void*)>(dlsym(library, word.substr(colon + 1).c_str()));
  if (function == nullptr) return std::printf("%s\n", dlerror()), 9;
  void* handle = nullptr;
  std::printf("%s = %d\n", word.c_str(), function(&handle, nullptr));
  return 0;
}

int act(const std::string& word) {
  const auto equals = word.find('=');
  const std::string name = word.substr(0, equals);
  const std::string value = equals == std::string::npos ? "" : word.substr(equals + 1);
  if (name == "take") return take(std::strtoull(value.c_str(), nullptr, 10));
  if (name == "free") return free_all();
  if (name == "until_full") {
    while (take(std::strtoull(value.c_str(), nullptr, 10)) == 0) {
    }
    std::printf("%zu blocks\n", blocks.size());
    return 0;
  }
  if (name == "card") return cudaSetDevice(std::atoi(value.c_str())) == cudaSuccess ? 0 : 9;
  if (name == "read") return read_back();
  if (name == "attributes") return show_attributes();
  if (name == "dead_stream") return use_dead_stream();
  if (name == "memory") return show_memory();
  if (name == "make") return make_file(value);
  if (name == "await") return await_file(value);
  if (name == "library") return call_library(value);
  if (name == "kill") return raise(SIGKILL);
  if (name == "exit") std::exit(std::atoi(value.c_str()));
  return 8;
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (const int status = act(argv[i]); status != 0) return status;
    std::fflush(stdout);
  }
  return 0;
}
