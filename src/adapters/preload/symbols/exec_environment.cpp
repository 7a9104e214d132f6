// Keeps the shim in the LD_PRELOAD of programs that a preloaded program starts. A start script that sets LD_PRELOAD to
// another malloc would lose the shim and its limit, so every function that starts a program prepends it. A program that
// removed LD_PRELOAD wants nothing preloaded: then a log line names the consequence.
//
// The functions may run in the child of vfork, in the parent's memory: they use only the stack, no lock and no malloc.
// Only `system` and `popen`, which are not called there, change this process's own variable.
#include <alloca.h>
#include <dlfcn.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

extern "C" char** environ;

namespace {

constexpr char variable[] = "LD_PRELOAD=";
constexpr std::size_t variable_length = sizeof variable - 1;
constexpr char library[] = "libgpumem_preload.so";
constexpr std::size_t longest_list = std::size_t{64} << 10;

struct real_functions {
  decltype(&::execve) execve;
  decltype(&::execvpe) execvpe;
  decltype(&::fexecve) fexecve;
  int (*execveat)(int, const char*, char* const*, char* const*, int);
  decltype(&::posix_spawn) posix_spawn;
  decltype(&::posix_spawnp) posix_spawnp;
  int (*system)(const char*);
  FILE* (*popen)(const char*, const char*);
};
real_functions real;
/// The LD_PRELOAD entry that loaded the shim into this process; empty if there is none.
char own_entry[4096];

std::size_t entry_length(const char* list) { return std::strcspn(list, ": "); }

/// Whether an entry of the list names the shim's file.
bool is_shim(const char* entry, std::size_t length) {
  constexpr std::size_t name_length = sizeof library - 1;
  if (length < name_length || std::strncmp(entry + length - name_length, library, name_length) != 0) return false;
  return length == name_length || entry[length - name_length - 1] == '/';
}

/// Returns the shim's entry in a list; null if it has none.
const char* find_shim(const char* list) {
  while (*list != '\0') {
    const std::size_t length = entry_length(list);
    if (is_shim(list, length)) return list;
    list += length;
    list += std::strspn(list, ": ");
  }
  return nullptr;
}

char* const* find_variable(char* const* environment) {
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    if (std::strncmp(*environment, variable, variable_length) == 0) return environment;
  }
  return nullptr;
}

bool is_limited() {
  static constexpr const char* names[] = {"GPUMEM_LIMIT", "GPUMEM_JOB", "GPUMEM_GROUP", "GPUMEM_POOLS"};
  for (char* const* each = environ; each != nullptr && *each != nullptr; ++each) {
    for (const char* const name : names) {
      const std::size_t length = std::strlen(name);
      if (std::strncmp(*each, name, length) == 0 && (*each)[length] == '=' && (*each)[length + 1] != '\0') return true;
    }
  }
  return false;
}

/// Once per process. Writing to a closed stderr must not end the process.
void say_removed() {
  static bool said = false;
  if (said || !is_limited()) return;
  said = true;
  static constexpr char line[] =
      "gpumem: a program is started without LD_PRELOAD, which this one removed: no limit holds for it\n";
  sigset_t pipe;
  sigset_t before;
  ::sigemptyset(&pipe);
  ::sigaddset(&pipe, SIGPIPE);
  const bool blocked = ::sigprocmask(SIG_BLOCK, &pipe, &before) == 0;
  const int saved = errno;
  const bool broken = ::write(STDERR_FILENO, line, sizeof line - 1) < 0 && errno == EPIPE;
  const timespec at_once{0, 0};
  if (blocked && broken && ::sigismember(&before, SIGPIPE) == 0) ::sigtimedwait(&pipe, nullptr, &at_once);
  if (blocked) ::sigprocmask(SIG_SETMASK, &before, nullptr);
  errno = saved;
}

/// Returns the size in bytes of the list with the shim prepended; 0 if the environment need not change.
std::size_t bytes_of_list(char* const* environment) {
  if (own_entry[0] == '\0') return 0;
  char* const* const entry = find_variable(environment);
  const char* const list = entry != nullptr ? *entry + variable_length : "";
  if (*list == '\0') {
    say_removed();
    return 0;
  }
  if (find_shim(list) != nullptr) return 0;
  const std::size_t bytes = variable_length + std::strlen(own_entry) + 1 + std::strlen(list) + 1;
  return bytes <= longest_list ? bytes : 0;
}

std::size_t count(char* const* words) {
  std::size_t found = 0;
  while (words != nullptr && words[found] != nullptr) ++found;
  return found;
}

/// Fills `list`, and `copy` with the environment that uses it. `copy` needs room for one more pointer.
char* const* put_in_front(char* const* environment, char** copy, char* list) {
  char* const* const entry = find_variable(environment);
  char* end = ::stpcpy(list, variable);
  end = ::stpcpy(end, own_entry);
  *end++ = ':';
  std::strcpy(end, *entry + variable_length);
  for (std::size_t i = 0; environment[i] != nullptr; ++i) copy[i] = &environment[i] == entry ? list : environment[i];
  copy[count(environment)] = nullptr;
  return copy;
}

