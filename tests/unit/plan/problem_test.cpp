#include "problem.hpp"

#include <gtest/gtest.h>

#include "problem_file.hpp"
#include "random_problem.hpp"
#include "sections.hpp"

namespace gpumem::plan {
namespace {

TEST(problem_file, reads_the_published_format) {
  const auto read = parse_problem("id,lower,upper,size\n0,5,9,100\r\n 1 , 0,6,200\n\n");
  ASSERT_TRUE(read) << read.why().message();
  ASSERT_EQ(read->size(), 2U);
  EXPECT_EQ((*read)[1].id, 1U);
  EXPECT_EQ((*read)[0].upper, 9U);
  EXPECT_EQ((*read)[1].size, 200U);
}

TEST(problem_file, takes_the_columns_in_any_order) {
  const auto read = parse_problem("size,id,note,upper,lower\n100,4,x,9,5\n");
  ASSERT_TRUE(read) << read.why().message();
  EXPECT_EQ((*read)[0].id, 4U);
  EXPECT_EQ((*read)[0].lower, 5U);
  EXPECT_EQ((*read)[0].size, 100U);
}

TEST(problem_file, names_line_and_value_of_what_is_no_number) {
  const auto message = [](std::string_view text) { return parse_problem(text).why().message(); };
  EXPECT_EQ(message("id,lower,upper,size\n0,-5,9,100\n"),
            "line 2: lower '-5', expected a whole number from 0 to 2^64-1");
  EXPECT_EQ(message("id,lower,upper,size\n0,5,9,100\n1,5,9,1e3\n"),
            "line 3: size '1e3', expected a whole number from 0 to 2^64-1");
  EXPECT_EQ(message("id,lower,upper,size\n0,5,99999999999999999999,1\n"),
            "line 2: upper '99999999999999999999', expected a whole number from 0 to 2^64-1");
  EXPECT_EQ(message("id,lower,upper,size\n0,5\n"), "line 2: no upper");
  EXPECT_EQ(message("0,5,9,100\n"), "line 1: '0,5,9,100', expected a header with id,lower,upper,size");
  EXPECT_EQ(message(""), "line 1: empty, expected a header with id,lower,upper,size");
}

TEST(problem_file, names_the_file_that_is_not_there) {
  const auto read = read_problem("/nowhere/at/all.csv");
  EXPECT_EQ(read.code(), errc::invalid_argument);
  EXPECT_EQ(read.why().message(), "/nowhere/at/all.csv: No such file or directory");
}

TEST(check, names_the_buffer_that_is_none) {
  const auto message = [](const buffer& second) {
    return check({{.id = 1, .lower = 0, .upper = 1, .size = 1}, second}).message();
  };
  EXPECT_EQ(message({.id = 2, .lower = 3, .upper = 3, .size = 1}), "buffer 2: lower 3 is not below upper 3");
  EXPECT_EQ(message({.id = 2, .lower = 3, .upper = 4, .size = 0}), "buffer 2: size is 0, expected at least 1");
  EXPECT_EQ(message({.id = 1, .lower = 3, .upper = 4, .size = 1}), "buffer 1: this id occurs twice");
  EXPECT_EQ(message({.id = 2, .lower = 3, .upper = 4, .size = 1, .alignment = 3}),
            "buffer 2: alignment 3 is not a power of two");
  EXPECT_EQ(message({.id = 2, .lower = 3, .upper = 4, .size = UINT64_MAX}),
            "buffer 2: the sizes up to here sum to more than 2^62");
}

TEST(may_fit, says_which_moment_proves_that_it_cannot) {
  const problem buffers{{.id = 0, .lower = 0, .upper = 5, .size = 60},
                        {.id = 1, .lower = 4, .upper = 9, .size = 50},
                        {.id = 2, .lower = 5, .upper = 9, .size = 40}};
  EXPECT_EQ(peak_load(buffers).bytes, 110U);
  EXPECT_TRUE(may_fit(buffers, 110));
  EXPECT_EQ(may_fit(buffers, 109).code(), errc::out_of_memory);
  EXPECT_EQ(may_fit(buffers, 109).message(), "at time 4 buffers of 110 bytes are alive, more than the capacity of 109");
  EXPECT_EQ(may_fit(buffers, 59).message(), "buffer 0 of 60 bytes is larger than the capacity of 59");
}

TEST(busy_window, is_from_the_first_moment_with_so_much_to_the_last) {
  const problem buffers{{.id = 0, .lower = 0, .upper = 20, .size = 10},
                        {.id = 1, .lower = 4, .upper = 6, .size = 30},
                        {.id = 2, .lower = 6, .upper = 9, .size = 20},
                        {.id = 3, .lower = 12, .upper = 15, .size = 30}};
  const auto is = [&](std::uint64_t bytes, std::uint64_t lower, std::uint64_t upper) {
    const window busy = busy_window(buffers, bytes);
    return busy.lower == lower && busy.upper == upper;
  };
  EXPECT_TRUE(is(40, 4, 15));
  EXPECT_TRUE(is(31, 4, 15));
  EXPECT_TRUE(is(10, 0, 20));
  EXPECT_TRUE(is(0, 0, 20));
}

TEST(height_unit, divides_sizes_and_alignments) {
  EXPECT_EQ(height_unit({{.id = 0, .lower = 0, .upper = 1, .size = 48}, {.id = 1, .lower = 0, .upper = 1, .size = 72}}),
            24U);
  EXPECT_EQ(height_unit({{.id = 0, .lower = 0, .upper = 1, .size = 48, .alignment = 16}}), 16U);
}

TEST(sections, overlap_exactly_where_lives_do) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const problem buffers = random_problem(seed, 30);
    const sections cut = cut_into_sections(buffers);
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      for (std::size_t k = 0; k < buffers.size(); ++k) {
        EXPECT_EQ(cut.ranges[i].overlaps(cut.ranges[k]),
                  buffers[i].lower < buffers[k].upper && buffers[k].lower < buffers[i].upper)
            << seed << ": " << i << " and " << k;
      }
    }
    EXPECT_EQ(*std::max_element(cut.load.begin(), cut.load.end()), peak_load(buffers).bytes);
  }
}

}  // namespace
}  // namespace gpumem::plan
