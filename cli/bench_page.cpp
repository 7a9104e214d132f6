#include "bench_page.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "exec_words.hpp"
#include "kept_status.hpp"
#include "process_files.hpp"

namespace gpumem::cli {
namespace {

namespace fs = std::filesystem;

/// gpumem_bench in the folder of this program, as built or installed; empty if it does not exist.
std::string find_bench() {
  std::error_code error;
  const fs::path own_folder = own_program().parent_path();
  for (const fs::path& at : {own_folder / "gpumem_bench", own_folder / ".." / "bench" / "gpumem_bench"}) {
    if (fs::exists(at, error)) return at.lexically_normal().string();
  }
  return {};
}

}  // namespace

status make_bench_page(const std::string& trace, const std::vector<std::string>& policies, const std::string& note,
                       const std::string& page) {
  const std::string bench = find_bench();
  if (bench.empty()) return {errc::unsupported, "expected gpumem_bench in the folder of gpumem; it makes the page"};
  std::vector<std::string> words{bench, "compare", "--quiet", "--trace", trace, "--html", page};
  for (const std::string& policy : policies) words.insert(words.end(), {"--policy", policy});
  if (!note.empty()) words.insert(words.end(), {"--note", note});
  std::vector<char*> arguments = exec_words(words);
  const kept_status ends;
  const pid_t child = ::fork();
  if (child < 0) return {errc::unsupported, "cannot start a process"};
  if (child == 0) {
    static_cast<void>(std::freopen("/dev/null", "w", stdout));
    ::execv(bench.c_str(), arguments.data());
    ::_exit(127);
  }
  int waited = 0;
  ::waitpid(child, &waited, 0);
  return waited == 0 ? status{} : status{errc::unsupported, "gpumem_bench could not make it"};
}

}  // namespace gpumem::cli