/// Defines `name`: the environment for the new program with the shim in its LD_PRELOAD, on the calling function's
/// stack; or `environment` itself if it needs no change.
#define GPUMEM_WITH_SHIM(name, environment)                                                                  \
  const std::size_t name##_bytes = bytes_of_list(environment);                                               \
  char* const* const name =                                                                                  \
      name##_bytes == 0                                                                                      \
          ? (environment)                                                                                    \
          : put_in_front(environment, static_cast<char**>(alloca((count(environment) + 1) * sizeof(char*))), \
                         static_cast<char*>(alloca(name##_bytes)))

/// Collects the arguments of a call such as execl on the calling function's stack; leaves `rest` after the null.
#define GPUMEM_WORDS(words, rest, first)                                                 \
  std::size_t words##_count = 1;                                                         \
  va_list rest;                                                                          \
  va_start(rest, first);                                                                 \
  while (va_arg(rest, char*) != nullptr) ++words##_count;                                \
  va_end(rest);                                                                          \
  auto** const words = static_cast<char**>(alloca((words##_count + 1) * sizeof(char*))); \
  words[0] = const_cast<char*>(first);                                                   \
  va_start(rest, first);                                                                 \
  for (std::size_t i = 1; i <= words##_count; ++i) words[i] = va_arg(rest, char*)

int not_found() {
  errno = ENOSYS;
  return -1;
}

template <typename Function>
void find(Function& function, const char* name) {
  function = reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

__attribute__((constructor)) void remember() {
  find(real.execve, "execve");
  find(real.execvpe, "execvpe");
  find(real.fexecve, "fexecve");
  find(real.execveat, "execveat");
  find(real.posix_spawn, "posix_spawn");
  find(real.posix_spawnp, "posix_spawnp");
  find(real.system, "system");
  find(real.popen, "popen");
  char* const* const entry = find_variable(environ);
  const char* const found = entry != nullptr ? find_shim(*entry + variable_length) : nullptr;
  const std::size_t length = found != nullptr ? entry_length(found) : 0;
  if (length < sizeof own_entry) std::memcpy(own_entry, found != nullptr ? found : "", length);
}

/// Changes this process's environment, for a child that inherits it.
void put_in_front_here() {
  const std::size_t bytes = bytes_of_list(environ);
  if (bytes == 0) return;
  auto* const list = static_cast<char*>(alloca(bytes));
  auto** const copy = static_cast<char**>(alloca((count(environ) + 1) * sizeof(char*)));
  put_in_front(environ, copy, list);
  ::setenv("LD_PRELOAD", list + variable_length, 1);
}

}  // namespace

extern "C" {

int execve(const char* path, char* const* words, char* const* environment) noexcept {
  GPUMEM_WITH_SHIM(with_shim, environment);
  if (real.execve != nullptr) return real.execve(path, words, with_shim);
  return static_cast<int>(::syscall(SYS_execve, path, words, with_shim));
}

int execvpe(const char* file, char* const* words, char* const* environment) noexcept {
  GPUMEM_WITH_SHIM(with_shim, environment);
  return real.execvpe != nullptr ? real.execvpe(file, words, with_shim) : not_found();
}

int execv(const char* path, char* const* words) noexcept { return execve(path, words, environ); }
int execvp(const char* file, char* const* words) noexcept { return execvpe(file, words, environ); }

int fexecve(int file, char* const* words, char* const* environment) noexcept {
  GPUMEM_WITH_SHIM(with_shim, environment);
  return real.fexecve != nullptr ? real.fexecve(file, words, with_shim) : not_found();
}

int execveat(int folder, const char* path, char* const* words, char* const* environment, int flags) noexcept {
  GPUMEM_WITH_SHIM(with_shim, environment);
  if (real.execveat != nullptr) return real.execveat(folder, path, words, with_shim, flags);
  return static_cast<int>(::syscall(SYS_execveat, folder, path, words, with_shim, flags));
}

int execl(const char* path, const char* first, ...) noexcept {
  GPUMEM_WORDS(words, rest, first);
  va_end(rest);
  return execve(path, words, environ);
}

int execlp(const char* file, const char* first, ...) noexcept {
  GPUMEM_WORDS(words, rest, first);
  va_end(rest);
  return execvpe(file, words, environ);
}

int execle(const char* path, const char* first, ...) noexcept {
  GPUMEM_WORDS(words, rest, first);
  char* const* const environment = va_arg(rest, char* const*);
  va_end(rest);
  return execve(path, words, environment);
}

int posix_spawn(pid_t* process, const char* path, const posix_spawn_file_actions_t* actions,
                const posix_spawnattr_t* attributes, char* const* words, char* const* environment) {
  GPUMEM_WITH_SHIM(with_shim, environment);
  return real.posix_spawn != nullptr ? real.posix_spawn(process, path, actions, attributes, words, with_shim) : ENOSYS;
}

int posix_spawnp(pid_t* process, const char* file, const posix_spawn_file_actions_t* actions,
                 const posix_spawnattr_t* attributes, char* const* words, char* const* environment) {
  GPUMEM_WITH_SHIM(with_shim, environment);
  return real.posix_spawnp != nullptr ? real.posix_spawnp(process, file, actions, attributes, words, with_shim)
                                      : ENOSYS;
}

int system(const char* command) {
  put_in_front_here();
  return real.system != nullptr ? real.system(command) : not_found();
}

FILE* popen(const char* command, const char* type) {
  put_in_front_here();
  if (real.popen != nullptr) return real.popen(command, type);
  not_found();
  return nullptr;
}

}  // extern "C"
