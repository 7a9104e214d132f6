// PyTorch's CUDAAllocator: its functions, by the parts that do the work.
//
// Functions that some versions of torch lack are written without `override` here, or are found with `requires`.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/PeerToPeerAccess.h>

#include <algorithm>
#include <deque>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "checkpoints.hpp"
#include "figures.hpp"
#include "ipc.hpp"
#include "pool_ends.hpp"
#include "refusals.hpp"
#include "requests.hpp"
#include "segment_events.hpp"
#include "settings.hpp"
#include "state.hpp"

using c10::DataPtr;

/// The deleter of tensors' memory (allocator.cpp).
void delete_block(void* ptr);

class torch_allocator final : public native::CUDAAllocator {
  using guard = adapter_state::guard;

 public:
  // --- life ---------------------------------------------------------------------------------------------------
  void init(int device_count) override {
    const double fraction = fraction_at_start();
    gpumem::allocator& opened = memory();
    state_.events.open(static_cast<std::size_t>(device_count));
    {
      const guard lock{state_.mutex};
      if (state_.ready) return;
      open_devices(opened, device_count);
      const gpumem::status observed = opened.observe_segments(std::make_shared<segment_recorder>(state_));
      TORCH_CHECK(observed.ok(), "gpumem: ", observed.message());
      opened.on_out_of_memory([](int, std::uint64_t) { return requests::ask_callbacks(); });
      state_.ready = true;
    }
    for (std::size_t i = 0; fraction < 1 && i < state_.devices.size(); ++i) {
      if (state_.devices[i].logical >= 0) setMemoryFraction(fraction, static_cast<DeviceIndex>(i));
    }
  }
  bool initialized() override { return state_.ready; }
  std::string name() override { return "gpumem"; }
  void enable(bool value) override { requests_.enable_caches(value); }
  bool isEnabled() const override { return requests_.has_caches(); }

