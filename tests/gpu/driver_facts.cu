// Tests what a driver does where its documentation is silent; prints one line of JSON a question, to compare with
// gpumem's assumptions.
//
// The driver is found at run time and the kernels are this program's own, so it runs wherever a driver is. Over the
// double of the driver, whose kernels do not run, it only shows that the questions can be asked: every line says
// `simulated`. Without a driver or a GPU it says so and exits with 77 (skipped); with 1 if a question could not be
// asked.
#include <cuda.h>
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace {

using steady = std::chrono::steady_clock;

__global__ void spin_kernel(long long clocks) {
  const long long begin = clock64();
  while (clock64() - begin < clocks) {
  }
}

void* driver_library() {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  return library;
}
template <typename Function>
Function* exported(const char* name) {
  return reinterpret_cast<Function*>(dlsym(driver_library(), name));
}

const bool simulated = driver_library() != nullptr && exported<void>("simcuda_use") != nullptr;
int failures = 0;

void answer(const std::string& question, const std::string& value) {
  std::printf("{\"question\":\"%s\",\"answer\":%s,\"simulated\":%s}\n", question.c_str(), value.c_str(),
              simulated ? "true" : "false");
}
void answer(const std::string& question, double value) {
  char text[64];
  std::snprintf(text, sizeof text, "%.9g", value);
  answer(question, std::string{text});
}
void answer(const std::string& question, bool value) { answer(question, std::string{value ? "true" : "false"}); }
void unasked(const std::string& question, const std::string& why) { answer(question, "\"not asked: " + why + "\""); }

/// Reports the failed call once, and continues with the next question.
#define OK(call)                                                            \
  do {                                                                      \
    if (const int failed_with = static_cast<int>(call); failed_with != 0) { \
      std::fprintf(stderr, "%s failed: %d\n", #call, failed_with);          \
      ++failures;                                                           \
      return;                                                               \
    }                                                                       \
  } while (false)

double ns_since(steady::time_point begin) {
  return std::chrono::duration<double, std::nano>(steady::now() - begin).count();
}
/// The median of `times` calls, in nanoseconds.
double median_ns(int times, const std::function<void()>& call) {
  std::vector<double> all;
  for (int i = 0; i < times; ++i) {
    const auto begin = steady::now();
    call();
    all.push_back(ns_since(begin));
  }
  std::nth_element(all.begin(), all.begin() + times / 2, all.end());
  return all[static_cast<std::size_t>(times) / 2];
}

long long clocks_of_ms(double ms) {
  static const int khz = [] {
    int value = 0;
    return cudaDeviceGetAttribute(&value, cudaDevAttrClockRate, 0) == cudaSuccess && value > 0 ? value : 1'500'000;
  }();
  return static_cast<long long>(ms * khz);
}
void spin(double ms, cudaStream_t s) { spin_kernel<<<1, 1, 0, s>>>(clocks_of_ms(ms)); }

cudaStream_t new_stream() {
  cudaStream_t s = nullptr;
  if (cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) != cudaSuccess) std::abort();
  return s;
}

using record_context_call = CUresult(CUcontext, CUevent);

CUcontext current() {
  CUcontext here = nullptr;
  exported<CUresult(CUcontext*)>("cuCtxGetCurrent")(&here);
  return here;
}
CUevent new_event() {
  CUevent e = nullptr;
  exported<CUresult(CUevent*, unsigned)>("cuEventCreate")(&e, CU_EVENT_DISABLE_TIMING);
  return e;
}
bool done(CUevent e) { return exported<CUresult(CUevent)>("cuEventQuery")(e) == CUDA_SUCCESS; }

// --- events on a context ----------------------------------------------------------------------------------------------

void events_on_a_context() {
  auto* const record = exported<record_context_call>("cuCtxRecordEvent");
  if (record == nullptr) return unasked("ns of cuCtxRecordEvent", "the driver has no cuCtxRecordEvent");
  CUevent e = new_event();
  std::vector<cudaStream_t> streams;
  for (const std::size_t count : {1U, 32U, 512U}) {
    while (streams.size() < count) streams.push_back(new_stream());
    for (cudaStream_t s : streams) spin(0.01, s);
    OK(cudaDeviceSynchronize());
    answer("ns of cuCtxRecordEvent with " + std::to_string(count) + " idle streams",
           median_ns(101, [&] { record(current(), e); }));
    for (cudaStream_t s : streams) spin(2, s);
    answer("ns of cuCtxRecordEvent with " + std::to_string(count) + " busy streams",
           median_ns(101, [&] { record(current(), e); }));
    OK(cudaDeviceSynchronize());
  }

  spin(100, cudaStreamPerThread);
  OK(record(current(), e));
  answer("an event on the context is behind work on a per-thread default stream", !done(e));
  OK(cudaDeviceSynchronize());

  cudaGraph_t graph = nullptr;
  cudaGraphExec_t run = nullptr;
  OK(cudaStreamBeginCapture(streams[0], cudaStreamCaptureModeThreadLocal));
  spin(100, streams[0]);
  OK(cudaStreamEndCapture(streams[0], &graph));
  OK(cudaGraphInstantiate(&run, graph, 0));
  OK(cudaGraphLaunch(run, streams[1]));
  OK(record(current(), e));
  answer("an event on the context is behind the launch of a graph", !done(e));
  OK(cudaDeviceSynchronize());
  OK(cudaGraphExecDestroy(run));
  OK(cudaGraphDestroy(graph));

  // A queue is full after some thousand entries, and the next launch blocks. 3,000 kernels of 50 us take 150 ms.
  cudaStream_t deep = streams[0];
  cudaStream_t other = streams[1];
  const auto fill = [&] {
    for (int i = 0; i < 3000; ++i) spin(0.05, deep);
  };
  fill();
  auto begin = steady::now();
  OK(record(current(), e));
  answer("ns of cuCtxRecordEvent while one stream's queue is full", ns_since(begin));
  fill();
  begin = steady::now();
  OK(exported<CUresult(CUevent, CUstream)>("cuEventRecord")(e, deep));
  answer("ns of cuEventRecord on a stream whose queue is full", ns_since(begin));
  fill();
  begin = steady::now();
  OK(exported<CUresult(CUevent, CUstream)>("cuEventRecord")(e, other));
  answer("ns of cuEventRecord on another stream meanwhile", ns_since(begin));
  begin = steady::now();
  OK(exported<CUresult(CUstream, CUevent, unsigned)>("cuStreamWaitEvent")(other, e, 0));
  answer("ns of cuStreamWaitEvent on another stream meanwhile", ns_since(begin));
  OK(cudaDeviceSynchronize());
  for (cudaStream_t s : streams) OK(cudaStreamDestroy(s));
}

// --- fences on streams, give-backs and captures that nobody told of ----------------------------------------------------

void fences_and_give_backs() {
  auto* const record = exported<CUresult(CUevent, CUstream)>("cuEventRecord");
  auto* const record_context = exported<record_context_call>("cuCtxRecordEvent");
  CUevent e = new_event();
  cudaStream_t quick = new_stream();
  cudaStream_t slow = new_stream();
  OK(cudaDeviceSynchronize());
  answer("ns of cuEventRecord on an idle stream", median_ns(1001, [&] { record(e, quick); }));
  spin(100, slow);
  answer("ns of cuEventRecord on an idle stream beside a running kernel", median_ns(1001, [&] { record(e, quick); }));
  OK(cudaStreamSynchronize(quick));
  answer("an event on one stream is done while a kernel runs on another", done(e));
  if (record_context != nullptr) {
    OK(record_context(current(), e));
    answer("an event on the context waits for a kernel that runs on any stream", !done(e));
  }
  OK(cudaDeviceSynchronize());

  CUdeviceptr segment = 0;
  OK(exported<CUresult(CUdeviceptr*, std::size_t)>("cuMemAlloc_v2")(&segment, std::size_t{64} << 20));
  spin(100, slow);
  const auto begin = steady::now();
  OK(exported<CUresult(CUdeviceptr)>("cuMemFree_v2")(segment));
  answer("ns of cuMemFree of 64 MiB beside a kernel of 100 ms that does not use them", ns_since(begin));
  OK(cudaDeviceSynchronize());

  // The legacy stream's capture state while a stream captures that does not synchronise with it, and one that does.
  auto* const ask = exported<CUresult(CUstream, CUstreamCaptureStatus*)>("cuStreamIsCapturing");
  cudaStream_t blocking = nullptr;
  OK(cudaStreamCreate(&blocking));
  for (const bool synchronises : {false, true}) {
    cudaStream_t captured = synchronises ? blocking : quick;
    const std::string which = synchronises ? "a blocking stream captures" : "a non-blocking stream captures";
    CUstreamCaptureStatus state{};
    cudaGraph_t graph = nullptr;
    OK(cudaStreamBeginCapture(captured, cudaStreamCaptureModeRelaxed));
    answer("CUresult of cuStreamIsCapturing of the legacy stream while " + which,
           static_cast<double>(ask(CU_STREAM_LEGACY, &state)));
    answer("the capture survives that question while " + which, cudaStreamEndCapture(captured, &graph) == cudaSuccess);
    if (graph != nullptr) OK(cudaGraphDestroy(graph));
  }
  for (cudaStream_t s : {quick, slow, blocking}) OK(cudaStreamDestroy(s));
}

// --- what may be asked about a stream that captures ---

void questions_of_a_capturing_stream() {
  using ask = std::function<CUresult(CUstream)>;
  const std::vector<std::pair<std::string, ask>> questions{
      {"cuStreamGetId",
       [](CUstream s) {
         unsigned long long id = 0;
         return exported<CUresult(CUstream, unsigned long long*)>("cuStreamGetId")(s, &id);
       }},
      {"cuStreamGetCtx",
       [](CUstream s) {
         CUcontext context = nullptr;
         return exported<CUresult(CUstream, CUcontext*)>("cuStreamGetCtx")(s, &context);
       }},
      {"cuStreamGetFlags",
       [](CUstream s) {
         unsigned int flags = 0;
         return exported<CUresult(CUstream, unsigned int*)>("cuStreamGetFlags")(s, &flags);
       }},
      {"cuStreamGetPriority",
       [](CUstream s) {
         int priority = 0;
         return exported<CUresult(CUstream, int*)>("cuStreamGetPriority")(s, &priority);
       }},
      {"cuStreamIsCapturing",
       [](CUstream s) {
         CUstreamCaptureStatus now{};
         return exported<CUresult(CUstream, CUstreamCaptureStatus*)>("cuStreamIsCapturing")(s, &now);
       }},
      {"cuStreamQuery", [](CUstream s) { return exported<CUresult(CUstream)>("cuStreamQuery")(s); }},
  };
  const std::vector<std::pair<std::string, cudaStreamCaptureMode>> modes{{"global", cudaStreamCaptureModeGlobal},
                                                                         {"relaxed", cudaStreamCaptureModeRelaxed}};
  for (const auto& [function, question] : questions) {
    for (const auto& [mode, capture_mode] : modes) {
      cudaStream_t captured = new_stream();
      cudaGraph_t graph = nullptr;
      OK(cudaStreamBeginCapture(captured, capture_mode));
      answer("CUresult of " + function + " of a stream that captures in mode " + mode,
             static_cast<double>(question(captured)));
      answer("the capture survives " + function + " in mode " + mode,
             cudaStreamEndCapture(captured, &graph) == cudaSuccess);
      static_cast<void>(cudaGetLastError());
      if (graph != nullptr) OK(cudaGraphDestroy(graph));
      OK(cudaStreamDestroy(captured));
    }
  }
}

// --- when an event on idle streams is done ---

void questions_of_latency() {
  cudaStream_t s = new_stream();
  CUevent e = new_event();
  const auto until_done = [e] {
    while (!done(e)) {
    }
  };
  OK(cudaDeviceSynchronize());
  answer("ns until an event on an idle stream is done", median_ns(101, [&] {
           exported<CUresult(CUevent, CUstream)>("cuEventRecord")(e, s);
           until_done();
         }));
  answer("ns until an event on an idle context is done", median_ns(101, [&] {
           exported<record_context_call>("cuCtxRecordEvent")(current(), e);
           until_done();
         }));
  OK(exported<CUresult(CUevent)>("cuEventDestroy_v2")(e));
  OK(cudaStreamDestroy(s));
}

// --- what an allocation on a stream asks ------------------------------------------------------------------------------

void questions_of_a_hit() {
  auto* const id = exported<CUresult(CUstream, unsigned long long*)>("cuStreamGetId");
  auto* const captures = exported<CUresult(CUstream, CUstreamCaptureStatus*)>("cuStreamIsCapturing");
  const auto ns_a_call = [](const std::function<void()>& call) {
    constexpr int calls = 20'000;
    const auto begin = steady::now();
    for (int i = 0; i < calls; ++i) call();
    return ns_since(begin) / calls;
  };
  cudaStream_t s = new_stream();
  const auto ask_id = [&, s] {
    unsigned long long number = 0;
    id(s, &number);
  };
  const auto ask_capture = [&, s] {
    CUstreamCaptureStatus now{};
    captures(s, &now);
  };
  answer("ns of cuStreamGetId", ns_a_call(ask_id));
  answer("ns of cuStreamIsCapturing", ns_a_call(ask_capture));

  CUcontext here = current();
  std::atomic<bool> go{false};
  std::vector<double> each(16);
  std::vector<std::thread> threads;
  for (double& mine : each) {
    threads.emplace_back([&] {
      exported<CUresult(CUcontext)>("cuCtxSetCurrent")(here);
      while (!go) std::this_thread::yield();
      mine = ns_a_call(ask_capture);
    });
  }
  go = true;
  for (std::thread& t : threads) t.join();
  answer("ns of cuStreamIsCapturing, 16 threads at once, the slowest", *std::max_element(each.begin(), each.end()));

  // The longest answer while another thread compiles and loads code.
  std::string ptx = ".version 7.0\n.target sm_52\n.address_size 64\n";
  for (int i = 0; i < 400; ++i) ptx += ".visible .entry k" + std::to_string(i) + "() { ret; }\n";
  std::atomic<bool> loaded{false};
  CUresult outcome = CUDA_SUCCESS;
  double load_ns = 0;
  std::thread loads{[&] {
    exported<CUresult(CUcontext)>("cuCtxSetCurrent")(here);
    CUmodule module = nullptr;
    const auto begin = steady::now();
    outcome = exported<CUresult(CUmodule*, const void*)>("cuModuleLoadData")(&module, ptx.c_str());
    load_ns = ns_since(begin);
    loaded = true;
  }};
  double longest = 0;
  while (!loaded) {
    const auto begin = steady::now();
    ask_capture();
    longest = std::max(longest, ns_since(begin));
  }
  loads.join();
  if (outcome == CUDA_SUCCESS) {
    answer("ns of a module's load in another thread", load_ns);
    answer("ns of cuStreamIsCapturing meanwhile, the longest", longest);
  } else {
    unasked("ns of cuStreamIsCapturing during a module's load", "cuModuleLoadData failed with " + std::to_string(outcome));
  }
  OK(cudaStreamDestroy(s));
}

// --- pages and large allocations --------------------------------------------------------------------------------------

void pages() {
  constexpr std::size_t page = std::size_t{2} << 20;
  CUmemAllocationProp what{};
  what.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  what.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemAccessDesc access{};
  access.location = what.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  auto* const reserve =
      exported<CUresult(CUdeviceptr*, std::size_t, std::size_t, CUdeviceptr, unsigned long long)>("cuMemAddressReserve");
  auto* const create = exported<CUresult(CUmemGenericAllocationHandle*, std::size_t, const CUmemAllocationProp*,
                                         unsigned long long)>("cuMemCreate");
  auto* const map = exported<CUresult(CUdeviceptr, std::size_t, std::size_t, CUmemGenericAllocationHandle,
                                      unsigned long long)>("cuMemMap");
  auto* const set = exported<CUresult(CUdeviceptr, std::size_t, const CUmemAccessDesc*, std::size_t)>("cuMemSetAccess");
  auto* const unmap = exported<CUresult(CUdeviceptr, std::size_t)>("cuMemUnmap");
  auto* const release = exported<CUresult(CUmemGenericAllocationHandle)>("cuMemRelease");
  auto* const free_range = exported<CUresult(CUdeviceptr, std::size_t)>("cuMemAddressFree");
  CUdeviceptr at = 0;
  constexpr int steps = 32;
  OK(reserve(&at, steps * page, 0, 0, 0));
  std::vector<CUmemGenericAllocationHandle> handles;
  std::vector<std::vector<double>> ns(5);
  const auto timed = [](std::vector<double>& into, const std::function<CUresult()>& call) {
    const auto begin = steady::now();
    const CUresult e = call();
    into.push_back(ns_since(begin));
    return e;
  };
  cudaStream_t busy = new_stream();
  for (int i = 0; i < steps; ++i) {
    CUmemGenericAllocationHandle h{};
    OK(timed(ns[0], [&] { return create(&h, page, &what, 0); }));
    handles.push_back(h);
    OK(timed(ns[1], [&] { return map(at + i * page, page, 0, h, 0); }));
    if (i == steps - 1) {
      spin(200, busy);
      OK(timed(ns[4], [&] { return set(at + i * page, page, &access, 1); }));
    } else {
      OK(timed(ns[2], [&] { return set(at + i * page, page, &access, 1); }));
    }
  }
  OK(cudaDeviceSynchronize());
  for (int i = 0; i < steps; ++i) OK(timed(ns[3], [&] { return unmap(at + i * page, page); }));
  for (CUmemGenericAllocationHandle h : handles) OK(release(h));
  OK(free_range(at, steps * page));
  const char* const calls[] = {"cuMemCreate of 2 MiB", "cuMemMap of 2 MiB", "cuMemSetAccess of 2 MiB", "cuMemUnmap of 2 MiB",
                               "cuMemSetAccess of 2 MiB while a kernel of 200 ms runs"};
  for (std::size_t i = 0; i < ns.size(); ++i) {
    std::nth_element(ns[i].begin(), ns[i].begin() + ns[i].size() / 2, ns[i].end());
    answer(std::string{"ns of "} + calls[i], ns[i][ns[i].size() / 2]);
  }
  OK(cudaStreamDestroy(busy));

  std::size_t free_bytes = 0;
  std::size_t total = 0;
  OK(cudaMemGetInfo(&free_bytes, &total));
  const std::size_t all = free_bytes / 100 * 97 / page * page;
  CUdeviceptr whole = 0;
  const auto begin = steady::now();
  const CUresult taken = exported<CUresult(CUdeviceptr*, std::size_t)>("cuMemAlloc_v2")(&whole, all);
  answer("97 % of the free memory can be had in one call", taken == CUDA_SUCCESS);
  answer("ns of that call", ns_since(begin));
  if (taken == CUDA_SUCCESS) OK(exported<CUresult(CUdeviceptr)>("cuMemFree_v2")(whole));
}

void what_nvml_says() {
  struct memory {
    unsigned long long total, free, used;
  };
  void* const nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (nvml == nullptr) return unasked("NVML's free memory less cuMemGetInfo's, bytes", "no libnvidia-ml.so.1");
  char bus[64] = "";
  OK(cudaDeviceGetPCIBusId(bus, sizeof bus, 0));
  void* device = nullptr;
  memory m{};
  auto* const init = reinterpret_cast<int (*)()>(dlsym(nvml, "nvmlInit_v2"));
  auto* const find = reinterpret_cast<int (*)(const char*, void**)>(dlsym(nvml, "nvmlDeviceGetHandleByPciBusId_v2"));
  auto* const ask = reinterpret_cast<int (*)(void*, memory*)>(dlsym(nvml, "nvmlDeviceGetMemoryInfo"));
  if (init == nullptr || find == nullptr || ask == nullptr || init() != 0 || find(bus, &device) != 0 ||
      ask(device, &m) != 0) {
    return unasked("NVML's free memory less cuMemGetInfo's, bytes", "NVML does not answer");
  }
  std::size_t free_bytes = 0;
  std::size_t total = 0;
  OK(cudaMemGetInfo(&free_bytes, &total));
  answer("NVML's free memory less cuMemGetInfo's, bytes", static_cast<double>(m.free) - static_cast<double>(free_bytes));
  answer("NVML's total memory less cuMemGetInfo's, bytes", static_cast<double>(m.total) - static_cast<double>(total));
}

// --- entry points and contexts ----------------------------------------------------------------------------------------

void entry_points() {
  auto* const ask = exported<CUresult(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*)>(
      "cuGetProcAddress_v2");
  for (const char* const name : {"cuMemAlloc", "cuMemFree", "cuMemCreate", "cuStreamSynchronize", "cuMemAllocAsync"}) {
    std::vector<void*> found;
    for (const int version : {12000, CUDA_VERSION}) {
      for (const cuuint64_t flags : {cuuint64_t{CU_GET_PROC_ADDRESS_DEFAULT}, cuuint64_t{CU_GET_PROC_ADDRESS_LEGACY_STREAM},
                                     cuuint64_t{CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM}}) {
        void* at = nullptr;
        CUdriverProcAddressQueryResult how{};
        if (ask(name, &at, version, flags, &how) == CUDA_SUCCESS) found.push_back(at);
      }
    }
    std::sort(found.begin(), found.end());
    const auto different = std::unique(found.begin(), found.end()) - found.begin();
    answer(std::string{"addresses that cuGetProcAddress gives for "} + name, static_cast<double>(different));
  }
}

// Last, because it destroys the context that all others use.
void a_reset() {
  auto* const id = exported<CUresult(CUcontext, unsigned long long*)>("cuCtxGetId");
  unsigned long long before = 0;
  unsigned long long after = 0;
  CUcontext former = current();
  OK(id(former, &before));
  OK(cudaDeviceReset());
  unsigned long long stale = 0;
  answer("result of cuCtxGetId of a context that was reset", static_cast<double>(id(former, &stale)));
  OK(cudaFree(nullptr));
  OK(id(current(), &after));
  answer("the context after a reset has another id", before != after);
  answer("the context after a reset has the former handle", former == current());
}

// A first use of a second device inside a capture on the first, as a framework may do it.
void a_context_inside_a_capture() {
  int count = 0;
  OK(cudaGetDeviceCount(&count));
  if (count < 2) return unasked("a first context on another device spoils a global capture", "one device");
  cudaStream_t s = new_stream();
  cudaGraph_t graph = nullptr;
  OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
  CUcontext other = nullptr;
  const CUresult made = exported<CUresult(CUcontext*, CUdevice)>("cuDevicePrimaryCtxRetain")(&other, 1);
  const cudaError_t ended = cudaStreamEndCapture(s, &graph);
  answer("a first context on another device is refused in a global capture", made != CUDA_SUCCESS);
  answer("a first context on another device spoils a global capture", ended != cudaSuccess);
  static_cast<void>(cudaGetLastError());
  if (graph != nullptr) OK(cudaGraphDestroy(graph));
  OK(cudaStreamDestroy(s));
}

}  // namespace

int main() {
  int count = 0;
  if (driver_library() == nullptr || cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    std::puts("skipped: no CUDA driver, or no GPU");
    return 77;
  }
  if (cudaFree(nullptr) != cudaSuccess) {
    std::puts("skipped: no context on GPU 0");
    return 77;
  }
  a_context_inside_a_capture();
  events_on_a_context();
  fences_and_give_backs();
  questions_of_a_capturing_stream();
  questions_of_latency();
  questions_of_a_hit();
  pages();
  what_nvml_says();
  entry_points();
  a_reset();
  return failures == 0 ? 0 : 1;
}
