// PyTorch's CUDAAllocator over gpumem. Compiled on the user's machine against the headers of the installed torch, with
// a plain C++ compiler; gpumem.torch does that and calls `gpumem_torch_install`.
//
// What some versions of torch lack is a function without `override` here, or asked for by `requires`.
//
// gpumem has the memory: places, stream order, limits, what is reserved. The book here has what PyTorch wants to know
// of each tensor's block and gpumem has no word for: its requested size as a statistic with a peak, the frames that
// allocated it, the MemPool that it belongs to. A block is in the book exactly while the program holds it.
#include <c10/core/Allocator.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/PeerToPeerAccess.h>
#include <c10/util/flat_hash_map.h>
#include <dlfcn.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
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
#include "own_memory.hpp"

namespace {

namespace native = c10::cuda::CUDACachingAllocator;
namespace caching = c10::CachingDeviceAllocator;
using c10::DataPtr;
using c10::DeviceIndex;
using c10::GatheredContext;
using c10::MempoolId_t;
using context_ptr = std::shared_ptr<GatheredContext>;
using caching::RecordContext;
using caching::TraceEntry;
using gpumem::block_view;

constexpr MempoolId_t no_pool{0, 0};
constexpr std::size_t everything = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
// gpumem has segments of one kind, for small and large blocks alike: PyTorch's large pool.
constexpr std::size_t large = static_cast<std::size_t>(c10::CachingAllocator::StatType::LARGE_POOL);

std::size_t rounded(std::size_t bytes) { return (bytes + 511) / 512 * 512; }

/// `gpumem simulate` lists what its card refused (simcuda/control.h), and gpumem's own refusals as well.
void tell_simulated_card(int device, const gpumem::oom_report& refused) {
  using note_function = void (*)(int, const char*, std::uint64_t, const char*);
  const auto function = reinterpret_cast<note_function>(::dlsym(RTLD_DEFAULT, "simcuda_note_refusal"));
  const gpumem::statistics& s = refused.pool_statistics;
  const bool by_limit = s.reserved_bytes + refused.rounded_bytes > s.limit_bytes;
  const bool by_card = refused.cause == gpumem::oom_cause::device_full && !by_limit;
  if (function == nullptr || by_card) return;
  const std::string why = refused.headline();
  constexpr std::string_view before = " asked, ";
  const std::size_t at = why.find(before);
  const std::string cause = at == std::string::npos ? why : why.substr(at + before.size());
  function(device, "a tensor", refused.requested_bytes, ("gpumem: " + cause).c_str());
}

std::string in_words(std::uint64_t bytes) {
  constexpr std::array<const char*, 4> units{"bytes", "KiB", "MiB", "GiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; unit + 1 < units.size() && value > 1024; ++unit) value /= 1024;
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), unit == 0 ? "%.0f %s" : "%.2f %s", value, units[unit]);
  return text.data();
}

gpumem::allocator& memory() {
  static gpumem::allocator* const only = [] {
    const gpumem::result<gpumem::allocator*> opened = gpumem::default_allocator();
    TORCH_CHECK(opened.ok(), "gpumem: ", opened.why().message());
    return *opened;
  }();
  return *only;
}

/// What PyTorch is told of a block that the program holds.
struct held_block {
  std::size_t requested = 0;
  cudaStream_t stream = nullptr;
  DeviceIndex device = 0;
  MempoolId_t pool = no_pool;
  std::shared_ptr<own_memory> own;    // of a MemPool that brings its own allocator
  std::vector<cudaStream_t> used_on;  // of such memory: by `recordStream`
  context_ptr context;
};

/// The largest request that is small, here as in PyTorch's own allocator.
constexpr std::size_t most_small = std::size_t{1} << 20;

/// A MemPool, or the memory that CUDA graphs share: two regions of gpumem's for each stream.
struct private_pool {
  int uses = 0;
  bool made_here = false;   // a MemPool's own GPU: on others it has uses only while it is entered there
  bool use_on_oom = false;  // its idle memory serves others before they run out of memory
  // By stream, and whether for small requests: a small block that lives on would keep a large one from being whole
  // again.
  std::map<std::pair<cudaStream_t, bool>, std::uint64_t> regions;
  std::shared_ptr<own_memory> own;
};

/// A stretch of memory that the device gave, as PyTorch's snapshot has segments.
struct stretch {
  bool paged = false;
  std::size_t bytes = 0;
  context_ptr context;  // of what made the device give it
};

struct checkpoint : native::AllocatorState {
  struct block {
    void* at;
    std::size_t requested;
    cudaStream_t stream;
    context_ptr context;
  };
  MempoolId_t pool = no_pool;
  std::vector<block> live;
};

bool in_forked_child = false;
thread_local std::vector<std::string> compile_contexts;
thread_local std::string user_metadata;

void delete_block(void* at);

class torch_allocator final : public native::CUDAAllocator {
  struct card {
    int logical = -1;
    std::uint64_t limit_at_start = 0;
    std::uint64_t limit = 0;  // of gpumem's memory and that of MemPools with an allocator of their own
    std::uint64_t own_taken = 0, own_returned = 0, own_misses = 0;
    std::uint64_t peak_reserved = 0;  // of gpumem's memory and theirs together, as far as it was looked at
    double fraction = 1.0;
    caching::DeviceStats stats;  // what the book counts, and the peaks of what is only asked for
    std::uint64_t taken_before = 0, returned_before = 0, misses_before = 0;
    std::uint64_t waits_before = 0, device_allocs_before = 0, device_frees_before = 0;
    std::map<MempoolId_t, private_pool> pools;
    std::vector<std::pair<MempoolId_t, std::function<bool(cudaStream_t)>>> routes;
    std::deque<TraceEntry> trace;
    std::map<std::size_t, stretch> known_stretches;
    bool stretches_known = false;
  };

 public:
  // --- life ---------------------------------------------------------------------------------------------------
  void init(int device_count) override {
    const double fraction = fraction_at_start();
    gpumem::allocator& in = memory();
    std::unique_lock lock{mutex_};
    if (ready_) return;
    cards_ = std::vector<card>(static_cast<std::size_t>(device_count));
    for (const gpumem::logical_device& d : in.devices()) {
      if (d.physical_ordinal < 0 || d.physical_ordinal >= device_count) continue;
      card& c = cards_[static_cast<std::size_t>(d.physical_ordinal)];
      if (c.logical >= 0) continue;  // of several pools on one GPU PyTorch's tensors live in the first
      c.logical = d.ordinal;
      c.limit_at_start = c.limit = d.limit_bytes;
    }
    in.on_out_of_memory([](int, std::uint64_t) { return ask_callbacks(); });
    ready_ = true;
    lock.unlock();
    for (std::size_t i = 0; fraction < 1 && i < cards_.size(); ++i) {
      if (cards_[i].logical >= 0) setMemoryFraction(fraction, static_cast<DeviceIndex>(i));
    }
  }
  bool initialized() override { return ready_; }
  std::string name() override { return "gpumem"; }
  // Switched off, each request is a call of the driver, as with PyTorch's own: for looking at one request by itself.
  void enable(bool value) override { caches_ = value; }
  bool isEnabled() const override { return caches_; }
  // For tools that look for bad accesses.
  static bool is_without_caches() {
    static const bool asked = std::getenv("PYTORCH_NO_CUDA_MEMORY_CACHING") != nullptr;
    return asked;
  }

