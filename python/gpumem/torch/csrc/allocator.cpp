// PyTorch's CUDAAllocator over gpumem. Compiled on the user's machine against the headers of the installed torch, with
// a plain C++ compiler; gpumem.torch does that and calls `gpumem_torch_install`.
//
// Functions that some versions of torch lack are written without `override` here, or are found with `requires`.
//
// A memory_source manages the memory: addresses, stream order, reserved bytes. `live_blocks_` holds the properties of
// each tensor's block that PyTorch queries: its requested size, its allocation frames, its MemPool. A block is in it
// exactly while the program holds the block. While this class holds its lock, it does not call the driver, the history
// or a source.
#include <c10/core/Allocator.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/PeerToPeerAccess.h>
#include <c10/util/env.h>
#include <c10/util/flat_hash_map.h>
#include <pthread.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "gpumem/default_allocator.hpp"
#include "gpumem/gpumem.h"
#include "gpumem/refusal.hpp"
#include "gpumem_memory.hpp"
#include "history.hpp"
#include "own_memory.hpp"
#include "pools.hpp"
#include "segments.hpp"
#include "snapshot.hpp"
#include "statistics.hpp"

namespace {

using c10::DataPtr;
using c10::DeviceIndex;
using c10::MempoolId_t;

static_assert(std::is_same_v<MempoolId_t, pool_id>);

/// A live block's properties that PyTorch queries.
struct held_block {
  std::size_t requested = 0;
  cudaStream_t stream = nullptr;
  DeviceIndex device = 0;
  MempoolId_t pool = no_pool;
  std::shared_ptr<memory_source> source{};
  context_ptr context{};
};

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

/// CUDA does not work in a process that was forked after the first use of a GPU. Its inherited tensors are only
/// forgotten.
bool in_forked_child = false;

/// The pool that this thread released last, until its next call shows which kind it was (private_pool::released_by).
thread_local std::optional<std::pair<DeviceIndex, MempoolId_t>> unsettled_release;

void delete_block(void* ptr);

class torch_allocator final : public native::CUDAAllocator {
  using guard = std::lock_guard<std::mutex>;

  struct device_state {
    int logical = -1;
    std::shared_ptr<memory_source> source;  // for requests outside every pool
    shared_limit limit;
    segment_table segments;
    // For MemPools with an allocator of their own.
    std::atomic<std::uint64_t> own_taken = 0, own_returned = 0, own_allocs = 0, own_frees = 0;
    // With the lock:
    std::uint64_t peak_reserved = 0;  // gpumem's memory and MemPools' own memory together, as last sampled
    double fraction = 1.0;
    device_stats stats;  // counted here; for sampled figures, the peaks only
    std::uint64_t taken_before = 0, returned_before = 0;
    std::uint64_t waits_before = 0, device_allocs_before = 0, device_frees_before = 0;
    pool_table pools;
    std::map<MempoolId_t, std::uint64_t> idle_at_end;  // of MemPools that are ending
    block_totals totals;                               // at the time of `totals_at` and `pools_at_totals`
    std::optional<gpumem::statistics> totals_at;
    std::pair<std::uint64_t, std::uint64_t> pools_at_totals;

    [[nodiscard]] std::uint64_t own_bytes() const { return own_taken - own_returned; }
  };

  /// Takes segments from a MemPool's allocator, within the GPU's limit, and records them in the history.
  class pool_supplier final : public segment_supplier {
   public:
    pool_supplier(torch_allocator& owner, DeviceIndex device, const MempoolId_t& pool,
                  std::shared_ptr<native::CUDAAllocator> allocator)
        : owner_{owner}, device_{device}, pool_{pool}, allocator_{std::move(allocator)} {}
    bool reserve(std::size_t bytes) override { return state().limit.reserve(bytes, !owner_.may_capture(state())); }
    void release(std::size_t bytes) noexcept override { state().limit.release(bytes); }
    void* allocate_segment(std::size_t bytes, cudaStream_t stream) override {
      return allocator_->raw_alloc_with_stream(bytes, stream);
    }
    void free_segment(void* ptr) override { allocator_->raw_delete(ptr); }
    void came(void* ptr, std::size_t bytes, cudaStream_t stream) override {
      state().own_taken += bytes;
      ++state().own_allocs;
      owner_.note_peak(state());
      tell(TraceEntry::SEGMENT_ALLOC, ptr, bytes, stream);
    }
    void going(void* ptr, std::size_t bytes, cudaStream_t stream) override {
      state().own_returned += bytes;
      ++state().own_frees;
      tell(TraceEntry::SEGMENT_FREE, ptr, bytes, stream);
    }

   private:
    device_state& state() const { return owner_.devices_[static_cast<std::size_t>(device_)]; }
    void tell(TraceEntry::Action action, void* ptr, std::size_t bytes, cudaStream_t stream) const {
      history& events = owner_.history_;
      if (!events.is_watched()) return;
      events.record({action, device_, reinterpret_cast<std::size_t>(ptr), bytes, stream, pool_,
                     events.context_for(RecordContext::ALLOC)});
    }

    torch_allocator& owner_;
    const DeviceIndex device_;
    const MempoolId_t pool_;
    const std::shared_ptr<native::CUDAAllocator> allocator_;
  };

  /// Records gpumem's segments in the history.
  class segment_recorder final : public gpumem::segment_observer {
   public:
    explicit segment_recorder(torch_allocator& owner) : owner_{owner} {}
    void segment_added(const gpumem::segment_extent& added) override { owner_.note_added(added); }
    void segment_removing(const gpumem::segment_extent& removing) override { owner_.note_removing(removing); }

   private:
    torch_allocator& owner_;
  };

 public:
  // --- life ---------------------------------------------------------------------------------------------------
  void init(int device_count) override {
    const double fraction = fraction_at_start();
    gpumem::allocator& opened = memory();
    history_.open(static_cast<std::size_t>(device_count));
    {
      const guard lock{mutex_};
      if (ready_) return;
      devices_ = std::deque<device_state>(static_cast<std::size_t>(device_count));
      for (const gpumem::logical_device& each : opened.devices()) {
        if (each.physical_ordinal < 0 || each.physical_ordinal >= device_count) continue;
        device_state& d = devices_[static_cast<std::size_t>(each.physical_ordinal)];
        if (d.logical >= 0) continue;  // with several pools on one GPU, PyTorch's tensors use the first
        d.logical = each.ordinal;
        d.source = std::make_shared<gpumem_memory>(each.ordinal, false);
        d.limit.open(each.ordinal, each.limit_bytes);
      }
      const gpumem::status observed = opened.observe_segments(std::make_shared<segment_recorder>(*this));
      TORCH_CHECK(observed.ok(), "gpumem: ", observed.message());
      opened.on_out_of_memory([](int, std::uint64_t) { return ask_callbacks(); });
      ready_ = true;
    }
    for (std::size_t i = 0; fraction < 1 && i < devices_.size(); ++i) {
      if (devices_[i].logical >= 0) setMemoryFraction(fraction, static_cast<DeviceIndex>(i));
    }
  }
  bool initialized() override { return ready_; }
  std::string name() override { return "gpumem"; }
  // Disabled, each request is a driver call, as with PyTorch's own allocator; useful for examining one request alone.
  void enable(bool value) override { caches_ = value; }
  bool isEnabled() const override { return caches_; }

