// gpumem's memory as PyTorch's pools: a whole GPU for requests outside every pool, or the regions of one pool.
#pragma once

#include <c10/util/Exception.h>

#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "gpumem/default_allocator.hpp"
#include "memory_source.hpp"

inline gpumem::allocator& memory() {
  static gpumem::allocator* const opened = [] {
    const gpumem::result<gpumem::allocator*> made = gpumem::default_allocator();
    TORCH_CHECK(made.ok(), "gpumem: ", made.why().message());
    return *made;
  }();
  return *opened;
}

class gpumem_memory final : public memory_source {
 public:
  /// `logical` is the gpumem device that serves the requests. With `of_pool` the memory uses regions of its own.
  gpumem_memory(int logical, bool of_pool) : logical_{logical}, of_pool_{of_pool} {}

  void* allocate_block(const memory_request& asked, refusal& why) override {
    gpumem::request r{.bytes = asked.bytes, .stream = {asked.stream}, .device = logical_, .place = asked.place};
    r.reports_capture_end = true;
    for (;;) {
      if (of_pool_) r.region = region_for(asked);
      const gpumem::result<void*> got = asked.place != 0 ? allocate_exact(r) : memory().try_allocate(r, why.report);
      if (got) return *got;
      if (of_pool_ && region_for(asked) != r.region) continue;  // another thread closed the region meanwhile
      TORCH_CHECK(asked.place == 0, "gpumem: no block at this exact address: ", got.why().message());
      TORCH_CHECK(got.code() == gpumem::errc::out_of_memory, "gpumem: ", got.why().message());
      return nullptr;
    }
  }
  /// May also take new memory: gpumem serves a pool's request from any memory it can get.
  void* take_idle(const memory_request& asked) override {
    refusal why;
    return allocate_block(asked, why);
  }
  void free_block(void* ptr) noexcept override { memory().deallocate(ptr); }
  void record_use(void* ptr, device_stream user) override {
    const gpumem::status noted = memory().record_use(ptr, {user.handle});
    TORCH_CHECK(noted.ok(), "gpumem: record_stream: ", noted.message());
  }
  [[nodiscard]] segment_range segment_around(const void* ptr) const override {
    const gpumem::result<gpumem::block_info> found = memory().describe(ptr);
    TORCH_CHECK(found.ok(), "gpumem: ", found.why().message());
    return {reinterpret_cast<void*>(found->segment_begin), found->segment_bytes};
  }
  void describe(memory_map& map, const pool_id& pool) const override {
    if (!of_pool_) {
      gpumem::result<std::vector<gpumem::segment_view>> all = memory().segments(logical_);
      TORCH_CHECK(all.ok(), "gpumem: ", all.why().message());
      map.shared = *std::move(all);
      return;
    }
    const std::lock_guard lock{mutex_};
    for (const auto& [unused, region] : regions_) map.pool_of_region[region] = pool;
  }
  void count(memory_totals& totals, const pool_id& pool) const override {
    if (!of_pool_) return count_all(totals);
    const std::lock_guard lock{mutex_};
    for (const auto& [unused, region] : regions_) {
      const auto found = totals.regions.find(region);
      if (found != totals.regions.end()) totals.add_pool(pool, found->second.bytes, found->second.live_bytes);
    }
  }
  /// Closes the regions of a pool that have idle memory: their idle memory then serves every request, and live blocks
  /// follow when they are freed. Later requests of the pool open new regions.
  bool give_back() override {
    std::map<std::pair<cudaStream_t, bool>, std::uint64_t> closing;
    memory_map map;
    gpumem_memory{logical_, false}.describe(map, no_pool);
    std::set<std::uint64_t> with_idle_blocks;
    for (const gpumem::segment_view& s : map.shared) {
      for (const gpumem::block_view& b : s.blocks) {
        if (b.is != gpumem::block_view::state::live) with_idle_blocks.insert(b.region);
      }
    }
    {
      const std::lock_guard lock{mutex_};
      for (auto each = regions_.begin(); each != regions_.end();) {
        const auto next = std::next(each);
        if (with_idle_blocks.contains(each->second)) closing.insert(regions_.extract(each));
        each = next;
      }
    }
    bool any = false;
    for (const auto& [unused, region] : closing) any = memory().close_region(logical_, region).ok() || any;
    return any;
  }
  /// Closes all regions, because the pool has ended.
  void close() override {
    std::map<std::pair<cudaStream_t, bool>, std::uint64_t> closing;
    {
      const std::lock_guard lock{mutex_};
      closing.swap(regions_);
    }
    for (const auto& [unused, region] : closing) static_cast<void>(memory().close_region(logical_, region));
  }
  [[nodiscard]] bool is_empty() const noexcept override { return true; }

 private:
  void count_all(memory_totals& totals) const {
    const gpumem::result<gpumem::piece_statistics> counted = memory().pieces(logical_);
    TORCH_CHECK(counted.ok(), "gpumem: ", counted.why().message());
    totals.pieces += counted->pieces;
    totals.fenced += counted->fenced_blocks;
    totals.split += counted->split_blocks;
    totals.split_bytes += counted->split_bytes;
    for (const auto& each : counted->regions) totals.regions.emplace(each.region, each);
  }
  /// A cache may return a block of that size at another address; a larger alignment bypasses it.
  static gpumem::result<void*> allocate_exact(gpumem::request request) {
    gpumem::result<void*> got = memory().try_allocate(request);
    if (got && *got != reinterpret_cast<void*>(request.place)) {
      memory().deallocate(*got);
      request.alignment = 2 * gpumem::block_granularity;
      got = memory().try_allocate(request);
    }
    return got;
  }
  /// Small blocks have a separate region, where a long-lived one cannot split the free space for large blocks.
  std::uint64_t region_for(const memory_request& asked) {
    constexpr std::size_t max_small = std::size_t{1} << 20;  // as in PyTorch's own allocator
    const std::lock_guard lock{mutex_};
    std::uint64_t& region = regions_[{asked.stream, asked.bytes <= max_small}];
    if (region != 0) return region;
    const gpumem::result<std::uint64_t> opened = memory().open_region(logical_, {asked.stream});
    TORCH_CHECK(opened.ok(), "gpumem: ", opened.why().message());
    return region = *opened;
  }

  const int logical_;
  const bool of_pool_;
  mutable std::mutex mutex_;
  std::map<std::pair<cudaStream_t, bool>, std::uint64_t> regions_;
};
