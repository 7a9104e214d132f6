// Searches the process's open files: a recorder keeps its file open, whatever its name.
#include "process_recording.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <vector>

#include "text.hpp"

namespace gpumem::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view first_words{"Thread,Time,Action"};
constexpr std::string_view gzip_magic{"\x1f\x8b", 2};

status refused(unsigned pid, const std::string& why) {
  return {errc::invalid_argument, fmt::format("process {}: {}", pid, why)};
}

/// Whether the process opened this descriptor write-only.
bool is_write_only(unsigned pid, const std::string& descriptor) {
  std::ifstream input{fmt::format("/proc/{}/fdinfo/{}", pid, descriptor)};
  for (std::string word; input >> word;) {
    if (word != "flags:") continue;
    unsigned flags = 0;
    input >> std::oct >> flags;
    return (flags & O_ACCMODE) == O_WRONLY;
  }
  return false;
}

bool begins_as_recording(const fs::path& file, const std::string& name) {
  std::ifstream input{file, std::ios::binary};
  std::string begin(first_words.size(), '\0');
  input.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  return begin == first_words || (name.ends_with(".gz") && begin.starts_with(gzip_magic));
}

}  // namespace

result<process_recording> recording_of_process(unsigned pid) {
  std::error_code why;
  std::vector<process_recording> found;
  fs::directory_iterator open_file{fmt::format("/proc/{}/fd", pid), why};
  if (why == std::errc::no_such_file_or_directory) {
    return refused(pid, "does not exist; expected the PID of a program that runs, or a recording");
  }
  if (why == std::errc::permission_denied) {
    return refused(pid, "belongs to another user; run this as that user, or name the program's recording");
  }
  for (; !why && open_file != fs::directory_iterator{}; open_file.increment(why)) {
    std::error_code gone;  // the process may close it at any moment
    if (!fs::is_regular_file(open_file->path(), gone) || gone) continue;
    const std::string name = fs::read_symlink(open_file->path(), gone).string();
    if (gone || !is_write_only(pid, open_file->path().filename().string())) continue;
    if (begins_as_recording(open_file->path(), name)) found.push_back({open_file->path().string(), name});
  }
  if (why) return refused(pid, why.message());
  if (found.empty()) return refused(pid, "records nothing; start the program with GPUMEM_TRACE=run.csv");
  if (found.size() > 1) {
    return refused(pid, fmt::format("records to {} files; expected one of them, such as {}", found.size(),
                                    printable(found.front().name, 4096)));
  }
  return found.front();
}

}  // namespace gpumem::cli
