// cudaMalloc/cudaFree, with the implicit synchronization that programs rely on, and their stream-ordered forms.
#include <optional>
#include <vector>

#include "checked_mutex.hpp"
#include "driver_calls.hpp"
#include "driver_file.hpp"
#include "forwarded_call.hpp"
#include "gpumem/gpumem.h"
#include "log.hpp"
#include "oom_log.hpp"
#include "served.hpp"

namespace gpumem::preload {
namespace {

CUdeviceptr number_of(const void* ptr) { return static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(ptr)); }
void* pointer_of(CUdeviceptr address) { return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)); }

/// Returns the program's result for a failed request; nothing if the driver itself must produce it.
std::optional<CUresult> answer_to(const status& failed) {
  switch (failed.code()) {
    case errc::ok:
      return CUDA_SUCCESS;
    case errc::out_of_memory:
      return CUDA_ERROR_OUT_OF_MEMORY;
    case errc::invalid_argument:
    case errc::double_free:
      return CUDA_ERROR_INVALID_VALUE;
    default:
      return std::nullopt;
  }
}

/// Calls the driver's gpumem_served_callback, if it has one, for a block that is handed out. Without a stream, any
/// stream may use the block at once.
void report_served(const char* function, void* block, std::size_t bytes, std::optional<CUstream> stream) {
  static const auto callback =
      reinterpret_cast<decltype(&gpumem_served_callback)>(driver_symbol("gpumem_served_callback"));
  if (callback != nullptr) callback(function, number_of(block), bytes, stream.value_or(nullptr), stream ? 0 : 1);
}

/// Waits for the work that `alloc_stream` was made to wait for; then any stream may use the block.
CUresult sync_alloc_stream(served_context& device) {
  const std::uint64_t issued = device.waits.load(std::memory_order_acquire);
  std::uint64_t done = device.waits_done.load(std::memory_order_acquire);
  if (done >= issued) return CUDA_SUCCESS;
  const relaxed_capture relaxed;
  if (const CUresult e = calls()->stream_synchronize(device.alloc_stream); e != CUDA_SUCCESS) return e;
  while (done < issued && !device.waits_done.compare_exchange_weak(done, issued, std::memory_order_acq_rel)) {
  }
  return CUDA_SUCCESS;
}

/// Before CUDA 12.5 no event covers a whole context: cudaFree then waits on the host, as the driver's does. Blocks that
/// are freed during a capture are parked until no capture is open.
class waiting_frees {
 public:
  void park(served_context& device, CUdeviceptr address) {
    const mutex_lock lock{mutex_};
    parked_.push_back({&device, address});
  }
  void release() {
    std::vector<parked_block> due;
    {
      const mutex_lock lock{mutex_};
      due.swap(parked_);
    }
    for (const parked_block& p : due)
      static_cast<void>(
          p.device->memory->try_deallocate(pointer_of(p.address), {.stream = stream_ref{p.device->alloc_stream}}));
  }

 private:
  struct parked_block {
    served_context* device;
    CUdeviceptr address;
  };
  checked_mutex mutex_;
  std::vector<parked_block> parked_ GPUMEM_GUARDED_BY(mutex_);
};
waiting_frees& parked() {
  static auto* const only = new waiting_frees;
  return *only;
}

CUresult synchronize(const served_context& device) {
  const relaxed_capture relaxed;
  if (const CUresult e = calls()->ctx_push_current(device.context); e != CUDA_SUCCESS) return e;
  const CUresult done = calls()->ctx_synchronize();
  CUcontext popped = nullptr;
  calls()->ctx_pop_current(&popped);
  return done;
}

/// Frees a block after the work that is enqueued so far, without waiting for later work: the allocator records a fence
/// at the free of a large block, or one for several small blocks.
status free_behind_everything(served_context& device, CUdeviceptr address) {
  if (has_context_events())
    return device.memory->try_deallocate(pointer_of(address), {.stream = stream_ref{device.free_stream}});
  const result<block_info> block = device.memory->describe(pointer_of(address));
  if (!block) return device.memory->try_deallocate(pointer_of(address));
  if (block->begin != address) return {errc::unknown_pointer, "inside a block"};
  if (capturing_somewhere() || synchronize(device) != CUDA_SUCCESS) {
    parked().park(device, address);
    return {};
  }
  parked().release();
  return device.memory->try_deallocate(pointer_of(address), {.stream = stream_ref{device.alloc_stream}});
}

