// What is expected next from what came before: the same again, at another scale, at other ages, or nothing.
#include "large_requests.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "bits.hpp"

namespace gpumem {
namespace {

using kind = expected_step::kind;

/// Each block lies where no other one does.
struct sequence {
  large_requests seen;
  std::uint64_t next_begin = mib;

  struct taken {
    large_requests::number number = 0;
    std::uint64_t begin = 0;
  };
  taken take(std::uint64_t bytes) {
    const taken t{seen.requested(bytes), next_begin};
    next_begin += bytes;
    seen.placed(t.number, t.begin);
    return t;
  }
  void give(const taken& t) { seen.freed(t.begin); }

  /// A step whose last block lives on: what it is, the caller gives back in the next one.
  taken step(std::uint64_t unit, const taken* kept) {
    const taken a = take(8 * unit);
    const taken b = take(4 * unit);
    give(a);
    if (kept != nullptr) give(*kept);
    const taken c = take(2 * unit);
    give(b);
    const taken d = take(6 * unit);
    give(c);
    return d;
  }
};

std::vector<kind> kinds(const std::vector<expected_step>& steps) {
  std::vector<kind> out;
  for (const expected_step& s : steps) out.push_back(s.is);
  return out;
}

const std::vector<kind> rest_of_step{kind::request,       kind::free_requested, kind::free_live,     kind::request,
                                     kind::free_expected, kind::request,        kind::free_expected, kind::request};

TEST(large_requests, nothing_is_expected_after_what_never_came_before) {
  sequence s;
  const sequence::taken a = s.take(16 * mib);
  EXPECT_TRUE(s.seen.expected_after(a.number, 10).empty());
  EXPECT_TRUE(s.seen.expected_after(0, 10).empty());
  EXPECT_TRUE(s.seen.expected_after(a.number + 1, 10).empty());
}

TEST(large_requests, a_step_that_came_before_is_expected_to_go_on_as_it_did) {
  sequence s;
  sequence::taken kept = s.step(16 * mib, nullptr);
  for (int k = 0; k < 3; ++k) kept = s.step(16 * mib, &kept);
  const sequence::taken a = s.take(8 * 16 * mib);
  const std::vector<expected_step> steps = s.seen.expected_after(a.number, 8);
  ASSERT_EQ(kinds(steps), rest_of_step);
  EXPECT_EQ(steps[0].bytes, 4 * 16 * mib);
  EXPECT_EQ(steps[2].begin, kept.begin) << "the block of the step before";
  EXPECT_EQ(steps[2].bytes, 6 * 16 * mib);
  EXPECT_EQ(steps[4].step, 0U);
  EXPECT_EQ(steps[6].step, 3U);
  EXPECT_EQ(steps[7].bytes, 8 * 16 * mib) << "and then the next step";
}

TEST(large_requests, where_a_request_lay_before_is_known_latest_first) {
  sequence s;
  sequence::taken kept = s.step(16 * mib, nullptr);
  std::vector<std::uint64_t> begins;
  for (int k = 0; k < 4; ++k) {
    begins.push_back(s.next_begin);
    kept = s.step(16 * mib, &kept);
  }
  const sequence::taken a = s.take(8 * 16 * mib);
  EXPECT_EQ(s.seen.earlier_places(a.number), (std::vector<std::uint64_t>{begins[3], begins[2], begins[1]}));
  const std::vector<expected_step> steps = s.seen.expected_after(a.number, 1);
  ASSERT_EQ(steps.size(), 1U);
  EXPECT_EQ(steps[0].lay[0], begins[3] + 8 * 16 * mib);
  EXPECT_EQ(steps[0].lay[1], begins[2] + 8 * 16 * mib);
}

TEST(large_requests, the_same_step_with_larger_tensors_is_known_by_its_shape) {
  sequence s;
  sequence::taken kept = s.step(16 * mib, nullptr);
  for (int k = 0; k < 3; ++k) kept = s.step(16 * mib, &kept);
  kept = s.step(48 * mib, &kept);
  const sequence::taken a = s.take(8 * 48 * mib);
  const std::vector<expected_step> steps = s.seen.expected_after(a.number, 8);
  ASSERT_EQ(kinds(steps), rest_of_step);
  EXPECT_EQ(steps[0].bytes, 4 * 48 * mib);
  EXPECT_EQ(steps[3].bytes, 2 * 48 * mib);
  EXPECT_EQ(steps[2].begin, kept.begin);
  EXPECT_EQ(steps[0].lay[0], 0U) << "at this size it never lay anywhere";
}

TEST(large_requests, a_free_is_known_though_its_block_is_older_than_the_last_time) {
  sequence s;
  sequence::taken kept = s.step(16 * mib, nullptr);
  for (int k = 0; k < 3; ++k) kept = s.step(16 * mib, &kept);
  s.give(s.take(20 * mib));  // two more requests and frees than ever since `kept`
  s.give(s.take(24 * mib));
  for (int k = 0; k < 8; ++k) {  // what leads to the step is the same again
    const sequence::taken between = s.take(32 * mib);
    s.give(between);
  }
  const sequence::taken other = s.step(16 * mib, &kept);
  const sequence::taken a = s.take(8 * 16 * mib);
  const std::vector<expected_step> steps = s.seen.expected_after(a.number, 3);
  ASSERT_EQ(steps.size(), 3U);
  EXPECT_EQ(steps[2].is, kind::free_live);
  EXPECT_EQ(steps[2].begin, other.begin);
}

TEST(large_requests, remembers_so_much_and_no_more) {
  sequence s;
  const sequence::taken first = s.take(16 * mib);
  static_cast<void>(s.take(16 * mib));
  const std::uint64_t bytes = s.seen.metadata_bytes();
  sequence::taken kept = s.step(16 * mib, nullptr);
  for (int k = 0; k < 4000; ++k) kept = s.step(16 * mib, &kept);
  EXPECT_LE(s.seen.metadata_bytes(), bytes);
  EXPECT_LT(bytes, mib);
  const large_requests::number latest = s.seen.latest();
  s.give(first);  // forgotten long ago
  EXPECT_EQ(s.seen.latest(), latest);
  const sequence::taken a = s.take(8 * 16 * mib);
  EXPECT_EQ(kinds(s.seen.expected_after(a.number, 8)), rest_of_step);
}

}  // namespace
}  // namespace gpumem