  // --- blocks -------------------------------------------------------------------------------------------------
  DataPtr allocate(std::size_t bytes) override {
    const DeviceIndex device = c10::cuda::current_device();
    void* const ptr = bytes != 0 ? requests_.allocate(device, bytes, c10::cuda::getCurrentCUDAStream(device)) : nullptr;
    return {ptr, ptr, &delete_block, c10::Device(c10::DeviceType::CUDA, device)};
  }
  // Re-allocates a storage at its former address, which in a MemPool no other request can have taken.
  DataPtr allocateWithAddress(std::size_t bytes, void* place) {
    const auto address = reinterpret_cast<std::uintptr_t>(place);
    TORCH_CHECK(address % gpumem::block_granularity == 0, "gpumem: an exact address must be aligned to kMinBlockSize (",
                gpumem::block_granularity, " bytes), and ", place, " is not");
    const DeviceIndex device = c10::cuda::current_device();
    void* got = nullptr;
    if (bytes != 0) {
      const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(device);
      got = requests_.allocate_at(device, bytes, stream, requests_.route_of(device, stream), address,
                                  "mallocWithAddress");
    }
    return {got, got, &delete_block, c10::Device(c10::DeviceType::CUDA, device)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &delete_block; }
  void* raw_alloc(std::size_t bytes) override {
    if (bytes == 0) return nullptr;
    const DeviceIndex device = c10::cuda::current_device();
    return requests_.allocate(device, bytes, c10::cuda::getCurrentCUDAStream(device));
  }
  void* raw_alloc_with_stream(std::size_t bytes, cudaStream_t stream) override {
    return bytes != 0 ? requests_.allocate(c10::cuda::current_device(), bytes, stream) : nullptr;
  }
  void raw_delete(void* ptr) override {
    if (ptr != nullptr) requests_.free(ptr);
  }
  void copy_data(void* dest, const void* src, std::size_t bytes) const override {
    C10_CUDA_CHECK(cudaMemcpy(dest, src, bytes, cudaMemcpyDeviceToDevice));
  }
  void recordStream(const DataPtr& data, c10::cuda::CUDAStream stream) override {
    // The tensor is empty, or another allocator made its memory.
    if (!data.get() || data.get_deleter() != &delete_block) return;
    if (const std::optional<held_block> held = state_.find_block(data.get())) {
      held->source->record_use(data.get(), {stream.device_index(), stream.stream()});
    }
  }
  void* getBaseAllocation(void* ptr, std::size_t* bytes) override {
    const std::optional<held_block> held = state_.find_block(ptr);
    segment_range around;
    if (held) {
      around = held->source->segment_around(ptr);
    } else {
      around = gpumem_memory{-1, false}.segment_around(ptr);  // an address within a block
    }
    if (bytes != nullptr) *bytes = around.bytes;
    return around.begin;
  }

  // --- how much -----------------------------------------------------------------------------------------------
  // `~MemPool` passes its pool; then only that pool's memory is returned.
  void emptyCache(MempoolId_t pool) override {
    if (in_forked_child) return;
    segment_cause cause{no_pool, nullptr,
                        state_.events.is_watched() ? state_.events.context_for(RecordContext::ALL) : nullptr};
    for (std::size_t i = 0; i < state_.devices.size(); ++i) {
      if (state_.devices[i].logical < 0) continue;
      const auto device = static_cast<DeviceIndex>(i);
      if (pool != no_pool) {
        pools_.empty_ended(device, pool);
      } else {
        pools_.empty_all(device);
      }
    }
  }
  void cacheInfo(DeviceIndex device, std::size_t* largest) override {
    device_state& d = state_.device_of(device);
    const gpumem::statistics s = device_figures::of(d);
    if (*largest == 0) {  // as native: also count free GPU memory
      *largest = figures_.limited_memory(device).first;
    }
    *largest = std::max(*largest, static_cast<std::size_t>(s.largest_free_bytes));
  }
  double getMemoryFraction(DeviceIndex device) override {
    device_state& d = state_.device_of(device);
    const guard lock{state_.mutex};
    return d.fraction;
  }
  void setMemoryFraction(double fraction, DeviceIndex device) override {
    TORCH_CHECK(fraction >= 0 && fraction <= 1, "invalid fraction: ", fraction, ". Please set within [0, 1].");
    device_state& d = state_.device_of(device);
    const auto total = static_cast<double>(memory().devices()[static_cast<std::size_t>(d.logical)].gpu_total_bytes);
    // The fraction cannot raise the limit above GPUMEM_LIMIT.
    d.limit.set(std::clamp<std::uint64_t>(static_cast<std::uint64_t>(fraction * total), 1, d.limit.at_start()));
    const guard lock{state_.mutex};
    d.fraction = fraction;
  }
  /// Free and total bytes of the GPU for this program.
  std::pair<std::size_t, std::size_t> memory_info(DeviceIndex device) { return figures_.limited_memory(device); }
  std::pair<std::size_t, std::size_t> getMemoryInfo(DeviceIndex device) {
    return state_.ready ? figures_.limited_memory(device) : device_figures::driver_memory(device);
  }
  std::vector<native::StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex device) override {
    memory_map map;
    state_.device_of(device).source->describe(map, no_pool);
    std::vector<native::StreamSegmentSize> sizes;
    for (const gpumem::segment_view& s : map.shared) {
      std::size_t backed = 0;
      for (const gpumem::block_view& b : s.blocks) {
        backed += b.is != gpumem::block_view::state::unbacked ? b.bytes : 0;
      }
      if (s.paged) sizes.emplace_back(nullptr, false, backed);
    }
    return sizes;
  }
  caching::DeviceStats getDeviceStats(DeviceIndex device) override { return figures_.statistics(device); }
  void resetAccumulatedStats(DeviceIndex device) override { figures_.reset_accumulated(device); }
  void resetPeakStats(DeviceIndex device) override { figures_.reset_peaks(device); }

