/// Plain and gzip content, and every kind of damage to gzip.
#include "byte_source.hpp"

#include <gtest/gtest.h>

#include <array>

#include "test_files.hpp"

namespace gpumem::bench {
namespace {

/// Reads a whole file in pieces of `piece` bytes; returns the content or the error message.
std::string read_all(const std::string& path, std::size_t piece = 1000) {
  auto source = byte_source::open(path);
  if (!source) return source.why().message();
  std::string out;
  std::vector<char> into(piece);
  for (;;) {
    const auto got = (*source)->read(into);
    if (!got) return got.why().message();
    if (*got == 0) return out;
    out.append(into.data(), *got);
  }
}

/// Text that compresses little and is larger than a buffer.
std::string long_text() {
  std::string out;
  std::uint32_t state = 1;
  while (out.size() < 1'000'000) out += std::to_string(state = state * 1664525 + 1013904223) + "\n";
  return out;
}

TEST(byte_source, hands_plain_bytes_through) {
  const test_folder folder;
  const std::string text = long_text();
  EXPECT_EQ(read_all(folder.write("plain.gz", text)), text) << "the name says nothing";
  EXPECT_EQ(read_all(folder.write("empty", "")), "");
  EXPECT_EQ(read_all(folder.write("one", "\x1f")), "\x1f");
}

TEST(byte_source, inflates_gzip_by_content) {
  const test_folder folder;
  const std::string text = long_text();
  EXPECT_EQ(read_all(folder.write("t.csv", gzipped(text)), 1), text.substr(0)) << "byte by byte";
  EXPECT_EQ(read_all(folder.write("members", gzipped(text) + gzipped("") + gzipped("tail"))), text + "tail");
}

TEST(byte_source, refuses_what_expands_more_than_a_hundredfold_beyond_64_MiB) {
  const test_folder folder;
  constexpr std::size_t mib = std::size_t{1} << 20;
  EXPECT_EQ(read_all(folder.write("small", gzipped(std::string(60 * mib, 'a'))), mib).size(), 60 * mib);
  EXPECT_EQ(read_all(folder.write("bomb", gzipped(std::string(80 * mib, 'a'))), mib),
            "the gzip data expands more than 100-fold");
}

TEST(byte_source, reports_gzip_that_ends_early) {
  const test_folder folder;
  const std::string whole = gzipped(long_text());
  for (const std::size_t kept :
       {std::size_t{2}, std::size_t{9}, std::size_t{10}, whole.size() / 2, whole.size() - 8, whole.size() - 1}) {
    EXPECT_EQ(read_all(folder.write("cut", whole.substr(0, kept))), "cut short: the gzip data ends early") << kept;
  }
}

TEST(byte_source, reports_damage) {
  const test_folder folder;
  std::string bad_crc = gzipped(long_text());
  bad_crc[bad_crc.size() - 6] ^= 1;
  EXPECT_EQ(read_all(folder.write("crc", bad_crc)), "damaged gzip: incorrect data check");
  std::string bad_length = gzipped(long_text());
  bad_length[bad_length.size() - 2] ^= 1;
  EXPECT_EQ(read_all(folder.write("length", bad_length)), "damaged gzip: incorrect length check");
  EXPECT_EQ(read_all(folder.write("more", gzipped("x") + "stray")),
            "damaged gzip: other bytes follow the end of the compressed data");
  EXPECT_EQ(read_all(folder.write("reserved", gzipped(long_text()) + std::string(70'000, '\0') + "stray")), long_text())
      << "space that a recording had reserved";
}

TEST(byte_source, hands_out_what_stands_before_the_damage) {
  const test_folder folder;
  const std::string whole = gzipped(long_text());
  auto source = byte_source::open(folder.write("cut", whole.substr(0, whole.size() / 2)));
  ASSERT_TRUE(source.ok());
  std::array<char, 1 << 20> into;
  const auto got = (*source)->read(into);
  ASSERT_TRUE(got.ok());
  EXPECT_GT(*got, 100'000U);
  EXPECT_FALSE((*source)->read(into).ok());
}

TEST(byte_source, names_what_cannot_be_opened) {
  const test_folder folder;
  EXPECT_EQ(read_all(folder.path("absent")), "no such file");
  EXPECT_EQ(read_all(folder.path()), "a directory, not a file");
}

}  // namespace
}  // namespace gpumem::bench