  // --- blocks -------------------------------------------------------------------------------------------------
  DataPtr allocate(std::size_t bytes) override {
    const DeviceIndex device = c10::cuda::current_device();
    void* const at = bytes != 0 ? take(device, bytes, c10::cuda::getCurrentCUDAStream(device)) : nullptr;
    return {at, at, &delete_block, c10::Device(c10::DeviceType::CUDA, device)};
  }
  // A storage that gave its memory up takes it again where it was. In a MemPool nobody else can stand there.
  DataPtr allocateWithAddress(std::size_t bytes, void* place) {
    const auto at = reinterpret_cast<std::uintptr_t>(place);
    TORCH_CHECK(at % gpumem::block_granularity == 0, "gpumem: an exact address must be aligned to kMinBlockSize (",
                gpumem::block_granularity, " bytes), and ", place, " is not");
    const DeviceIndex device = c10::cuda::current_device();
    void* got = nullptr;
    if (bytes != 0) {
      const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(device);
      got = take_in(device, bytes, stream, route_of(device, stream), at, "mallocWithAddress");
    }
    return {got, got, &delete_block, c10::Device(c10::DeviceType::CUDA, device)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &delete_block; }
  void* raw_alloc(std::size_t bytes) override {
    if (bytes == 0) return nullptr;
    const DeviceIndex device = c10::cuda::current_device();
    return take(device, bytes, c10::cuda::getCurrentCUDAStream(device));
  }
  void* raw_alloc_with_stream(std::size_t bytes, cudaStream_t stream) override {
    return bytes != 0 ? take(c10::cuda::current_device(), bytes, stream) : nullptr;
  }
  void raw_delete(void* at) override {
    if (at != nullptr) give(at);
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    C10_CUDA_CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToDevice));
  }
  void recordStream(const DataPtr& of, c10::cuda::CUDAStream stream) override {
    // Empty, or made from memory that somebody else allocated.
    if (!of.get() || of.get_deleter() != &delete_block) return;
    {
      const std::lock_guard lock{mutex_};
      const auto found = book_.find(of.get());
      if (found == book_.end()) return;
      if (held_block& held = found->second; held.own) {
        if (stream.stream() != held.stream) held.used_on.push_back(stream.stream());
        return;
      }
    }
    const gpumem::status noted = memory().record_use(of.get(), {stream.stream()});
    TORCH_CHECK(noted.ok(), "gpumem: record_stream: ", noted.message());
  }
  void* getBaseAllocation(void* at, std::size_t* bytes) override {
    const gpumem::result<gpumem::block_info> found = memory().describe(at);
    TORCH_CHECK(found.ok(), "gpumem: ", found.why().message());
    if (bytes != nullptr) *bytes = found->segment_bytes;
    return reinterpret_cast<void*>(found->segment_begin);
  }

  // --- how much -----------------------------------------------------------------------------------------------
  // A MemPool empties itself at its end: what others have cached stays.
  void emptyCache(MempoolId_t pool) override {
    for (std::size_t i = 0; pool != no_pool && i < cards_.size(); ++i) return_own(static_cast<DeviceIndex>(i), pool);
    if (pool != no_pool) return;
    for (std::size_t i = 0; i < cards_.size(); ++i) {
      if (cards_[i].logical < 0) continue;
      close_unused_pools(static_cast<DeviceIndex>(i));
      static_cast<void>(memory().trim(cards_[i].logical));
      if (watched_) {
        const held_block nobody{.context = context_for(RecordContext::ALL)};
        const std::lock_guard lock{mutex_};
        note_stretches(static_cast<DeviceIndex>(i), nobody);
      }
    }
  }
  void cacheInfo(DeviceIndex device, std::size_t* largest) override {
    card& c = card_of(device);
    const gpumem::statistics s = figures(c);
    if (*largest == 0) {  // as native, begins with what the GPU has left
      const c10::cuda::CUDAGuard guard{device};
      std::size_t total = 0;
      C10_CUDA_CHECK(cudaMemGetInfo(largest, &total));
      const std::lock_guard lock{mutex_};
      const std::uint64_t held = s.reserved_bytes + own_bytes(c);
      *largest = std::min<std::size_t>(*largest, c.limit - std::min(c.limit, held));
    }
    *largest = std::max(*largest, static_cast<std::size_t>(s.largest_free_bytes));
  }
  double getMemoryFraction(DeviceIndex device) override {
    const std::lock_guard lock{mutex_};
    return card_of(device).fraction;
  }
  void setMemoryFraction(double fraction, DeviceIndex device) override {
    TORCH_CHECK(fraction >= 0 && fraction <= 1, "invalid fraction: ", fraction, ". Please set within [0, 1].");
    card& c = card_of(device);
    const auto total = static_cast<double>(memory().devices()[static_cast<std::size_t>(c.logical)].gpu_total_bytes);
    // GPUMEM_LIMIT stays in force.
    const std::uint64_t limit =
        std::clamp<std::uint64_t>(static_cast<std::uint64_t>(fraction * total), 1, c.limit_at_start);
    const std::lock_guard lock{mutex_};
    const std::uint64_t before = std::exchange(c.limit, limit);
    if (const gpumem::status now = share_limit(c); !now) {
      c.limit = before;
      TORCH_CHECK(false, "gpumem: ", now.message());
    }
    c.fraction = fraction;
  }
  std::vector<native::StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex device) override {
    std::vector<native::StreamSegmentSize> out;
    for (const gpumem::segment_view& s : segments_of(card_of(device))) {
      std::size_t backed = 0;
      for (const block_view& b : s.blocks) backed += b.is != block_view::state::unbacked ? b.bytes : 0;
      if (s.paged) out.emplace_back(nullptr, false, backed);
    }
    return out;
  }

  caching::DeviceStats getDeviceStats(DeviceIndex device) override {
    card& c = card_of(device);
    const gpumem::statistics now = figures(c);
    const std::vector<gpumem::segment_view> segments = segments_of(c);
    const std::lock_guard lock{mutex_};
    caching::DeviceStats& s = c.stats;
    std::size_t fenced = 0, fenced_bytes = 0, split = 0, split_bytes = 0, pieces = 0;
    std::map<MempoolId_t, std::size_t> private_bytes;
    for (const caching::SegmentInfo& piece : all_segments(c, device, segments)) {
      ++pieces;
      if (piece.owner_private_pool_id != no_pool) private_bytes[piece.owner_private_pool_id] += piece.total_size;
      for (const caching::BlockInfo& b : piece.blocks) {
        if (b.active && !b.allocated) {
          ++fenced;
          fenced_bytes += b.size;
        }
        if (!b.active && piece.blocks.size() > 1) {
          ++split;
          split_bytes += b.size;
        }
      }
    }
    const std::uint64_t returned = now.taken_bytes - now.reserved_bytes;
    for (const std::size_t which : {everything, large}) {
      s.active[which] = with_pending(s.allocation[which], s.active[which].peak, fenced);
      s.active_bytes[which] = with_pending(s.allocated_bytes[which], s.active_bytes[which].peak, fenced_bytes);
      observe(s.segment[which], pieces);
      observe(s.inactive_split[which], split);
      observe(s.inactive_split_bytes[which], split_bytes);
      c10::CachingAllocator::Stat& reserved = s.reserved_bytes[which];
      reserved.current = static_cast<std::int64_t>(now.reserved_bytes + own_bytes(c));
      reserved.peak = std::max(static_cast<std::int64_t>(now.peak_reserved_bytes), note_peak(c, now));
      reserved.allocated = static_cast<std::int64_t>(now.taken_bytes + c.own_taken - c.taken_before);
      reserved.freed = static_cast<std::int64_t>(returned + c.own_returned - c.returned_before);
    }
    count_private(s, private_bytes);
    s.num_ooms = static_cast<std::int64_t>(now.out_of_memory + c.own_misses - c.misses_before);
    s.max_split_size = static_cast<std::int64_t>(c10::CachingAllocator::AcceleratorAllocatorConfig::max_split_size());
    s.num_sync_all_streams = static_cast<std::int64_t>(now.host_waits - c.waits_before);
    s.num_device_alloc = static_cast<std::int64_t>(device_allocs(now) - c.device_allocs_before);
    s.num_device_free = static_cast<std::int64_t>(device_frees(now) - c.device_frees_before);
    return s;
  }
  void resetAccumulatedStats(DeviceIndex device) override {
    card& c = card_of(device);
    const gpumem::statistics now = figures(c);
    const std::lock_guard lock{mutex_};
    each_stat(c.stats, [](c10::CachingAllocator::Stat& s) { s.reset_accumulated(); });
    c.taken_before = now.taken_bytes + c.own_taken;
    c.returned_before = now.taken_bytes - now.reserved_bytes + c.own_returned;
    c.misses_before = now.out_of_memory + c.own_misses;
    c.waits_before = now.host_waits;
    c.device_allocs_before = device_allocs(now);
    c.device_frees_before = device_frees(now);
  }
  void resetPeakStats(DeviceIndex device) override {
    card& c = card_of(device);
    static_cast<void>(getDeviceStats(device));  // what is only asked for has its value of now
    static_cast<void>(memory().reset_peak_reserved(c.logical));
    const std::lock_guard lock{mutex_};
    c.peak_reserved = 0;
    each_stat(c.stats, [](c10::CachingAllocator::Stat& s) { s.reset_peak(); });
  }

  // --- pools of graphs, MemPool -------------------------------------------------------------------------------
  void beginAllocateToPool(DeviceIndex device, MempoolId_t pool, std::function<bool(cudaStream_t)> filter) override {
    card& c = card_of(device);
    ask_fences(c);
    const std::lock_guard lock{mutex_};
    for (const auto& [id, unused] : c.routes) {
      TORCH_CHECK(id != pool, "beginAllocateToPool: already recording to mempool_id");
    }
    ++c.pools[pool].uses;
    c.routes.emplace_back(pool, std::move(filter));
    ++routes_;
  }
  void endAllocateToPool(DeviceIndex device, MempoolId_t pool) override {
    card& c = card_of(device);
    {
      const std::lock_guard lock{mutex_};
      const auto found = std::find_if(c.routes.begin(), c.routes.end(), [&](const auto& r) { return r.first == pool; });
      TORCH_CHECK(found != c.routes.end(), "endAllocatePool: not currently recording to mempool_id");
      c.routes.erase(found);
      --routes_;
    }
    markCaptureEnd(device);
    ask_fences(c);
  }
  // Within a capture no fence can be recorded or asked. At the end of one, what it freed behind other streams gets its
  // fence; before the next, what is done becomes free for it: else each graph of a pool takes new memory. While a pool
  // is in use, a capture may be open.
  void ask_fences(const card& c) {
    if (routes_ == 0) static_cast<void>(memory().trim(c.logical, 0));
  }
  // A capture is noticed at its first allocation; its end is asked for here.
  void markCaptureEnd(DeviceIndex device) {
    const gpumem::status ended = memory().reported_captures_ended(device);
    TORCH_CHECK(ended.ok(), "gpumem: end of a capture: ", ended.message());
  }
  // A MemPool keeps what it has on other GPUs than its own until it goes, or until that memory is idle and the cache is
  // emptied.
  void releasePool(DeviceIndex device, MempoolId_t pool) override {
    card& c = card_of(device);
    bool with_the_others = false;
    {
      const std::lock_guard lock{mutex_};
      const auto found = c.pools.find(pool);
      TORCH_CHECK(found != c.pools.end(), "releasePool: there is no pool (", pool.first, ", ", pool.second, ")");
      if (--found->second.uses > 0) return;
      with_the_others = found->second.made_here;
      if (!with_the_others && std::any_of(cards_.begin(), cards_.end(), [&](const card& other) {
            const auto there = other.pools.find(pool);
            return there != other.pools.end() && there->second.made_here;
          })) {
        return;
      }
    }
    close_pool(device, pool);
    for (std::size_t i = 0; with_the_others && i < cards_.size(); ++i) close_pool(static_cast<DeviceIndex>(i), pool);
  }
  int getPoolUseCount(DeviceIndex device, MempoolId_t pool) override {
    card& c = card_of(device);
    const std::lock_guard lock{mutex_};
    const auto found = c.pools.find(pool);
    return found != c.pools.end() ? found->second.uses : 0;
  }
  void createOrIncrefPool(DeviceIndex device, MempoolId_t pool, std::shared_ptr<native::CUDAAllocator> own) override {
    card& c = card_of(device);
    const std::lock_guard lock{mutex_};
    private_pool& p = c.pools[pool];
    p.made_here = true;
    if (p.uses++ == 0 && own) p.own = std::make_shared<own_memory>(std::move(own));
  }
  void setUseOnOOM(DeviceIndex device, MempoolId_t pool, bool use_on_oom) override {
    card& c = card_of(device);
    const std::lock_guard lock{mutex_};
    c.pools[pool].use_on_oom = use_on_oom;
  }
  // A hint about native's segments: gpumem's are cut for all.
  void setNoSplit(DeviceIndex /*device*/, MempoolId_t /*pool*/) override {}
  bool checkPoolLiveAllocations(DeviceIndex device, MempoolId_t pool,
                                const std::unordered_set<void*>& expected) override {
    const std::lock_guard lock{mutex_};
    std::size_t seen = 0;
    for (const auto& [at, held] : book_) {
      if (held.device != device || held.pool != pool) continue;
      if (expected.count(at) == 0) return false;
      ++seen;
    }
    return seen == expected.size();
  }
  std::shared_ptr<native::AllocatorState> getCheckpointState(DeviceIndex device, MempoolId_t pool) override {
    auto out = std::make_shared<checkpoint>();
    out->pool = pool;
    card& c = card_of(device);
    const std::lock_guard lock{mutex_};
    TORCH_CHECK(c.pools.count(pool) != 0, "Could not find pool of id");
    for (const auto& [at, held] : book_) {
      if (held.device != device || held.pool != pool) continue;
      out->live.push_back({at, held.requested, held.stream, held.context});
    }
    return out;
  }
  // Everything of the pool is freed, and what was live then is allocated where it was: only the pool itself ever gets
  // its memory, so that nobody else can stand there.
  native::CheckpointDelta setCheckpointPoolState(DeviceIndex device,
                                                 std::shared_ptr<native::AllocatorState> state) override {
    const auto then = std::dynamic_pointer_cast<checkpoint>(state);
    TORCH_CHECK(then, "gpumem: not a state that its getCheckpointState made");
    native::CheckpointDelta out;
    {
      card& c = card_of(device);
      const std::lock_guard lock{mutex_};
      const auto found = c.pools.find(then->pool);
      TORCH_CHECK(found != c.pools.end(), "Could not find private pool id");
      TORCH_CHECK(!found->second.own,
                  "gpumem: the memory of a MemPool with an allocator of its own "
                  "cannot be put back to a checkpoint");
      for (const auto& [at, held] : book_) {
        if (held.device == device && held.pool == then->pool) out.ptrs_freed.push_back(at);
      }
    }
    for (void* const at : out.ptrs_freed) give(at);
    for (const checkpoint::block& b : then->live) {
      void* const at = take_in(device, b.requested, b.stream, then->pool, reinterpret_cast<std::uintptr_t>(b.at));
      out.dataptrs_allocd.emplace_back(at, at, &delete_block, c10::Device(c10::DeviceType::CUDA, device));
    }
    return out;
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
    const gpumem::status mapped = memory().enable_peer(card_of(reached_from).logical, device);
    TORCH_CHECK(mapped.ok(), "gpumem: ", mapped.message());
  }
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device, std::size_t bytes,
                          cudaStream_t stream, bool p2p_enabled) override {
    if (p2p_enabled || to_device == from_device)
      return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
    return cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream);
  }
  // As native's for memory of cudaMalloc, so that either allocator opens what the other shares: a version, a kind, and
  // the runtime's handle of the whole segment.
  native::ShareableHandle shareIpcHandle(void* at) override {
    std::size_t bytes = 0;
    void* const base = getBaseAllocation(at, &bytes);
    cudaIpcMemHandle_t handle;
    const cudaError_t made = cudaIpcGetMemHandle(&handle, base);
    if (made != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      TORCH_CHECK(false, "gpumem: this block cannot be shared with another process (", cudaGetErrorString(made),
                  "): memory that is mapped page by page has no IPC handle. Use GPUMEM_POLICY=growth or caching with "
                  "GPUMEM_BACKING=plain, or share through the host.");
    }
    return {static_cast<const char*>(at) - static_cast<const char*>(base),
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
    std::shared_ptr<void> out{base, [this, handle, device](void* p) {
                                const std::lock_guard again{ipc_mutex_};
                                const c10::cuda::CUDAGuard guard{device};
                                C10_CUDA_CHECK_WARN(cudaIpcCloseMemHandle(p));
                                opened_.erase(handle);
                              }};
    opened_[handle] = out;
    return out;
  }

  // --- history ------------------------------------------------------------------------------------------------
  void recordHistory(bool enabled, native::CreateContextFn recorder, std::size_t most_entries, RecordContext when,
                     bool clear, const std::vector<std::string>& skip_actions) override {
    TORCH_CHECK(when == RecordContext::NEVER || recorder, "gpumem: no function that records contexts is given");
    const std::lock_guard lock{mutex_};
    recording_ = enabled;
    recorder_ = recorder;
    when_ = enabled ? when : RecordContext::NEVER;
    most_entries_ = std::max<std::size_t>(1, most_entries);
    skipped_.clear();
    for (const std::string& each : skip_actions) skipped_.insert(caching::parseTraceEntryAction(each));
    for (card& c : cards_) {
      c.stretches_known = false;
      if (!enabled || clear) c.trace.clear();
    }
    if (clear) annotations_.clear();
    watched_ = recording_ || !trackers_.empty();
    for (std::size_t i = 0; watched_ && i < cards_.size(); ++i) note_stretches(static_cast<DeviceIndex>(i));
  }
  bool isHistoryEnabled() override { return recording_; }
  context_ptr getContextForPointer(const void* at) {
    const std::lock_guard lock{mutex_};
    const auto found = book_.find(const_cast<void*>(at));
    return found != book_.end() ? found->second.context : nullptr;
  }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& of) override {
    const std::lock_guard lock{mutex_};
    if (!recording_) return;
    caching::AnnotationEntry entry{c10::cuda::current_device(), c10::getApproximateTime()};
    for (const auto& [name, value] : of) entry.recordUserMetadata(name, value);
    annotations_.push_back(std::move(entry));
    if (annotations_.size() > most_entries_) annotations_.pop_front();
  }
  void pushCompileContext(std::string& of) override { compile_contexts.push_back(of); }
  void popCompileContext() override {
    if (!compile_contexts.empty()) compile_contexts.pop_back();
  }
  bool supportsUserMetadata() { return true; }
  void setUserMetadata(const std::string& metadata) override { user_metadata = metadata; }
  std::string getUserMetadata() override { return user_metadata; }
  void annotateMemory(const void* at, const std::string& metadata) { annotate<TraceEntry>(at, metadata); }
  void attachOutOfMemoryObserver(native::OutOfMemoryObserver observer) override {
    const std::lock_guard lock{mutex_};
    observers_.push_back(std::move(observer));
  }
  // gpumem rejects nothing ahead of trying.
  void attachOomRejectionObserver(
      std::function<void(std::int64_t, std::size_t, std::size_t, std::size_t)> /*observer*/) {}
  void attachAllocatorTraceTracker(caching::AllocatorTraceTracker tracker) override {
    const std::lock_guard lock{mutex_};
    trackers_.push_back(std::move(tracker));
    watched_ = true;
    for (std::size_t i = 0; i < cards_.size(); ++i) note_stretches(static_cast<DeviceIndex>(i));
  }

  native::SnapshotInfo snapshot(MempoolId_t pool) { return snapshot(pool, true); }
  native::SnapshotInfo snapshot(MempoolId_t pool, bool include_traces) {
    const auto to_ns = clock_.makeConverter();
    native::SnapshotInfo out{};  // the numbers of config_metadata have no initializers
    std::vector<std::vector<gpumem::segment_view>> segments(cards_.size());
    for (std::size_t i = 0; i < cards_.size(); ++i) {
      if (cards_[i].logical >= 0) segments[i] = segments_of(cards_[i]);
    }
    const std::lock_guard lock{mutex_};
    for (std::size_t i = 0; i < cards_.size(); ++i) {
      const auto device = static_cast<DeviceIndex>(i);
      std::vector<TraceEntry>& to = out.device_traces.emplace_back();
      if (include_traces) to.assign(cards_[i].trace.begin(), cards_[i].trace.end());
      for (TraceEntry& each : to) each.time_.t_ = to_ns(each.time_.approx_t_) / 1000;
      std::size_t total = 0;
      for (caching::SegmentInfo& piece : all_segments(cards_[i], device, segments[i])) {
        if (pool != no_pool && piece.owner_private_pool_id != pool) continue;
        total += piece.total_size;
        out.segments.push_back(std::move(piece));
      }
      if (recording_) record(TraceEntry::SNAPSHOT, device, 0, total, nullptr, pool, nullptr);
    }
    out.external_annotations.assign(annotations_.begin(), annotations_.end());
    for (auto& each : out.external_annotations) each.time_.t_ = to_ns(each.time_.approx_t_) / 1000;
    note_settings(out.config_metadata);
    for (const auto& of : segments) {
      for (const gpumem::segment_view& s : of) out.config_metadata.expandable_segments |= s.paged;
    }
    return out;
  }

 private:
  static constexpr std::string_view ipc_head{
      "\x01"
      "c"};

  card& card_of(DeviceIndex device) {
    TORCH_CHECK(ready_ && device >= 0 && static_cast<std::size_t>(device) < cards_.size(),
                "Allocator not initialized for device ", static_cast<int>(device), ": did you call init?");
    card& c = cards_[static_cast<std::size_t>(device)];
    TORCH_CHECK(c.logical >= 0, "gpumem: GPU ", static_cast<int>(device),
                " is not among those that GPUMEM_DEVICES names");
    return c;
  }
  static gpumem::statistics figures(const card& c) {
    const gpumem::result<gpumem::statistics> s = memory().stats(c.logical);
    TORCH_CHECK(s.ok(), "gpumem: ", s.why().message());
    return *s;
  }
  static std::vector<gpumem::segment_view> segments_of(const card& c) {
    gpumem::result<std::vector<gpumem::segment_view>> s = memory().segments(c.logical);
    TORCH_CHECK(s.ok(), "gpumem: ", s.why().message());
    return *std::move(s);
  }

  static std::uint64_t device_allocs(const gpumem::statistics& s) { return s.grown_segments + s.mapped_pages; }
  static std::uint64_t device_frees(const gpumem::statistics& s) { return s.returned_segments + s.returned_pages; }

  // PYTORCH_CUDA_ALLOC_CONF=per_process_memory_fraction is a limit, and limits hold here, too.
  template <typename Config = native::CUDAAllocatorConfig>
  static double fraction_at_start() {
    if constexpr (requires { Config::per_process_memory_fraction(); }) return Config::per_process_memory_fraction();
    return 1.0;
  }
  // What PyTorch's parser took: what is said of pinned memory holds, what is said of native's segments changes nothing.
  // Whether segments are expandable is gpumem's own answer.
  template <typename Info, typename Config = native::CUDAAllocatorConfig,
            typename Common = c10::CachingAllocator::AcceleratorAllocatorConfig>
  static void note_settings(Info& to) {
    to.garbage_collection_threshold = Common::garbage_collection_threshold();
    to.max_split_size = Common::max_split_size();
    to.release_lock_on_malloc = Config::release_lock_on_cudamalloc();
    to.pinned_num_register_threads = Config::pinned_num_register_threads();
    to.pinned_use_host_register = Config::pinned_use_cuda_host_register();
    to.roundup_power2_divisions = Common::roundup_power2_divisions();
    if constexpr (requires { to.graph_capture_record_stream_reuse; }) {
      to.graph_capture_record_stream_reuse = Config::graph_capture_record_stream_reuse();
    }
    if constexpr (requires { to.max_round_threshold; }) {
      to.max_round_threshold = Common::pinned_max_round_threshold();
      to.max_cached_size = Common::pinned_max_cached_size();
    }
    to.last_allocator_settings = "gpumem";
    to.expandable_segments = false;
    for (const gpumem::logical_device& d : memory().devices()) {
      to.last_allocator_settings += " policy=" + d.policy;
      to.expandable_segments |= d.policy == "expandable";
    }
  }

  static void observe(c10::CachingAllocator::Stat& s, std::size_t now) {
    const auto value = static_cast<std::int64_t>(now);
    if (value >= s.current)
      s.increase(static_cast<std::size_t>(value - s.current));
    else
      s.decrease(static_cast<std::size_t>(s.current - value));
  }
  // Blocks are active while the program holds them, and after that until the streams that use them are done.
  static c10::CachingAllocator::Stat with_pending(c10::CachingAllocator::Stat held, std::int64_t peak,
                                                  std::size_t pending) {
    held.current += static_cast<std::int64_t>(pending);
    held.freed = std::max<std::int64_t>(0, held.freed - static_cast<std::int64_t>(pending));
    held.peak = std::max({held.peak, peak, held.current});
    return held;
  }
  template <typename Stats>
  static void count_private(Stats& s, std::map<MempoolId_t, std::size_t>& bytes) {
    if constexpr (requires { s.reserved_bytes_by_private_pools; }) {
      for (const auto& [pool, unused] : s.reserved_bytes_by_private_pools) bytes.try_emplace(pool, 0);
      for (const auto& [pool, now] : bytes) {
        for (const std::size_t which : {everything, large})
          observe(s.reserved_bytes_by_private_pools[pool][which], now);
      }
    }
  }
  template <typename Stats, typename Each>
  static void each_stat(Stats& s, const Each& each) {
    for (const std::size_t which : {everything, large}) {
      for (auto* const of : {&s.allocation, &s.segment, &s.active, &s.inactive_split, &s.allocated_bytes,
                             &s.reserved_bytes, &s.active_bytes, &s.inactive_split_bytes, &s.requested_bytes}) {
        each((*of)[which]);
      }
      if constexpr (requires { s.reserved_bytes_by_private_pools; }) {
        for (auto& [unused, of] : s.reserved_bytes_by_private_pools) each(of[which]);
      }
    }
  }

  context_ptr context_for(RecordContext level) {
    if (!recording_ || when_ < level) return nullptr;
    return recorder_.load()();
  }

  // --- allocating ---------------------------------------------------------------------------------------------
  static bool ask_callbacks() {
    bool freed = false;
    for (const auto& name : c10::FreeCudaMemoryCallbacksRegistry()->Keys()) {
      freed |= c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute();
    }
    return freed;
  }
  void* take(DeviceIndex device, std::size_t bytes, cudaStream_t stream) {
    constexpr std::size_t exabyte = std::size_t{1} << 60;
    TORCH_CHECK_WITH(OutOfMemoryError, bytes < exabyte, "CUDA out of memory. Tried to allocate more than 1EB memory.");
    if (!caches_ || is_without_caches()) return take_uncached(device, bytes);
    return take_in(device, bytes, stream, route_of(device, stream), 0);
  }

  /// The pool that this thread's allocations on the stream go to now.
  MempoolId_t route_of(DeviceIndex device, cudaStream_t stream) {
    if (routes_.load(std::memory_order_relaxed) == 0) return no_pool;
    const std::lock_guard lock{mutex_};
    const auto& routes = card_of(device).routes;
    for (auto latest = routes.rbegin(); latest != routes.rend(); ++latest) {  // the innermost
      if (latest->second(stream)) return latest->first;
    }
    return no_pool;
  }

  /// The block at `r.place`, or why not. Outside a region a cache may answer first, with a block of that size
  /// elsewhere; a larger alignment passes it by.
  static gpumem::result<void*> allocate_at(gpumem::request r) {
    gpumem::result<void*> got = memory().try_allocate(r);
    if (got && *got != reinterpret_cast<void*>(r.place)) {
      memory().deallocate(*got);
      r.alignment = 2 * gpumem::block_granularity;
      got = memory().try_allocate(r);
    }
    return got;
  }

  void* take_uncached(DeviceIndex device, std::size_t bytes) {
    const c10::cuda::CUDAGuard guard{device};
    void* at = nullptr;
    C10_CUDA_CHECK(cudaMalloc(&at, bytes));
    const std::lock_guard lock{mutex_};
    uncached_[at] = device;
    return at;
  }
  bool give_uncached(void* at) {
    DeviceIndex device = 0;
    {
      const std::lock_guard lock{mutex_};
      const auto found = uncached_.find(at);
      if (found == uncached_.end()) return false;
      device = found->second;
      uncached_.erase(found);
    }
    const c10::cuda::CUDAGuard guard{device};
    C10_CUDA_CHECK(cudaFree(at));
    return true;
  }

  // Idle memory of pools that lend it before anybody runs out of memory.
  void* lent(DeviceIndex device, card& c, held_block& held) {
    std::vector<std::pair<MempoolId_t, std::shared_ptr<own_memory>>> lenders;
    {
      const std::lock_guard lock{mutex_};
      for (const auto& [id, pool] : c.pools) {
        if (pool.use_on_oom && id != held.pool) lenders.emplace_back(id, pool.own);
      }
    }
    for (const auto& [id, own] : lenders) {
      void* at = nullptr;
      if (own) {
        const std::lock_guard lock{mutex_};
        at = own->take(rounded(held.requested), held.stream);
      } else {
        const gpumem::request r{.bytes = held.requested,
                                .stream = {held.stream},
                                .device = c.logical,
                                .region = region_of(c, id, held.stream, held.requested)};
        if (const gpumem::result<void*> got = memory().try_allocate(r)) at = *got;
      }
      if (at == nullptr) continue;
      held.pool = id;
      held.own = own;
      return at;
    }
    return nullptr;
  }

  /// A `place` other than 0 is the block's exact address. `tag` says in the history what asked for it.
  void* take_in(DeviceIndex device, std::size_t bytes, cudaStream_t stream, MempoolId_t pool, gpumem::address place,
                const char* tag = "") {
    card& c = card_of(device);
    held_block held{.requested = bytes,
                    .stream = stream,
                    .device = device,
                    .pool = pool,
                    .own = nullptr,
                    .context = context_for(RecordContext::STATE)};
    void* at = nullptr;
    if (pool != no_pool) held.own = own_allocator(c, pool);
    if (held.own) {
      TORCH_CHECK(place == 0, "gpumem: a MemPool with an allocator of its own gives no exact address");
      bool asked = false;
      at = take_from_own(device, c, held, &asked);
      if (at == nullptr && !asked && ask_callbacks()) at = take_from_own(device, c, held, &asked);
      TORCH_CHECK_WITH(OutOfMemoryError, at != nullptr || !asked, "CUDA out of memory. Tried to allocate ",
                       in_words(bytes), ". The custom allocator backing this MemPool returned nullptr. ",
                       "Check preceding allocator warnings or logs.");
      if (at == nullptr) at = lent(device, c, held);
      if (at == nullptr) refuse_own(device, c, held);
    } else {
      gpumem::request r{.bytes = bytes, .stream = {stream}, .device = c.logical};
      r.reports_capture_end = true;
      if (pool != no_pool) r.region = region_of(c, pool, stream, bytes);
      r.place = place;
      gpumem::oom_report report;
      gpumem::result<void*> got = place != 0 ? allocate_at(r) : memory().try_allocate(r, &report);
      if (got) {
        at = *got;
      } else {
        TORCH_CHECK(place == 0, "gpumem: no block at this exact address: ", got.why().message());
        TORCH_CHECK(got.code() == gpumem::errc::out_of_memory, "gpumem: ", got.why().message());
        at = lent(device, c, held);
        if (at == nullptr) refuse(device, c, held, report);
      }
    }
    // Where the host has no memory for the book, the block goes back.
    const std::shared_ptr<own_memory> own = held.own;
    try {
      enter(c, at, std::move(held));
    } catch (...) {
      if (own) {
        const std::lock_guard lock{mutex_};
        own->give(at);
      } else {
        memory().deallocate(at);
      }
      throw;
    }
    try {
      tell(device, at, bytes, tag);
    } catch (...) {
      give(at);
      throw;
    }
    return at;
  }

  void enter(card& c, void* at, held_block held) {
    const std::size_t bytes = held.requested;
    const std::lock_guard lock{mutex_};
    book_.insert_or_assign(at, std::move(held));
    for (const std::size_t which : {everything, large}) {
      c.stats.allocation[which].increase(1);
      c.stats.allocated_bytes[which].increase(rounded(bytes));
      c.stats.requested_bytes[which].increase(bytes);
    }
  }

  // The history, trackers, the GPU trace and the profiler.
  void tell(DeviceIndex device, void* at, std::size_t bytes, const char* tag) {
    if (watched_) {
      const std::lock_guard lock{mutex_};
      if (const auto found = book_.find(at); found != book_.end()) {
        const held_block held = found->second;
        note_stretches(device, held);
        record(TraceEntry::ALLOC, device, reinterpret_cast<std::size_t>(at), bytes, held.stream, held.pool,
               when_ >= RecordContext::ALLOC ? held.context : nullptr, nullptr, tag);
      }
    }
    if (const c10::impl::PyInterpreter* const traced = c10::impl::GPUTrace::get_trace();
        C10_UNLIKELY(traced != nullptr)) {
      (*traced)->trace_gpu_memory_allocation(c10::kCUDA, reinterpret_cast<std::uintptr_t>(at));
    }
    if (c10::memoryProfilingEnabled()) tell_profiler(at, device, static_cast<std::int64_t>(rounded(bytes)));
  }

  void give(void* at) {
    if (const c10::impl::PyInterpreter* const traced = c10::impl::GPUTrace::get_trace();
        C10_UNLIKELY(traced != nullptr)) {
      (*traced)->trace_gpu_memory_deallocation(c10::kCUDA, reinterpret_cast<std::uintptr_t>(at));
    }
    context_ptr context = watched_ ? context_for(RecordContext::ALL) : nullptr;
    held_block held;
    {
      std::unique_lock lock{mutex_};
      auto found = book_.find(at);
      if (found == book_.end()) {
        lock.unlock();
        TORCH_CHECK(give_uncached(at), "invalid device pointer: ", at);
        return;
      }
      // What may throw comes first: until the book has lost the block, it is the program's, and can be freed again.
      if (watched_) {
        const held_block freed = found->second;
        if (context == nullptr && when_ >= RecordContext::ALLOC) context = freed.context;
        for (const TraceEntry::Action each : {TraceEntry::FREE_REQUESTED, TraceEntry::FREE_COMPLETED}) {
          record(each, freed.device, reinterpret_cast<std::size_t>(at), freed.requested, freed.stream, freed.pool,
                 context);
        }
        found = book_.find(at);  // a tracker may have allocated
      }
      held_block& freed = found->second;
      if (freed.own && freed.used_on.empty()) {
        freed.own->give(at);
      } else if (freed.own) {
        const c10::cuda::CUDAGuard guard{freed.device};
        freed.own->give_behind(at, freed.used_on);
      }
      held = std::move(freed);
      book_.erase(found);
      card& c = cards_[static_cast<std::size_t>(held.device)];
      for (const std::size_t which : {everything, large}) {
        c.stats.allocation[which].decrease(1);
        c.stats.allocated_bytes[which].decrease(rounded(held.requested));
        c.stats.requested_bytes[which].decrease(held.requested);
      }
    }
    if (!held.own) {
      if (!in_forked_child) memory().deallocate(at);  // there CUDA does not work, and tensors that it inherited end
    } else if (held.own->pool_gone) {
      return_idle(card_of(held.device), held.device, *held.own);
    }
    if (c10::memoryProfilingEnabled()) {
      tell_profiler(at, held.device, -static_cast<std::int64_t>(rounded(held.requested)));
    }
  }

  void tell_profiler(void* at, DeviceIndex device, std::int64_t bytes) {
    card& c = card_of(device);
    const auto reserved = static_cast<std::size_t>(figures(c).reserved_bytes);
    std::size_t allocated = 0;
    {
      const std::lock_guard lock{mutex_};
      allocated = static_cast<std::size_t>(c.stats.allocated_bytes[everything].current);
    }
    c10::reportMemoryUsageToProfiler(at, bytes, allocated, reserved, c10::Device(c10::DeviceType::CUDA, device));
  }

  std::shared_ptr<own_memory> own_allocator(card& c, const MempoolId_t& pool) {
    const std::lock_guard lock{mutex_};
    return c.pools[pool].own;
  }
  /// Null where the limit leaves no room, or the allocator, once `asked`, gave nothing.
  void* take_from_own(DeviceIndex device, card& c, const held_block& held, bool* asked) {
    const std::size_t bytes = rounded(held.requested);
    const std::size_t segment = own_memory::segment_bytes(bytes);
    for (const bool trimmed : {false, true}) {
      const gpumem::statistics now = figures(c);
      const std::lock_guard lock{mutex_};
      if (void* const at = held.own->take(bytes, held.stream); at != nullptr) return at;
      if (now.reserved_bytes + own_bytes(c) + segment <= c.limit) break;
      if (trimmed) return nullptr;
      static_cast<void>(memory().trim(c.logical));
    }
    *asked = true;
    void* const taken = held.own->take_segment(segment, held.stream);
    if (taken == nullptr) return nullptr;
    const c10::cuda::CUDAGuard guard{device};
    const std::lock_guard lock{mutex_};
    held.own->add(taken, segment, held.stream);
    c.own_taken += segment;
    static_cast<void>(note_peak(c, figures(c)));
    static_cast<void>(share_limit(c));
    return held.own->take(bytes, held.stream);
  }
  /// Ends a pool without uses: its memory serves everybody. Its last figures stay in the statistics.
  void close_pool(DeviceIndex device, const MempoolId_t& pool) {
    card& c = cards_[static_cast<std::size_t>(device)];
    {
      const std::lock_guard lock{mutex_};
      const auto found = c.pools.find(pool);
      if (found == c.pools.end() || found->second.uses > 0) return;
    }
    static_cast<void>(getDeviceStats(device));
    private_pool gone;
    {
      const std::lock_guard lock{mutex_};
      const auto found = c.pools.find(pool);
      if (found == c.pools.end() || found->second.uses > 0) return;
      gone = std::move(found->second);
      c.pools.erase(found);
      if (gone.own) gone.own->pool_gone = true;
    }
    for (const auto& [stream, region] : gone.regions) {
      const gpumem::status closed = memory().close_region(c.logical, region);
      TORCH_CHECK(closed.ok(), "gpumem: ", closed.message());
    }
    if (gone.own) return_idle(c, device, *gone.own);
  }
  /// What MemPools of other GPUs have here and nobody uses.
  void close_unused_pools(DeviceIndex device) {
    std::set<MempoolId_t> unused;
    {
      const std::lock_guard lock{mutex_};
      for (const auto& [id, pool] : cards_[static_cast<std::size_t>(device)].pools) {
        if (pool.uses <= 0) unused.insert(id);
      }
      if (unused.empty()) return;
      for (const auto& [at, held] : book_) {
        if (held.device == device) unused.erase(held.pool);
      }
    }
    for (const MempoolId_t& id : unused) close_pool(device, id);
  }
  void return_own(DeviceIndex device, const MempoolId_t& pool) {
    card& c = cards_[static_cast<std::size_t>(device)];
    std::shared_ptr<own_memory> own;
    {
      const std::lock_guard lock{mutex_};
      const auto found = c.pools.find(pool);
      if (found != c.pools.end()) own = found->second.own;
    }
    if (own) return_idle(c, device, *own);
  }
  void return_idle(card& c, DeviceIndex device, own_memory& own) {
    const c10::cuda::CUDAGuard guard{device};
    C10_CUDA_CHECK(cudaDeviceSynchronize());
    std::vector<void*> idle;
    {
      const std::lock_guard lock{mutex_};
      static_cast<void>(note_peak(c, figures(c)));
      const std::size_t before = own.bytes();
      idle = own.take_idle();
      c.own_returned += before - own.bytes();
    }
    for (void* const each : idle) own.give_segment(each);
    const std::lock_guard lock{mutex_};
    static_cast<void>(share_limit(c));
  }
  static std::uint64_t own_bytes(const card& c) { return c.own_taken - c.own_returned; }
  static std::int64_t note_peak(card& c, const gpumem::statistics& now) {
    c.peak_reserved = std::max(c.peak_reserved, now.reserved_bytes + own_bytes(c));
    return static_cast<std::int64_t>(c.peak_reserved);
  }
  /// gpumem's limit is what the memory of such MemPools leaves of it.
  static gpumem::status share_limit(const card& c) {
    const std::uint64_t left = c.limit - std::min(c.limit, own_bytes(c));
    const auto now = memory().set_limit(c.logical, std::max<std::uint64_t>(1, left));
    return now ? gpumem::status{} : now.why();
  }
  std::uint64_t region_of(card& c, const MempoolId_t& pool, cudaStream_t stream, std::size_t bytes) {
    const std::lock_guard lock{mutex_};
    std::uint64_t& region = c.pools[pool].regions[{stream, bytes <= most_small}];
    if (region != 0) return region;
    const gpumem::result<std::uint64_t> opened = memory().open_region(c.logical, {stream});
    TORCH_CHECK(opened.ok(), "gpumem: ", opened.why().message());
    return region = *opened;
  }

  /// The limit leaves no room for a segment of a MemPool with an allocator of its own.
  [[noreturn]] void refuse_own(DeviceIndex device, card& c, const held_block& held) {
    gpumem::oom_report report{.cause = gpumem::oom_cause::limit,
                              .pool = std::to_string(c.logical),
                              .policy = memory().devices()[static_cast<std::size_t>(c.logical)].policy,
                              .requested_bytes = held.requested,
                              .rounded_bytes = rounded(held.requested),
                              .pool_statistics = figures(c)};
    const c10::cuda::CUDAGuard guard{device};
    C10_CUDA_CHECK(cudaMemGetInfo(&report.device_free_bytes, &report.device_total_bytes));
    {
      const std::lock_guard lock{mutex_};
      ++c.own_misses;
    }
    refuse(device, c, held, report);
  }
  // PyTorch's own first words, which programs look for; then gpumem's report.
  [[noreturn]] void refuse(DeviceIndex device, card& c, const held_block& held, const gpumem::oom_report& report) {
    std::vector<native::OutOfMemoryObserver> observers;
    std::uint64_t allocated = 0, of_pools = 0, reserved = 0, limit = 0;
    const std::vector<gpumem::segment_view> segments = segments_of(c);
    {
      const std::lock_guard lock{mutex_};
      if (watched_) {
        record(TraceEntry::OOM, device, report.device_free_bytes, held.requested, held.stream, held.pool, held.context);
      }
      observers = observers_;
      // Idle memory of a pool serves only that pool: as native, it counts as allocated.
      allocated = static_cast<std::uint64_t>(c.stats.allocated_bytes[everything].current);
      for (const caching::SegmentInfo& piece : all_segments(c, device, segments)) {
        if (piece.owner_private_pool_id == no_pool) continue;
        of_pools += piece.total_size;
        allocated += piece.total_size - piece.allocated_size;
      }
      reserved = report.pool_statistics.reserved_bytes + own_bytes(c);
      limit = c.limit;
    }
    if (c10::memoryProfilingEnabled()) {
      c10::reportOutOfMemoryToProfiler(static_cast<std::int64_t>(held.requested), allocated, reserved,
                                       c10::Device(c10::DeviceType::CUDA, device));
    }
    for (const auto& each : observers)
      each(device, held.requested, report.device_total_bytes, report.device_free_bytes);
    tell_simulated_card(device, report);
    const std::string allowed = limit < report.device_total_bytes ? in_words(limit) + " allowed; " : "";
    const std::string in_pools =
        of_pools != 0 ? "with " + in_words(of_pools) + " allocated in private pools (e.g., CUDA Graphs), " : "";
    TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", in_words(held.requested),
                     ". GPU ", static_cast<int>(device), " has a total capacity of ",
                     in_words(report.device_total_bytes), " of which ", in_words(report.device_free_bytes),
                     " is free. ", allowed, "Of the allocated memory ", in_words(allocated),
                     " is allocated by PyTorch, ", in_pools, "and ", in_words(reserved - std::min(reserved, allocated)),
                     " is reserved by PyTorch but unallocated.\ngpumem: ", report.to_string());
    std::abort();
  }

  // --- the history ----------------------------------------------------------------------------------------------
  template <typename Entry>
  void annotate(const void* at, const std::string& metadata) {
    if (!watched_) return;
    context_ptr context = context_for(RecordContext::ALLOC);
    const std::lock_guard lock{mutex_};
    const auto found = book_.find(const_cast<void*>(at));
    TORCH_CHECK(found != book_.end(), "gpumem: no live allocation begins at ", at);
    const held_block& held = found->second;
    if constexpr (requires { Entry::ANNOTATE; }) {
      record(Entry::ANNOTATE, held.device, reinterpret_cast<std::size_t>(at), held.requested, held.stream, held.pool,
             std::move(context), &metadata);
    }
  }

  // --- the history, with the lock -----------------------------------------------------------------------------
  void record(TraceEntry::Action action, DeviceIndex device, std::size_t at, std::size_t bytes, void* stream,
              MempoolId_t pool, context_ptr context, const std::string* metadata = nullptr, const char* tag = "") {
    TraceEntry entry{action,
                     device,
                     at,
                     bytes,
                     stream,
                     pool,
                     c10::getApproximateTime(),
                     std::move(context),
                     compile_contexts.empty() ? "N/A" : compile_contexts.back(),
                     metadata != nullptr ? *metadata : user_metadata};
    set_tag(entry, tag);
    for (const auto& each : trackers_) each(entry);
    if (!recording_ || skipped_.count(action) != 0) return;
    std::deque<TraceEntry>& to = cards_[static_cast<std::size_t>(device)].trace;
    to.push_back(std::move(entry));
    if (to.size() > most_entries_) to.pop_front();
  }

  template <typename Entry>
  static void set_tag(Entry& entry, const char* tag) {
    if constexpr (requires { entry.internal_metadata_; }) entry.internal_metadata_ = tag;
  }

  // Segments that came or went since this was called last; of a paged one, its mapped stretches. `by` is what made
  // them.
  void note_stretches(DeviceIndex device, const held_block& by = {}) {
    card& c = cards_[static_cast<std::size_t>(device)];
    if (c.logical < 0) return;
    const gpumem::statistics now = figures(c);
    const std::uint64_t changes =
        now.grown_segments + now.returned_segments + now.mapped_pages + now.remapped_pages + now.returned_pages;
    if (c.stretches_known && changes == c_changes_[device]) return;
    c_changes_[device] = changes;
    std::map<std::size_t, stretch> seen;
    for (const gpumem::segment_view& s : segments_of(c)) {
      std::size_t begin = 0;
      for (const block_view& b : s.blocks) {
        if (b.is == block_view::state::unbacked) {
          begin = 0;
          continue;
        }
        if (begin == 0) {
          begin = b.begin;
          seen[begin].paged = s.paged;
        }
        seen[begin].bytes += b.bytes;
      }
    }
    const auto is_in = [](const std::map<std::size_t, stretch>& all, const auto& one) {
      const auto found = all.find(one.first);
      return found != all.end() && found->second.bytes == one.second.bytes;
    };
    if (c.stretches_known) {
      for (const auto& gone : c.known_stretches) {
        if (is_in(seen, gone)) continue;
        record(gone.second.paged ? TraceEntry::SEGMENT_UNMAP : TraceEntry::SEGMENT_FREE, device, gone.first,
               gone.second.bytes, by.stream, by.pool, when_ >= RecordContext::ALLOC ? by.context : nullptr);
      }
      for (auto& come : seen) {
        if (is_in(c.known_stretches, come)) {
          come.second.context = c.known_stretches.at(come.first).context;
          continue;
        }
        come.second.context = by.context;
        record(come.second.paged ? TraceEntry::SEGMENT_MAP : TraceEntry::SEGMENT_ALLOC, device, come.first,
               come.second.bytes, by.stream, by.pool, when_ >= RecordContext::ALLOC ? by.context : nullptr);
      }
    }
    c.known_stretches = std::move(seen);
    c.stretches_known = true;
  }

  std::vector<caching::SegmentInfo> all_segments(const card& c, DeviceIndex device,
                                                 const std::vector<gpumem::segment_view>& of_gpumem) const {
    std::vector<caching::SegmentInfo> out = cut(c, device, of_gpumem);
    for (const auto& [id, pool] : c.pools) {
      if (!pool.own) continue;
      for (const auto& [begin, segment] : pool.own->segments()) {
        caching::SegmentInfo& piece = out.emplace_back();
        piece.device = device;
        piece.address = reinterpret_cast<std::size_t>(begin);
        piece.stream = segment.stream;
        piece.is_large = true;
        piece.owner_private_pool_id = id;
        piece.total_size = segment.bytes;
        for (const auto& [at, part] : segment.pieces) {
          caching::BlockInfo& block = piece.blocks.emplace_back();
          block.size = part.bytes;
          block.active = !part.free;
          if (part.free) continue;
          piece.active_size += part.bytes;
          const auto held = book_.find(begin + at);
          if (held == book_.end()) continue;  // freed, and another stream still uses it
          block.allocated = true;
          block.requested_size = held->second.requested;
          block.context_when_allocated = held->second.context;
          piece.allocated_size += part.bytes;
          piece.requested_size += held->second.requested;
        }
      }
    }
    return out;
  }

  /// gpumem's segments as PyTorch shows them: of one region each, and cut where no memory is behind them.
  std::vector<caching::SegmentInfo> cut(const card& c, DeviceIndex device,
                                        const std::vector<gpumem::segment_view>& segments) const {
    std::map<std::uint64_t, MempoolId_t> pool_of_region{{0, no_pool}};
    for (const auto& [id, pool] : c.pools) {
      for (const auto& [stream, region] : pool.regions) pool_of_region[region] = id;
    }
    std::vector<caching::SegmentInfo> out;
    for (const gpumem::segment_view& s : segments) {
      bool open = false;
      std::uint64_t region = 0;
      for (const block_view& b : s.blocks) {
        if (b.is == block_view::state::unbacked) {
          open = false;
          continue;
        }
        const auto known = pool_of_region.find(b.region);
        const MempoolId_t pool = known != pool_of_region.end() ? known->second : no_pool;
        if (!open || region != b.region) {
          open = true;
          region = b.region;
          caching::SegmentInfo& piece = out.emplace_back();
          piece.device = device;
          piece.address = b.begin;
          piece.stream = b.stream.handle;
          piece.is_large = true;
          piece.is_expandable = s.paged;
          piece.owner_private_pool_id = pool;
          const auto made = c.known_stretches.find(b.begin);
          if (made != c.known_stretches.end()) piece.context_when_allocated = made->second.context;
        }
        caching::SegmentInfo& piece = out.back();
        caching::BlockInfo& block = piece.blocks.emplace_back();
        block.size = b.bytes;
        block.requested_size = b.requested_bytes;
        block.allocated = b.is == block_view::state::live;
        block.active = block.allocated || b.is == block_view::state::fenced;
        piece.total_size += b.bytes;
        piece.requested_size += b.requested_bytes;
        if (block.allocated) {
          piece.allocated_size += b.bytes;
          const auto held = book_.find(reinterpret_cast<void*>(b.begin));
          if (held != book_.end()) block.context_when_allocated = held->second.context;
        }
        if (block.active) piece.active_size += b.bytes;
      }
    }
    return out;
  }

  c10::ApproximateClockToUnixTimeConverter clock_;  // it measures from here on: older than every entry
  std::recursive_mutex mutex_;                      // trackers are told under it, and may ask this allocator
  std::atomic<bool> ready_{false};
  std::atomic<int> routes_{0};
  std::atomic<bool> caches_{true};
  std::map<void*, DeviceIndex> uncached_;  // taken while it was switched off
  std::vector<card> cards_;
  ska::flat_hash_map<void*, held_block> book_;
  std::atomic<bool> recording_{false};
  std::atomic<bool> watched_{false};  // recording, or a tracker is attached
  std::atomic<native::CreateContextFn> recorder_{nullptr};
  std::atomic<RecordContext> when_{RecordContext::NEVER};
  std::size_t most_entries_ = 1;
  std::set<TraceEntry::Action> skipped_;
  std::deque<caching::AnnotationEntry> annotations_;
  std::map<DeviceIndex, std::uint64_t> c_changes_;
  std::vector<native::OutOfMemoryObserver> observers_;
  std::vector<caching::AllocatorTraceTracker> trackers_;
  std::mutex ipc_mutex_;
  std::map<std::string, std::weak_ptr<void>> opened_;
};

