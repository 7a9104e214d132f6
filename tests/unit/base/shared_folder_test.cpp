// Which shared files are trusted and which are not, and locks that end with their holder.
#include "shared_folder.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "temporary_folder.hpp"

namespace gpumem {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

void write(const std::string& path, const std::string& text, mode_t mode = 0600) {
  std::ofstream{path} << text;
  ::chmod(path.c_str(), mode);
}

TEST(SharedFolder, IsMadeForThisUserAlone) {
  const temporary_folder t;
  const auto made = shared_folder(t.path("new"));
  ASSERT_TRUE(made.ok()) << made.why().message();
  EXPECT_EQ(*made, t.path("new"));
  struct stat s {};
  ASSERT_EQ(::stat(made->c_str(), &s), 0);
  EXPECT_EQ(s.st_mode & 07777U, 0700U);
  EXPECT_TRUE(shared_folder(t.path("new")).ok()) << "and found again";
}

TEST(SharedFolder, ARelativePathIsMadeAbsolute) {
  const temporary_folder t;
  const fs::path before = fs::current_path();
  fs::current_path(t.path());
  const auto made = shared_folder("a/../near");
  fs::current_path(before);
  ASSERT_TRUE(made.ok()) << made.why().message();
  EXPECT_EQ(*made, t.path("near"));
}

TEST(SharedFolder, OfAUserNamespaceIsTheOneOfTheUserOutside) {
  const auto outside = shared_folder("");
  ASSERT_TRUE(outside.ok()) << outside.why().message();
  const std::string map = "12345 " + std::to_string(::geteuid()) + " 1";
  constexpr int cannot_have_one = 77;
  const pid_t child = ::fork();
  if (child == 0) {
    if (::unshare(CLONE_NEWUSER) != 0) ::_exit(cannot_have_one);
    std::ofstream file{"/proc/self/uid_map"};
    file << map << std::flush;
    if (!file || ::geteuid() != 12345) ::_exit(cannot_have_one);
    const auto inside = shared_folder("");
    ::_exit(inside.ok() && *inside == *outside ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == cannot_have_one) GTEST_SKIP() << "no user namespace can be made here";
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST(SharedFolder, HasItsModesUnderAnyUmask) {
  const temporary_folder t;
  for (const mode_t mask : {0777U, 0277U, 0177U}) {
    const std::string folder = t.path(std::to_string(mask));
    const mode_t before = ::umask(mask);
    const auto made = shared_folder(folder);
    const auto file = open_shared_file(folder + "/file", true);
    ::umask(before);
    ASSERT_TRUE(made.ok() && file.ok());
    EXPECT_EQ(fs::status(folder).permissions(), fs::perms::owner_all);
    EXPECT_EQ(fs::status(folder + "/file").permissions(), fs::perms::owner_read | fs::perms::owner_write);
  }
  ::chmod(t.path("511").c_str(), 0);  // as such a umask has left it before
  EXPECT_TRUE(shared_folder(t.path("511")).ok());
  EXPECT_EQ(fs::status(t.path("511")).permissions(), fs::perms::owner_all);
}

TEST(SharedFolder, RefusesAFolderThatOthersCanWrite) {
  const temporary_folder t;
  write(t.path("file"), "");
  EXPECT_THAT(shared_folder(t.path("file")).why().message(), HasSubstr("expected a folder"));
  fs::create_directory(t.path("open"));
  ::chmod(t.path("open").c_str(), 0755);
  EXPECT_THAT(shared_folder(t.path("open")).why().message(), HasSubstr("has mode 0755; expected 0700"));
  fs::create_directory_symlink(t.path(), t.path("link"));
  EXPECT_THAT(shared_folder(t.path("link")).why().message(), HasSubstr("not a file or a symlink"));
  if (::geteuid() == 0) {
    fs::create_directory(t.path("foreign"));
    ::chmod(t.path("foreign").c_str(), 0700);
    ASSERT_EQ(::chown(t.path("foreign").c_str(), 12345, 12345), 0);
    EXPECT_THAT(shared_folder(t.path("foreign")).why().message(), HasSubstr("belongs to user 12345"));
  } else {
    EXPECT_THAT(shared_folder("/proc").why().message(), HasSubstr("belongs to user 0"));
  }
  const auto absent = shared_folder(t.path("no/such"));
  EXPECT_EQ(absent.code(), errc::bad_setting);
  EXPECT_THAT(absent.why().message(), HasSubstr("no/such: No such file or directory; expected a folder of user "));
}

TEST(SharedFile, RefusesAllButPlainFilesOfThisUser) {
  const temporary_folder t;
  EXPECT_TRUE(open_shared_file(t.path("new"), true).ok());
  EXPECT_TRUE(open_shared_file(t.path("new"), false).ok());
  EXPECT_EQ(open_shared_file(t.path("none"), false).code(), errc::corrupt);
  const auto refusal = [&](const char* name) { return open_shared_file(t.path(name), true).why().message(); };
  fs::create_symlink(t.path("new"), t.path("link"));
  EXPECT_THAT(refusal("link"), HasSubstr("is a symlink"));
  fs::create_symlink(t.path("nowhere"), t.path("dangling"));
  EXPECT_THAT(refusal("dangling"), HasSubstr("is a symlink"));
  EXPECT_FALSE(fs::exists(t.path("nowhere")));
  write(t.path("readable"), "", 0644);
  EXPECT_THAT(refusal("readable"), HasSubstr("has mode 0644"));
  ASSERT_EQ(::mkfifo(t.path("fifo").c_str(), 0600), 0);
  EXPECT_THAT(refusal("fifo"), HasSubstr("is no regular file"));
  fs::create_hard_link(t.path("new"), t.path("second"));
  EXPECT_THAT(refusal("second"), HasSubstr("has 2 names"));
  if (::geteuid() == 0) {
    write(t.path("foreign"), "");
    ASSERT_EQ(::chown(t.path("foreign").c_str(), 12345, 12345), 0);
    EXPECT_THAT(refusal("foreign"), HasSubstr("belongs to user 12345"));
  }
}

TEST(SharedFile, ALockOnAByteIsOneDescriptors) {
  const temporary_folder t;
  const auto one = open_shared_file(t.path("f"), true);
  auto two = open_shared_file(t.path("f"), false);
  ASSERT_TRUE(one.ok() && two.ok());
  EXPECT_TRUE(lock_byte(two->get(), 3));
  EXPECT_FALSE(lock_byte(one->get(), 3));
  EXPECT_TRUE(byte_locked(one->get(), 3));
  EXPECT_FALSE(byte_locked(one->get(), 4));
  EXPECT_FALSE(byte_locked(two->get(), 3)) << "its own";
  *two = owned_fd{};
  owned_fd gone = std::move(*two);
  gone = owned_fd{};
  EXPECT_TRUE(lock_byte(one->get(), 3)) << "closed, it is free";
  unlock_byte(one->get(), 3);
  EXPECT_TRUE(lock_byte(one->get(), 3));
}

}  // namespace
}  // namespace gpumem
