#include "pair_watch.hpp"

#include <gtest/gtest.h>

namespace gpumem {
namespace {

bool pair(pair_watch& w, address at, std::uint64_t bytes) {
  w.handed_out(at, bytes);
  return w.freed(at);
}

TEST(pair_watch, a_pair_repeats_from_the_second_in_a_row_on) {
  pair_watch w;
  EXPECT_FALSE(pair(w, 4096, 512));
  EXPECT_TRUE(pair(w, 4096, 512));
  EXPECT_TRUE(pair(w, 4096, 512));
}

TEST(pair_watch, another_place_or_size_begins_anew) {
  pair_watch w;
  static_cast<void>(pair(w, 4096, 512));
  EXPECT_FALSE(pair(w, 8192, 512));
  EXPECT_FALSE(pair(w, 8192, 1024));
  EXPECT_TRUE(pair(w, 8192, 1024));
}

TEST(pair_watch, what_comes_in_between_begins_anew) {
  pair_watch w;
  static_cast<void>(pair(w, 4096, 512));
  EXPECT_FALSE(w.freed(8192)) << "another block came back";
  EXPECT_FALSE(pair(w, 4096, 512));
  w.handed_out(8192, 512);  // another request was served
  EXPECT_FALSE(pair(w, 4096, 512));
  w.handed_out(4096, 512);
  w.handed_out(8192, 512);
  EXPECT_FALSE(w.freed(4096));
}

TEST(pair_watch, a_second_free_in_a_row_is_no_pair) {
  pair_watch w;
  static_cast<void>(pair(w, 4096, 512));
  static_cast<void>(pair(w, 4096, 512));
  EXPECT_FALSE(w.freed(4096)) << "a cache handed it out meanwhile";
}

}  // namespace
}  // namespace gpumem
