// The figures of pieces: each change of a block keeps them as a walk over all blocks would find them.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "bits.hpp"
#include "heap.hpp"

namespace gpumem {
namespace {

constexpr std::uint64_t page = 2 * mib;
constexpr std::uint64_t base = 64 * page;

struct divided_heap {
  heap h{1};
  owner_id stream = h.add_owner();
  owner_id region = h.add_owner();
  std::uint64_t epoch = 1;

  explicit divided_heap(bool has_region = true) {
    if (has_region) h.pieces().begin_region(region);
  }
  ~divided_heap() { EXPECT_EQ(h.validate().message(), ""); }
  divided_heap(const divided_heap&) = delete;
  divided_heap& operator=(const divided_heap&) = delete;

  block_index take(owner_id owner, std::uint64_t bytes) {
    const block_index from = h.free_blocks().best_fit(0, owner, true, bytes, 512);
    if (from == no_block) return no_block;
    const block_index i = h.carve(from, bytes, 512);
    h.pieces().set_owner(i, owner);
    return i;
  }
  void give(block_index i) { h.release(i, h.at(i).owner, epoch, false); }
  [[nodiscard]] const piece_totals& now() const { return h.pieces().totals(); }
  /// Free or leaked blocks in pieces with others, and their bytes.
  [[nodiscard]] std::uint64_t split_blocks() const {
    return h.totals().free_blocks + h.totals().leaked_blocks - now().undivided_free_blocks;
  }
  [[nodiscard]] std::uint64_t split_bytes() const {
    return h.totals().cached_bytes + h.totals().idle_bytes + h.totals().leaked_bytes - now().undivided_free_bytes;
  }
};

TEST(pieces, a_free_block_is_split_beside_others_only) {
  divided_heap x;
  x.h.add_segment(base, page, 0);
  EXPECT_EQ(x.now().pieces, 1U);
  EXPECT_EQ(x.split_blocks(), 0U);
  const block_index held = x.take(x.stream, mib);
  EXPECT_EQ(x.now().pieces, 1U);
  EXPECT_EQ(x.split_blocks(), 1U);
  EXPECT_EQ(x.split_bytes(), page - mib);
  const block_index rest = x.take(x.stream, page - mib);
  EXPECT_EQ(x.split_bytes(), 0U);
  EXPECT_EQ(x.now().undivided_live_blocks, 0U);
  x.give(held);
  x.give(rest);
  x.h.make_idle(x.stream, x.epoch);
  EXPECT_EQ(x.split_blocks(), 0U);
  const block_index whole = x.take(x.stream, page);
  EXPECT_EQ(x.now().undivided_live_blocks, 1U);
  x.h.fence(whole);
  EXPECT_EQ(x.now().undivided_live_blocks, 0U);
  EXPECT_EQ(x.h.totals().fenced_blocks, 1U);
}

TEST(pieces, a_region_has_pieces_of_its_own_until_it_ends) {
  divided_heap x;
  x.h.add_segment(base, page, 0);
  const block_index before = x.take(x.stream, 512);
  const block_index mine = x.take(x.region, 1024);
  EXPECT_EQ(x.now().pieces, 3U) << "the stream's block, the region's, and the idle rest";
  EXPECT_EQ(x.now().undivided_live_blocks, 2U);
  EXPECT_EQ(x.split_blocks(), 0U);
  EXPECT_EQ(x.h.pieces().of_region(x.region), (region_totals{1024, 1024}));
  x.give(mine);
  EXPECT_EQ(x.h.pieces().of_region(x.region), (region_totals{1024, 0}));
  x.h.pieces().end_region(x.region, x.h.free_blocks().oldest(x.region));
  EXPECT_EQ(x.now().pieces, 1U);
  EXPECT_EQ(x.split_blocks(), 2U);
  EXPECT_EQ(x.h.pieces().of_region(x.region), region_totals{});
  x.give(before);
}

TEST(pieces, a_live_block_of_an_ended_region_joins_the_others_when_it_is_freed) {
  divided_heap x;
  x.h.add_segment(base, page, 0);
  const block_index mine = x.take(x.region, 1024);
  x.h.pieces().end_region(x.region, x.h.free_blocks().oldest(x.region));
  EXPECT_EQ(x.now().pieces, 2U);
  x.give(mine);
  EXPECT_EQ(x.now().pieces, 1U);
  EXPECT_EQ(x.split_blocks(), 2U);
  x.h.make_idle(x.region, x.epoch);
  x.h.remove_owner(x.region);
  EXPECT_EQ(x.split_blocks(), 0U);
}

TEST(pieces, addresses_without_memory_part_pieces) {
  divided_heap x;
  x.h.add_segment(base, 8 * page, 0, false);
  EXPECT_EQ(x.now().pieces, 0U);
  EXPECT_EQ(x.h.totals().segments, 0U);
  x.h.commit(x.h.containing(base), base, page);
  x.h.commit(x.h.containing(base + 2 * page), base + 2 * page, page);
  EXPECT_EQ(x.now().pieces, 2U);
  EXPECT_EQ(x.h.totals().segments, 1U);
  x.h.commit(x.h.containing(base + page), base + page, page);
  EXPECT_EQ(x.now().pieces, 1U);
  x.h.decommit(x.h.containing(base), base, 3 * page);
  EXPECT_EQ(x.now().pieces, 0U);
  EXPECT_EQ(x.h.totals().segments, 0U);
}

/// Random changes of a heap with two streams: of plain segments alone, some as small as a block, or also of a paged one
/// and of regions that come and go.
class random_changes {
 public:
  random_changes(unsigned seed, bool plain) : plain_{plain}, x_{!plain}, random_{seed} {
    x_.h.add_segment(base, 4 * page, 0);
    for (std::uint64_t k = 0; k < 8; ++k) x_.h.add_segment(base + (8 + 2 * k) * page, (1 + k) * 64 * kib, 0);
    if (!plain) x_.h.add_segment(base + 64 * page, 16 * page, 0, false);
    owners_ = {x_.stream, x_.h.add_owner(), x_.region};
  }
  void step() {
    switch (below(12)) {
      case 0:
        return page_in();
      case 1:
        return page_out();
      case 2:
        return x_.h.make_idle(owners_[below(owners_.size())], ++x_.epoch);
      case 3:
        return plain_ ? void() : end_region();
      case 4:
        return static_cast<void>(x_.h.absorb_idle(owners_[below(owners_.size())]));
      case 5:
        if (live_.empty()) return;
        return below(20) == 0 ? x_.h.leak(taken()) : fence();
      case 6:
      case 7:
      case 8:
        if (!live_.empty()) x_.h.release(taken(), owners_[below(owners_.size())], ++x_.epoch, below(2) == 0);
        return;
      default:
        if (const block_index i = x_.take(owners_[below(owners_.size())], (1 + below(64)) * 16 * 1024); i != no_block)
          live_.push_back(i);
    }
  }
  [[nodiscard]] std::string wrong() const { return x_.h.validate().message(); }

