// Checkpoints of pools, for the trees of CUDA graphs: which blocks were live, to put them back where they were.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <memory>
#include <vector>

#include "requests.hpp"
#include "state.hpp"

struct checkpoint : native::AllocatorState {
  struct block {
    void* ptr;
    std::size_t requested;
    cudaStream_t stream;
    context_ptr context;
  };
  MempoolId_t pool = no_pool;
  std::vector<block> live;
};

class checkpoints {
  using guard = adapter_state::guard;

 public:
  checkpoints(adapter_state& state, requests& blocks) : state_{state}, blocks_{blocks} {}

  std::shared_ptr<native::AllocatorState> save(DeviceIndex device, const MempoolId_t& pool) {
    auto saved = std::make_shared<checkpoint>();
    saved->pool = pool;
    device_state& d = state_.device_of(device);
    const guard lock{state_.mutex};
    TORCH_CHECK(d.pools.find(pool) != nullptr, "Could not find pool of id");
    for (const auto& [at, held] : state_.live_blocks) {
      if (held.device != device || held.pool != pool) continue;
      saved->live.push_back({at, held.requested, held.stream, held.context});
    }
    return saved;
  }
  // Frees the whole pool and allocates the saved blocks at their former addresses. These are free, because the pool's
  // memory serves only the pool.
  native::CheckpointDelta restore(DeviceIndex device, const std::shared_ptr<native::AllocatorState>& state,
                                  c10::DeleterFnPtr deleter) {
    const auto saved = std::dynamic_pointer_cast<checkpoint>(state);
    TORCH_CHECK(saved, "gpumem: not a state that its getCheckpointState made");
    native::CheckpointDelta delta;
    {
      device_state& d = state_.device_of(device);
      const guard lock{state_.mutex};
      const private_pool* const found = d.pools.find(saved->pool);
      TORCH_CHECK(found != nullptr, "Could not find private pool id");
      TORCH_CHECK(!found->is_own,
                  "gpumem: the memory of a MemPool with an allocator of its own "
                  "cannot be put back to a checkpoint");
      for (const auto& [at, held] : state_.live_blocks) {
        if (held.device == device && held.pool == saved->pool) delta.ptrs_freed.push_back(at);
      }
    }
    for (void* const ptr : delta.ptrs_freed) blocks_.free(ptr);
    for (const checkpoint::block& b : saved->live) {
      const auto address = reinterpret_cast<std::uintptr_t>(b.ptr);
      void* const ptr = blocks_.allocate_at(device, b.requested, b.stream, saved->pool, address);
      delta.dataptrs_allocd.emplace_back(ptr, ptr, deleter, c10::Device(c10::DeviceType::CUDA, device));
    }
    return delta;
  }

 private:
  adapter_state& state_;
  requests& blocks_;
};
