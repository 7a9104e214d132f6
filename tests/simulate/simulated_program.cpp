// A program over the CUDA runtime, for `gpumem simulate`: each argument is an action.
//   take=MIB  managed=MIB  free  until_full=MIB  card=N  read  read_forever  attributes  memory  make=FILE  await=FILE
//   library=FILE:FUNCTION  kill  exit=STATUS  dead_stream  export=FILE  open=FILE  close  share_pages=MIB:FILE
//   import_pages=FILE  drop_pages  take_3d=MIB  take_array  fork_take=MIB  hold  launch  spin
//   exec=ACTION (this program anew, with that action and those behind it)
//   compute=SECONDS (with memory that comes and goes)
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
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

/// Managed memory, which gpumem does not serve.
int take_managed(std::size_t mib) {
  void* p = nullptr;
  const cudaError_t e = cudaMallocManaged(&p, mib << 20, cudaMemAttachGlobal);
  return e == cudaSuccess ? 0 : give_up("cudaMallocManaged", e);
}

/// Slices of 1 MiB, whose rows fill their pitch.
int take_3d(std::size_t mib) {
  cudaPitchedPtr p{};
  if (const cudaError_t e = cudaMalloc3D(&p, {1024, 1024, mib}); e != cudaSuccess) return give_up("cudaMalloc3D", e);
  blocks.push_back(p.ptr);
  std::printf("pitch %zu, %zu by %zu\n", p.pitch, p.xsize, p.ysize);
  return 0;
}

/// Goes on where it is refused.
int take_array() {
  cudaArray_t made = nullptr;
  const cudaChannelFormatDesc format{32, 0, 0, 0, cudaChannelFormatKindFloat};
  static_cast<void>(give_up("cudaMallocArray", cudaMallocArray(&made, &format, 1024, 1024, 0)));
  return 0;
}

/// In a child, and in a child of its own.
int fork_take(std::size_t mib, bool again = true) {
  const pid_t child = fork();
  if (child == 0) {
    int status = take(mib);
    std::fflush(stdout);
    if (again) status += fork_take(mib, false);
    _exit(status);
  }
  int status = 0;
  return child > 0 && waitpid(child, &status, 0) == child ? 0 : 9;
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

// --- between processes ---

bool write_to(const std::string& name, const void* from, std::size_t bytes) {
  const std::string part = name + ".part";
  std::FILE* const file = std::fopen(part.c_str(), "wb");
  const bool written = file != nullptr && std::fwrite(from, bytes, 1, file) == 1;
  return file != nullptr && std::fclose(file) == 0 && written && std::rename(part.c_str(), name.c_str()) == 0;
}

bool read_from(const std::string& name, void* into, std::size_t bytes) {
  if (await_file(name) != 0) return false;
  std::FILE* const file = std::fopen(name.c_str(), "rb");
  const bool got = file != nullptr && std::fread(into, bytes, 1, file) == 1;
  return file != nullptr && std::fclose(file) == 0 && got;
}

struct exported {
  cudaIpcMemHandle_t memory;
  cudaIpcEventHandle_t event;
};

int export_block(const std::string& name) {
  exported out;
  cudaEvent_t event = nullptr;
  if (const cudaError_t e = cudaIpcGetMemHandle(&out.memory, blocks.back()); e != cudaSuccess) return give_up("get", e);
  static_cast<void>(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventInterprocess));
  if (const cudaError_t e = cudaIpcGetEventHandle(&out.event, event); e != cudaSuccess) return give_up("get event", e);
  return write_to(name, &out, sizeof out) ? 0 : 9;
}

int open_block(const std::string& name) {
  exported in;
  void* at = nullptr;
  cudaEvent_t event = nullptr;
  if (!read_from(name, &in, sizeof in)) return 9;
  if (const cudaError_t e = cudaIpcOpenMemHandle(&at, in.memory, cudaIpcMemLazyEnablePeerAccess); e != cudaSuccess) {
    return give_up("open", e);
  }
  if (const cudaError_t e = cudaIpcOpenEventHandle(&event, in.event); e != cudaSuccess) return give_up("open event", e);
  cudaPointerAttributes what{};
  static_cast<void>(cudaPointerGetAttributes(&what, at));
  std::printf("opened on card %d, type %d, its event: %s; ", what.device, static_cast<int>(what.type),
              cudaGetErrorName(cudaEventQuery(event)));
  if (const cudaError_t e = cudaMemset(at, 1, 100); e != cudaSuccess) return give_up("fill", e);
  blocks.push_back(at);
  return show_memory();
}

template <typename Function>
Function* of_driver(const char* name) {
  return reinterpret_cast<Function*>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), name));
}

int give_up_driver(const char* what, CUresult e) { return std::printf("%s: error %d\n", what, static_cast<int>(e)), 9; }

CUmemGenericAllocationHandle pages = 0;

struct pages_of {
  int pid;
  int file;
};

