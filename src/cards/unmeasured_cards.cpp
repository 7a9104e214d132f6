#include "unmeasured_cards.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <optional>
#include <sstream>
#include <string_view>
#include <thread>

#include "child_answer.hpp"
#include "claim_table.hpp"
#include "gpumem/cuda_device.hpp"
#include "process_files.hpp"
#include "shared_folder.hpp"

namespace gpumem {
namespace {

constexpr std::uint64_t probe_interval_ns = 10'000'000'000;

/// The properties of a card that the driver reports without a context.
struct card_facts {
  std::uint64_t total_bytes = 0;
  bool integrated = false;
  bool exclusive = false;
};

/// The record of the latest probe, in a file of the shared folder.
struct probe_record {
  std::uint64_t time_ns = 0;  ///< since the machine started
  std::uint64_t total_bytes = 0;
  std::uint64_t free_bytes = 0;
  std::uint64_t answered = 0;
};

/// Counts all cards, ignoring CUDA_VISIBLE_DEVICES. Call only in the child.
result<int> device_count() {
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  return cuda_device_count();
}

std::string tell_facts() {
  const result<int> count = device_count();
  std::string lines;
  for (int i = 0; count && i < *count; ++i) {
    const result<std::unique_ptr<device>> card = open_cuda_device({.ordinal = i, .driver = nullptr});
    if (!card) continue;
    const device_info& info = (*card)->info();
    lines += fmt::format("{} {} {:d} {:d}\n", info.uuid, info.total_bytes, info.integrated, info.exclusive);
  }
  return lines;
}

/// Creates a context on the card, and returns its total and free bytes as text.
std::string tell_memory(std::string_view uuid) {
  const result<int> count = device_count();
  for (int i = 0; count && i < *count; ++i) {
    const result<std::unique_ptr<device>> card = open_cuda_device({.ordinal = i, .driver = nullptr});
    if (!card || bare_uuid((*card)->info().uuid) != bare_uuid(uuid)) continue;
    const result<memory_info> memory = (*card)->memory();
    if (memory) return fmt::format("{} {}\n", memory->total_bytes, memory->free_bytes);
    if (memory.code() == errc::out_of_memory) return fmt::format("{} 0\n", (*card)->info().total_bytes);
  }
  return "";
}

using facts_by_uuid = std::map<std::string, card_facts, std::less<>>;

/// Queries the driver once, because the facts do not change while the machine runs.
const facts_by_uuid& all_facts() {
  static const facts_by_uuid known = [] {
    facts_by_uuid facts;
    std::istringstream lines{child_answer(tell_facts)};
    std::string uuid;
    card_facts card;
    while (lines >> uuid >> card.total_bytes >> card.integrated >> card.exclusive) {
      facts[std::string{bare_uuid(uuid)}] = card;
    }
    return facts;
  }();
  return known;
}

probe_record probe(const std::string& uuid) {
  probe_record record;
  std::istringstream answer{child_answer([&uuid] { return tell_memory(uuid); })};
  record.answered = answer >> record.total_bytes >> record.free_bytes ? 1 : 0;
  record.time_ns = boot_time_ns();
  return record;
}

bool is_recent(const probe_record& record) {
  const std::uint64_t time = boot_time_ns();
  return record.time_ns != 0 && record.time_ns <= time && time - record.time_ns < probe_interval_ns;
}

/// Waits for another process that probes the card, so that this process can use its answer.
bool lock_record(const owned_fd& file) {
  constexpr int most_tries = 100;
  constexpr std::chrono::milliseconds between_tries{50};
  for (int i = 0; i < most_tries; ++i) {
    if (lock_byte(file.get(), 0)) return true;
    std::this_thread::sleep_for(between_tries);
  }
  return false;
}

/// Returns the record of a probe within the last 10 s, or probes now. Empty if the record cannot be stored.
std::optional<probe_record> recent_probe(const std::string& folder, const std::string& uuid) {
  const result<std::string> shared = shared_folder(folder);
  if (!shared) return std::nullopt;
  const result<owned_fd> file = open_shared_file(fmt::format("{}/probe-{}", *shared, bare_uuid(uuid)), true);
  if (!file || !lock_record(*file)) return std::nullopt;
  probe_record latest;
  const bool whole = ::pread(file->get(), &latest, sizeof latest, 0) == static_cast<ssize_t>(sizeof latest);
  if (whole && is_recent(latest)) return latest;
  latest = probe(uuid);
  if (::pwrite(file->get(), &latest, sizeof latest, 0) != static_cast<ssize_t>(sizeof latest)) return std::nullopt;
  return latest;
}

}  // namespace

void measure_cards(std::vector<gpu_usage>& usage, const std::string& folder) {
  for (gpu_usage& card : usage) {
    if (card.measured_by != memory_source::unknown) continue;
    const auto found = all_facts().find(bare_uuid(card.uuid));
    if (found == all_facts().end()) continue;
    const card_facts& facts = found->second;
    std::optional<std::uint64_t> free_bytes;
    card.total_bytes = facts.total_bytes;
    if (facts.integrated) {
      free_bytes = number_after("/proc/meminfo", "MemAvailable:") << 10;
      card.measured_by = memory_source::host;
    } else if (!facts.exclusive) {
      const std::optional<probe_record> seen = recent_probe(folder, card.uuid);
      if (!seen || seen->answered == 0) continue;
      free_bytes = seen->free_bytes;
      card.measured_by = memory_source::probe;
    }
    if (!free_bytes) continue;
    card.free_bytes = std::min(*free_bytes, card.total_bytes);
    card.used_bytes = card.total_bytes - card.free_bytes;
  }
}

}  // namespace gpumem
