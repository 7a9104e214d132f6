// Forwards a call to the driver; on out-of-memory releases idle pool memory and retries once.
//
// A counted call is charged to its device's account first and refunded if it fails. After a measured call, the memory
// that the driver took is charged (process_accounting.hpp).
#pragma once

#include <mutex>

#include "device_registry.hpp"
#include "entry_points.hpp"
#include "oom_log.hpp"
#include "other_contexts.hpp"
#include "process_accounting.hpp"

namespace gpumem::preload {

enum class accounting : std::uint8_t { counted, measured };

/// Calls the driver. If it is out of memory and gpumem has returned idle segments to it, calls it once more.
template <entry E, null_stream N, typename... Arguments>
CUresult tried_twice(Arguments... arguments) noexcept {
  const CUresult e = driver_call<E, N>(arguments...);
  return e == CUDA_ERROR_OUT_OF_MEMORY && give_back_idle() ? driver_call<E, N>(arguments...) : e;
}

/// Whether the end of the context frees the call's memory. The memory of memory pools belongs to the device.
template <entry E>
inline constexpr bool ends_with_context = E != entry::mem_alloc_async&& E != entry::mem_alloc_from_pool;

template <entry E>
inline constexpr bool makes_context =
    E == entry::primary_ctx_retain || E == entry::ctx_create || E == entry::ctx_create_11 || E == entry::ctx_create_3;
/// Reports the context that a call has made (`note_context`); ignores the call's other arguments.
template <typename... More>
void note_made(CUcontext* made, More... /*more*/) noexcept {
  note_context(*made);
}

template <entry E, null_stream N, accounting How, typename Pointer = typename signature<E>::type>
struct forwarded_call;

template <entry E, null_stream N, typename... Arguments>
struct forwarded_call<E, N, accounting::counted, CUresult(CUDAAPI*)(Arguments...)> {
  static CUresult CUDAAPI call(Arguments... arguments) { return charged(false, receipt_kind_of<E>, arguments...); }
  /// Replaces a cudaMalloc with a driver allocation of its own.
  static CUresult dedicated(Arguments... arguments) { return charged(true, receipt_kind_of<E>, arguments...); }
  /// For a stream that captures: the graph owns the memory, and no free returns it.
  static CUresult of_graph(Arguments... arguments) { return charged(false, receipt_kind::graph, arguments...); }

 private:
  static CUresult charged(bool dedicated, receipt_kind kind, Arguments... arguments) {
    std::shared_lock together{counting(), std::defer_lock};
    if (limits_process()) together.lock();
    const call_size asked = size_of_call(arguments...);
    const charge paid = charge_for(asked, dedicated);
    if (!paid.granted) {
      if (paid.ordinal >= 0) note_refused_call(paid.ordinal, asked.bytes, true);
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    const CUresult e = tried_twice<E, N>(arguments...);
    if (e == CUDA_SUCCESS) {
      keep_receipt(paid, kind, paid.ordinal >= 0 ? receipt_key(arguments...) : 0, ends_with_context<E>);
    } else {
      refund({paid.ordinal, paid.bytes});
    }
    if (e == CUDA_ERROR_OUT_OF_MEMORY && asked.bytes != 0) note_refused_call(paid.ordinal, asked.bytes, false);
    return e;
  }
};

template <entry E, null_stream N, typename... Arguments>
struct forwarded_call<E, N, accounting::measured, CUresult(CUDAAPI*)(Arguments...)> {
  static CUresult CUDAAPI call(Arguments... arguments) {
    if (!limits_process()) return tried_twice<E, N>(arguments...);
    const std::unique_lock alone{counting()};
    const used_memory before = measure_before();
    const CUresult e = tried_twice<E, N>(arguments...);
    if (e == CUDA_SUCCESS) {
      measure_after(before);
      if constexpr (makes_context<E>) note_made(arguments...);
    }
    return e;
  }
};

}  // namespace gpumem::preload
