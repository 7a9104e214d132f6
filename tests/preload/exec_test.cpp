/// The functions that start a program put the shim in front of a list that the program set without it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <functional>
#include <string>

extern "C" char** environ;

namespace gpumem::preload_test {
namespace {

constexpr const char* shell = "/bin/sh";
constexpr const char* script = "echo $LD_PRELOAD";

char* const* words() {
  static std::array<char*, 4> all{const_cast<char*>("sh"), const_cast<char*>("-c"), const_cast<char*>(script), nullptr};
  return all.data();
}

struct starting {
  const char* name;
  std::function<void()> start;
};

void PrintTo(const starting& of, std::ostream* out) { *out << of.name; }

void spawn(int (*function)(pid_t*, const char*, const posix_spawn_file_actions_t*, const posix_spawnattr_t*,
                           char* const*, char* const*)) {
  pid_t child = 0;
  if (function(&child, shell, nullptr, nullptr, words(), environ) == 0) ::waitpid(child, nullptr, 0);
}

void read_popen() {
  std::FILE* const from = ::popen(script, "r");
  for (int each = from != nullptr ? std::fgetc(from) : EOF; each != EOF; each = std::fgetc(from)) std::putchar(each);
  std::fflush(stdout);
  if (from != nullptr) ::pclose(from);
}

class Start : public ::testing::TestWithParam<starting> {
 protected:
  /// The output of a child that sets the list and starts a shell.
  static std::string printed_with(const char* list) {
    std::array<int, 2> ends{};
    if (::pipe(ends.data()) != 0) return "no pipe";
    const pid_t child = ::fork();
    if (child == 0) {
      ::dup2(ends[1], STDOUT_FILENO);
      ::dup2(::open("/dev/null", O_WRONLY), STDERR_FILENO);
      ::close(ends[0]);
      ::close(ends[1]);
      if (list != nullptr) {
        ::setenv("LD_PRELOAD", list, 1);
      } else {
        ::unsetenv("LD_PRELOAD");
      }
      GetParam().start();
      ::_exit(0);
    }
    ::close(ends[1]);
    std::string out;
    char each = 0;
    while (::read(ends[0], &each, 1) == 1) out += each;
    ::close(ends[0]);
    ::waitpid(child, nullptr, 0);
    return out;
  }
};

TEST_P(Start, PutsTheLibraryInFront) {
  const std::string own = std::getenv("LD_PRELOAD");
  EXPECT_EQ(printed_with("libm.so.6"), own + ":libm.so.6\n");
  EXPECT_EQ(printed_with(("libm.so.6:" + own).c_str()), "libm.so.6:" + own + "\n") << "it is there";
  EXPECT_EQ(printed_with(nullptr), "\n") << "it was removed";
}

INSTANTIATE_TEST_SUITE_P(
    functions, Start,
    ::testing::Values(starting{"execve", [] { ::execve(shell, words(), environ); }},
                      starting{"execv", [] { ::execv(shell, words()); }},
                      starting{"execvp", [] { ::execvp("sh", words()); }},
                      starting{"execvpe", [] { ::execvpe("sh", words(), environ); }},
                      starting{"execl", [] { ::execl(shell, "sh", "-c", script, nullptr); }},
                      starting{"execlp", [] { ::execlp("sh", "sh", "-c", script, nullptr); }},
                      starting{"execle", [] { ::execle(shell, "sh", "-c", script, nullptr, environ); }},
                      starting{"fexecve", [] { ::fexecve(::open(shell, O_RDONLY | O_CLOEXEC), words(), environ); }},
                      starting{"execveat", [] { ::execveat(AT_FDCWD, shell, words(), environ, 0); }},
                      starting{"posix_spawn", [] { spawn(&::posix_spawn); }},
                      starting{"posix_spawnp", [] { spawn(&::posix_spawnp); }},
                      starting{"system", [] { static_cast<void>(!::system(script)); }},
                      starting{"popen", [] { read_popen(); }}),
    [](const auto& named) { return named.param.name; });

}  // namespace
}  // namespace gpumem::preload_test
