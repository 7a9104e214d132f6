// PyTorch's own settings: the memory fraction, and the list in a snapshot.
#pragma once

#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include "gpumem_memory.hpp"
#include "history.hpp"

// PYTORCH_CUDA_ALLOC_CONF=per_process_memory_fraction is a limit, and limits hold here, too.
template <typename Config = native::CUDAAllocatorConfig>
double fraction_at_start() {
  if constexpr (requires { Config::per_process_memory_fraction(); }) return Config::per_process_memory_fraction();
  return 1.0;
}

// Reports the settings that PyTorch parsed: those of pinned memory apply, those of native's segments have no effect.
// gpumem's policies decide whether segments are expandable.
template <typename Info, typename Config = native::CUDAAllocatorConfig,
          typename Common = c10::CachingAllocator::AcceleratorAllocatorConfig>
void note_settings(Info& info) {
  info.garbage_collection_threshold = Common::garbage_collection_threshold();
  info.max_split_size = Common::max_split_size();
  info.release_lock_on_malloc = Config::release_lock_on_cudamalloc();
  info.pinned_num_register_threads = Config::pinned_num_register_threads();
  info.pinned_use_host_register = Config::pinned_use_cuda_host_register();
  info.roundup_power2_divisions = Common::roundup_power2_divisions();
  if constexpr (requires { info.graph_capture_record_stream_reuse; }) {
    info.graph_capture_record_stream_reuse = Config::graph_capture_record_stream_reuse();
  }
  if constexpr (requires { info.max_round_threshold; }) {
    info.max_round_threshold = Common::pinned_max_round_threshold();
    info.max_cached_size = Common::pinned_max_cached_size();
  }
  info.last_allocator_settings = "gpumem";
  for (const gpumem::logical_device& d : memory().devices()) {
    info.last_allocator_settings += " policy=" + d.policy;
    info.expandable_segments |= d.policy == "expandable";
  }
}
