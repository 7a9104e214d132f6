// The simulated driver: copies and fills, reported to the referee. With host memory they move bytes immediately, or
// when their graph is launched.
#include <cstring>

#include "driver_state.hpp"
#include "run_recorder.hpp"
#include "values.hpp"

using namespace gpumem::simcuda;  // NOLINT: the driver's functions are global

namespace {

constexpr std::uint64_t copy_ns = 10'000;  // time that a copy or a fill occupies its stream

bool on_a_device(CUdeviceptr address) { return holder_of(address) != nullptr; }

/// Reports work on the bytes to the referee. Bytes of another device are not reported: its referee does not know the
/// stream.
CUresult touch(CUstream handle, std::uint64_t address, std::uint64_t bytes) {
  SIMCUDA_FIND_STREAM(s, device, handle);
  if (const CUresult e = ready_for_work(*s); e != CUDA_SUCCESS) return e;
  if (const CUresult e = reach_in_graphs(*s, address); e != CUDA_SUCCESS) return e;
  if (const CUresult e = reach(s->context, address, false); e != CUDA_SUCCESS) return e;
  const gpu* const holder = holder_of(address);
  if (holder != nullptr && holder != device) return CUDA_SUCCESS;
  device->sim->enqueue_use(s->sim, copy_ns, address, bytes);
  if (holder != nullptr) note_use();
  if (s->graph != nullptr) s->graph->uses.push_back({address, bytes, copy_ns});
  return CUDA_SUCCESS;
}

template <typename Move>
CUresult move(CUstream handle, Move&& bytes) {
  if (!the_driver_state().config.host_memory) return CUDA_SUCCESS;
  SIMCUDA_FIND_STREAM(s, device, handle);
  if (s->graph != nullptr) {
    s->graph->uses.push_back({0, 0, 0, std::forward<Move>(bytes)});
  } else {
    bytes();
  }
  return CUDA_SUCCESS;
}

CUresult copy(void* dst, const void* src, std::size_t bytes, CUstream stream, bool to_device, bool from_device) {
  if (to_device) {
    if (const CUresult e = touch(stream, number_of(dst), bytes); e != CUDA_SUCCESS) return e;
  }
  if (from_device) {
    if (const CUresult e = touch(stream, number_of(src), bytes); e != CUDA_SUCCESS) return e;
  }
  if (from_device && !to_device) read_values(number_of(src), bytes);
  return move(stream, [=] { copy_values(dst, src, bytes, to_device, from_device); });
}

template <typename Unit>
CUresult fill(CUdeviceptr address, Unit value, std::size_t count, CUstream stream) {
  if (const CUresult e = touch(stream, address, count * sizeof(Unit)); e != CUDA_SUCCESS) return e;
  return move(stream, [=] {
    fill_values(address, count * sizeof(Unit), value == 0, [=] {
      for (std::size_t i = 0; i < count; ++i)
        std::memcpy(static_cast<Unit*>(pointer(address)) + i, &value, sizeof value);
    });
  });
}

CUresult synchronise_stream(CUstream handle) {
  SIMCUDA_FIND_STREAM(s, device, handle);
  SIMCUDA_ASSIGN(f, device->sim->record(s->sim));
  const gpumem::status done = device->sim->wait_host(f);
  device->sim->drop(f);
  return error_of(done);
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuMemcpyHtoDAsync_v2(CUdeviceptr dst_device, const void* src_host, std::size_t bytes,
                                      CUstream h_stream) {
  SIMCUDA_ENTER("cuMemcpyHtoDAsync");
  return copy(pointer(dst_device), src_host, bytes, h_stream, true, false);
}
CUresult CUDAAPI cuMemcpyDtoHAsync_v2(void* dst_host, CUdeviceptr src_device, std::size_t bytes, CUstream h_stream) {
  SIMCUDA_ENTER("cuMemcpyDtoHAsync");
  return copy(dst_host, pointer(src_device), bytes, h_stream, false, true);
}
CUresult CUDAAPI cuMemcpyDtoDAsync_v2(CUdeviceptr dst_device, CUdeviceptr src_device, std::size_t bytes,
                                      CUstream h_stream) {
  SIMCUDA_ENTER("cuMemcpyDtoDAsync");
  return copy(pointer(dst_device), pointer(src_device), bytes, h_stream, true, true);
}
CUresult CUDAAPI cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, std::size_t bytes, CUstream h_stream) {
  SIMCUDA_ENTER("cuMemcpyAsync");
  return copy(pointer(dst), pointer(src), bytes, h_stream, on_a_device(dst), on_a_device(src));
}
CUresult CUDAAPI cuMemcpyHtoD_v2(CUdeviceptr dst_device, const void* src_host, std::size_t bytes) {
  SIMCUDA_ENTER("cuMemcpyHtoD");
  if (const CUresult e = copy(pointer(dst_device), src_host, bytes, nullptr, true, false); e != CUDA_SUCCESS) return e;
  return synchronise_stream(nullptr);
}
CUresult CUDAAPI cuMemcpyDtoH_v2(void* dst_host, CUdeviceptr src_device, std::size_t bytes) {
  SIMCUDA_ENTER("cuMemcpyDtoH");
  if (const CUresult e = copy(dst_host, pointer(src_device), bytes, nullptr, false, true); e != CUDA_SUCCESS) return e;
  return synchronise_stream(nullptr);
}
CUresult CUDAAPI cuMemcpy(CUdeviceptr dst, CUdeviceptr src, std::size_t bytes) {
  SIMCUDA_ENTER("cuMemcpy");
  const CUresult e = copy(pointer(dst), pointer(src), bytes, nullptr, on_a_device(dst), on_a_device(src));
  return e != CUDA_SUCCESS ? e : synchronise_stream(nullptr);
}
CUresult CUDAAPI cuMemsetD8Async(CUdeviceptr dst_device, unsigned char value, std::size_t count, CUstream h_stream) {
  SIMCUDA_ENTER("cuMemsetD8Async");
  return fill(dst_device, value, count, h_stream);
}
CUresult CUDAAPI cuMemsetD32Async(CUdeviceptr dst_device, unsigned int value, std::size_t count, CUstream h_stream) {
  SIMCUDA_ENTER("cuMemsetD32Async");
  return fill(dst_device, value, count, h_stream);
}
CUresult CUDAAPI cuMemsetD8_v2(CUdeviceptr dst_device, unsigned char value, std::size_t count) {
  SIMCUDA_ENTER("cuMemsetD8");
  return fill(dst_device, value, count, nullptr);
}

}  // extern "C"
