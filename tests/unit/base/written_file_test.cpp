/// Which files may be emptied, and one file for each process of a job.
#include "written_file.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "log.hpp"

namespace gpumem {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class ResultFile : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = (fs::temp_directory_path() / "gpumem-result-XXXXXX").string();
    ASSERT_NE(::mkdtemp(folder_.data()), nullptr);
    former_ = set_log_sink([this](std::string_view line) { log_ += std::string{line} + "\n"; });
  }
  void TearDown() override {
    set_log_sink(former_);
    fs::remove_all(folder_);
    ::unsetenv("_GPUMEM_JOB_BEGAN");
  }
  [[nodiscard]] std::string path(const std::string& name) const { return folder_ + "/" + name; }
  void write(const std::string& name, const std::string& text) const { std::ofstream{path(name)} << text; }
  [[nodiscard]] std::string content(const std::string& name) const {
    std::ifstream in{path(name)};
    return {std::istreambuf_iterator<char>{in}, {}};
  }
  static void put(const written_file& file, const std::string& text) {
    EXPECT_EQ(::write(file.descriptor(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  /// The pid of a process that has written its pid into its file and ended.
  [[nodiscard]] std::string write_in_child(const std::string& name) const {
    const pid_t child = ::fork();
    if (child == 0) {
      const auto file = written_file::open(path(name));
      if (file) put(*file, std::to_string(::getpid()));
      ::_exit(file ? 0 : 1);
    }
    int ended = -1;
    ::waitpid(child, &ended, 0);
    EXPECT_EQ(ended, 0);
    return std::to_string(child);
  }

  std::string folder_;
  std::string log_;

 private:
  log_sink former_;
};

/// Begins a job and waits for the kernel's next tick, because the times of files have its resolution.
void start_job() {
  begin_job();
  std::this_thread::sleep_for(std::chrono::milliseconds{20});
}

TEST_F(ResultFile, IsEmptiedOnlyIfItIsThere) {
  write("old", "former");
  ASSERT_TRUE(open_written_file(path("old"), false).ok());
  EXPECT_EQ(content("old"), "");
  ASSERT_TRUE(open_written_file(path("new"), false).ok());
  EXPECT_TRUE(fs::exists(path("new")));
  EXPECT_EQ(open_written_file(path("no/such"), false).why().message(), "No such file or directory");
  EXPECT_EQ(open_written_file(folder_, false).why().message(), "Is a directory");
}

TEST_F(ResultFile, ALinkIsNotFollowed) {
  write("victim", "of value");
  fs::create_symlink(path("victim"), path("link"));
  fs::create_symlink(path("nowhere"), path("dangling"));
  for (const bool secure : {false, true}) {
    EXPECT_EQ(open_written_file(path("link"), secure).why().message(), "is a symbolic link");
    EXPECT_EQ(open_written_file(path("dangling"), secure).why().message(), "is a symbolic link");
  }
  EXPECT_EQ(written_file::open(path("link")).why().message(), "is a symbolic link");
  EXPECT_EQ(content("victim"), "of value");
  EXPECT_FALSE(fs::exists(path("nowhere")));
}

TEST_F(ResultFile, DevicesAndOwnDescriptorsAreWritten) {
  EXPECT_TRUE(open_written_file("/dev/null", false).ok());
  const int own = ::open(path("own").c_str(), O_WRONLY | O_CREAT, 0600);
  const auto again = open_written_file("/dev/fd/" + std::to_string(own), false);
  EXPECT_TRUE(again.ok()) << again.why().message();
  ::close(own);
}

TEST_F(ResultFile, WithMoreRightsOnlyRegularFilesThatTheRealUserMayWrite) {
  EXPECT_EQ(open_written_file("/dev/null", true).why().message(), "is not a regular file");
  const int own = ::open(path("own").c_str(), O_WRONLY | O_CREAT, 0600);
  EXPECT_EQ(open_written_file("/dev/fd/" + std::to_string(own), true).why().message(), "is a symbolic link");
  ::close(own);
  EXPECT_TRUE(open_written_file(path("own"), true).ok());
  EXPECT_TRUE(open_written_file(path("new"), true).ok());
  if (::geteuid() != 0) return;
  write("victim", "of value");
  ASSERT_EQ(::chmod(folder_.c_str(), 0755), 0);
  ASSERT_EQ(::setresuid(65534, 0, 0), 0);
  const auto refused = open_written_file(path("victim"), true);
  ASSERT_EQ(::setresuid(0, 0, 0), 0);
  EXPECT_EQ(refused.why().message(), "this program's user may not write it");
  EXPECT_EQ(content("victim"), "of value");
}

TEST_F(ResultFile, AnOlderFileIsWrittenAnewAndThisProcesssOwnToo) {
  write("runs.csv", "of an earlier job");
  start_job();
  for (int times = 0; times < 2; ++times) {
    const auto file = written_file::open(path("runs.csv"));
    ASSERT_TRUE(file.ok()) << file.why().message();
    EXPECT_EQ(file->path(), path("runs.csv"));
    put(*file, "anew");
  }
  EXPECT_EQ(content("runs.csv"), "anew");
  EXPECT_EQ(log_, "");
}

TEST_F(ResultFile, EachProcessOfAJobHasItsOwn) {
  start_job();
  const std::string first = write_in_child("runs.csv.gz");
  const std::string second = write_in_child("runs.csv.gz");
  EXPECT_EQ(content("runs.csv.gz"), first);
  EXPECT_EQ(content("runs.pid" + second + ".csv.gz"), second);
  {
    const auto third = written_file::open(path("runs.csv.gz"));
    ASSERT_TRUE(third.ok());
    EXPECT_EQ(third->path(), path("runs.pid" + std::to_string(::getpid()) + ".csv.gz"));
    EXPECT_THAT(log_, HasSubstr("runs.csv.gz: another process of this job writes it; this process (pid "));
  }
  start_job();
  EXPECT_EQ(written_file::open(path("runs.csv.gz"))->path(), path("runs.csv.gz")) << "the next job's";
}

TEST_F(ResultFile, AProcessGroupIsAJob) {
  const pid_t leader = ::fork();
  if (leader == 0) {
    ::setpgid(0, 0);
    static_cast<void>(write_in_child("runs"));
    static_cast<void>(write_in_child("runs"));
    ::_exit(0);
  }
  ::waitpid(leader, nullptr, 0);
  EXPECT_EQ(std::distance(fs::directory_iterator{folder_}, fs::directory_iterator{}), 2);
}

TEST_F(ResultFile, AFileThatALiveProcessWritesStaysItsOwn) {
  const auto first = written_file::open(path("runs"));
  put(*first, "first");
  start_job();  // the file is older than this job
  const std::string second = write_in_child("runs");
  EXPECT_EQ(content("runs"), "first");
  EXPECT_EQ(content("runs.pid" + second), second);
}

}  // namespace
}  // namespace gpumem
