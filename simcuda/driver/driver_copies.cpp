// The double's copies and fills. The referee sees the bytes. If host memory backs them, they are moved immediately,
// captured ones when their graph is launched.
#include <cstring>

#include "keep_report.hpp"
#include "values.hpp"
#include "world.hpp"

using namespace gpumem::simcuda;  // NOLINT: the driver's functions are global

namespace {

constexpr std::uint64_t copy_ns = 10'000;  // time that a copy or a fill occupies its stream

std::uint64_t number_of(const void* p) { return static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(p)); }
void* pointer(CUdeviceptr at) { return reinterpret_cast<void*>(static_cast<std::uintptr_t>(at)); }
bool on_a_device(CUdeviceptr at) { return holder_of(at) != nullptr; }

/// Reports work on the bytes to the referee. Bytes of another device are not reported: its referee does not know the
/// stream.
CUresult touch(CUstream handle, std::uint64_t at, std::uint64_t bytes) {
  CUstream_st* s = nullptr;
  gpu* on = nullptr;
  if (const CUresult e = find_stream(handle, &s, &on); e != CUDA_SUCCESS) return e;
  if (const CUresult e = ready_for_work(*s); e != CUDA_SUCCESS) return e;
  if (const CUresult e = reach_in_graphs(*s, at); e != CUDA_SUCCESS) return e;
  if (const CUresult e = reach(s->context, at, false); e != CUDA_SUCCESS) return e;
  const gpu* const holder = holder_of(at);
  if (holder != nullptr && holder != on) return CUDA_SUCCESS;
  on->sim->enqueue_use(s->sim, copy_ns, at, bytes);
  if (holder != nullptr) note_use();
  if (s->graph != nullptr) s->graph->uses.push_back({at, bytes, copy_ns});
  return CUDA_SUCCESS;
}

template <typename Move>
CUresult move(CUstream handle, Move&& bytes) {
  if (!the_world().config.host_memory) return CUDA_SUCCESS;
  CUstream_st* s = nullptr;
  gpu* on = nullptr;
  if (const CUresult e = find_stream(handle, &s, &on); e != CUDA_SUCCESS) return e;
  if (s->graph != nullptr) {
    s->graph->uses.push_back({0, 0, 0, std::forward<Move>(bytes)});
  } else {
    bytes();
  }
  return CUDA_SUCCESS;
}

CUresult copy(void* to, const void* from, std::size_t bytes, CUstream s, bool to_device, bool from_device) {
  if (to_device) {
    if (const CUresult e = touch(s, number_of(to), bytes); e != CUDA_SUCCESS) return e;
  }
  if (from_device) {
    if (const CUresult e = touch(s, number_of(from), bytes); e != CUDA_SUCCESS) return e;
  }
  if (from_device && !to_device) read_values(number_of(from), bytes);
  return move(s, [=] { copy_values(to, from, bytes, to_device, from_device); });
}

template <typename Unit>
CUresult fill(CUdeviceptr at, Unit value, std::size_t count, CUstream s) {
  if (const CUresult e = touch(s, at, count * sizeof(Unit)); e != CUDA_SUCCESS) return e;
  return move(s, [=] {
    fill_values(at, count * sizeof(Unit), value == 0, [=] {
      for (std::size_t i = 0; i < count; ++i) std::memcpy(static_cast<Unit*>(pointer(at)) + i, &value, sizeof value);
    });
  });
}

CUresult synchronise_stream(CUstream handle) {
  CUstream_st* s = nullptr;
  gpu* on = nullptr;
  if (const CUresult e = find_stream(handle, &s, &on); e != CUDA_SUCCESS) return e;
  const auto f = on->sim->record(s->sim);
  if (!f) return error_of(f.why());
  const gpumem::status done = on->sim->wait_host(*f);
  on->sim->drop(*f);
  return error_of(done);
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, std::size_t bytes, CUstream s) {
  SIMCUDA_ENTER("cuMemcpyHtoDAsync");
  return copy(pointer(to), from, bytes, s, true, false);
}
CUresult CUDAAPI cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, std::size_t bytes, CUstream s) {
  SIMCUDA_ENTER("cuMemcpyDtoHAsync");
  return copy(to, pointer(from), bytes, s, false, true);
}
CUresult CUDAAPI cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream s) {
  SIMCUDA_ENTER("cuMemcpyDtoDAsync");
  return copy(pointer(to), pointer(from), bytes, s, true, true);
}
CUresult CUDAAPI cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream s) {
  SIMCUDA_ENTER("cuMemcpyAsync");
  return copy(pointer(to), pointer(from), bytes, s, on_a_device(to), on_a_device(from));
}
CUresult CUDAAPI cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, std::size_t bytes) {
  SIMCUDA_ENTER("cuMemcpyHtoD");
  if (const CUresult e = copy(pointer(to), from, bytes, nullptr, true, false); e != CUDA_SUCCESS) return e;
  return synchronise_stream(nullptr);
}
CUresult CUDAAPI cuMemcpyDtoH_v2(void* to, CUdeviceptr from, std::size_t bytes) {
  SIMCUDA_ENTER("cuMemcpyDtoH");
  if (const CUresult e = copy(to, pointer(from), bytes, nullptr, false, true); e != CUDA_SUCCESS) return e;
  return synchronise_stream(nullptr);
}
CUresult CUDAAPI cuMemcpy(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
  SIMCUDA_ENTER("cuMemcpy");
  const CUresult e = copy(pointer(to), pointer(from), bytes, nullptr, on_a_device(to), on_a_device(from));
  return e != CUDA_SUCCESS ? e : synchronise_stream(nullptr);
}
CUresult CUDAAPI cuMemsetD8Async(CUdeviceptr at, unsigned char value, std::size_t count, CUstream s) {
  SIMCUDA_ENTER("cuMemsetD8Async");
  return fill(at, value, count, s);
}
CUresult CUDAAPI cuMemsetD32Async(CUdeviceptr at, unsigned int value, std::size_t count, CUstream s) {
  SIMCUDA_ENTER("cuMemsetD32Async");
  return fill(at, value, count, s);
}
CUresult CUDAAPI cuMemsetD8_v2(CUdeviceptr at, unsigned char value, std::size_t count) {
  SIMCUDA_ENTER("cuMemsetD8");
  return fill(at, value, count, nullptr);
}

}  // extern "C"