  // --- blocks -------------------------------------------------------------------------------------------------
  DataPtr allocate(std::size_t bytes) override {
    const DeviceIndex device = c10::cuda::current_device();
    void* const ptr = bytes != 0 ? allocate_block(device, bytes, c10::cuda::getCurrentCUDAStream(device)) : nullptr;
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
      got = take_in(device, bytes, stream, route_of(device, stream), address, "mallocWithAddress");
    }
    return {got, got, &delete_block, c10::Device(c10::DeviceType::CUDA, device)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &delete_block; }
  void* raw_alloc(std::size_t bytes) override {
    if (bytes == 0) return nullptr;
    const DeviceIndex device = c10::cuda::current_device();
    return allocate_block(device, bytes, c10::cuda::getCurrentCUDAStream(device));
  }
  void* raw_alloc_with_stream(std::size_t bytes, cudaStream_t stream) override {
    return bytes != 0 ? allocate_block(c10::cuda::current_device(), bytes, stream) : nullptr;
  }
  void raw_delete(void* ptr) override {
    if (ptr != nullptr) free_block(ptr);
  }
  void copy_data(void* dest, const void* src, std::size_t bytes) const override {
    C10_CUDA_CHECK(cudaMemcpy(dest, src, bytes, cudaMemcpyDeviceToDevice));
  }
  void recordStream(const DataPtr& data, c10::cuda::CUDAStream stream) override {
    // The tensor is empty, or another allocator made its memory.
    if (!data.get() || data.get_deleter() != &delete_block) return;
    if (const std::optional<held_block> held = find_block(data.get())) {
      held->source->record_use(data.get(), {stream.device_index(), stream.stream()});
    }
  }
  void* getBaseAllocation(void* ptr, std::size_t* bytes) override {
    const std::optional<held_block> held = find_block(ptr);
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
    segment_cause cause{no_pool, nullptr, history_.is_watched() ? history_.context_for(RecordContext::ALL) : nullptr};
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      if (devices_[i].logical < 0) continue;
      const auto device = static_cast<DeviceIndex>(i);
      if (pool != no_pool) {
        empty_ended(device, pool);
      } else {
        close_unused_pools(device);
        give_back_ended(devices_[i]);
        static_cast<void>(memory().trim(devices_[i].logical));
      }
    }
  }
  void cacheInfo(DeviceIndex device, std::size_t* largest) override {
    device_state& d = device_of(device);
    const gpumem::statistics s = figures(d);
    if (*largest == 0) {  // as native: also count free GPU memory
      *largest = memory_info(device).first;
    }
    *largest = std::max(*largest, static_cast<std::size_t>(s.largest_free_bytes));
  }
  double getMemoryFraction(DeviceIndex device) override {
    device_state& d = device_of(device);
    const guard lock{mutex_};
    return d.fraction;
  }
  void setMemoryFraction(double fraction, DeviceIndex device) override {
    TORCH_CHECK(fraction >= 0 && fraction <= 1, "invalid fraction: ", fraction, ". Please set within [0, 1].");
    device_state& d = device_of(device);
    const auto total = static_cast<double>(memory().devices()[static_cast<std::size_t>(d.logical)].gpu_total_bytes);
    // The fraction cannot raise the limit above GPUMEM_LIMIT.
    d.limit.set(std::clamp<std::uint64_t>(static_cast<std::uint64_t>(fraction * total), 1, d.limit.at_start()));
    const guard lock{mutex_};
    d.fraction = fraction;
  }
  static std::pair<std::size_t, std::size_t> driver_memory_info(DeviceIndex device) {
    const c10::cuda::CUDAGuard current{device};
    std::size_t free = 0, total = 0;
    C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
    return {free, total};
  }
  /// Free and total bytes of the GPU for this program: free within the current limit, total within GPUMEM_LIMIT.
  std::pair<std::size_t, std::size_t> memory_info(DeviceIndex device) {
    const device_state& d = device_of(device);
    const auto [free, total] = driver_memory_info(device);
    const std::uint64_t held = figures(d).reserved_bytes + d.limit.reserved();
    const std::uint64_t limit = d.limit.bytes();
    return {std::min<std::size_t>(free, limit - std::min(limit, held)),
            std::min<std::size_t>(total, d.limit.at_start())};
  }
  std::pair<std::size_t, std::size_t> getMemoryInfo(DeviceIndex device) {
    return ready_ ? memory_info(device) : driver_memory_info(device);
  }
  std::vector<native::StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex device) override {
    memory_map map;
    device_of(device).source->describe(map, no_pool);
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

  caching::DeviceStats getDeviceStats(DeviceIndex device) override {
    device_state& d = device_of(device);
    const gpumem::statistics statistics = figures(d);
    const block_totals blocks = totals_of(d, statistics);
    const guard lock{mutex_};
    return statistics_of(d, statistics, blocks);
  }
  void resetAccumulatedStats(DeviceIndex device) override {
    device_state& d = device_of(device);
    const gpumem::statistics statistics = figures(d);
    const guard lock{mutex_};
    each_stat(d.stats, [](stat& each) { each.reset_accumulated(); });
    d.taken_before = statistics.taken_bytes + d.own_taken;
    d.returned_before = statistics.taken_bytes - statistics.reserved_bytes + d.own_returned;
    d.stats.num_ooms = 0;
    d.waits_before = statistics.host_waits;
    d.device_allocs_before = device_allocs(d, statistics);
    d.device_frees_before = device_frees(d, statistics);
  }
  void resetPeakStats(DeviceIndex device) override {
    device_state& d = device_of(device);
    static_cast<void>(getDeviceStats(device));  // sample the figures so that their peaks restart at the current values
    static_cast<void>(memory().reset_peak_reserved(d.logical));
    const guard lock{mutex_};
    d.peak_reserved = 0;
    each_stat(d.stats, [](stat& each) { each.reset_peak(); });
  }

  // --- pools of graphs, MemPool -------------------------------------------------------------------------------
  void beginAllocateToPool(DeviceIndex device, MempoolId_t pool, std::function<bool(cudaStream_t)> filter) override {
    device_state& d = device_of(device);
    ask_fences(d);
    const guard lock{mutex_};
    d.pools.begin_route(pool, std::move(filter));
    ++routes_;
  }
  void endAllocateToPool(DeviceIndex device, MempoolId_t pool) override {
    device_state& d = device_of(device);
    {
      const guard lock{mutex_};
      d.pools.end_route(pool);
      --routes_;
    }
    markCaptureEnd(device);
    ask_fences(d);
  }
  // Fences can be neither recorded nor queried within a capture. After a capture this records fences for blocks that
  // the capture freed while other streams used them; before the next one it frees blocks whose fences are done. Without
  // this, each graph of a pool takes new memory. While a route is open, a capture may be open.
  void ask_fences(const device_state& state) {
    if (routes_ == 0) static_cast<void>(memory().trim(state.logical, 0));
  }
  void markCaptureBegin(DeviceIndex device) {
    device_state& d = device_of(device);
    const guard lock{mutex_};
    d.pools.capture_begins();
  }
  // gpumem detects a capture at its first allocation, but must be told of its end.
  void markCaptureEnd(DeviceIndex device) {
    const gpumem::status ended = memory().reported_captures_ended(device);
    TORCH_CHECK(ended.ok(), "gpumem: end of a capture: ", ended.message());
  }
  // A MemPool keeps its memory on GPUs other than its own until it ends, or until that memory is idle and emptyCache
  // runs.
  void releasePool(DeviceIndex device, MempoolId_t pool) override {
    device_state& d = device_of(device);
    bool with_the_others = false;
    {
      const guard lock{mutex_};
      private_pool* const found = d.pools.find(pool);
      TORCH_CHECK(found != nullptr, "releasePool: there is no pool (", pool.first, ", ", pool.second, ")");
      if (--found->uses > 0) {
        found->released_by.insert(std::this_thread::get_id());
        unsettled_release = {device, pool};
        return;
      }
      with_the_others = found->is_mem_pool;
      if (!with_the_others && std::ranges::any_of(devices_, [&](device_state& candidate) {
            const private_pool* const same = candidate.pools.find(pool);
            return same != nullptr && same->is_mem_pool;
          })) {
        return;
      }
    }
    end_pool(device, pool);
    for (std::size_t i = 0; with_the_others && i < devices_.size(); ++i) end_pool(static_cast<DeviceIndex>(i), pool);
  }
  int getPoolUseCount(DeviceIndex device, MempoolId_t pool) override {
    device_state& d = device_of(device);
    const guard lock{mutex_};
    const private_pool* const found = d.pools.find(pool);
    return found != nullptr ? found->uses : 0;
  }
  // Called by a new MemPool, and by a graph that keeps a pool.
  void createOrIncrefPool(DeviceIndex device, MempoolId_t pool, std::shared_ptr<native::CUDAAllocator> own) override {
    device_state& d = device_of(device);
    const guard lock{mutex_};
    const bool is_new = d.pools.find(pool) == nullptr;
    private_pool& p = d.pools[pool];
    ++p.uses;
    if (!is_new) return;
    p.is_mem_pool = p.object_alive = true;
    p.is_own = own != nullptr;
    if (p.is_own) {
      p.source =
          std::make_shared<own_memory>(device, std::make_unique<pool_supplier>(*this, device, pool, std::move(own)));
    }
  }
  void setUseOnOOM(DeviceIndex device, MempoolId_t pool, bool use_on_oom) override {
    device_state& d = device_of(device);
    const guard lock{mutex_};
    d.pools[pool].use_on_oom = use_on_oom;
  }
  // A hint for native's segments; gpumem splits its segments for all blocks.
  void setNoSplit(DeviceIndex /*device*/, MempoolId_t /*pool*/) override {}
  bool checkPoolLiveAllocations(DeviceIndex device, MempoolId_t pool,
                                const std::unordered_set<void*>& expected) override {
    const guard lock{mutex_};
    std::size_t seen = 0;
    for (const auto& [at, held] : live_blocks_) {
      if (held.device != device || held.pool != pool) continue;
      if (expected.count(at) == 0) return false;
      ++seen;
    }
    return seen == expected.size();
  }
  std::shared_ptr<native::AllocatorState> getCheckpointState(DeviceIndex device, MempoolId_t pool) override {
    auto saved = std::make_shared<checkpoint>();
    saved->pool = pool;
    device_state& d = device_of(device);
    const guard lock{mutex_};
    TORCH_CHECK(d.pools.find(pool) != nullptr, "Could not find pool of id");
    for (const auto& [at, held] : live_blocks_) {
      if (held.device != device || held.pool != pool) continue;
      saved->live.push_back({at, held.requested, held.stream, held.context});
    }
    return saved;
  }
  // Frees the whole pool and allocates the saved blocks at their former addresses. These are free, because the pool's
  // memory serves only the pool.
  native::CheckpointDelta setCheckpointPoolState(DeviceIndex device,
                                                 std::shared_ptr<native::AllocatorState> state) override {
    const auto saved = std::dynamic_pointer_cast<checkpoint>(state);
    TORCH_CHECK(saved, "gpumem: not a state that its getCheckpointState made");
    native::CheckpointDelta delta;
    {
      device_state& d = device_of(device);
      const guard lock{mutex_};
      const private_pool* const found = d.pools.find(saved->pool);
      TORCH_CHECK(found != nullptr, "Could not find private pool id");
      TORCH_CHECK(!found->is_own,
                  "gpumem: the memory of a MemPool with an allocator of its own "
                  "cannot be put back to a checkpoint");
      for (const auto& [at, held] : live_blocks_) {
        if (held.device == device && held.pool == saved->pool) delta.ptrs_freed.push_back(at);
      }
    }
    for (void* const ptr : delta.ptrs_freed) free_block(ptr);
    for (const checkpoint::block& b : saved->live) {
      void* const ptr = take_in(device, b.requested, b.stream, saved->pool, reinterpret_cast<std::uintptr_t>(b.ptr));
      delta.dataptrs_allocd.emplace_back(ptr, ptr, &delete_block, c10::Device(c10::DeviceType::CUDA, device));
    }
    return delta;
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
    const gpumem::status mapped = memory().enable_peer(device_of(reached_from).logical, device);
    TORCH_CHECK(mapped.ok(), "gpumem: ", mapped.message());
  }
  cudaError_t memcpyAsync(void* dst, int dst_device, const void* src, int src_device, std::size_t bytes,
                          cudaStream_t stream, bool p2p_enabled) override {
    if (p2p_enabled || dst_device == src_device)
      return cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, stream);
    return cudaMemcpyPeerAsync(dst, dst_device, src, src_device, bytes, stream);
  }
  // Same format as native's for cudaMalloc memory, so that each allocator opens the other's handles: a version, a kind,
  // and the runtime's handle of the whole segment.
  native::ShareableHandle shareIpcHandle(void* ptr) override {
    shares_ = true;
    void* const base = getBaseAllocation(ptr, nullptr);
    cudaIpcMemHandle_t handle;
    const cudaError_t made = cudaIpcGetMemHandle(&handle, base);
    if (made != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      TORCH_CHECK(false, "gpumem: this block cannot be shared with another process (", cudaGetErrorString(made),
                  "): memory that is mapped page by page has no IPC handle. Use GPUMEM_POLICY=growth or caching with "
                  "GPUMEM_BACKING=plain, or share through the host.");
    }
    return {static_cast<const char*>(ptr) - static_cast<const char*>(base),
            std::string{ipc_head} + std::string{reinterpret_cast<const char*>(&handle), sizeof handle}};
  }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override {
    TORCH_CHECK(
        handle.size() == ipc_head.size() + sizeof(cudaIpcMemHandle_t) && handle.starts_with(ipc_head),
        "gpumem: cannot open this IPC handle: expected one of memory from cudaMalloc, and this one is of another "
        "kind (expandable segments in the process that shares it?)");
    const std::lock_guard lock{ipc_mutex_};
    if (auto open = opened_[handle].lock()) return open;
    cudaIpcMemHandle_t raw;
    std::copy_n(handle.data() + ipc_head.size(), sizeof raw, reinterpret_cast<char*>(&raw));
    void* base = nullptr;
    C10_CUDA_CHECK(cudaIpcOpenMemHandle(&base, raw, cudaIpcMemLazyEnablePeerAccess));
    const DeviceIndex device = c10::cuda::current_device();
    std::shared_ptr<void> mapping{base, [this, handle, device](void* p) {
                                    const std::lock_guard again{ipc_mutex_};
                                    const c10::cuda::CUDAGuard guard{device};
                                    C10_CUDA_CHECK_WARN(cudaIpcCloseMemHandle(p));
                                    opened_.erase(handle);
                                  }};
    opened_[handle] = mapping;
    return mapping;
  }

  // --- history ------------------------------------------------------------------------------------------------
  void recordHistory(bool enabled, native::CreateContextFn recorder, std::size_t max_entries, RecordContext when,
                     bool clear, const std::vector<std::string>& skip_actions) override {
    history_.configure(enabled, recorder, max_entries, when, clear, skip_actions);
  }
  bool isHistoryEnabled() override { return history_.is_recording(); }
  context_ptr getContextForPointer(const void* ptr) {
    const std::optional<held_block> held = find_block(ptr);
    return held ? held->context : nullptr;
  }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& values) override {
    history_.annotate(values);
  }
  void pushCompileContext(std::string& context) override { compile_contexts.push_back(context); }
  void popCompileContext() override {
    if (!compile_contexts.empty()) compile_contexts.pop_back();
  }
  bool supportsUserMetadata() { return true; }
  void setUserMetadata(const std::string& metadata) override { user_metadata = metadata; }
  std::string getUserMetadata() override { return user_metadata; }
  void annotateMemory(const void* ptr, const std::string& metadata) { annotate<TraceEntry>(ptr, metadata); }
  void attachOutOfMemoryObserver(native::OutOfMemoryObserver observer) override {
    const guard lock{mutex_};
    observers_.push_back(std::move(observer));
  }
  // gpumem never rejects a request without trying it.
  void attachOomRejectionObserver(
      std::function<void(std::int64_t, std::size_t, std::size_t, std::size_t)> /*observer*/) {}
  void attachAllocatorTraceTracker(caching::AllocatorTraceTracker tracker) override {
    history_.attach(std::move(tracker));
  }

  native::SnapshotInfo snapshot(MempoolId_t pool) { return snapshot(pool, true); }
  native::SnapshotInfo snapshot(MempoolId_t pool, bool include_traces) {
    const auto to_ns = clock_.makeConverter();
    native::SnapshotInfo info{};  // config_metadata's numbers have no initializers
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      const auto device = static_cast<DeviceIndex>(i);
      std::vector<TraceEntry>& trace = info.device_traces.emplace_back();
      if (include_traces) trace = history_.trace_of(device);
      for (TraceEntry& each : trace) each.time_.t_ = to_ns(each.time_.approx_t_) / 1000;
      if (devices_[i].logical < 0) continue;
      std::size_t active = 0;
      for (caching::SegmentInfo& piece : segment_infos_of(device)) {
        if (pool != no_pool && piece.owner_private_pool_id != pool) continue;
        active += piece.active_size;
        info.config_metadata.expandable_segments |= piece.is_expandable;
        info.segments.push_back(std::move(piece));
      }
      if (history_.is_recording()) history_.record({TraceEntry::SNAPSHOT, device, 0, active, nullptr, pool});
    }
    info.external_annotations = history_.annotations();
    for (auto& each : info.external_annotations) each.time_.t_ = to_ns(each.time_.approx_t_) / 1000;
    note_settings(info.config_metadata);
    return info;
  }

 private:
  static constexpr std::string_view ipc_head{
      "\x01"
      "c"};

  device_state& device_of(DeviceIndex device) {
    TORCH_CHECK(ready_ && device >= 0 && static_cast<std::size_t>(device) < devices_.size(),
                "Allocator not initialized for device ", static_cast<int>(device), ": did you call init?");
    device_state& d = devices_[static_cast<std::size_t>(device)];
    TORCH_CHECK(d.logical >= 0, "gpumem: GPU ", static_cast<int>(device),
                " is not among those that GPUMEM_DEVICES names");
    return d;
  }
  static gpumem::statistics figures(const device_state& state) {
    const gpumem::result<gpumem::statistics> s = memory().stats(state.logical);
    TORCH_CHECK(s.ok(), "gpumem: ", s.why().message());
    return *s;
  }
  /// Walks all blocks, unless each of gpumem's counters, and each pool, is as at the last walk.
  block_totals totals_of(device_state& state, const gpumem::statistics& statistics) {
    static_assert(std::has_unique_object_representations_v<gpumem::statistics>);
    std::pair<std::uint64_t, std::uint64_t> pools;
    {
      const guard lock{mutex_};
      pools = state.pools.changes();
      if (state.totals_at && state.pools_at_totals == pools &&
          std::memcmp(&*state.totals_at, &statistics, sizeof statistics) == 0) {
        return state.totals;
      }
    }
    block_totals walked = total_blocks(map_of(state));
    const guard lock{mutex_};
    state.totals = walked;
    state.totals_at = statistics;
    state.pools_at_totals = pools;
    return walked;
  }
  memory_map map_of(device_state& state) {
    std::vector<std::pair<pool_id, std::shared_ptr<memory_source>>> sources;
    {
      const guard lock{mutex_};
      sources = state.pools.sources();
    }
    memory_map map;
    state.source->describe(map, no_pool);
    for (const auto& [pool, source] : sources) source->describe(map, pool);
    return map;
  }
  std::vector<caching::SegmentInfo> segment_infos_of(DeviceIndex device) {
    const memory_map map = map_of(device_of(device));
    const segment_table::map segments = device_of(device).segments.entries();
    const guard lock{mutex_};
    return segment_infos(map, device, segments, [&](std::size_t address) {
      const auto found = live_blocks_.find(reinterpret_cast<void*>(address));
      return found != live_blocks_.end() ? found->second.context : nullptr;
    });
  }

  // --- statistics ---------------------------------------------------------------------------------------------
  static std::uint64_t device_allocs(const device_state& state, const gpumem::statistics& statistics) {
    return statistics.grown_segments + statistics.mapped_pages + state.own_allocs;
  }
  static std::uint64_t device_frees(const device_state& state, const gpumem::statistics& statistics) {
    return statistics.returned_segments + statistics.returned_pages + state.own_frees;
  }
  void note_peak(device_state& state) {
    const std::uint64_t reserved = figures(state).reserved_bytes + state.own_bytes();
    const guard lock{mutex_};
    state.peak_reserved = std::max(state.peak_reserved, reserved);
  }
  /// Requires the lock.
  static device_stats statistics_of(device_state& state, const gpumem::statistics& statistics,
                                    const block_totals& blocks) {
    device_stats& s = state.stats;
    const std::uint64_t reserved_bytes = statistics.reserved_bytes + state.own_bytes();
    const std::uint64_t returned = statistics.taken_bytes - statistics.reserved_bytes + state.own_returned;
    state.peak_reserved = std::max(state.peak_reserved, reserved_bytes);
    for (const std::size_t type : stat_types) {
      s.active[type] = with_pending(s.allocation[type], s.active[type].peak, blocks.fenced);
      s.active_bytes[type] = with_pending(s.allocated_bytes[type], s.active_bytes[type].peak, blocks.fenced_bytes);
      observe(s.segment[type], blocks.pieces);
      observe(s.inactive_split[type], blocks.split);
      observe(s.inactive_split_bytes[type], blocks.split_bytes);
      stat& reserved = s.reserved_bytes[type];
      reserved.current = static_cast<std::int64_t>(reserved_bytes);
      reserved.peak = static_cast<std::int64_t>(std::max(statistics.peak_reserved_bytes, state.peak_reserved));
      reserved.allocated = static_cast<std::int64_t>(statistics.taken_bytes + state.own_taken - state.taken_before);
      reserved.freed = static_cast<std::int64_t>(returned - state.returned_before);
    }
    observe_pools(s, blocks.bytes_by_pool);
    s.max_split_size = static_cast<std::int64_t>(c10::CachingAllocator::AcceleratorAllocatorConfig::max_split_size());
    s.num_sync_all_streams = static_cast<std::int64_t>(statistics.host_waits - state.waits_before);
    s.num_device_alloc = static_cast<std::int64_t>(device_allocs(state, statistics) - state.device_allocs_before);
    s.num_device_free = static_cast<std::int64_t>(device_frees(state, statistics) - state.device_frees_before);
    return s;
  }

  // --- settings -----------------------------------------------------------------------------------------------
  // PYTORCH_CUDA_ALLOC_CONF=per_process_memory_fraction is a limit, and limits hold here, too.
  template <typename Config = native::CUDAAllocatorConfig>
  static double fraction_at_start() {
    if constexpr (requires { Config::per_process_memory_fraction(); }) return Config::per_process_memory_fraction();
    return 1.0;
  }
  // Reports the settings that PyTorch parsed: those of pinned memory apply, those of native's segments have no effect.
  // gpumem's policies decide whether segments are expandable.
  template <typename Info, typename Config = native::CUDAAllocatorConfig,
            typename Common = c10::CachingAllocator::AcceleratorAllocatorConfig>
  static void note_settings(Info& info) {
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

  /// PYTORCH_NO_CUDA_MEMORY_CACHING, for tools that look for bad accesses; parsed as PyTorch parses flags.
  static bool is_without_caches() {
    static const bool asked = c10::utils::check_env("PYTORCH_NO_CUDA_MEMORY_CACHING") == true;
    return asked;
  }

  // --- allocating ---------------------------------------------------------------------------------------------
  static bool ask_callbacks() {
    bool freed = false;
    for (const auto& name : c10::FreeCudaMemoryCallbacksRegistry()->Keys()) {
      freed |= c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute();
    }
    return freed;
  }
  void* allocate_block(DeviceIndex device, std::size_t bytes, cudaStream_t stream) {
    constexpr std::size_t exabyte = std::size_t{1} << 60;
    TORCH_CHECK_WITH(OutOfMemoryError, bytes < exabyte, "CUDA out of memory. Tried to allocate more than 1EB memory.");
    if (!caches_ || is_without_caches()) return take_uncached(device, bytes, stream);
    return take_in(device, bytes, stream, route_of(device, stream), 0);
  }

  /// Returns the pool of this thread's allocations on the stream.
  MempoolId_t route_of(DeviceIndex device, cudaStream_t stream) {
    if (routes_ == 0) return no_pool;
    const guard lock{mutex_};
    return device_of(device).pools.route_of(stream);
  }
  std::shared_ptr<memory_source> source_of(DeviceIndex device, const MempoolId_t& pool, cudaStream_t stream) {
    device_state& d = device_of(device);
    if (pool == no_pool) return d.source;
    const bool captures = !captures_nothing({device, stream});
    const guard lock{mutex_};
    private_pool& p = d.pools.note_request(pool, captures);
    if (!p.source) p.source = std::make_shared<gpumem_memory>(d.logical, true);
    return p.source;
  }

  /// `place`: the block's exact address; 0: any. `tag`: the requesting function's name for the history.
  void* take_in(DeviceIndex device, std::size_t bytes, cudaStream_t stream, MempoolId_t pool, gpumem::address place,
                const char* tag = "") {
    device_state& d = device_of(device);
    settle_release();
    held_block held{
        bytes, stream, device, pool, source_of(device, pool, stream), history_.context_for(RecordContext::STATE)};
    const memory_request asked{bytes, stream, place};
    segment_cause cause{pool, stream, held.context};
    collect_shared(d, bytes);
    refusal why;
    void* ptr = held.source->allocate_block(asked, why);
    if (ptr == nullptr && held.source != d.source && ask_callbacks()) ptr = held.source->allocate_block(asked, why);
    if (ptr == nullptr && pool == no_pool && captures_nothing({device, stream})) ptr = take_lent(d, asked, held);
    if (ptr == nullptr && give_back_idle(d)) ptr = held.source->allocate_block(asked, why);
    if (ptr == nullptr) refuse(d, held, why);
    // If the host has no memory to enter the block, free it.
    const std::shared_ptr<memory_source> source = held.source;
    try {
      enter(d, ptr, std::move(held));
    } catch (...) {
      source->free_block(ptr);
      throw;
    }
    try {
      cause.rethrow();
      tell(ptr, tag);
    } catch (...) {
      free_block(ptr);
      throw;
    }
    return ptr;
  }

  bool may_capture(const device_state& state) const {
    const guard lock{mutex_};
    return state.pools.may_capture();
  }
  /// Collects memory that other processes have released, so that the request need not take new memory.
  void collect_shared(const device_state& state, std::size_t bytes) {
    if (shares_ && figures(state).largest_free_bytes < own_memory::rounded(bytes)) ask_callbacks();
  }
  /// A request of this thread right after a release shows that a graph was released: a MemPool would call `emptyCache`.
  void settle_release() {
    if (!unsettled_release) return;
    const auto [device, pool] = *std::exchange(unsettled_release, std::nullopt);
    const guard lock{mutex_};
    private_pool* const found = device_of(device).pools.find(pool);
    if (found != nullptr) found->released_by.erase(std::this_thread::get_id());
  }

  /// Takes idle memory from a pool with `use_on_oom`.
  void* take_lent(device_state& state, const memory_request& asked, held_block& held) {
    std::vector<pool_table::ended_pool> lenders;
    {
      const guard lock{mutex_};
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
  /// Moves idle memory out of the pools, for all requests; true if there was any.
  bool give_back_idle(device_state& state) {
    std::vector<std::shared_ptr<memory_source>> sources;
    {
      const guard lock{mutex_};
      sources = state.pools.sources_to_give_back();
    }
    bool any = false;
    for (const auto& each : sources) any = each->give_back() || any;
    return any;
  }

  void enter(device_state& state, void* ptr, held_block held) {
    const std::size_t bytes = held.requested;
    const guard lock{mutex_};
    live_blocks_.insert_or_assign(ptr, std::move(held));
    for (const std::size_t type : stat_types) {
      state.stats.allocation[type].increase(1);
      state.stats.allocated_bytes[type].increase(own_memory::rounded(bytes));
      state.stats.requested_bytes[type].increase(bytes);
    }
  }
  std::optional<held_block> find_block(const void* ptr) const {
    const guard lock{mutex_};
    const auto found = live_blocks_.find(const_cast<void*>(ptr));
    return found != live_blocks_.end() ? std::optional{found->second} : std::nullopt;
  }

  // Tells the history, trackers, the GPU trace and the profiler.
  void tell(void* ptr, const char* tag) {
    const bool profiled = c10::memoryProfilingEnabled();
    if (history_.is_watched() || profiled) {
      const std::optional<held_block> held = find_block(ptr);
      if (!held) return;  // a tracker freed it
      if (history_.is_watched()) {
        context_ptr context = history_.keeps(RecordContext::ALLOC) ? held->context : nullptr;
        history_.record(event_of(TraceEntry::ALLOC, ptr, *held, std::move(context), tag));
      }
      if (profiled) tell_profiler(ptr, held->device, static_cast<std::int64_t>(own_memory::rounded(held->requested)));
    }
    if (const c10::impl::PyInterpreter* const traced = c10::impl::GPUTrace::get_trace();
        C10_UNLIKELY(traced != nullptr)) {
      (*traced)->trace_gpu_memory_allocation(c10::kCUDA, reinterpret_cast<std::uintptr_t>(ptr));
    }
  }
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

  // --- freeing ------------------------------------------------------------------------------------------------
  void free_block(void* ptr) {
    if (const c10::impl::PyInterpreter* const traced = c10::impl::GPUTrace::get_trace();
        C10_UNLIKELY(traced != nullptr)) {
      (*traced)->trace_gpu_memory_deallocation(c10::kCUDA, reinterpret_cast<std::uintptr_t>(ptr));
    }
    // Make the calls that may throw first: until the block leaves `live_blocks_`, the program can free it again.
    if (history_.is_watched()) {
      if (const std::optional<held_block> held = find_block(ptr)) {
        context_ptr context = history_.context_for(RecordContext::ALL);
        if (context == nullptr && history_.keeps(RecordContext::ALLOC)) context = held->context;
        for (const TraceEntry::Action each : {TraceEntry::FREE_REQUESTED, TraceEntry::FREE_COMPLETED}) {
          history_.record(event_of(each, ptr, *held, context));
        }
      }
    }
    held_block held;
    {
      std::unique_lock lock{mutex_};
      const auto found = live_blocks_.find(ptr);
      if (found == live_blocks_.end()) {
        lock.unlock();
        TORCH_CHECK(give_uncached(ptr), "invalid device pointer: ", ptr);
        return;
      }
      held = std::move(found->second);
      live_blocks_.erase(found);
      device_stats& stats = devices_[static_cast<std::size_t>(held.device)].stats;
      for (const std::size_t type : stat_types) {
        stats.allocation[type].decrease(1);
        stats.allocated_bytes[type].decrease(own_memory::rounded(held.requested));
        stats.requested_bytes[type].decrease(held.requested);
      }
    }
    if (!in_forked_child) held.source->free_block(ptr);
    if (c10::memoryProfilingEnabled()) {
      tell_profiler(ptr, held.device, -static_cast<std::int64_t>(own_memory::rounded(held.requested)));
    }
  }

  void tell_profiler(void* ptr, DeviceIndex device, std::int64_t bytes) {
    device_state& d = device_of(device);
    const auto reserved = static_cast<std::size_t>(figures(d).reserved_bytes);
    std::size_t allocated = 0;
    {
      const guard lock{mutex_};
      allocated = static_cast<std::size_t>(d.stats.allocated_bytes[every_pool].current);
    }
    c10::reportMemoryUsageToProfiler(ptr, bytes, allocated, reserved, c10::Device(c10::DeviceType::CUDA, device));
  }

  // --- without caches -----------------------------------------------------------------------------------------
  void* take_uncached(DeviceIndex device, std::size_t bytes, cudaStream_t stream) {
    device_state& d = device_of(device);
    const std::size_t taken = own_memory::rounded(bytes);
    if (!d.limit.reserve(taken, true) && !(give_back_idle(d) && d.limit.reserve(taken, true))) {
      refuse(d, {.requested = bytes, .stream = stream, .device = device}, {});
    }
    void* ptr = nullptr;
    try {
      const c10::cuda::CUDAGuard current{device};
      C10_CUDA_CHECK(cudaMalloc(&ptr, bytes));
      const guard lock{mutex_};
      uncached_[ptr] = {device, taken};
    } catch (...) {
      d.limit.release(taken);
      throw;
    }
    return ptr;
  }
  bool give_uncached(void* ptr) {
    std::pair<DeviceIndex, std::size_t> freed;
    {
      const guard lock{mutex_};
      const auto found = uncached_.find(ptr);
      if (found == uncached_.end()) return false;
      freed = found->second;
      uncached_.erase(found);
    }
    if (in_forked_child) return true;
    const c10::cuda::CUDAGuard current{freed.first};
    C10_CUDA_CHECK(cudaFree(ptr));
    device_of(freed.first).limit.release(freed.second);
    return true;
  }

  // --- the end of pools ---------------------------------------------------------------------------------------
  /// Ends a pool without uses. Its gpumem memory then serves all requests; own memory stays until it may return to its
  /// allocator. The statistics keep the pool's last figures.
  void end_pool(DeviceIndex device, const MempoolId_t& pool) {
    device_state& d = devices_[static_cast<std::size_t>(device)];
    if (in_forked_child || d.logical < 0) return;
    {
      const guard lock{mutex_};
      const private_pool* const found = d.pools.find(pool);
      if (found == nullptr || found->uses > 0) return;
    }
    const memory_map map = map_of(d);
    const gpumem::statistics statistics = figures(d);
    std::shared_ptr<memory_source> source;
    {
      const guard lock{mutex_};
      static_cast<void>(statistics_of(d, statistics, total_blocks(map)));
      const private_pool* const found = d.pools.find(pool);
      if (found != nullptr && found->is_mem_pool && !found->is_own) d.idle_at_end[pool] = bytes_to_trim(map, pool);
      source = d.pools.end_pool(pool);
    }
    if (source) source->close();
  }
  /// The MemPool was destroyed: returns its memory, unless a graph still keeps the pool.
  void empty_ended(DeviceIndex device, const MempoolId_t& pool) {
    device_state& d = devices_[static_cast<std::size_t>(device)];
    std::uint64_t idle = 0;
    {
      const guard lock{mutex_};
      unsettled_release.reset();
      if (private_pool* const found = d.pools.find(pool)) {
        found->object_alive = false;
        found->released_by.erase(std::this_thread::get_id());
      }
      if (const auto found = d.idle_at_end.find(pool); found != d.idle_at_end.end()) {
        idle = found->second;
        d.idle_at_end.erase(found);
      }
    }
    give_back_ended(d);
    if (idle != 0) static_cast<void>(memory().trim(d.logical, idle));
  }
  /// Ends pools on this GPU that belong to MemPools of other GPUs and have no live blocks.
  void close_unused_pools(DeviceIndex device) {
    std::set<MempoolId_t> unused;
    {
      const guard lock{mutex_};
      for (const auto& [id, pool] : devices_[static_cast<std::size_t>(device)].pools) {
        if (pool.uses <= 0) unused.insert(id);
      }
      if (unused.empty()) return;
      for (const auto& [at, held] : live_blocks_) {
        if (held.device == device) unused.erase(held.pool);
      }
    }
    for (const MempoolId_t& id : unused) end_pool(device, id);
  }
  /// Returns own memory of ended pools, unless a capture may be open: waiting for the GPU would invalidate it.
  void give_back_ended(device_state& state) {
    std::vector<std::shared_ptr<memory_source>> ended;
    {
      const guard lock{mutex_};
      ended = state.pools.ended_sources();
    }
    for (const auto& each : ended) static_cast<void>(each->give_back());
    const guard lock{mutex_};
    state.pools.forget_empty();
  }

  // --- out of memory ------------------------------------------------------------------------------------------
  /// Reports that the limit has no room beside gpumem's memory.
  static gpumem::oom_report limit_report(const device_state& state, DeviceIndex device, std::size_t bytes) {
    gpumem::oom_report report{.cause = gpumem::oom_cause::limit,
                              .pool = std::to_string(state.logical),
                              .policy = memory().devices()[static_cast<std::size_t>(state.logical)].policy,
                              .requested_bytes = bytes,
                              .rounded_bytes = own_memory::rounded(bytes),
                              .pool_statistics = figures(state)};
    const c10::cuda::CUDAGuard current{device};
    C10_CUDA_CHECK(cudaMemGetInfo(&report.device_free_bytes, &report.device_total_bytes));
    return report;
  }
  // Throws PyTorch's own message, which programs look for, followed by gpumem's report.
  [[noreturn]] void refuse(device_state& state, const held_block& held, const refusal& why) {
    const DeviceIndex device = held.device;
    const std::string asked = "CUDA out of memory. Tried to allocate " + format_size(held.requested);
    std::vector<native::OutOfMemoryObserver> observers;
    {
      const guard lock{mutex_};
      ++state.stats.num_ooms;
      observers = observers_;
    }
    TORCH_CHECK_WITH(OutOfMemoryError, !why.allocator_refused, asked,
                     ". The custom allocator backing this MemPool returned nullptr. ",
                     "Check preceding allocator warnings or logs.");
    const bool has_report = why.report.cause != gpumem::oom_cause::none;
    const gpumem::oom_report report = has_report ? why.report : limit_report(state, device, held.requested);
    const block_totals blocks = total_blocks(map_of(state));
    history_.record(
        {TraceEntry::OOM, device, report.device_free_bytes, held.requested, held.stream, held.pool, held.context});
    // Idle memory of a pool serves only that pool, so it counts as allocated, as in native.
    std::uint64_t allocated = blocks.pool_bytes - blocks.pool_live_bytes;
    {
      const guard lock{mutex_};
      allocated += static_cast<std::uint64_t>(state.stats.allocated_bytes[every_pool].current);
    }
    const std::uint64_t reserved = report.pool_statistics.reserved_bytes + state.own_bytes();
    const std::uint64_t limit = state.limit.bytes();
    if (c10::memoryProfilingEnabled()) {
      c10::reportOutOfMemoryToProfiler(static_cast<std::int64_t>(held.requested), allocated, reserved,
                                       c10::Device(c10::DeviceType::CUDA, device));
    }
    for (const auto& each : observers) {
      each(device, held.requested, report.device_total_bytes, report.device_free_bytes);
    }
    gpumem::report_refusal(report, device, "a tensor");
    const std::string allowed = limit < report.device_total_bytes ? format_size(limit) + " allowed; " : "";
    const std::string in_pools = blocks.pool_bytes != 0 ? "with " + format_size(blocks.pool_bytes) +
                                                              " allocated in private pools (e.g., CUDA Graphs), "
                                                        : "";
    TORCH_CHECK_WITH(OutOfMemoryError, false, asked, ". GPU ", static_cast<int>(device), " has a total capacity of ",
                     format_size(report.device_total_bytes), " of which ", format_size(report.device_free_bytes),
                     " is free. ", allowed, "Of the allocated memory ", format_size(allocated),
                     " is allocated by PyTorch, ", in_pools, "and ",
                     format_size(reserved - std::min(reserved, allocated)),
                     " is reserved by PyTorch but unallocated.\ngpumem: ", report.to_string());
    std::abort();
  }

  // --- the history ----------------------------------------------------------------------------------------------
  template <typename Entry>
  void annotate(const void* ptr, const std::string& metadata) {
    if (!history_.is_watched()) return;
    context_ptr context = history_.context_for(RecordContext::ALLOC);
    const std::optional<held_block> held = find_block(ptr);
    TORCH_CHECK(held, "gpumem: no live allocation begins at ", ptr);
    if constexpr (requires { Entry::ANNOTATE; }) {
      history::event told = event_of(Entry::ANNOTATE, const_cast<void*>(ptr), *held, std::move(context));
      told.metadata = &metadata;
      history_.record(std::move(told));
    }
  }
  // gpumem calls the segment functions below without holding its locks or this class's.
  std::optional<DeviceIndex> device_of_logical(int logical) const {
    const auto found = std::ranges::find(devices_, logical, &device_state::logical);
    if (found == devices_.end()) return std::nullopt;
    return static_cast<DeviceIndex>(found - devices_.begin());
  }
  /// A tracker's exception fails the request that added the segment, as in native.
  void note_added(const gpumem::segment_extent& added) {
    const std::optional<DeviceIndex> device = device_of_logical(added.device);
    if (!device) return;
    segment_cause* const cause = segment_cause::current();
    devices_[static_cast<std::size_t>(*device)].segments.add(added.begin, added.bytes, cause);
    if (!history_.is_watched()) return;
    history::event told{.action = added.paged ? TraceEntry::SEGMENT_MAP : TraceEntry::SEGMENT_ALLOC,
                        .device = *device,
                        .address = added.begin,
                        .bytes = added.bytes};
    if (cause == nullptr) return history_.record(std::move(told));
    told.stream = cause->stream;
    told.pool = cause->pool;
    if (history_.keeps(RecordContext::ALLOC)) told.context = cause->context;
    try {
      history_.record(std::move(told));
    } catch (...) {
      cause->fail(std::current_exception());
    }
  }
  void note_removing(const gpumem::segment_extent& removing) {
    const std::optional<DeviceIndex> device = device_of_logical(removing.device);
    if (!device) return;
    auto going = devices_[static_cast<std::size_t>(*device)].segments.remove(removing.begin, removing.bytes);
    if (going.empty()) {  // added before PyTorch's first request
      going.emplace_back(removing.begin, segment_table::entry{.end = removing.begin + removing.bytes});
    }
    if (!history_.is_watched()) return;
    const segment_cause* const cause = segment_cause::current();
    const bool with_context = cause != nullptr && history_.keeps(RecordContext::ALLOC);
    for (const auto& [begin, segment] : going) {
      history_.record({.action = removing.paged ? TraceEntry::SEGMENT_UNMAP : TraceEntry::SEGMENT_FREE,
                       .device = *device,
                       .address = begin,
                       .bytes = segment.end - begin,
                       .stream = segment.stream,
                       .pool = segment.pool,
                       .context = with_context ? cause->context : nullptr});
    }
  }

  c10::ApproximateClockToUnixTimeConverter clock_;  // starts before the first history entry
  history history_;
  std::atomic<bool> ready_{false};
  std::atomic<int> routes_{0};
  std::atomic<bool> caches_{true};
  std::atomic<bool> shares_{false};  // shares memory with other processes
  std::deque<device_state> devices_;
  mutable std::mutex mutex_;  // guards the members below, and parts of device_state
  std::map<void*, std::pair<DeviceIndex, std::size_t>> uncached_;  // allocated while disabled
  ska::flat_hash_map<void*, held_block> live_blocks_;
  std::vector<native::OutOfMemoryObserver> observers_;
  std::mutex ipc_mutex_;
  std::map<std::string, std::weak_ptr<void>> opened_;
};

// Never destroyed, because tensors may be freed until the process ends.
torch_allocator& only() {
  static auto* const made = new torch_allocator;
  return *made;
}

void delete_block(void* ptr) {
  if (ptr != nullptr) only().raw_delete(ptr);
}

/// Returns null, or the message of the exception that `step` throws. The text is valid until the next call.
template <class Step>
const char* what_fails(const Step& step) {
  static std::string why;
  try {
    step();
    return nullptr;
  } catch (const c10::Error& error) {
    why = error.what_without_backtrace();
  } catch (const std::exception& error) {
    why = error.what();
  }
  return why.c_str();
}

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

/// Whether PyTorch's allocator is initialized, even if torch.cuda does not know: by pinned memory, or before a fork.
EXPORTED bool gpumem_torch_in_use() { return native::get()->initialized(); }

/// Reads free and total bytes of a GPU for this program. False, with nothing changed, before the first use of a GPU.
EXPORTED bool gpumem_torch_memory_info(int device, std::size_t* free, std::size_t* total) try {
  if (!only().initialized()) return false;
  std::tie(*free, *total) = only().memory_info(static_cast<DeviceIndex>(device));
  return true;
} catch (const std::exception&) {
  return false;
}

/// Returns null, or why PyTorch rejects its own settings. While its own allocator is current, all of them are valid.
EXPORTED const char* gpumem_torch_read_settings() {
  return what_fails([] { static_cast<void>(native::CUDAAllocatorConfig::release_lock_on_cudamalloc()); });
}

/// Makes gpumem PyTorch's allocator, once PyTorch has read its settings. Returns null, or the error; then nothing has
/// changed. Touches no GPU, so that a process may still fork and choose GPUs by CUDA_VISIBLE_DEVICES.
EXPORTED const char* gpumem_torch_install() {
  return what_fails([] {
    torch::cuda::CUDAPluggableAllocator::changeCurrentAllocator(
        std::shared_ptr<native::CUDAAllocator>{&only(), [](native::CUDAAllocator*) {}});
    // A child that is forked before the first use of a GPU may use a GPU itself.
    pthread_atfork(nullptr, nullptr, [] { in_forked_child = only().initialized(); });
    // torch.accelerator uses c10's registry; there PyTorch's own unused allocator would show no statistics and empty
    // nothing.
    constexpr std::uint8_t above_native = 255;
    c10::SetAllocator(c10::DeviceType::CUDA, &only(), above_native);
  });
}
