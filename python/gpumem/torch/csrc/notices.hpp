// Notices of blocks to PyTorch's history and trackers, its trace of the GPU and its profiler.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/impl/GPUTrace.h>

#include <optional>
#include <string>
#include <utility>

#include "figures.hpp"
#include "state.hpp"

class notices {
 public:
  explicit notices(adapter_state& state) : state_{state} {}

  /// Throws an exception of a tracker. `tag`: the requesting function's name for the history.
  void allocated(void* ptr, const char* tag) {
    const bool profiled = c10::memoryProfilingEnabled();
    if (state_.events.is_watched() || profiled) {
      const std::optional<held_block> held = state_.find_block(ptr);
      if (!held) return;  // a tracker freed it
      if (state_.events.is_watched()) {
        context_ptr context = state_.events.keeps(RecordContext::ALLOC) ? held->context : nullptr;
        state_.events.record(event_of(TraceEntry::ALLOC, ptr, *held, std::move(context), tag));
      }
      if (profiled) profile(ptr, *held, 1);
    }
    if (const c10::impl::PyInterpreter* const traced = c10::impl::GPUTrace::get_trace();
        C10_UNLIKELY(traced != nullptr)) {
      (*traced)->trace_gpu_memory_allocation(c10::kCUDA, reinterpret_cast<std::uintptr_t>(ptr));
    }
  }
  /// Before the free. May throw.
  void freeing(void* ptr) {
    if (const c10::impl::PyInterpreter* const traced = c10::impl::GPUTrace::get_trace();
        C10_UNLIKELY(traced != nullptr)) {
      (*traced)->trace_gpu_memory_deallocation(c10::kCUDA, reinterpret_cast<std::uintptr_t>(ptr));
    }
    if (!state_.events.is_watched()) return;
    const std::optional<held_block> held = state_.find_block(ptr);
    if (!held) return;
    context_ptr context = state_.events.context_for(RecordContext::ALL);
    if (context == nullptr && state_.events.keeps(RecordContext::ALLOC)) context = held->context;
    for (const TraceEntry::Action each : {TraceEntry::FREE_REQUESTED, TraceEntry::FREE_COMPLETED}) {
      state_.events.record(event_of(each, ptr, *held, context));
    }
  }
  void freed(void* ptr, const held_block& held) {
    if (c10::memoryProfilingEnabled()) profile(ptr, held, -1);
  }
  template <typename Entry>
  void annotate(const void* ptr, const std::string& metadata) {
    if (!state_.events.is_watched()) return;
    context_ptr context = state_.events.context_for(RecordContext::ALLOC);
    const std::optional<held_block> held = state_.find_block(ptr);
    TORCH_CHECK(held, "gpumem: no live allocation begins at ", ptr);
    if constexpr (requires { Entry::ANNOTATE; }) {
      history::event told = event_of(Entry::ANNOTATE, const_cast<void*>(ptr), *held, std::move(context));
      told.metadata = &metadata;
      state_.events.record(std::move(told));
    }
  }

 private:
  static history::event event_of(TraceEntry::Action action, void* ptr, const held_block& held, context_ptr context,
                                 const char* tag = "") {
    return {action,
            held.device,
            reinterpret_cast<std::size_t>(ptr),
            held.requested,
            held.stream,
            held.pool,
            std::move(context),
            nullptr,
            tag};
  }
  void profile(void* ptr, const held_block& held, std::int64_t sign) {
    device_state& d = state_.device_of(held.device);
    const auto reserved = static_cast<std::size_t>(device_figures::of(d).reserved_bytes);
    std::size_t allocated = 0;
    {
      const adapter_state::guard lock{state_.mutex};
      allocated = static_cast<std::size_t>(d.stats.allocated_bytes[every_pool].current);
    }
    c10::reportMemoryUsageToProfiler(ptr, sign * static_cast<std::int64_t>(own_blocks::rounded(held.requested)),
                                     allocated, reserved, c10::Device(c10::DeviceType::CUDA, held.device));
  }

  adapter_state& state_;
};
