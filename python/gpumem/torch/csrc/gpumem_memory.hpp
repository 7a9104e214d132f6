// gpumem's memory as PyTorch's pools: a whole GPU for requests outside every pool, or the regions of one pool. Also the
// limit that this memory shares with memory from other sources.
#pragma once

#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
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
      const gpumem::result<void*> got = asked.place != 0 ? allocate_exact(r) : memory().try_allocate(r, &why.report);
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
  [[nodiscard]] std::uint64_t changes() const noexcept override { return changes_; }
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
      ++changes_;
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
      ++changes_;
    }
    for (const auto& [unused, region] : closing) static_cast<void>(memory().close_region(logical_, region));
  }
  [[nodiscard]] bool is_empty() const noexcept override { return true; }

 private:
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
    ++changes_;
    return region = *opened;
  }

  const int logical_;
  const bool of_pool_;
  mutable std::mutex mutex_;
  std::map<std::pair<cudaStream_t, bool>, std::uint64_t> regions_;
  std::atomic<std::uint64_t> changes_ = 0;
};

/// The limit of one GPU. gpumem's own limit is what remains beside memory from other sources.
class shared_limit {
 public:
  void open(int logical, std::uint64_t limit) {
    logical_ = logical;
    limit_ = at_start_ = limit;
  }
  [[nodiscard]] std::uint64_t at_start() const noexcept { return at_start_; }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return limit_; }
  /// Bytes reserved for memory from other sources.
  [[nodiscard]] std::uint64_t reserved() const noexcept { return reserved_; }

  void set(std::uint64_t limit) {
    const std::lock_guard lock{mutex_};
    const gpumem::result<gpumem::limit_result> applied = apply(limit, reserved_);
    TORCH_CHECK(applied.ok(), "gpumem: ", applied.why().message());
    limit_ = limit;
  }
  /// False if the bytes do not fit beside gpumem's memory. `gives_back` allows returning idle segments first, which
  /// calls the driver: pass false within a capture, because gpumem learns of a capture only by its first request.
  bool reserve(std::uint64_t bytes, bool gives_back) {
    const std::lock_guard lock{mutex_};
    const std::uint64_t wanted = reserved_ + bytes;
    if (wanted > limit_) return false;
    if (!gives_back) {
      const gpumem::result<gpumem::statistics> statistics = memory().stats(logical_);
      if (!statistics || statistics->reserved_bytes + wanted > limit_) return false;
    }
    const gpumem::result<gpumem::limit_result> applied = apply(limit_, wanted);
    if (applied && applied->reserved_bytes + wanted <= limit_) {
      reserved_ = wanted;
      return true;
    }
    static_cast<void>(apply(limit_, reserved_));
    return false;
  }
  void release(std::uint64_t bytes) noexcept {
    const std::lock_guard lock{mutex_};
    reserved_ -= bytes;
    static_cast<void>(apply(limit_, reserved_));
  }

 private:
  gpumem::result<gpumem::limit_result> apply(std::uint64_t limit, std::uint64_t reserved) const {
    return memory().set_limit(logical_, std::max<std::uint64_t>(1, limit - std::min(limit, reserved)));
  }

  int logical_ = -1;
  std::uint64_t at_start_ = 0;
  std::atomic<std::uint64_t> limit_ = 0;
  std::atomic<std::uint64_t> reserved_ = 0;
  std::mutex mutex_;  // serializes changes
};
