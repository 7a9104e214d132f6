#include "parallel.hpp"

#include <gtest/gtest.h>

namespace gpumem::bench {
namespace {

TEST(parallel, calls_each_task_once) {
  for (const unsigned jobs : {1U, 2U, 8U}) {
    std::vector<std::atomic<int>> calls(100);
    EXPECT_TRUE(run_parallel(calls.size(), jobs, [&](std::size_t i) {
                  ++calls[i];
                  return status{};
                }).ok());
    for (const auto& each : calls) EXPECT_EQ(each.load(), 1);
  }
  EXPECT_TRUE(run_parallel(0, 4, [](std::size_t) { return status{errc::corrupt, "called"}; }).ok());
}

TEST(parallel, begins_nothing_after_an_error) {
  std::atomic<std::size_t> begun{0};
  const status went = run_parallel(1000, 1, [&](std::size_t i) {
    ++begun;
    return i == 3 ? status{errc::corrupt, "third"} : status{};
  });
  EXPECT_EQ(went.message(), "third");
  EXPECT_EQ(begun.load(), 4U);
}

TEST(parallel, reports_the_lowest_number_that_failed) {
  for (int round = 0; round < 50; ++round) {
    std::atomic<int> arrived{0};
    const status went = run_parallel(2, 2, [&](std::size_t i) -> status {
      for (++arrived; arrived.load() < 2;) std::this_thread::yield();
      return {errc::corrupt, std::to_string(i)};
    });
    ASSERT_EQ(went.message(), "0");
  }
}

}  // namespace
}  // namespace gpumem::bench
