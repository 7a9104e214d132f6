// cudaMalloc and cudaFree in either order of the world: with the implicit synchronisation that programs rely on, and
// stream-ordered.
#include <algorithm>
#include <bit>
#include <optional>
#include <vector>

#include "behind_all_work.hpp"
#include "checked_mutex.hpp"
#include "driver_calls.hpp"
#include "driver_file.hpp"
#include "log.hpp"
#include "oom_notes.hpp"
#include "passed_on.hpp"
#include "sees.hpp"
#include "served.hpp"

namespace gpumem::preload {
namespace {

CUdeviceptr number_of(const void* p) { return static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(p)); }
void* pointer_of(CUdeviceptr at) { return reinterpret_cast<void*>(static_cast<std::uintptr_t>(at)); }

/// What the program is told; nothing where the driver itself has to say it.
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

/// Tells the referee of a simulated card (simcuda/control.h) that a block is handed out: it sees the driver's own
/// blocks, and gpumem's only here. Without a stream, any may use the block at once.
void tell_referee(const char* function, void* block, std::size_t bytes, std::optional<CUstream> stream) {
  using served_function = void (*)(const char*, std::uint64_t, std::uint64_t, void*, int);
  static const auto tell = reinterpret_cast<served_function>(driver_symbol("simcuda_served"));
  if (tell != nullptr) tell(function, number_of(block), bytes, stream.value_or(nullptr), stream ? 0 : 1);
}

/// Waits for what `home` was made to wait for: then the block may be used on any stream.
CUresult settle(served_device& d) {
  const std::uint64_t issued = d.waits.load(std::memory_order_acquire);
  std::uint64_t done = d.waits_done.load(std::memory_order_acquire);
  if (done >= issued) return CUDA_SUCCESS;
  const relaxed_capture relaxed;
  if (const CUresult e = calls()->stream_synchronize(d.home); e != CUDA_SUCCESS) return e;
  while (done < issued && !d.waits_done.compare_exchange_weak(done, issued, std::memory_order_acq_rel)) {
  }
  return CUDA_SUCCESS;
}

/// Before CUDA 12.5 there is no event on a whole context: cudaFree then waits itself, as the driver's does. What is
/// freed while something captures is parked until nothing does.
class waiting_frees {
 public:
  void park(served_device& d, CUdeviceptr p) {
    const mutex_lock lock{mutex_};
    parked_.push_back({&d, p});
  }
  void release() {
    std::vector<one> now;
    {
      const mutex_lock lock{mutex_};
      now.swap(parked_);
    }
    for (const one& p : now)
      static_cast<void>(p.on->memory->try_deallocate(pointer_of(p.at), {.stream = stream_ref{p.on->home}}));
  }

