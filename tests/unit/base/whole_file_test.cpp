/// Whole files, and what /proc tells of processes.
#include "whole_file.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <iterator>
#include <string>

#include "process_files.hpp"
#include "temporary_folder.hpp"

namespace gpumem {
namespace {

TEST(whole_file, is_read_as_it_was_written) {
  const temporary_folder folder;
  const std::string path = folder.path("file");
  const std::string text(200'001, 'x');
  ASSERT_EQ(write_and_rename(path, "before"), 0);
  ASSERT_EQ(write_and_rename(path, text), 0);
  EXPECT_EQ(content_of(path), text);
  EXPECT_EQ(*read_file(path), text);
}

TEST(whole_file, says_why_it_cannot_be_read) {
  const temporary_folder folder;
  EXPECT_EQ(read_file(folder.path("none")).why().message(), "No such file or directory");
  EXPECT_EQ(read_file(folder.path()).why().message(), "Is a directory");
  EXPECT_EQ(content_of(folder.path("none")), "");
}

TEST(whole_file, stays_as_it_was_if_it_cannot_be_written) {
  const temporary_folder folder;
  const std::string path = folder.path("file");
  ASSERT_EQ(write_and_rename(path, "before"), 0);
  EXPECT_EQ(write_and_rename(path, [](std::FILE* file) { return write_text(file, "af") && (errno = ENOSPC) == 0; }),
            ENOSPC);
  EXPECT_EQ(write_and_rename(path, [](std::FILE*) { return false; }), EIO);
  EXPECT_EQ(content_of(path), "before");
  const std::filesystem::directory_iterator files{folder.path()};
  EXPECT_EQ(std::distance(begin(files), end(files)), 1) << "a temporary file is left";
  EXPECT_EQ(write_and_rename(folder.path("none/file"), "text"), ENOENT);
}

TEST(process_files, tell_of_this_process) {
  const std::string folder = "/proc/" + std::to_string(::getpid());
  EXPECT_EQ(parent_of(folder), ::getppid());
  EXPECT_EQ(own_program().filename().string().substr(0, 15), command_of(static_cast<unsigned>(::getpid())));
  EXPECT_GT(stat_fields(folder).size(), 20U);
  EXPECT_EQ(stat_fields(folder).front(), "R");
  EXPECT_EQ(number_after(folder + "/status", "Pid:"), static_cast<std::uint64_t>(::getpid()));
}

TEST(process_files, tell_nothing_of_an_ended_process) {
  EXPECT_TRUE(stat_fields("/proc/0").empty());
  EXPECT_EQ(parent_of("/proc/0"), 0);
  EXPECT_EQ(number_after("/proc/0/status", "Pid:"), 0U);
}

}  // namespace
}  // namespace gpumem
