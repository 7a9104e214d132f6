// The pools of one GPU: MemPools and the pools of CUDA graphs; who uses them, which requests go to them, and the rules
// by which memory leaves one.
//
// 1. Memory that a living graph may write never leaves its pool.
// 2. Other idle memory of a MemPool goes back before a request is refused. A pool with `use_on_oom` lends it first, to
//    requests outside every pool and capture.
// 3. A pool that nobody uses any more ends: its idle memory serves everybody, or goes back to the pool's allocator.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "memory_source.hpp"

struct private_pool {
  std::shared_ptr<memory_source> source{};
  int uses = 0;              // the MemPool itself, graphs, open routes
  bool is_mem_pool = false;  // on the MemPool's own GPU; elsewhere it has uses only while it is entered there
  bool is_own = false;       // the MemPool brings its allocator
  bool object_alive = false;
  bool use_on_oom = false;
  bool captured = false;  // a graph that may live wrote its memory
  // `~MemPool` calls releasePool and then emptyCache. Between the two only the calling thread knows whether the MemPool
  // or a graph was released; its next request says that it was a graph.
  std::set<std::thread::id> released_by{};
};

/// Whether this version of torch tells when a capture begins. Its graphs then hold a use of each pool that they wrote.
template <typename Allocator>
concept tells_captures = requires(Allocator& a) {
  a.markCaptureBegin(c10::DeviceIndex{0});
};
inline constexpr bool captures_are_told = tells_captures<c10::cuda::CUDACachingAllocator::CUDAAllocator>;

class pool_table {
  struct route {
    pool_id pool = no_pool;
    std::function<bool(cudaStream_t)> filter;
    bool captures = false;  // known to
    bool is_plain = false;  // known not to: it served a stream that captured nothing
  };

 public:
  using ended_pool = std::pair<pool_id, private_pool>;

  private_pool* find(const pool_id& id) {
    const auto found = pools_.find(id);
    return found != pools_.end() ? &found->second : nullptr;
  }
  private_pool& operator[](const pool_id& id) {
    ++set_changes_;
    return pools_[id];
  }
  [[nodiscard]] auto begin() { return pools_.begin(); }
  [[nodiscard]] auto end() { return pools_.end(); }

  // --- which requests go to a pool ------------------------------------------------------------------------------
  void begin_route(const pool_id& id, std::function<bool(cudaStream_t)> filter) {
    for (const route& each : routes_) {
      TORCH_CHECK(each.pool != id, "beginAllocateToPool: already recording to mempool_id");
    }
    routes_.push_back({id, std::move(filter)});
    ++pools_[id].uses;
  }
  void end_route(const pool_id& id) {
    const auto found = std::ranges::find(routes_, id, &route::pool);
    TORCH_CHECK(found != routes_.end(), "endAllocatePool: not currently recording to mempool_id");
    routes_.erase(found);
  }
  /// The innermost pool for this thread's requests on the stream.
  [[nodiscard]] pool_id route_of(cudaStream_t stream) const {
    for (auto latest = routes_.rbegin(); latest != routes_.rend(); ++latest) {
      if (latest->filter(stream)) return latest->pool;
    }
    return no_pool;
  }
  [[nodiscard]] bool has_routes() const { return !routes_.empty(); }
  /// A capture has begun, for the latest route.
  void capture_begins() {
    if (routes_.empty()) return;
    routes_.back().captures = true;
    pools_[routes_.back().pool].captured = true;
  }
  /// A request for a pool, of a stream that captures or does not.
  private_pool& note_request(const pool_id& id, bool captures) {
    private_pool& p = pools_[id];
    p.captured = p.captured || captures;
    const auto found = std::ranges::find(routes_, id, &route::pool);
    if (found != routes_.end() && !captures) found->is_plain = true;
    return p;
  }
  /// True if a capture of PyTorch's may be under way on the GPU.
  [[nodiscard]] bool may_capture() const {
    return !std::ranges::all_of(routes_,
                                [](const route& each) { return captures_are_told ? !each.captures : each.is_plain; });
  }

  // --- when memory leaves a pool --------------------------------------------------------------------------------
  [[nodiscard]] bool may_be_written_by_graph(const pool_id& id, const private_pool& p) const {
    if (!p.is_mem_pool) return true;  // of graphs alone
    if (!p.captured) return false;
    if (!captures_are_told) return true;
    const auto is_other = [](std::thread::id each) { return each != std::this_thread::get_id(); };
    if (std::ranges::any_of(p.released_by, is_other)) return true;
    const auto entered = std::ranges::count_if(routes_, [&](const route& r) { return r.pool == id && !r.captures; });
    return p.uses > entered + (p.object_alive ? 1 : 0);
  }
  /// Sources whose idle memory may leave its pool before a request is refused. While a capture may be under way, the
  /// allocator of a MemPool cannot take memory back.
  [[nodiscard]] std::vector<std::shared_ptr<memory_source>> sources_to_give_back() const {
    const bool captures = may_capture();
    std::vector<std::shared_ptr<memory_source>> out = ended_sources();
    for (const auto& [id, p] : pools_) {
      if (p.source && !(captures && p.is_own) && !may_be_written_by_graph(id, p)) out.push_back(p.source);
    }
    return out;
  }
  [[nodiscard]] std::vector<ended_pool> lenders() const {
    std::vector<ended_pool> out;
    for (const auto& [id, p] : pools_) {
      if (p.use_on_oom && p.source && !may_be_written_by_graph(id, p)) out.emplace_back(id, p);
    }
    return out;
  }
  /// Memory of MemPools with an allocator of their own that have ended, some of it still in tensors. None while a
  /// capture may be under way.
  [[nodiscard]] std::vector<std::shared_ptr<memory_source>> ended_sources() const {
    std::vector<std::shared_ptr<memory_source>> out;
    if (may_capture()) return out;
    for (const ended_pool& each : ended_) out.push_back(each.second.source);
    return out;
  }
  void forget_empty() {
    std::erase_if(ended_, [](const ended_pool& each) { return each.second.source->is_empty(); });
    ++set_changes_;
  }
  /// Takes a pool without uses out of the table; null if it has uses or does not exist.
  std::shared_ptr<memory_source> end_pool(const pool_id& id) {
    const auto found = pools_.find(id);
    if (found == pools_.end() || found->second.uses > 0) return nullptr;
    if (found->second.is_own) ended_.emplace_back(id, found->second);
    std::shared_ptr<memory_source> source = std::move(found->second.source);
    pools_.erase(found);
    ++set_changes_;
    return source;
  }

  [[nodiscard]] std::vector<std::pair<pool_id, std::shared_ptr<memory_source>>> sources() const {
    std::vector<std::pair<pool_id, std::shared_ptr<memory_source>>> out;
    for (const auto& [id, p] : pools_) {
      if (p.source) out.emplace_back(id, p.source);
    }
    for (const auto& [id, p] : ended_) out.emplace_back(id, p.source);
    return out;
  }

  /// Changes of the set of sources, and of the sources themselves: the same pair means the same memory. A new source
  /// is empty until its first change.
  [[nodiscard]] std::pair<std::uint64_t, std::uint64_t> changes() const {
    std::uint64_t of_sources = 0;
    for (const auto& [unused, source] : sources()) of_sources += source->changes();
    return {set_changes_, of_sources};
  }

 private:
  std::uint64_t set_changes_ = 0;
  std::map<pool_id, private_pool> pools_;
  std::vector<ended_pool> ended_;
  std::vector<route> routes_;
};
