#include "result_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <vector>

#include "test_files.hpp"

namespace gpumem::bench::sweep {
namespace {

std::vector<std::string> read(const std::string& path, std::uint64_t* damaged = nullptr) {
  std::vector<std::string> out;
  const auto got = read_results(path, [&](std::string_view unit, std::uint64_t offset) {
    EXPECT_EQ(content_of(path).substr(offset, unit.size()), unit);
    out.emplace_back(unit);
  });
  EXPECT_TRUE(got) << got.why().message();
  if (damaged != nullptr) *damaged = *got;
  return out;
}

TEST(result_file, reads_what_it_wrote) {
  const test_folder folder;
  {
    auto file = result_file::open(folder.path(), "results", "alone");
    ASSERT_TRUE(file) << file.why().message();
    EXPECT_TRUE((*file)->append(R"({"key":"a"})"));
    EXPECT_TRUE((*file)->append(R"({"key":"b","x":{"y":[1,2]}})"));
  }
  EXPECT_THAT(read(folder.path("results-alone.jsonl")),
              testing::ElementsAre(R"({"key":"a"})", R"({"key":"b","x":{"y":[1,2]}})"));
}

TEST(result_file, cuts_a_torn_line_off_before_it_appends) {
  const test_folder folder;
  const std::string whole = line_of(R"({"key":"a"})");
  for (std::size_t kept = 1; kept < whole.size(); ++kept) {
    const std::string path = folder.write("results-alone.jsonl", whole + whole.substr(0, kept));
    EXPECT_THAT(read(path), testing::SizeIs(1)) << kept;
    auto file = result_file::open(folder.path(), "results", "alone");
    ASSERT_TRUE(file);
    ASSERT_TRUE((*file)->append(R"({"key":"c"})"));
    EXPECT_THAT(read(path), testing::ElementsAre(R"({"key":"a"})", R"({"key":"c"})")) << kept;
  }
}

TEST(result_file, takes_no_damaged_line_for_a_result) {
  const test_folder folder;
  const std::string good = line_of(R"({"key":"abcdef"})");
  for (std::size_t at = 0; at + 1 < good.size(); ++at) {
    std::string bad = good;
    bad[at] = bad[at] == 'x' ? 'y' : 'x';
    std::uint64_t damaged = 0;
    EXPECT_THAT(read(folder.write("r", bad + good), &damaged), testing::ElementsAre(R"({"key":"abcdef"})")) << at;
    EXPECT_EQ(damaged, 1U) << at;
  }
}

TEST(result_file, gives_a_second_writer_a_file_of_its_own) {
  const test_folder folder;
  auto one = result_file::open(folder.path(), "results", "alone");
  auto other = result_file::open(folder.path(), "results", "alone");
  ASSERT_TRUE(one);
  ASSERT_TRUE(other);
  EXPECT_TRUE((*one)->append(R"({"key":"a"})"));
  EXPECT_TRUE((*other)->append(R"({"key":"b"})"));
  EXPECT_THAT(read(folder.path("results-alone.jsonl")), testing::SizeIs(1));
  EXPECT_THAT(read(folder.path("results-alone.2.jsonl")), testing::SizeIs(1));
}

TEST(result_file, says_what_it_cannot_write) {
  const test_folder folder;
  std::filesystem::create_symlink("/dev/full", folder.path("results-alone.jsonl"));
  auto file = result_file::open(folder.path(), "results", "alone");
  ASSERT_TRUE(file) << file.why().message();
  const status written = (*file)->append(R"({"key":"a"})");
  EXPECT_EQ(written.code(), errc::bad_setting);
  EXPECT_THAT(written.message(), testing::HasSubstr("results-alone.jsonl: cannot be written: No space left on device"));
}

}  // namespace
}  // namespace gpumem::bench::sweep