template <null_stream N>
CUstream stream_meant(CUstream stream) {
  return stream == nullptr && N == null_stream::per_thread ? CU_STREAM_PER_THREAD : stream;
}

/// Whether the stream captures. Also true if the query fails because another stream captures: then the driver decides.
bool captures(CUstream stream) {
  if (!capturing_somewhere()) return false;
  CUstreamCaptureStatus capture_status = CU_STREAM_CAPTURE_STATUS_NONE;
  return calls()->stream_is_capturing(stream, &capture_status) != CUDA_SUCCESS ||
         capture_status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/// Frees the block with `how`, or with `driver` if no device holds it.
template <typename How, typename Driver>
CUresult free_block(CUdeviceptr address, How&& how, Driver&& driver) {
  std::optional<CUresult> answer;
  for_each_device([&](served_context& device) {
    if (answer) return;
    const status freed = how(device);
    if (freed.code() == errc::unknown_pointer) return;
    answer = answer_to(freed);
    if (!freed) log_line("refused free: " + freed.message());
    if (freed) forget_identity(address);
  });
  if (answer) return *answer;
  return freed(address_receipts(), address, driver);
}

/// False if the free needs the device's lock, or if no device holds the block.
bool free_without_lock(CUdeviceptr address) noexcept {
  if (!has_context_events() || capturing_somewhere()) return false;
  bool freed = false;
  for_each_device(
      [&](served_context& device) { freed = freed || device.memory->free_behind_all_work(pointer_of(address)); });
  if (freed) forget_identity(address);
  return freed;
}

/// `pool` is empty, or the pool that the program passes. gpumem replaces only the device's default pool.
template <entry E, null_stream N, typename... Pool>
CUresult alloc_async(CUdeviceptr* dptr, std::size_t bytes, CUstream h_stream, Pool... pool) {
  using driver = forwarded_call<E, N, accounting::counted>;
  CUresult refusal = CUDA_SUCCESS;
  const CUstream stream = stream_meant<N>(h_stream);
  served_context* const d = dptr != nullptr && bytes != 0 ? device_of_stream(stream, &refusal) : nullptr;
  if (refusal != CUDA_SUCCESS) return refusal;
  if (d == nullptr || d->own_pool.load(std::memory_order_relaxed) || !(true && ... && (pool == d->default_pool))) {
    return driver::call(dptr, bytes, pool..., h_stream);
  }
  if (captures(stream)) return driver::of_graph(dptr, bytes, pool..., h_stream);
  oom_report report;
  const result<void*> got = d->memory->try_allocate({.bytes = bytes, .stream = {stream}}, &report);
  if (got) {
    take_every_device(*d);
    report_served("cuMemAllocAsync", *got, bytes, stream);
    return *dptr = number_of(*got), CUDA_SUCCESS;
  }
  if (got.code() == errc::out_of_memory) {
    note_out_of_memory(*d, {"cuMemAllocAsync", bytes}, got.why().message(), report);
  }
  const std::optional<CUresult> answer = answer_to(got.why());
  return answer ? *answer : driver::call(dptr, bytes, pool..., h_stream);
}

template <null_stream N>
CUresult free_async(CUdeviceptr dptr, CUstream h_stream) {
  const auto driver = [&] { return driver_call<entry::mem_free_async, N>(dptr, h_stream); };
  if (dptr == 0 || calls() == nullptr) return driver();
  const CUstream stream = stream_meant<N>(h_stream);
  block_info found;
  if (captures(stream)) return holder_of(dptr, &found) != nullptr ? CUDA_ERROR_INVALID_VALUE : driver();
  return free_block(
      dptr,
      [&](served_context& device) {
        CUresult refusal = CUDA_SUCCESS;
        if (device_of_stream(stream, &refusal) == &device) {
          return device.memory->try_deallocate(pointer_of(dptr), {.stream = stream_ref{stream}});
        }
        // The stream belongs to another device or context: wait until its work with the block is done.
        const result<block_info> block = device.memory->describe(pointer_of(dptr));
        if (block && block->begin == dptr) {
          const relaxed_capture relaxed;
          calls()->stream_synchronize(stream);
        }
        return free_behind_everything(device, dptr);
      },
      driver);
}

}  // namespace

