// Regions: memory shared only by several captures of one stream, or by a program's private pool; and the view of all
// segments.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "bits.hpp"
#include "gpumem/allocator.hpp"
#include "gpumem/sim_device.hpp"

namespace gpumem {
namespace {

class regions : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    settings s;
    ASSERT_TRUE(s.set("policy", GetParam()).ok());
    device* const devices[] = {&gpu};
    auto opened = allocator::open(devices, s);
    ASSERT_TRUE(opened.ok()) << opened.why().message();
    a = *std::move(opened);
    capturing = gpu.create_stream();
  }
  void TearDown() override {
    EXPECT_TRUE(a->check(0).ok()) << a->check(0).message();
    EXPECT_EQ(gpu.hazard_count(), 0U);
  }
  void* take(std::uint64_t region, std::size_t bytes, address place = 0) {
    const result<void*> p = a->try_allocate({.bytes = bytes, .stream = capturing, .region = region, .place = place});
    return p ? *p : nullptr;
  }
  static address at(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }
  std::uint64_t bytes_of(std::uint64_t region) const {
    std::uint64_t sum = 0;
    const std::vector<segment_view> all = *a->segments(0);
    for (const segment_view& s : all) {
      for (const block_view& b : s.blocks) sum += b.region == region ? b.bytes : 0;
    }
    return sum;
  }

  sim_device gpu;
  std::unique_ptr<allocator> a;
  stream_ref capturing;
};

TEST_P(regions, eight_captures_that_share_one_take_the_memory_of_one) {
  const result<std::uint64_t> region = a->open_region(0, capturing);
  ASSERT_TRUE(region.ok());
  std::vector<graph_ref> graphs;
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(a->capture_begin(capturing).ok());
    ASSERT_TRUE(gpu.begin_capture(capturing).ok());
    void* const p = take(*region, 64 * mib);
    ASSERT_NE(p, nullptr);
    a->deallocate(p);
    ASSERT_TRUE(gpu.end_capture(capturing).ok());
    graphs.push_back(*a->capture_end(capturing));
  }
  EXPECT_EQ(bytes_of(*region), 64 * mib);
  void* const others = a->allocate(64 * mib, capturing);
  EXPECT_EQ(a->stats(0)->live_bytes, 64 * mib);
  EXPECT_EQ(bytes_of(*region), 64 * mib) << "the stream itself gets none of it";
  for (const graph_ref g : graphs) EXPECT_TRUE(a->graph_release(g).ok());
  EXPECT_EQ(bytes_of(*region), 64 * mib) << "a graph that is gone leaves the region as it is";
  EXPECT_TRUE(a->close_region(0, *region).ok());
  EXPECT_EQ(bytes_of(*region), 0U);
  a->deallocate(others);
  ASSERT_TRUE(a->trim(0).ok());
  EXPECT_EQ(a->stats(0)->reserved_bytes, 0U);
}

TEST_P(regions, a_place_that_cannot_be_had_is_refused_and_changes_nothing) {
  const std::uint64_t region = *a->open_region(0, capturing);
  void* const p = take(region, 4 * mib);
  a->deallocate(p);
  const address begin = at(p);
  const auto refused = [&](request r) {
    r.region = region;
    const result<void*> got = a->try_allocate(r);
    EXPECT_EQ(got.code(), errc::invalid_argument);
    return got.why().message();
  };
  const request odd{.bytes = 1000, .stream = capturing, .place = begin + 100};
  EXPECT_THAT(refused(odd), testing::HasSubstr(": expected a multiple of 512"));
  const request unaligned{.bytes = 1000, .stream = capturing, .alignment = mib, .place = begin + 512};
  EXPECT_THAT(refused(unaligned), testing::HasSubstr(": expected a multiple of 1048576, the alignment asked"));
  const request of_other{.bytes = 1000, .stream = gpu.create_stream()};
  EXPECT_THAT(refused(of_other), testing::HasSubstr("for which it was opened"));
  EXPECT_EQ(bytes_of(region), 4 * mib);
  const request right{.bytes = 1000, .stream = capturing, .alignment = 512, .region = region, .place = begin + 512};
  const result<void*> got = a->try_allocate(right);
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(at(*got), begin + 512);
  a->deallocate(*got);
}

TEST_P(regions, a_live_block_outlives_its_region) {
  const std::uint64_t region = *a->open_region(0, capturing);
  void* const p = take(region, mib);
  gpu.enqueue_use(capturing, 1'000'000, at(p), mib);
  ASSERT_TRUE(a->close_region(0, region).ok());
  EXPECT_EQ(a->close_region(0, region).code(), errc::invalid_argument);
  EXPECT_EQ(a->try_allocate({.bytes = 512, .stream = capturing, .region = region}).code(), errc::invalid_argument);
  a->deallocate(p);
  void* const next = a->allocate(mib);
  gpu.handed_out(at(next), mib, {});
  a->deallocate(next);
}

