/// The eleven published problems of MiniMalloc, which are not part of the project; looked for where GPUMEM_TRACES names
/// them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "problem_file.hpp"
#include "recordings.hpp"
#include "solve.hpp"
#include "validate.hpp"

namespace gpumem::plan {
namespace {

class published : public testing::TestWithParam<char> {};

TEST_P(published, fits_into_its_capacity) {
  const std::string file = fmt::format("minimalloc/{}.1048576.csv", GetParam());
  const auto path = recording(file);
  if (!path) GTEST_SKIP() << no_recording(file);
  const auto buffers = read_problem(*path);
  ASSERT_TRUE(buffers) << buffers.why().message();
  const auto found = solve(*buffers, {.capacity = 1'048'576, .time_limit = std::chrono::seconds{60}});
  ASSERT_TRUE(found) << found.why().message();
  EXPECT_LE(found->height, 1'048'576U);
  const status ok = validate(*buffers, found->offsets, 1'048'576);
  EXPECT_TRUE(ok) << ok.message();
}

INSTANTIATE_TEST_SUITE_P(minimalloc, published, testing::Values('A', 'B', 'C', 'D', 'E', 'F', 'G', 'H', 'I', 'J', 'K'),
                         [](const auto& instance) { return std::string{instance.param}; });

}  // namespace
}  // namespace gpumem::plan