  // --- pools of graphs, MemPool -------------------------------------------------------------------------------
  void beginAllocateToPool(DeviceIndex device, MempoolId_t pool, std::function<bool(cudaStream_t)> filter) override {
    device_state& d = state_.device_of(device);
    ask_fences(d);
    const guard lock{state_.mutex};
    d.pools.begin_route(pool, std::move(filter));
    ++state_.routes;
  }
  void endAllocateToPool(DeviceIndex device, MempoolId_t pool) override {
    device_state& d = state_.device_of(device);
    {
      const guard lock{state_.mutex};
      d.pools.end_route(pool);
      --state_.routes;
    }
    markCaptureEnd(device);
    ask_fences(d);
  }
  // Fences can be neither recorded nor queried within a capture. After a capture this records fences for blocks that
  // the capture freed while other streams used them; before the next one it frees blocks whose fences are done. Without
  // this, each graph of a pool takes new memory. While a route is open, a capture may be open.
  void ask_fences(const device_state& state) {
    if (state_.routes == 0) static_cast<void>(memory().trim(state.logical, 0));
  }
  void markCaptureBegin(DeviceIndex device) {
    device_state& d = state_.device_of(device);
    const guard lock{state_.mutex};
    d.pools.capture_begins();
  }
  // gpumem detects a capture at its first allocation, but must be told of its end.
  void markCaptureEnd(DeviceIndex device) {
    const gpumem::status ended = memory().reported_captures_ended(device);
    TORCH_CHECK(ended.ok(), "gpumem: end of a capture: ", ended.message());
  }
  void releasePool(DeviceIndex device, MempoolId_t pool) override { pools_.release(device, pool); }
  int getPoolUseCount(DeviceIndex device, MempoolId_t pool) override {
    device_state& d = state_.device_of(device);
    const guard lock{state_.mutex};
    const private_pool* const found = d.pools.find(pool);
    return found != nullptr ? found->uses : 0;
  }
  void createOrIncrefPool(DeviceIndex device, MempoolId_t pool, std::shared_ptr<native::CUDAAllocator> own) override {
    pools_.add_use(device, pool, std::move(own));
  }
  void setUseOnOOM(DeviceIndex device, MempoolId_t pool, bool use_on_oom) override {
    device_state& d = state_.device_of(device);
    const guard lock{state_.mutex};
    d.pools[pool].use_on_oom = use_on_oom;
  }
  // A hint for native's segments; gpumem splits its segments for all blocks.
  void setNoSplit(DeviceIndex /*device*/, MempoolId_t /*pool*/) override {}
  bool checkPoolLiveAllocations(DeviceIndex device, MempoolId_t pool,
                                const std::unordered_set<void*>& expected) override {
    const guard lock{state_.mutex};
    std::size_t seen = 0;
    for (const auto& [at, held] : state_.live_blocks) {
      if (held.device != device || held.pool != pool) continue;
      if (expected.count(at) == 0) return false;
      ++seen;
    }
    return seen == expected.size();
  }
  std::shared_ptr<native::AllocatorState> getCheckpointState(DeviceIndex device, MempoolId_t pool) override {
    return checkpoints_.save(device, pool);
  }
  native::CheckpointDelta setCheckpointPoolState(DeviceIndex device,
                                                 std::shared_ptr<native::AllocatorState> state) override {
    return checkpoints_.restore(device, state, &delete_block);
  }

