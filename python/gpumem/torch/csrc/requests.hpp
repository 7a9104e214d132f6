// Requests and frees: which source serves a request, and the steps before it is refused.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <atomic>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "notices.hpp"
#include "pool_ends.hpp"
#include "refusals.hpp"
#include "state.hpp"
#include "stream_calls.hpp"
#include "uncached.hpp"

class requests {
  using guard = adapter_state::guard;

 public:
  requests(adapter_state& state, pool_ends& pools, refusals& refused)
      : state_{state}, pools_{pools}, refused_{refused}, notices_{state} {}

  // Disabled, each request is a driver call, as with PyTorch's own allocator; useful for examining one request alone.
  void enable_caches(bool value) { caches_ = value; }
  [[nodiscard]] bool has_caches() const { return caches_; }
  /// Memory is shared with other processes from now on.
  void begin_sharing() { shares_ = true; }

  static bool ask_callbacks() {
    bool freed = false;
    for (const auto& name : c10::FreeCudaMemoryCallbacksRegistry()->Keys()) {
      freed |= c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute();
    }
    return freed;
  }

  void* allocate(DeviceIndex device, std::size_t bytes, cudaStream_t stream) {
    constexpr std::size_t exabyte = std::size_t{1} << 60;
    TORCH_CHECK_WITH(OutOfMemoryError, bytes < exabyte, "CUDA out of memory. Tried to allocate more than 1EB memory.");
    if (caches_ && !is_without_caches()) return allocate_at(device, bytes, stream, route_of(device, stream), 0);
    device_state& d = state_.device_of(device);
    void* const ptr = uncached_.allocate(d, device, bytes, [&] { return pools_.give_back_idle(d); });
    if (ptr == nullptr) refused_.refuse(d, {.requested = bytes, .stream = stream, .device = device}, {});
    return ptr;
  }
  /// Returns the pool of this thread's allocations on the stream.
  MempoolId_t route_of(DeviceIndex device, cudaStream_t stream) {
    if (state_.routes == 0) return no_pool;
    const guard lock{state_.mutex};
    return state_.device_of(device).pools.route_of(stream);
  }
  /// `place`: the block's exact address; 0: any. `tag`: the requesting function's name for the history.
  void* allocate_at(DeviceIndex device, std::size_t bytes, cudaStream_t stream, MempoolId_t pool, gpumem::address place,
                    const char* tag = "") {
    device_state& d = state_.device_of(device);
    pools_.settle_release();
    held_block held{
        bytes, stream, device, pool, source_of(device, pool, stream), state_.events.context_for(RecordContext::STATE)};
    segment_cause cause{pool, stream, held.context};
    void* const ptr = take(d, held, {bytes, stream, place});
    // If the host has no memory to enter the block, free it.
    const std::shared_ptr<memory_source> source = held.source;
    try {
      state_.enter(d, ptr, std::move(held));
    } catch (...) {
      source->free_block(ptr);
      throw;
    }
    try {
      cause.rethrow();
      notices_.allocated(ptr, tag);
    } catch (...) {
      free(ptr);
      throw;
    }
    return ptr;
  }

  void free(void* ptr) {
    // Make the calls that may throw first: until the block leaves `live_blocks`, the program can free it again.
    notices_.freeing(ptr);
    const std::optional<held_block> held = state_.leave(ptr);
    if (!held) {
      TORCH_CHECK(uncached_.free(state_, ptr), "invalid device pointer: ", ptr);
      return;
    }
    if (!in_forked_child) held->source->free_block(ptr);
    notices_.freed(ptr, *held);
  }

 private:
  /// Takes a block, from another pool if need be; `held` then says so.
  void* take(device_state& state, held_block& held, const memory_request& asked) {
    collect_shared(state, asked.bytes);
    refusal why;
    void* ptr = held.source->allocate_block(asked, why);
    const bool is_of_pool = held.source != state.source;
    if (ptr == nullptr && is_of_pool && ask_callbacks()) ptr = held.source->allocate_block(asked, why);
    if (ptr == nullptr && held.pool == no_pool && runtime_calls().captures_nothing({held.device, held.stream})) {
      ptr = take_lent(state, asked, held);
    }
    if (ptr == nullptr && pools_.give_back_idle(state)) ptr = held.source->allocate_block(asked, why);
    if (ptr == nullptr) refused_.refuse(state, held, why);
    return ptr;
  }
  std::shared_ptr<memory_source> source_of(DeviceIndex device, const MempoolId_t& pool, cudaStream_t stream) {
    device_state& d = state_.device_of(device);
    if (pool == no_pool) return d.source;
    const bool captures = !runtime_calls().captures_nothing({device, stream});
    const guard lock{state_.mutex};
    private_pool& p = d.pools.note_request(pool, captures);
    if (!p.source) p.source = std::make_shared<gpumem_memory>(d.logical, true);
    return p.source;
  }
  /// Collects memory that other processes have released, so that the request need not take new memory.
  void collect_shared(const device_state& state, std::size_t bytes) const {
    if (shares_ && device_figures::of(state).largest_free_bytes < own_blocks::rounded(bytes)) ask_callbacks();
  }
  /// Takes idle memory from a pool with `use_on_oom`.
  void* take_lent(device_state& state, const memory_request& asked, held_block& held) {
    std::vector<pool_table::ended_pool> lenders;
    {
      const guard lock{state_.mutex};
      lenders = state.pools.lenders();
    }
    for (const auto& [id, lender] : lenders) {
      void* const ptr = lender.source->take_idle(asked);
      if (ptr == nullptr) continue;
      held.pool = id;
      held.source = lender.source;
      return ptr;
    }
    return nullptr;
  }

  adapter_state& state_;
  pool_ends& pools_;
  refusals& refused_;
  notices notices_;
  uncached_blocks uncached_;
  std::atomic<bool> caches_{true};
  std::atomic<bool> shares_{false};
};
