#include "room_claims.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <sstream>
#include <string_view>

namespace gpumem {
namespace {

constexpr std::string_view beginning = "@gpumem-room/";
constexpr int most_generations = 64;

/// The parent's pid; 0 if there is none or it is unknown.
int parent_of(int pid) {
  std::ifstream in{fmt::format("/proc/{}/stat", pid)};
  std::string line;
  std::getline(in, line);
  const std::size_t name_end = line.rfind(')');  // pid (name) state ppid; the name may contain any character
  if (name_end == std::string::npos) return 0;
  std::istringstream rest{line.substr(name_end + 1)};
  std::string state;
  int parent = 0;
  rest >> state >> parent;
  return parent;
}

bool descends_from(int pid, int ancestor) {
  for (int i = 0; i < most_generations && pid > 0; ++i) {
    if (pid == ancestor) return true;
    pid = parent_of(pid);
  }
  return false;
}

/// The memory used by the claim's program and its children.
std::uint64_t used_by(const room_claim& claim, std::span<const gpu_usage> usage) {
  std::uint64_t bytes = 0;
  for (const gpu_usage& card : usage) {
    if (bare_uuid(card.uuid) != claim.uuid) continue;
    for (const gpu_process& each : card.processes) {
      if (descends_from(static_cast<int>(each.pid), claim.pid)) bytes += each.used_bytes.value_or(0);
    }
  }
  return bytes;
}

template <typename Number>
bool read_number(std::string_view text, Number& into) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), into);
  return error == std::errc{} && end == text.data() + text.size();
}

}  // namespace

std::vector<room_claim> claims_now() {
  std::vector<room_claim> out;
  std::ifstream list{"/proc/net/unix"};
  for (std::string line; std::getline(list, line);) {
    const std::size_t at = line.find(beginning);
    if (at == std::string::npos) continue;
    const std::string name = line.substr(at + beginning.size());  // UUID/bytes/pid
    const std::size_t pid_at = name.rfind('/');
    const std::size_t bytes_at = pid_at == 0 ? std::string::npos : name.rfind('/', pid_at - 1);
    if (pid_at == std::string::npos || bytes_at == std::string::npos) continue;
    room_claim one{.uuid = name.substr(0, bytes_at)};
    std::istringstream fields{line.substr(0, at)};  // Num RefCount Protocol Flags Type St Inode Path
    std::string skipped;
    for (int i = 0; i < 6; ++i) fields >> skipped;
    const std::string_view text = name;
    if (fields >> one.inode && read_number(text.substr(bytes_at + 1, pid_at - bytes_at - 1), one.bytes) &&
        read_number(text.substr(pid_at + 1), one.pid)) {
      out.push_back(std::move(one));
    }
  }
  return out;
}

void count_claims(std::span<card_state> cards, std::span<const room_claim> claims, std::span<const gpu_usage> usage) {
  for (const room_claim& claim : claims) {
    if (descends_from(::getpid(), claim.pid)) continue;
    for (card_state& card : cards) {
      if (bare_uuid(card.uuid) != claim.uuid) continue;
      ++card.claims;
      const std::uint64_t unused = claim.bytes - std::min(claim.bytes, used_by(claim, usage));
      card.promised_bytes += std::min(unused, std::numeric_limits<std::uint64_t>::max() - card.promised_bytes);
    }
  }
}

}  // namespace gpumem