 private:
  struct one {
    served_device* on;
    CUdeviceptr at;
  };
  checked_mutex mutex_;
  std::vector<one> parked_ GPUMEM_GUARDED_BY(mutex_);
};
waiting_frees& parked() {
  static auto* const only = new waiting_frees;
  return *only;
}

CUresult synchronize(const served_device& d) {
  const relaxed_capture relaxed;
  if (const CUresult e = calls()->ctx_push_current(d.context); e != CUDA_SUCCESS) return e;
  const CUresult done = calls()->ctx_synchronize();
  CUcontext popped = nullptr;
  calls()->ctx_pop_current(&popped);
  return done;
}

/// What is freed waits for the work that was enqueued until then, and for none that comes later: the allocator records
/// a fence at the free, of one large block or several small ones.
status free_behind_everything(served_device& d, CUdeviceptr p) {
  if (has_context_events()) return d.memory->try_deallocate(pointer_of(p), {.stream = stream_ref{d.all_work}});
  const result<block_info> block = d.memory->describe(pointer_of(p));
  if (!block) return d.memory->try_deallocate(pointer_of(p));
  if (block->begin != p) return {errc::unknown_pointer, "inside a block"};
  if (capturing_somewhere() || synchronize(d) != CUDA_SUCCESS) {
    parked().park(d, p);
    return {};
  }
  parked().release();
  return d.memory->try_deallocate(pointer_of(p), {.stream = stream_ref{d.home}});
}

template <null_stream N>
CUstream named(CUstream s) {
  return s == nullptr && N == null_stream::per_thread ? CU_STREAM_PER_THREAD : s;
}

/// Captures, or cannot be asked because another one does: the driver then has the answer.
bool captures(CUstream s) {
  if (sees_everything && !capturing_somewhere()) return false;
  CUstreamCaptureStatus now = CU_STREAM_CAPTURE_STATUS_NONE;
  return calls()->stream_is_capturing(s, &now) != CUDA_SUCCESS || now != CU_STREAM_CAPTURE_STATUS_NONE;
}

/// The block goes back by `how`; the driver frees what nobody here knows.
template <typename How, typename Driver>
CUresult free_block(CUdeviceptr p, How&& how, Driver&& driver) {
  std::optional<CUresult> answer;
  for_each_device([&](served_device& d) {
    if (answer) return;
    const status freed = how(d);
    if (freed.code() == errc::unknown_pointer) return;
    answer = answer_to(freed);
    if (!freed) log_line("refused free: " + freed.message());
    if (freed) forget_identity(p);
  });
  if (answer) return *answer;
  return freed(address_receipts(), p, driver);
}

/// False where the device's lock is needed, or the block is nobody's here.
bool free_without_lock(CUdeviceptr p) noexcept {
  if (!has_context_events() || capturing_somewhere()) return false;
  bool freed = false;
  for_each_device([&](served_device& d) { freed = freed || free_behind_all_work(*d.memory, pointer_of(p)); });
  if (freed) forget_identity(p);
  return freed;
}

/// `pool` is empty, or the pool that the program names: gpumem serves the device's default pool.
template <entry E, null_stream N, typename... Pool>
CUresult alloc_async(CUdeviceptr* at, std::size_t bytes, CUstream s, Pool... pool) {
  using driver = passed_on<E, N, accounting::counted>;
  CUresult refusal = CUDA_SUCCESS;
  const CUstream on = named<N>(s);
  served_device* const d = at != nullptr && bytes != 0 ? device_of_stream(on, &refusal) : nullptr;
  if (refusal != CUDA_SUCCESS) return refusal;
  if (d == nullptr || d->own_pool.load(std::memory_order_relaxed) || !(true && ... && (pool == d->default_pool))) {
    return driver::call(at, bytes, pool..., s);
  }
  if (captures(on)) return driver::of_graph(at, bytes, pool..., s);
  const result<void*> got = d->memory->try_allocate({.bytes = bytes, .stream = {on}});
  if (got) {
    take_every_device(*d);
    tell_referee("cuMemAllocAsync", *got, bytes, on);
    return *at = number_of(*got), CUDA_SUCCESS;
  }
  if (got.code() == errc::out_of_memory) note_out_of_memory(*d, {"cuMemAllocAsync", bytes}, got.why().message());
  const std::optional<CUresult> answer = answer_to(got.why());
  return answer ? *answer : driver::call(at, bytes, pool..., s);
}

template <null_stream N>
CUresult free_async(CUdeviceptr p, CUstream s) {
  const auto driver = [&] { return driver_call<entry::mem_free_async, N>(p, s); };
  if (p == 0 || calls() == nullptr) return driver();
  const CUstream on = named<N>(s);
  block_info found;
  if (captures(on)) return holder_of(p, &found) != nullptr ? CUDA_ERROR_INVALID_VALUE : driver();
  return free_block(
      p,
      [&](served_device& d) {
        CUresult refusal = CUDA_SUCCESS;
        if (device_of_stream(on, &refusal) == &d) {
          return d.memory->try_deallocate(pointer_of(p), {.stream = stream_ref{on}});
        }
        // A stream of another device or context: what it still does with the block is waited for.
        const result<block_info> block = d.memory->describe(pointer_of(p));
        if (block && block->begin == p) {
          const relaxed_capture relaxed;
          calls()->stream_synchronize(on);
        }
        return free_behind_everything(d, p);
      },
      driver);
}

}  // namespace

result<CUdeviceptr> allocate_for_all(served_device& d, std::size_t bytes, CUresult* answer) {
  const result<void*> got = d.memory->try_allocate({.bytes = bytes, .stream = {d.home}});
  if (!got) {
    if (got.code() == errc::out_of_memory) note_out_of_memory(d, {"cuMemAlloc", bytes}, got.why().message());
    *answer = answer_to(got.why()).value_or(CUDA_ERROR_UNKNOWN);
    return got.why();
  }
  take_every_device(d);
  *answer = settle(d);
  if (*answer == CUDA_SUCCESS) {
    tell_referee("cuMemAlloc", *got, bytes, std::nullopt);
    return number_of(*got);
  }
  static_cast<void>(d.memory->try_deallocate(*got, {.stream = stream_ref{d.all_work}}));
  return status{errc::device_error, "the device failed"};
}

