#include "cards.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace gpumem::simcuda {
namespace {

TEST(Cards, EachHasAUniqueNameAndTheAttributesThatProgramsRead) {
  std::set<std::string_view> keys;
  for (const card_profile& each : card_profiles()) {
    EXPECT_TRUE(keys.insert(each.key).second) << each.key;
    EXPECT_EQ(find_card(each.key), &each);
    EXPECT_GT(each.memory_mib, 8U << 10) << each.key;
    EXPECT_GT(each.multiprocessors, 0) << each.key;
    EXPECT_GT(each.l2_kib, 0) << each.key;
    const bool large =
        each.compute_minor == 0 && each.compute_major < 12;  // data-centre cards have twice the warps of others
    EXPECT_EQ(each.threads_per_multiprocessor, large ? 2048 : each.compute_major == 7 ? 1024 : 1536) << each.key;
  }
  EXPECT_GE(keys.size(), 15U);
}

TEST(Cards, RunTheCodeThatBinariesHave) {
  EXPECT_EQ(find_card("rtx4090")->code_version(), 86);
  EXPECT_EQ(find_card("h100")->code_version(), 90);
  EXPECT_EQ(find_card("rtx5090")->code_version(), 120);
}

TEST(Cards, ABlockMayHaveAllButOneKiBOfItsMultiprocessor) {
  EXPECT_EQ(find_card("h100")->shared_bytes_opt_in(), 232448);  // 227 KiB
  EXPECT_EQ(find_card("a100-40gb")->shared_bytes_opt_in(), 166912);
  EXPECT_EQ(find_card("rtx4090")->shared_bytes_opt_in(), 101376);
  EXPECT_EQ(find_card("t4")->shared_bytes_opt_in(), 65536);  // no reservation before 8.0
}

TEST(Cards, AnUnknownNameIsNone) {
  EXPECT_EQ(find_card("h1000"), nullptr);
  EXPECT_EQ(find_card(""), nullptr);
  EXPECT_EQ(default_card().compute_major, 9);
}

}  // namespace
}  // namespace gpumem::simcuda