 private:
  std::uint64_t below(std::uint64_t limit) { return random_() % limit; }
  block_index taken() {
    std::swap(live_[below(live_.size())], live_.back());
    const block_index i = live_.back();
    live_.pop_back();
    return i;
  }
  void fence() {
    const block_index i = taken();
    x_.h.fence(i);
    x_.h.release(i, owners_[below(owners_.size())], ++x_.epoch, false);
  }
  void page_in() {
    const block_index i = x_.h.unbacked().first();
    if (i != no_block) x_.h.commit(i, x_.h.at(i).begin, page);
  }
  void page_out() {
    if (plain_) return;
    const std::uint64_t begin = base + (64 + below(16)) * page;
    const block_index i = x_.h.containing(begin);
    const block& b = x_.h.at(i);
    const bool is_idle = b.state == block_state::free && b.owner == idle_owner;
    if (is_idle && b.begin <= begin && begin + page <= b.begin + b.bytes) x_.h.decommit(i, begin, page);
  }
  /// Blocks of a region are freed and idle before its owner goes, as the pool sees to by references.
  void end_region() {
    const owner_id ended = owners_.back();
    x_.h.pieces().end_region(ended, x_.h.free_blocks().oldest(ended));
    for (auto each = live_.begin(); each != live_.end();) {
      if (x_.h.at(*each).owner != ended) {
        ++each;
        continue;
      }
      x_.h.release(*each, ended, ++x_.epoch, false);
      each = live_.erase(each);
    }
    x_.h.make_idle(ended, x_.epoch);
    x_.h.remove_owner(ended);
    owners_.back() = x_.h.add_owner();
    x_.h.pieces().begin_region(owners_.back());
  }

  bool plain_;
  divided_heap x_;
  std::mt19937 random_;
  std::vector<owner_id> owners_;  // the last is a region
  std::vector<block_index> live_;
};

TEST(pieces, random_changes_are_counted_as_a_walk_counts) {
  for (unsigned seed = 1; seed <= 8; ++seed) {
    random_changes changes{seed, seed % 2 == 0};
    for (int k = 0; k < 1000; ++k) {
      changes.step();
      ASSERT_EQ(changes.wrong(), "") << "seed " << seed << ", step " << k;
    }
  }
}

}  // namespace
}  // namespace gpumem
