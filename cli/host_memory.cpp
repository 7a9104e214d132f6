#include "host_memory.hpp"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <vector>

#include "process_files.hpp"
#include "text.hpp"

namespace gpumem::cli {
namespace {

namespace fs = std::filesystem;

std::optional<std::uint64_t> number_in(const std::string& path) {
  std::ifstream file{path};
  std::uint64_t value = 0;
  return file >> value ? std::optional{value} : std::nullopt;  // `max` is none
}

std::uint64_t resident_bytes(const std::string& process) {
  static const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  std::ifstream file{process + "/statm"};
  std::uint64_t size = 0;
  std::uint64_t resident = 0;
  return file >> size >> resident ? resident * page : 0;
}

std::uint64_t resident_bytes_of_descendants(const std::string& proc, pid_t command) {
  std::multimap<pid_t, pid_t> children;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator{proc, error}) {
    const std::string name = entry.path().filename().string();
    if (const auto pid = whole_number<pid_t>(name)) children.emplace(parent_of(entry.path().string()), *pid);
  }
  std::uint64_t sum = 0;
  std::vector<pid_t> open{command};
  while (!open.empty()) {
    const pid_t pid = open.back();
    open.pop_back();
    sum += resident_bytes(proc + "/" + std::to_string(pid));
    for (auto [child, end] = children.equal_range(pid); child != end; ++child) open.push_back(child->second);
  }
  return sum;
}

}  // namespace

void host_memory::look_at_run(pid_t command) {
  peak_bytes_ = std::max(peak_bytes_, resident_bytes_of_descendants(root_ + "/proc", command));
}

void host_memory::look_at_host() {
  const std::string file = root_ + "/proc/meminfo";
  total_bytes_ = number_after(file, "MemTotal:") << 10;
  available_bytes_ = number_after(file, "MemAvailable:") << 10;
  read_control_group();
}

/// Applies the control group's limit, if it has one. In a container the own group is the root of the hierarchy.
void host_memory::read_control_group() {
  const std::string group = root_ + "/sys/fs/cgroup/";
  const std::optional<std::uint64_t> most = number_in(group + "memory.max");
  const std::optional<std::uint64_t> used = number_in(group + "memory.current");
  if (!most || !used || *most >= total_bytes_) return;
  // The kernel drops cached files before it ends a process.
  const std::uint64_t kept = *used - std::min(*used, number_after(group + "memory.stat", "inactive_file"));
  total_bytes_ = *most;
  available_bytes_ = std::min(available_bytes_, *most - std::min(*most, kept));
}

bool host_memory::is_short() const noexcept {
  constexpr std::uint64_t least_left = std::uint64_t{256} << 20;
  return total_bytes_ != 0 && available_bytes_ < std::max(least_left, total_bytes_ / 50);
}

}  // namespace gpumem::cli
