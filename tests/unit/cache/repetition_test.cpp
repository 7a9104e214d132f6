#include "repetition.hpp"

#include <gtest/gtest.h>

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
  for (asked& each : out) each = {512 * (random() % 100'000), 2 * mib * (random() % 10'000)};
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
    make(late, drawn(length, 3), 3.2);
    EXPECT_TRUE(late.repeats()) << length << " requests";
  }
}

TEST(repetition, a_program_that_changes_never_repeats) {
  repetition program;
  for (unsigned seed = 0; seed < 100; ++seed) {
    make(program, drawn(5'000, seed));
    EXPECT_FALSE(program.repeats());
  }
}

TEST(repetition, a_new_phase_ends_it_and_is_learned_anew) {
  repetition program;
  make(program, drawn(5'000, 7), 20);
  EXPECT_TRUE(program.repeats());
  make(program, drawn(1'000, 11));
  EXPECT_FALSE(program.repeats());
  make(program, drawn(1'000, 11), 250);
  EXPECT_TRUE(program.repeats());
}

}  // namespace
}  // namespace gpumem
