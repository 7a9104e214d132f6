// The pools of one GPU, of MemPools and of CUDA graphs: their users, the requests that go to them, and the rules by
// which memory leaves them.
//
// 1. Memory that a living graph may write never leaves its pool.
// 2. Other idle memory of a MemPool is returned before a request is refused. A pool with `use_on_oom` lends it first,
// to
//    requests outside every pool and capture.
// 3. A pool without users ends: its idle memory serves all requests, or returns to the pool's allocator.
//
// The caller locks. This file does not include torch.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "memory_source.hpp"

struct private_pool {
  std::shared_ptr<memory_source> source{};
  int uses = 0;              // the MemPool itself, graphs, open routes
  bool is_mem_pool = false;  // true on the MemPool's own GPU; elsewhere it has uses only while it is entered there
  bool is_own = false;       // the MemPool has its own allocator
  bool object_alive = false;
  bool use_on_oom = false;
  bool captured = false;  // a graph that may still exist wrote its memory
  // Threads between a release and their next call. `~MemPool` calls releasePool and then emptyCache; if a thread makes
  // a request first, it released a graph.
  std::set<std::thread::id> released_by{};
};

/// Whether this version of torch tells the allocator of the begin of captures. Its graphs then hold a use of each pool
/// that they wrote.
enum class capture_news : bool { not_told, told };

class pool_table {
  struct route {
    pool_id pool = no_pool;
    std::function<bool(cudaStream_t)> filter;
    bool captures = false;  // known to capture
    bool is_plain = false;  // known not to capture: it served a stream that did not
  };

 public:
  using ended_pool = std::pair<pool_id, private_pool>;

  explicit pool_table(capture_news captures) : captures_are_told_{captures == capture_news::told} {}

  private_pool* find(const pool_id& id) {
    const auto found = pools_.find(id);
    return found != pools_.end() ? &found->second : nullptr;
  }
  private_pool& operator[](const pool_id& id) { return pools_[id]; }
  [[nodiscard]] auto begin() { return pools_.begin(); }
  [[nodiscard]] auto end() { return pools_.end(); }

  // --- which requests go to a pool ------------------------------------------------------------------------------
  void begin_route(const pool_id& id, std::function<bool(cudaStream_t)> filter) {
    if (std::ranges::find(routes_, id, &route::pool) != routes_.end()) {
      throw std::runtime_error{"beginAllocateToPool: already recording to mempool_id"};
    }
    routes_.push_back({id, std::move(filter)});
    ++pools_[id].uses;
  }
  void end_route(const pool_id& id) {
    const auto found = std::ranges::find(routes_, id, &route::pool);
    if (found == routes_.end()) throw std::runtime_error{"endAllocatePool: not currently recording to mempool_id"};
    routes_.erase(found);
  }
  /// Returns the innermost pool for this thread's requests on the stream.
  [[nodiscard]] pool_id route_of(cudaStream_t stream) const {
    for (auto latest = routes_.rbegin(); latest != routes_.rend(); ++latest) {
      if (latest->filter(stream)) return latest->pool;
    }
    return no_pool;
  }
  [[nodiscard]] bool has_routes() const { return !routes_.empty(); }
  /// A capture has begun on the latest route.
  void capture_begins() {
    if (routes_.empty()) return;
    routes_.back().captures = true;
    pools_[routes_.back().pool].captured = true;
  }
  /// Notes a request for a pool. `captures`: its stream captures.
  private_pool& note_request(const pool_id& id, bool captures) {
    private_pool& p = pools_[id];
    p.captured = p.captured || captures;
    const auto found = std::ranges::find(routes_, id, &route::pool);
    if (found != routes_.end() && !captures) found->is_plain = true;
    return p;
  }
  /// True if PyTorch may have an open capture on the GPU.
  [[nodiscard]] bool may_capture() const {
    return !std::ranges::all_of(
        routes_, [this](const route& each) { return captures_are_told_ ? !each.captures : each.is_plain; });
  }

  // --- when memory leaves a pool --------------------------------------------------------------------------------
  [[nodiscard]] bool may_be_written_by_graph(const pool_id& id, const private_pool& pool) const {
    if (!pool.is_mem_pool) return true;  // the pool belongs to graphs only
    if (!pool.captured) return false;
    if (!captures_are_told_) return true;
    const auto is_other = [](std::thread::id each) { return each != std::this_thread::get_id(); };
    if (std::ranges::any_of(pool.released_by, is_other)) return true;
    const auto entered =
        std::ranges::count_if(routes_, [&](const route& each) { return each.pool == id && !each.captures; });
    return pool.uses > entered + (pool.object_alive ? 1 : 0);
  }
  /// Returns sources whose idle memory may leave its pool before a request is refused. While a capture may be open, the
  /// allocator of a MemPool cannot take memory back.
  [[nodiscard]] std::vector<std::shared_ptr<memory_source>> sources_to_give_back() const {
    const bool captures = may_capture();
    std::vector<std::shared_ptr<memory_source>> sources = ended_sources();
    for (const auto& [id, p] : pools_) {
      if (p.source && !(captures && p.is_own) && !may_be_written_by_graph(id, p)) sources.push_back(p.source);
    }
    return sources;
  }
  [[nodiscard]] std::vector<ended_pool> lenders() const {
    std::vector<ended_pool> pools;
    for (const auto& [id, p] : pools_) {
      if (p.use_on_oom && p.source && !may_be_written_by_graph(id, p)) pools.emplace_back(id, p);
    }
    return pools;
  }
  /// Returns the memory of ended MemPools with an allocator of their own; tensors may still use some of it. None while
  /// a capture may be open.
  [[nodiscard]] std::vector<std::shared_ptr<memory_source>> ended_sources() const {
    std::vector<std::shared_ptr<memory_source>> sources;
    if (may_capture()) return sources;
    for (const ended_pool& each : ended_) sources.push_back(each.second.source);
    return sources;
  }
  void forget_empty() {
    std::erase_if(ended_, [](const ended_pool& each) { return each.second.source->is_empty(); });
  }
  /// Removes a pool without uses from the table; null if it has uses or does not exist.
  std::shared_ptr<memory_source> end_pool(const pool_id& id) {
    const auto found = pools_.find(id);
    if (found == pools_.end() || found->second.uses > 0) return nullptr;
    if (found->second.is_own) ended_.emplace_back(id, found->second);
    std::shared_ptr<memory_source> source = std::move(found->second.source);
    pools_.erase(found);
    return source;
  }

  [[nodiscard]] std::vector<std::pair<pool_id, std::shared_ptr<memory_source>>> sources() const {
    std::vector<std::pair<pool_id, std::shared_ptr<memory_source>>> entries;
    for (const auto& [id, p] : pools_) {
      if (p.source) entries.emplace_back(id, p.source);
    }
    for (const auto& [id, p] : ended_) entries.emplace_back(id, p.source);
    return entries;
  }

 private:
  const bool captures_are_told_;
  std::map<pool_id, private_pool> pools_;
  std::vector<ended_pool> ended_;
  std::vector<route> routes_;
};