  // --- several GPUs, several processes ------------------------------------------------------------------------
  void enablePeerAccess(DeviceIndex device, DeviceIndex reached_from) override {
    static_cast<void>(c10::cuda::get_p2p_access(device, reached_from));
    const c10::cuda::CUDAGuard guard{device};
    const cudaError_t enabled = cudaDeviceEnablePeerAccess(reached_from, 0);
    if (enabled == cudaErrorPeerAccessAlreadyEnabled) {
      static_cast<void>(cudaGetLastError());
    } else {
      C10_CUDA_CHECK(enabled);
    }
    const gpumem::status mapped = memory().enable_peer(state_.device_of(reached_from).logical, device);
    TORCH_CHECK(mapped.ok(), "gpumem: ", mapped.message());
  }
  cudaError_t memcpyAsync(void* dst, int dst_device, const void* src, int src_device, std::size_t bytes,
                          cudaStream_t stream, bool p2p_enabled) override {
    if (p2p_enabled || dst_device == src_device)
      return cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, stream);
    return cudaMemcpyPeerAsync(dst, dst_device, src, src_device, bytes, stream);
  }
  native::ShareableHandle shareIpcHandle(void* ptr) override {
    requests_.begin_sharing();
    return shared_handles::share(ptr, getBaseAllocation(ptr, nullptr));
  }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override { return handles_.open(handle); }

  // --- history ------------------------------------------------------------------------------------------------
  void recordHistory(bool enabled, native::CreateContextFn recorder, std::size_t max_entries, RecordContext when,
                     bool clear, const std::vector<std::string>& skip_actions) override {
    state_.events.configure(enabled, recorder, max_entries, when, clear, skip_actions);
  }
  bool isHistoryEnabled() override { return state_.events.is_recording(); }
  context_ptr getContextForPointer(const void* ptr) {
    const std::optional<held_block> held = state_.find_block(ptr);
    return held ? held->context : nullptr;
  }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& values) override {
    state_.events.annotate(values);
  }
  void pushCompileContext(std::string& context) override { compile_contexts.push_back(context); }
  void popCompileContext() override {
    if (!compile_contexts.empty()) compile_contexts.pop_back();
  }
  bool supportsUserMetadata() { return true; }
  void setUserMetadata(const std::string& metadata) override { user_metadata = metadata; }
  std::string getUserMetadata() override { return user_metadata; }
  void annotateMemory(const void* ptr, const std::string& metadata) { notices_.annotate<TraceEntry>(ptr, metadata); }
  void attachOutOfMemoryObserver(native::OutOfMemoryObserver observer) override {
    refusals_.attach(std::move(observer));
  }
  // gpumem never rejects a request without trying it.
  void attachOomRejectionObserver(
      std::function<void(std::int64_t, std::size_t, std::size_t, std::size_t)> /*observer*/) {}
  void attachAllocatorTraceTracker(caching::AllocatorTraceTracker tracker) override {
    state_.events.attach(std::move(tracker));
  }

  native::SnapshotInfo snapshot(MempoolId_t pool) { return snapshot(pool, true); }
  native::SnapshotInfo snapshot(MempoolId_t pool, bool include_traces) {
    const auto to_ns = clock_.makeConverter();
    native::SnapshotInfo info{};  // config_metadata's numbers have no initializers
    for (std::size_t i = 0; i < state_.devices.size(); ++i) {
      const auto device = static_cast<DeviceIndex>(i);
      std::vector<TraceEntry>& trace = info.device_traces.emplace_back();
      if (include_traces) trace = state_.events.trace_of(device);
      for (TraceEntry& each : trace) each.time_.t_ = to_ns(each.time_.approx_t_) / 1000;
      if (state_.devices[i].logical < 0) continue;
      std::size_t active = 0;
      for (caching::SegmentInfo& piece : figures_.segment_infos_of(device)) {
        if (pool != no_pool && piece.owner_private_pool_id != pool) continue;
        active += piece.active_size;
        info.config_metadata.expandable_segments |= piece.is_expandable;
        info.segments.push_back(std::move(piece));
      }
      if (state_.events.is_recording()) state_.events.record({TraceEntry::SNAPSHOT, device, 0, active, nullptr, pool});
    }
    info.external_annotations = state_.events.annotations();
    for (auto& each : info.external_annotations) each.time_.t_ = to_ns(each.time_.approx_t_) / 1000;
    note_settings(info.config_metadata);
    return info;
  }

 private:
  void open_devices(const gpumem::allocator& opened, int device_count) {
    state_.devices = std::deque<device_state>(static_cast<std::size_t>(device_count));
    for (const gpumem::logical_device& each : opened.devices()) {
      if (each.physical_ordinal < 0 || each.physical_ordinal >= device_count) continue;
      device_state& d = state_.devices[static_cast<std::size_t>(each.physical_ordinal)];
      if (d.logical >= 0) continue;  // with several pools on one GPU, PyTorch's tensors use the first
      d.logical = each.ordinal;
      // Never freed, so it needs no reference count, which would cost atomic operations at each request.
      d.source = {std::shared_ptr<void>{}, new gpumem_memory{each.ordinal, false}};
      d.limit.open(each.ordinal, each.limit_bytes);
    }
  }

  c10::ApproximateClockToUnixTimeConverter clock_;  // starts before the first history entry
  adapter_state state_;
  device_figures figures_{state_};
  notices notices_{state_};
  refusals refusals_{state_};
  pool_ends pools_{state_};
  requests requests_{state_, pools_, refusals_};
  checkpoints checkpoints_{state_, requests_};
  shared_handles handles_;
};
