#include "text.hpp"

#include <gtest/gtest.h>

#include <array>

namespace gpumem {
namespace {

TEST(text, control_characters_are_shown_and_not_sent) {
  EXPECT_EQ(visible("a\tb\nc \xc3\xa4"), "a\tb\nc \xc3\xa4");
  EXPECT_EQ(visible("\x1b]0;name\x07\r\x7f"), "\\x1b]0;name\\x07\\x0d\\x7f");
  EXPECT_EQ(visible("\xc2\x9b"
                    "31m"),
            "\\xc2\\x9b31m")
      << "U+009B is a control character, too";
}

TEST(Text, Trims) {
  EXPECT_EQ(trimmed(""), "");
  EXPECT_EQ(trimmed(" \t "), "");
  EXPECT_EQ(trimmed("a"), "a");
  EXPECT_EQ(trimmed("\t a b  "), "a b");
}

TEST(Text, PrintableIsOneShortLine) {
  EXPECT_EQ(printable("4GiB"), "4GiB");
  EXPECT_EQ(printable("a\nb\x01\xff"), "a\\x0ab\\x01\\xff");
  EXPECT_EQ(printable("abcdef", 3), "abc...");
  EXPECT_EQ(printable("abc", 3), "abc");
}

TEST(Text, ClosestName) {
  constexpr std::array<std::string_view, 6> names{"POLICY", "LIMIT", "POOLS", "STREAM_IDS", "STREAM_REUSE", "STATS"};
  struct row {
    std::string_view misspelt;
    std::string_view meant;
  };
  for (const auto& [misspelt, meant] : {row{"LIMTI", "LIMIT"},       // swapped
                                        {"LIMITS", "LIMIT"},         // added
                                        {"POOL", "POOLS"},           // left out
                                        {"POLICE", "POLICY"},        // exchanged
                                        {"limit", "LIMIT"},          // case
                                        {"STREAMID", "STREAM_IDS"},  // two, in a longer name
                                        {"STREAM_RESUE", "STREAM_REUSE"},
                                        {"SLACK", ""},
                                        {"X", ""},
                                        {"", ""}}) {
    EXPECT_EQ(closest_name(misspelt, names), meant) << misspelt;
  }
  EXPECT_EQ(closest_name(std::string(100'000, 'L'), names), "");
}

}  // namespace
}  // namespace gpumem
