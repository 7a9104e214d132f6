// The file's lines are `count pid command: first cause`, as the preloaded library writes them (oom_log.cpp).
#include "oom_summary.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "log.hpp"
#include "shared_folder.hpp"
#include "text.hpp"
#include "whole_file.hpp"

namespace gpumem::cli {
namespace {

constexpr int most_shown = 8;

std::string content_from(const std::string& path, std::size_t offset) {
  const std::string all = content_of(path);
  return all.size() > offset ? all.substr(offset) : "";
}

}  // namespace

oom_summary::oom_summary(const settings& config) : path_{config.oom_file_path} {
  if (!path_.empty()) {
    skipped_bytes_ = content_from(path_, 0).size();
    return;
  }
  const result<std::string> folder = shared_folder(config.shared_folder);
  if (!folder) return;
  path_ = fmt::format("{}/oom-{}", *folder, ::getpid());
  own_ = true;
  ::unlink(path_.c_str());  // an earlier process with this pid may have left one
  ::setenv("GPUMEM_OOM_FILE", path_.c_str(), 1);
}

oom_summary::~oom_summary() {
  if (own_) ::unlink(path_.c_str());
}

void oom_summary::print() const {
  if (path_.empty()) return;
  const std::string text = content_from(path_, skipped_bytes_);
  int processes = 0;
  for (std::size_t begin = 0; begin < text.size(); ++processes) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line{trimmed(std::string_view{text}.substr(begin, end - begin))};
    begin = end + 1;
    const std::size_t first = line.find(' ');
    const std::size_t second = line.find(' ', first + 1);
    if (first == std::string::npos || second == std::string::npos || processes >= most_shown) continue;
    const std::string count = line.substr(0, first);
    log_line(
        printable(fmt::format("process {} had {} {} refused; the first: {}", line.substr(first + 1, second - first - 1),
                              count, count == "1" ? "request" : "requests", line.substr(second + 1)),
                  2048));
  }
  if (processes > most_shown) log_line(fmt::format("and {} more processes", processes - most_shown));
  if (processes != 0) {
    log_line(
        "record it with `gpumem run --trace run.csv.gz`; `gpumem advise run.csv.gz` then shows the settings that fit");
  }
}

}  // namespace gpumem::cli