result<CUdeviceptr> allocate_for_all(served_context& device, std::size_t bytes, CUresult* answer) {
  oom_report report;
  const result<void*> got = device.memory->try_allocate({.bytes = bytes, .stream = {device.alloc_stream}}, &report);
  if (!got) {
    if (got.code() == errc::out_of_memory) {
      note_out_of_memory(device, {"cuMemAlloc", bytes}, got.why().message(), report);
    }
    *answer = answer_to(got.why()).value_or(CUDA_ERROR_UNKNOWN);
    return got.why();
  }
  take_every_device(device);
  *answer = sync_alloc_stream(device);
  if (*answer == CUDA_SUCCESS) {
    report_served("cuMemAlloc", *got, bytes, std::nullopt);
    return number_of(*got);
  }
  static_cast<void>(device.memory->try_deallocate(*got, {.stream = stream_ref{device.free_stream}}));
  return status{errc::device_error, "the device failed"};
}

CUresult CUDAAPI mem_alloc(CUdeviceptr* dptr, std::size_t bytes) {
  using driver = forwarded_call<entry::mem_alloc, null_stream::legacy, accounting::counted>;
  CUresult refusal = CUDA_SUCCESS;
  served_context* const d = dptr != nullptr && bytes != 0 ? current_device(&refusal) : nullptr;
  if (refusal != CUDA_SUCCESS) return refusal;
  if (d != nullptr && d->dedicated) return driver::dedicated(dptr, bytes);
  if (d == nullptr) return driver::call(dptr, bytes);
  CUresult answer = CUDA_SUCCESS;
  const result<CUdeviceptr> got = allocate_for_all(*d, bytes, &answer);
  if (got) return *dptr = *got, CUDA_SUCCESS;
  return answer == CUDA_ERROR_UNKNOWN ? driver::call(dptr, bytes) : answer;
}

CUresult CUDAAPI mem_alloc_pitch(CUdeviceptr* dptr, std::size_t* pitch, std::size_t width, std::size_t height,
                                 unsigned int element) {
  using driver = forwarded_call<entry::mem_alloc_pitch, null_stream::legacy, accounting::counted>;
  const bool formed = dptr != nullptr && pitch != nullptr && width != 0 && height != 0 &&
                      (element == 4 || element == 8 || element == 16) && width <= SIZE_MAX - block_granularity;
  const std::size_t row = formed ? (width + block_granularity - 1) / block_granularity * block_granularity : 0;
  const bool served = formed && height <= SIZE_MAX / row;
  CUresult refusal = CUDA_SUCCESS;
  served_context* const d = served ? current_device(&refusal) : nullptr;
  if (refusal != CUDA_SUCCESS) return refusal;
  if (d != nullptr && d->dedicated) return driver::dedicated(dptr, pitch, width, height, element);
  if (d == nullptr) return driver::call(dptr, pitch, width, height, element);
  CUresult answer = CUDA_SUCCESS;
  const result<CUdeviceptr> got = allocate_for_all(*d, row * height, &answer);
  if (got) return *dptr = *got, *pitch = row, CUDA_SUCCESS;
  return answer == CUDA_ERROR_UNKNOWN ? driver::call(dptr, pitch, width, height, element) : answer;
}

CUresult CUDAAPI mem_free(CUdeviceptr dptr) {
  const auto driver = [dptr] { return driver_call<entry::mem_free>(dptr); };
  if (dptr == 0 || calls() == nullptr) return driver();
  if (free_without_lock(dptr)) return CUDA_SUCCESS;
  return free_block(
      dptr, [dptr](served_context& device) { return free_behind_everything(device, dptr); }, driver);
}

FOR_BOTH_NULL_STREAMS(mem_alloc_async, (CUdeviceptr * dptr, std::size_t bytes, CUstream h_stream),
                      alloc_async<entry::mem_alloc_async, Streams>(dptr, bytes, h_stream))
FOR_BOTH_NULL_STREAMS(mem_alloc_from_pool,
                      (CUdeviceptr * dptr, std::size_t bytes, CUmemoryPool pool, CUstream h_stream),
                      alloc_async<entry::mem_alloc_from_pool, Streams>(dptr, bytes, h_stream, pool))
FOR_BOTH_NULL_STREAMS(mem_free_async, (CUdeviceptr dptr, CUstream h_stream), free_async<Streams>(dptr, h_stream))

}  // namespace gpumem::preload
