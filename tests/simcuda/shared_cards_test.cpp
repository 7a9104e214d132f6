// Files of shared cards, which belong to one user.
#include "shared_cards.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace gpumem::simcuda {
namespace {

TEST(SharedCards, OfAnotherUserAreRefused) {
  constexpr uid_t nobody = 65534;
  std::string folder = (std::filesystem::temp_directory_path() / "shared_cards_XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::string cards = folder + "/cards";
  std::ofstream{cards}.close();
  std::filesystem::permissions(cards, std::filesystem::perms{0666});
  EXPECT_EQ(shared_cards{}.join(cards, 1, 1 << 30), "");
  if (::chown(cards.c_str(), nobody, nobody) == 0) {
    EXPECT_THAT(shared_cards{}.join(cards, 1, 1 << 30),
                testing::HasSubstr("/cards: belongs to user 65534; expected one of "));
    EXPECT_FALSE(shared_cards{}.watch(cards));
  }
  std::filesystem::remove_all(folder);
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file to another user";
}

}  // namespace
}  // namespace gpumem::simcuda
