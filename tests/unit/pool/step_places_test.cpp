/// Where a step that repeats has placed its large requests.
#include "step_places.hpp"

#include <gtest/gtest.h>

#include <cstdint>

namespace gpumem {
namespace {

TEST(StepPlaces, AreLearntWhileTheProgramRepeatsAndForgottenWhenItDoesNot) {
  step_places places;
  const std::uint64_t early = places.name(mib, false);
  places.learn(early, 64 * mib);
  EXPECT_EQ(places.place_of(early), 0U) << "where pages still move, places change";
  const std::uint64_t first = places.name(2 * mib, true);
  places.learn(first, 64 * mib);
  places.learn(first, 128 * mib);
  EXPECT_EQ(places.place_of(first), 64 * mib) << "the first one stays";
  EXPECT_GT(places.metadata_bytes(), 0U);
  const std::uint64_t second = places.name(2 * mib, false);
  EXPECT_EQ(places.place_of(first), 0U);
  EXPECT_EQ(places.place_of(second), 0U);
}

TEST(StepPlaces, ARequestIsNamedByTheLatestSizes) {
  const auto name_after = [](std::uint64_t first_bytes, unsigned others) {
    step_places places;
    std::uint64_t name = places.name(first_bytes, true);
    for (unsigned k = 0; k < others; ++k) name = places.name((k + 1) * mib, true);
    return name;
  };
  EXPECT_NE(name_after(512 * mib, 32), name_after(513 * mib, 32));
  EXPECT_EQ(name_after(512 * mib, 64), name_after(513 * mib, 64));
  EXPECT_NE(name_after(512 * mib, 1), name_after(512 * mib, 2));
}

}  // namespace
}  // namespace gpumem
