// The variants that cuGetProcAddress returns to programs compiled with --default-stream per-thread: the same functions,
// with the null stream meaning the calling thread's own stream.
#include <cstring>

#include "driver_state.hpp"
#include "driver_table.hpp"

// The newest headers no longer declare it.
extern "C" CUresult CUDAAPI cuStreamGetCaptureInfo_v2(CUstream, CUstreamCaptureStatus*, cuuint64_t*, CUgraph*,
                                                      const CUgraphNode**, std::size_t*);

namespace gpumem::simcuda {
namespace {

class null_stream_of_thread {
 public:
  null_stream_of_thread() { this_thread().null_is_per_thread = true; }
  ~null_stream_of_thread() { this_thread().null_is_per_thread = previous_; }
  null_stream_of_thread& operator=(null_stream_of_thread&&) = delete;

 private:
  bool previous_ = this_thread().null_is_per_thread;
};

template <auto Function>
struct variant;
template <typename... Arguments, CUresult(CUDAAPI* Function)(Arguments...)>
struct variant<Function> {
  static CUresult CUDAAPI call(Arguments... arguments) {
    const null_stream_of_thread scope;
    return Function(arguments...);
  }
};

struct row {
  const char* symbol;
  void* function;
};
#define ROW(symbol) \
  row { #symbol, reinterpret_cast < void*>(&variant <symbol>::call) }

}  // namespace

void* per_thread_variant(const char* symbol) {
  static const row rows[] = {
      ROW(cuEventRecord),        ROW(cuGraphLaunch),
      ROW(cuLaunchHostFunc),     ROW(cuLaunchKernel),
      ROW(cuMemAllocAsync),      ROW(cuMemAllocFromPoolAsync),
      ROW(cuMemFreeAsync),       ROW(cuMemcpy),
      ROW(cuMemcpyAsync),        ROW(cuMemcpyDtoDAsync_v2),
      ROW(cuMemcpyDtoHAsync_v2), ROW(cuMemcpyDtoH_v2),
      ROW(cuMemcpyHtoDAsync_v2), ROW(cuMemcpyHtoD_v2),
      ROW(cuMemsetD32Async),     ROW(cuMemsetD8Async),
      ROW(cuMemsetD8_v2),        ROW(cuStreamBeginCapture_v2),
      ROW(cuStreamEndCapture),   ROW(cuStreamGetCaptureInfo_v2),
      ROW(cuStreamGetCtx),       ROW(cuStreamGetFlags),
      ROW(cuStreamGetId),        ROW(cuStreamGetPriority),
      ROW(cuStreamIsCapturing),  ROW(cuStreamQuery),
      ROW(cuStreamSynchronize),  ROW(cuStreamWaitEvent),
  };
  for (const row& r : rows) {
    if (std::strcmp(r.symbol, symbol) == 0) return r.function;
  }
  return nullptr;
}

}  // namespace gpumem::simcuda