/// Whoever can read the file opens what it names in /proc: the same as if the descriptor had come by a socket.
int share_pages(const std::string& value) {
  const auto colon = value.find(':');
  CUmemAllocationProp what{};
  what.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  what.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  what.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  const std::size_t bytes = std::strtoull(value.c_str(), nullptr, 10) << 20;
  static_cast<void>(cudaFree(nullptr));
  CUresult e = of_driver<decltype(cuMemCreate)>("cuMemCreate")(&pages, bytes, &what, 0);
  if (e != CUDA_SUCCESS) return give_up_driver("create", e);
  pages_of out{getpid(), -1};
  e = of_driver<decltype(cuMemExportToShareableHandle)>("cuMemExportToShareableHandle")(
      &out.file, pages, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  if (e != CUDA_SUCCESS) return give_up_driver("export", e);
  return write_to(value.substr(colon + 1), &out, sizeof out) ? 0 : 9;
}

int import_pages(const std::string& name) {
  pages_of in{};
  if (!read_from(name, &in, sizeof in)) return 9;
  static_cast<void>(cudaFree(nullptr));
  const std::string path = "/proc/" + std::to_string(in.pid) + "/fd/" + std::to_string(in.file);
  const int file = open(path.c_str(), O_RDONLY);
  const CUresult e = of_driver<decltype(cuMemImportFromShareableHandle)>("cuMemImportFromShareableHandle")(
      &pages, reinterpret_cast<void*>(static_cast<std::intptr_t>(file)), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  close(file);
  return e == CUDA_SUCCESS ? show_memory() : give_up_driver("import", e);
}

int drop_pages() {
  const CUresult e = of_driver<decltype(cuMemRelease)>("cuMemRelease")(pages);
  return e == CUDA_SUCCESS ? 0 : give_up_driver("release", e);
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

/// Runs until a signal ends it.
int hold() {
  for (;;) pause();
}

int launch() {
  static_cast<void>(cudaFree(nullptr));
  const CUresult e =
      of_driver<decltype(cuLaunchKernel)>("cuLaunchKernel")(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
  return e == CUDA_SUCCESS ? 0 : give_up_driver("launch", e);
}

/// Waits in a loop for a value that a kernel would write.
int spin() {
  static volatile int written = 0;
  while (written == 0) {
  }
  return 0;
}

/// Keeps the processor busy for a while, as a program that works on the host.
int compute(int seconds) {
  const std::time_t end = std::time(nullptr) + seconds;
  std::size_t sum = 0;
  while (std::time(nullptr) < end) {
    std::vector<char> block(std::size_t{64} << 20, 'x');  // larger than what malloc keeps: new pages each time
    sum += static_cast<std::size_t>(block[block.size() / 2]);
  }
  return sum == 0 ? 9 : 0;
}

int act(const std::string& word) {
  const auto equals = word.find('=');
  const std::string name = word.substr(0, equals);
  const std::string value = equals == std::string::npos ? "" : word.substr(equals + 1);
  if (name == "take") return take(std::strtoull(value.c_str(), nullptr, 10));
  if (name == "managed") return take_managed(std::strtoull(value.c_str(), nullptr, 10));
  if (name == "free") return free_all();
  if (name == "take_3d") return take_3d(std::strtoull(value.c_str(), nullptr, 10));
  if (name == "take_array") return take_array();
  if (name == "fork_take") return fork_take(std::strtoull(value.c_str(), nullptr, 10));
  if (name == "until_full") {
    while (take(std::strtoull(value.c_str(), nullptr, 10)) == 0) {
    }
    std::printf("%zu blocks\n", blocks.size());
    return 0;
  }
  if (name == "card") return cudaSetDevice(std::atoi(value.c_str())) == cudaSuccess ? 0 : 9;
  if (name == "read") return read_back();
  while (name == "read_forever") {
    if (read_back() != 0) return 9;
  }
  if (name == "attributes") return show_attributes();
  if (name == "dead_stream") return use_dead_stream();
  if (name == "memory") return show_memory();
  if (name == "make") return make_file(value);
  if (name == "await") return await_file(value);
  if (name == "export") return export_block(value);
  if (name == "open") return open_block(value);
  if (name == "close") return cudaIpcCloseMemHandle(blocks.back()) == cudaSuccess ? 0 : 9;
  if (name == "share_pages") return share_pages(value);
  if (name == "import_pages") return import_pages(value);
  if (name == "drop_pages") return drop_pages();
  if (name == "library") return call_library(value);
  if (name == "hold") return hold();
  if (name == "launch") return launch();
  if (name == "spin") return spin();
  if (name == "compute") return compute(std::atoi(value.c_str()));
  if (name == "kill") return raise(SIGKILL);
  if (name == "exit") std::exit(std::atoi(value.c_str()));
  return 8;
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], "exec=", 5) == 0) {
      argv[i] += 5;
      argv[i - 1] = argv[0];
      execv("/proc/self/exe", argv + i - 1);
    }
    if (const int status = act(argv[i]); status != 0) return status;
    std::fflush(stdout);
  }
  return 0;
}