TEST_P(regions, a_block_is_allocated_again_where_it_was) {
  const std::uint64_t region = *a->open_region(0, capturing);
  void* const first = take(region, 4 * mib);
  void* const second = take(region, 2 * mib);
  void* const third = take(region, 1000);
  a->deallocate(first);
  a->deallocate(second);
  EXPECT_EQ(take(region, 2 * mib, at(second)), second);
  EXPECT_EQ(take(region, 2 * mib, at(second)), nullptr) << "it is live";
  EXPECT_EQ(take(region, 4 * mib, at(first)), first);
  EXPECT_EQ(take(region, mib, 512), nullptr) << "no memory of this pool";
  for (void* const p : {first, second, third}) a->deallocate(p);
  EXPECT_TRUE(a->close_region(0, region).ok());
}

TEST_P(regions, the_view_of_all_segments_is_what_the_statistics_say) {
  const std::uint64_t region = *a->open_region(0, capturing);
  void* const mine = take(region, 3000);
  void* const others = a->allocate(5 * mib);
  void* const freed = a->allocate(512);
  a->deallocate(freed);
  const statistics s = *a->stats(0);
  std::uint64_t reserved = 0;
  std::uint64_t live = 0;
  std::uint64_t requested = 0;
  const std::vector<segment_view> all = *a->segments(0);
  for (const segment_view& segment : all) {
    address next = segment.begin;
    for (const block_view& b : segment.blocks) {
      EXPECT_EQ(b.begin, next);
      next += b.bytes;
      if (b.is != block_view::state::unbacked) reserved += b.bytes;
      if (b.is != block_view::state::live) continue;
      live += b.bytes;
      requested += b.requested_bytes;
      EXPECT_EQ(b.region, b.begin == at(mine) ? region : 0U);
    }
    EXPECT_EQ(next, segment.begin + segment.bytes);
  }
  EXPECT_EQ(reserved, s.reserved_bytes);
  EXPECT_EQ(live, s.live_bytes);
  EXPECT_EQ(requested, s.requested_bytes);
  a->deallocate(mine);
  a->deallocate(others);
  ASSERT_TRUE(a->close_region(0, region).ok());
}

TEST_P(regions, are_counted_while_they_are_open) {
  const std::uint64_t region = *a->open_region(0, capturing);
  void* const held = take(region, 4 * mib);
  void* const freed = take(region, mib);
  a->deallocate(freed);
  const piece_statistics open = *a->pieces(0);
  ASSERT_EQ(open.regions.size(), 1U);
  EXPECT_EQ(open.regions[0].region, region);
  EXPECT_EQ(open.regions[0].bytes, bytes_of(region));
  EXPECT_EQ(open.regions[0].live_bytes, 4 * mib);
  ASSERT_TRUE(a->close_region(0, region).ok());
  EXPECT_TRUE(a->pieces(0)->regions.empty());
  EXPECT_EQ(bytes_of(region), 4 * mib) << "a live block is its region's until it is freed";
  a->deallocate(held);
  EXPECT_EQ(bytes_of(region), 0U);
  EXPECT_EQ(a->pieces(1).code(), errc::wrong_device);
}

TEST_P(regions, the_peak_of_reserved_bytes_begins_anew_and_what_was_taken_stays) {
  a->deallocate(a->allocate(256 * mib));
  ASSERT_TRUE(a->trim(0).ok());
  const statistics before = *a->stats(0);
  EXPECT_GE(before.peak_reserved_bytes, 256 * mib);
  EXPECT_GE(before.taken_bytes, before.peak_reserved_bytes);
  ASSERT_TRUE(a->reset_peak_reserved(0).ok());
  const statistics after = *a->stats(0);
  EXPECT_EQ(after.peak_reserved_bytes, after.reserved_bytes);
  EXPECT_EQ(after.taken_bytes, before.taken_bytes);
  EXPECT_EQ(a->reset_peak_reserved(1).code(), errc::wrong_device);
}

TEST_P(regions, observers_are_told_of_the_logical_device) {
  struct counter final : segment_observer {
    std::uint64_t bytes = 0;
    void segment_added(const segment_extent& added) override {
      EXPECT_EQ(added.device, 0);
      bytes += added.bytes;
    }
    void segment_removing(const segment_extent& removing) override { bytes -= removing.bytes; }
  };
  const auto observer = std::make_shared<counter>();
  ASSERT_TRUE(a->observe_segments(observer).ok());
  EXPECT_EQ(a->observe_segments(nullptr).code(), errc::invalid_argument);
  void* const kept = a->allocate(3 * mib);
  a->deallocate(a->allocate(256 * mib));
  EXPECT_EQ(observer->bytes, a->stats(0)->reserved_bytes);
  ASSERT_TRUE(a->trim(0).ok());
  a->deallocate(kept);
  EXPECT_EQ(observer->bytes, a->stats(0)->reserved_bytes);
}

INSTANTIATE_TEST_SUITE_P(policies, regions, ::testing::Values("growth", "caching", "expandable"),
                         [](const auto& of) { return std::string{of.param}; });

}  // namespace
}  // namespace gpumem