CUresult CUDAAPI mem_alloc(CUdeviceptr* at, std::size_t bytes) {
  using driver = passed_on<entry::mem_alloc, null_stream::legacy, accounting::counted>;
  CUresult refusal = CUDA_SUCCESS;
  served_device* const d = at != nullptr && bytes != 0 ? current_device(&refusal) : nullptr;
  if (refusal != CUDA_SUCCESS) return refusal;
  if (d != nullptr && d->dedicated) return driver::dedicated(at, bytes);
  if (d == nullptr) return driver::call(at, bytes);
  CUresult answer = CUDA_SUCCESS;
  const result<CUdeviceptr> got = allocate_for_all(*d, bytes, &answer);
  if (got) return *at = *got, CUDA_SUCCESS;
  return answer == CUDA_ERROR_UNKNOWN ? driver::call(at, bytes) : answer;
}

CUresult CUDAAPI mem_alloc_pitch(CUdeviceptr* at, std::size_t* pitch, std::size_t width, std::size_t height,
                                 unsigned int element) {
  using driver = passed_on<entry::mem_alloc_pitch, null_stream::legacy, accounting::counted>;
  const bool formed = at != nullptr && pitch != nullptr && width != 0 && height != 0 &&
                      (element == 4 || element == 8 || element == 16) && width <= SIZE_MAX - block_granularity;
  const std::size_t row = formed ? (width + block_granularity - 1) / block_granularity * block_granularity : 0;
  const bool served = formed && height <= SIZE_MAX / row;
  CUresult refusal = CUDA_SUCCESS;
  served_device* const d = served ? current_device(&refusal) : nullptr;
  if (refusal != CUDA_SUCCESS) return refusal;
  if (d != nullptr && d->dedicated) return driver::dedicated(at, pitch, width, height, element);
  if (d == nullptr) return driver::call(at, pitch, width, height, element);
  CUresult answer = CUDA_SUCCESS;
  const result<CUdeviceptr> got = allocate_for_all(*d, row * height, &answer);
  if (got) return *at = *got, *pitch = row, CUDA_SUCCESS;
  return answer == CUDA_ERROR_UNKNOWN ? driver::call(at, pitch, width, height, element) : answer;
}

CUresult CUDAAPI mem_free(CUdeviceptr p) {
  const auto driver = [p] { return driver_call<entry::mem_free>(p); };
  if (p == 0 || calls() == nullptr) return driver();
  if (free_without_lock(p)) return CUDA_SUCCESS;
  return free_block(
      p, [p](served_device& d) { return free_behind_everything(d, p); }, driver);
}

CUresult CUDAAPI mem_alloc_async(CUdeviceptr* at, std::size_t bytes, CUstream s) {
  return alloc_async<entry::mem_alloc_async, null_stream::legacy>(at, bytes, s);
}
CUresult CUDAAPI mem_alloc_async_ptsz(CUdeviceptr* at, std::size_t bytes, CUstream s) {
  return alloc_async<entry::mem_alloc_async, null_stream::per_thread>(at, bytes, s);
}
CUresult CUDAAPI mem_alloc_from_pool(CUdeviceptr* at, std::size_t bytes, CUmemoryPool pool, CUstream s) {
  return alloc_async<entry::mem_alloc_from_pool, null_stream::legacy>(at, bytes, s, pool);
}
CUresult CUDAAPI mem_alloc_from_pool_ptsz(CUdeviceptr* at, std::size_t bytes, CUmemoryPool pool, CUstream s) {
  return alloc_async<entry::mem_alloc_from_pool, null_stream::per_thread>(at, bytes, s, pool);
}
CUresult CUDAAPI mem_free_async(CUdeviceptr p, CUstream s) { return free_async<null_stream::legacy>(p, s); }
CUresult CUDAAPI mem_free_async_ptsz(CUdeviceptr p, CUstream s) { return free_async<null_stream::per_thread>(p, s); }

}  // namespace gpumem::preload
