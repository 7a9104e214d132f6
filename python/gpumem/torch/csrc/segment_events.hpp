// Segments as they come and go, for the history and the statistics: gpumem's, and those of MemPools' allocators.
#pragma once

#include <algorithm>
#include <exception>
#include <memory>
#include <optional>
#include <utility>

#include "figures.hpp"
#include "own_memory.hpp"
#include "state.hpp"

/// Takes segments from a MemPool's allocator, within the GPU's limit.
class pool_supplier final : public segment_supplier {
 public:
  pool_supplier(adapter_state& state, DeviceIndex device, const MempoolId_t& pool,
                std::shared_ptr<native::CUDAAllocator> allocator)
      : state_{state}, device_{device}, pool_{pool}, allocator_{std::move(allocator)} {}
  bool reserve(std::size_t bytes) override { return gpu().limit.reserve(bytes, !state_.may_capture(gpu())); }
  void release(std::size_t bytes) noexcept override { gpu().limit.release(bytes); }
  void* allocate_segment(std::size_t bytes, cudaStream_t stream) override {
    return allocator_->raw_alloc_with_stream(bytes, stream);
  }
  void free_segment(void* ptr) override { allocator_->raw_delete(ptr); }
  void came(void* ptr, std::size_t bytes, cudaStream_t stream) override {
    gpu().own_taken += bytes;
    ++gpu().own_allocs;
    device_figures{state_}.note_peak(gpu());
    tell(TraceEntry::SEGMENT_ALLOC, ptr, bytes, stream);
  }
  void going(void* ptr, std::size_t bytes, cudaStream_t stream) override {
    gpu().own_returned += bytes;
    ++gpu().own_frees;
    tell(TraceEntry::SEGMENT_FREE, ptr, bytes, stream);
  }

 private:
  device_state& gpu() const { return state_.devices[static_cast<std::size_t>(device_)]; }
  void tell(TraceEntry::Action action, void* ptr, std::size_t bytes, cudaStream_t stream) const {
    history& events = state_.events;
    if (!events.is_watched()) return;
    events.record({action, device_, reinterpret_cast<std::size_t>(ptr), bytes, stream, pool_,
                   events.context_for(RecordContext::ALLOC)});
  }

  adapter_state& state_;
  const DeviceIndex device_;
  const MempoolId_t pool_;
  const std::shared_ptr<native::CUDAAllocator> allocator_;
};

/// Enters gpumem's segments in the table and the history. gpumem calls it without its locks or the adapter's.
class segment_recorder final : public gpumem::segment_observer {
 public:
  explicit segment_recorder(adapter_state& state) : state_{state} {}

  /// A tracker's exception fails the request that added the segment, as in native.
  void segment_added(const gpumem::segment_extent& added) override {
    const std::optional<DeviceIndex> device = device_of_logical(added.device);
    if (!device) return;
    segment_cause* const cause = segment_cause::current();
    segments_of(*device).add(added.begin, added.bytes, cause);
    if (!state_.events.is_watched()) return;
    history::event told{.action = added.paged ? TraceEntry::SEGMENT_MAP : TraceEntry::SEGMENT_ALLOC,
                        .device = *device,
                        .address = added.begin,
                        .bytes = added.bytes};
    if (cause == nullptr) return state_.events.record(std::move(told));
    told.stream = cause->stream;
    told.pool = cause->pool;
    if (state_.events.keeps(RecordContext::ALLOC)) told.context = cause->context;
    try {
      state_.events.record(std::move(told));
    } catch (...) {
      cause->fail(std::current_exception());
    }
  }
  void segment_removing(const gpumem::segment_extent& removing) override {
    const std::optional<DeviceIndex> device = device_of_logical(removing.device);
    if (!device) return;
    auto going = segments_of(*device).remove(removing.begin, removing.bytes);
    if (going.empty()) {  // added before PyTorch's first request
      going.emplace_back(removing.begin, segment_table::entry{.end = removing.begin + removing.bytes});
    }
    if (!state_.events.is_watched()) return;
    const segment_cause* const cause = segment_cause::current();
    const bool with_context = cause != nullptr && state_.events.keeps(RecordContext::ALLOC);
    for (const auto& [begin, segment] : going) {
      state_.events.record({.action = removing.paged ? TraceEntry::SEGMENT_UNMAP : TraceEntry::SEGMENT_FREE,
                            .device = *device,
                            .address = begin,
                            .bytes = segment.end - begin,
                            .stream = segment.stream,
                            .pool = segment.pool,
                            .context = with_context ? cause->context : nullptr});
    }
  }

 private:
  segment_table& segments_of(DeviceIndex device) { return state_.devices[static_cast<std::size_t>(device)].segments; }
  std::optional<DeviceIndex> device_of_logical(int logical) const {
    const auto found = std::ranges::find(state_.devices, logical, &device_state::logical);
    if (found == state_.devices.end()) return std::nullopt;
    return static_cast<DeviceIndex>(found - state_.devices.begin());
  }

  adapter_state& state_;
};