// Never destroyed: tensors may be freed until the process ends.
torch_allocator& only() {
  static auto* const it = new torch_allocator;
  return *it;
}

void delete_block(void* at) {
  if (at != nullptr) only().raw_delete(at);
}

}  // namespace

/// Whether PyTorch's allocator has begun: also without torch.cuda's knowledge, by pinned memory or before a fork.
extern "C" __attribute__((visibility("default"))) bool gpumem_torch_in_use() { return native::get()->initialized(); }

/// Makes gpumem PyTorch's allocator. Null, or why not; nothing has changed then.
extern "C" __attribute__((visibility("default"))) const char* gpumem_torch_install() {
  static std::string why;
  try {
    // A bad GPUMEM_* is told now. No GPU is touched before PyTorch does so: a process may still fork, and choose GPUs
    // by CUDA_VISIBLE_DEVICES.
    if (gpumem_check_environment() != GPUMEM_OK) return (why = gpumem_last_message()).c_str();
    // PyTorch reads its own settings at the first question; while its own allocator is current, all of them are valid.
    static_cast<void>(native::CUDAAllocatorConfig::release_lock_on_cudamalloc());
    torch::cuda::CUDAPluggableAllocator::changeCurrentAllocator(
        std::shared_ptr<native::CUDAAllocator>{&only(), [](native::CUDAAllocator*) {}});
    // torch.accelerator asks c10's registry, where PyTorch's own would stay, unused: no statistics, nothing to empty.
    pthread_atfork(nullptr, nullptr, [] { in_forked_child = true; });
    constexpr std::uint8_t above_native = 255;
    c10::SetAllocator(c10::DeviceType::CUDA, &only(), above_native);
    return nullptr;
  } catch (const c10::Error& error) {
    why = error.what_without_backtrace();
  } catch (const std::exception& error) {
    why = error.what();
  }
  return why.c_str();
}
