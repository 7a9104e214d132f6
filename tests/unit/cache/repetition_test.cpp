#include "repetition.hpp"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <vector>

#include "bits.hpp"

namespace gpumem {
namespace {

struct asked {
  std::uint64_t bytes;
  std::uint64_t live_bytes;
};

std::vector<asked> drawn(std::size_t count, unsigned seed) {
  std::mt19937_64 random{seed};
  std::vector<asked> out(count);
  for (asked& each : out) each = {512 * (random() % 100'000), 512 * (random() % 40'000'000)};
  return out;
}

void make(repetition& program, const std::vector<asked>& requests, double passes = 1) {
  const auto count = static_cast<std::size_t>(passes * static_cast<double>(requests.size()));
  for (std::size_t k = 0; k < count; ++k)
    program.count(requests[k % requests.size()].bytes, requests[k % requests.size()].live_bytes);
}

TEST(repetition, a_request_is_new_by_its_size_and_by_what_is_live) {
  const auto repeats_after = [](const std::vector<asked>& requests) {
    repetition program;
    make(program, requests);
    return program.repeats();
  };
  EXPECT_FALSE(repeats_after({}));
  EXPECT_FALSE(repeats_after({{512, 70 * mib}, {512, 70 * mib}, {512, 70 * mib}}));
  EXPECT_TRUE(repeats_after({{512, 70 * mib}, {512, 70 * mib}, {512, 70 * mib}, {512, 70 * mib}}));
  EXPECT_TRUE(repeats_after({{512, 70 * mib}, {512, 71 * mib}, {512, 70 * mib}, {512, 71 * mib}})) << "equal to 2 MiB";
  EXPECT_FALSE(repeats_after({{512, 70 * mib}, {512, 72 * mib}, {512, 70 * mib}, {512, 72 * mib}}));
  EXPECT_FALSE(repeats_after({{512, 70 * mib}, {1024, 70 * mib}, {512, 70 * mib}, {1024, 70 * mib}}));
}

TEST(repetition, a_step_of_any_length_repeats_after_its_third_pass) {
  for (const std::size_t length : {10U, 40U, 1000U, 30'000U, 300'000U}) {
    repetition early;
    make(early, drawn(length, 3), 2.8);
    EXPECT_FALSE(early.repeats()) << length << " requests";
    repetition late;
    make(late, drawn(length, 3), 3.5);
    EXPECT_TRUE(late.repeats()) << length << " requests";
  }
}

TEST(repetition, a_step_begins_again_after_its_end) {
  const std::vector<asked> step{{8192, 0}, {2 * mib, 0}, {4 * mib, 10 * mib}, {8 * mib, 20 * mib}};
  repetition program;
  make(program, step, 3);
  EXPECT_FALSE(program.repeats());
  make(program, step, .25);
  EXPECT_TRUE(program.repeats());
}

TEST(repetition, sizes_in_random_order_do_not_repeat_a_step) {
  const std::array<std::uint64_t, 4> sizes{2 * mib, 3 * mib, 20 * mib, 90 * mib};
  std::mt19937_64 random{19};
  repetition program;
  std::size_t repeats = 0;
  for (int k = 0; k < 1000; ++k) {
    program.count(sizes.at(random() % 4), random() % 8 * 2 * mib);
    repeats += program.repeats() ? 1U : 0U;
  }
  EXPECT_EQ(repeats, 0U);
}

TEST(repetition, a_program_that_changes_never_repeats) {
  repetition program;
  for (unsigned seed = 0; seed < 100; ++seed) {
    make(program, drawn(5'000, seed));
    EXPECT_FALSE(program.repeats());
  }
}

TEST(repetition, a_new_phase_ends_it_and_is_learned_anew) {
  for (const std::size_t length : {500U, 5'000U}) {
    repetition program;
    make(program, drawn(length, 7), 200);
    EXPECT_TRUE(program.repeats());
    make(program, drawn(length, 11));
    EXPECT_FALSE(program.repeats());
    make(program, drawn(length, 11), 3);
    EXPECT_FALSE(program.repeats());
    make(program, drawn(length, 11), 20);
    EXPECT_TRUE(program.repeats()) << "sooner than after 400 passes";
  }
}

TEST(repetition, no_large_request_is_missed_among_many_small_ones) {
  repetition program;
  std::vector<asked> step = drawn(6'000, 17);
  for (asked& each : step) each.bytes = each.bytes % (16 * mib - 512) + 512;
  for (std::uint64_t k = 0; k < 8; ++k) step.push_back({100 * mib, k * 100 * mib});
  make(program, step, 12);
  for (std::uint64_t k = 0; k < 100; ++k) {
    EXPECT_TRUE(program.repeats()) << k;
    program.count((200 + k) * mib, 0);
    EXPECT_FALSE(program.repeats()) << k;
    make(program, step, 12);
  }
}

TEST(repetition, one_new_request_now_and_then_costs_few_passes) {
  repetition program;
  const std::vector<asked> step = drawn(500, 13);
  int repeats = 0;
  for (unsigned pass = 0; pass < 1000; ++pass) {
    make(program, step);
    if (pass % 50 == 49) program.count(512, pass * 64 * mib);
    repeats += program.repeats() ? 1 : 0;
  }
  EXPECT_GT(repeats, 700);
}

}  // namespace
}  // namespace gpumem
