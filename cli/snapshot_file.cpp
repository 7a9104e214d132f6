// Writes Python's pickle format, protocol 2.
#include "snapshot_file.hpp"

#include <algorithm>
#include <map>
#include <string_view>

#include "gpumem/request.hpp"

namespace gpumem::cli {
namespace {

/// Appends values. Lists and dictionaries have a begin and an end call; a dictionary's keys and values alternate.
class pickle_file {
 public:
  pickle_file() : text_{"\x80\x02"} {}

  void begin_list() { text_ += "]("; }
  void end_list() { text_ += 'e'; }
  void begin_dictionary() { text_ += "}("; }
  void end_dictionary() { text_ += 'u'; }
  void add(std::uint64_t value) {
    if (value <= INT32_MAX) {
      text_ += 'J';
      append(value, 4);
    } else {
      text_ += "\x8a\x08";  // two's complement; addresses and sizes are below 2^63
      append(value, 8);
    }
  }
  /// Writes a repeated text only once.
  void add(std::string_view value) {
    const auto [known, is_new] = texts_.try_emplace(std::string{value}, texts_.size());
    if (is_new) {
      text_ += 'X';
      append(value.size(), 4);
      text_ += value;
    }
    text_ += is_new ? 'r' : 'j';
    append(known->second, 4);
  }
  void add_pair_of_zeros() {
    add(std::uint64_t{0});
    add(std::uint64_t{0});
    text_ += '\x86';
  }
  template <typename Value>
  void add_entry(std::string_view key, const Value& value) {
    add(key);
    add(value);
  }
  void add_empty_list(std::string_view key) {
    add(key);
    text_ += ']';
  }
  [[nodiscard]] std::string finish() && {
    text_ += '.';
    return std::move(text_);
  }

 private:
  void append(std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) text_ += static_cast<char>(value >> (8 * i) & 0xff);
  }
  std::string text_;
  std::map<std::string, std::uint64_t> texts_;
};

constexpr std::uint64_t rounded(std::uint64_t bytes) {
  return (bytes + block_granularity - 1) / block_granularity * block_granularity;
}

struct live_block {
  std::uint64_t bytes = 0;
  std::uint64_t stream = 0;
};

/// The blocks live after the events, by address.
std::map<std::uint64_t, live_block> live_after(const dumped_pool& pool) {
  std::map<std::uint64_t, live_block> live;
  for (const dumped_row& row : pool.live_before) live[row.address] = {row.bytes, row.stream};
  for (const dumped_row& row : pool.events) {
    if (row.action == dumped_action::allocated) live[row.address] = {row.bytes, row.stream};
    if (row.action == dumped_action::freed) live.erase(row.address);
  }
  return live;
}

/// The address ranges that blocks covered at any time: begin to end.
std::map<std::uint64_t, std::uint64_t> covered_runs(const dumped_pool& pool) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> blocks;
  for (const std::vector<dumped_row>* rows : {&pool.live_before, &pool.events}) {
    for (const dumped_row& row : *rows) {
      if (row.action != dumped_action::refused) blocks.emplace_back(row.address, row.address + rounded(row.bytes));
    }
  }
  std::sort(blocks.begin(), blocks.end());
  std::map<std::uint64_t, std::uint64_t> runs;
  for (const auto& [begin, end] : blocks) {
    if (!runs.empty() && begin <= runs.rbegin()->second) {
      runs.rbegin()->second = std::max(runs.rbegin()->second, end);
    } else {
      runs.emplace(begin, end);
    }
  }
  return runs;
}

void add_block(pickle_file& file, std::uint64_t address, std::uint64_t bytes, std::uint64_t requested, bool live) {
  file.begin_dictionary();
  file.add_entry("address", address);
  file.add_entry("size", bytes);
  file.add_entry("requested_size", requested);
  file.add_entry("state", std::string_view{live ? "active_allocated" : "inactive"});
  file.add_empty_list("frames");
  file.end_dictionary();
}

void add_segments(pickle_file& file, const dumped_pool& pool, std::uint64_t device) {
  const std::map<std::uint64_t, live_block> live = live_after(pool);
  for (const auto& [begin, end] : covered_runs(pool)) {
    std::uint64_t live_bytes = 0;
    std::uint64_t requested_bytes = 0;
    for (auto each = live.lower_bound(begin); each != live.end() && each->first < end; ++each) {
      live_bytes += rounded(each->second.bytes);
      requested_bytes += each->second.bytes;
    }
    file.begin_dictionary();
    file.add_entry("device", device);
    file.add_entry("address", begin);
    file.add_entry("total_size", end - begin);
    file.add_entry("allocated_size", live_bytes);
    file.add_entry("active_size", live_bytes);
    file.add_entry("requested_size", requested_bytes);
    file.add_entry("stream", std::uint64_t{0});
    file.add_entry("segment_type", std::string_view{"large"});
    file.add("segment_pool_id");
    file.add_pair_of_zeros();
    file.add_entry("is_expandable", std::uint64_t{0});
    file.add_empty_list("frames");
    file.add("blocks");
    file.begin_list();
    std::uint64_t position = begin;
    for (auto each = live.lower_bound(begin); each != live.end() && each->first < end; ++each) {
      if (each->first > position) add_block(file, position, each->first - position, 0, false);
      add_block(file, each->first, rounded(each->second.bytes), each->second.bytes, true);
      position = each->first + rounded(each->second.bytes);
    }
    if (position < end) add_block(file, position, end - position, 0, false);
    file.end_list();
    file.end_dictionary();
  }
}

void add_event(pickle_file& file, const dumped_row& row, std::string_view action) {
  file.begin_dictionary();
  file.add_entry("action", action);
  file.add_entry(row.action == dumped_action::refused ? "device_free" : "addr", row.address);
  file.add_entry("size", row.bytes);
  file.add_entry("stream", row.stream);
  file.add_entry("time_us", row.time_us);
  file.add_empty_list("frames");
  file.end_dictionary();
}

}  // namespace

std::string snapshot_of(const std::vector<dumped_pool>& pools) {
  pickle_file file;
  file.begin_dictionary();
  file.add("segments");
  file.begin_list();
  for (std::size_t i = 0; i < pools.size(); ++i) add_segments(file, pools[i], i);
  file.end_list();
  file.add("device_traces");
  file.begin_list();
  for (const dumped_pool& pool : pools) {
    file.begin_list();
    for (const dumped_row& row : pool.events) {
      if (row.action == dumped_action::allocated) add_event(file, row, "alloc");
      if (row.action == dumped_action::refused) add_event(file, row, "oom");
      if (row.action == dumped_action::freed) {
        add_event(file, row, "free_requested");
        add_event(file, row, "free_completed");
      }
    }
    file.end_list();
  }
  file.end_list();
  file.add_empty_list("external_annotations");
  file.add("allocator_settings");
  file.begin_dictionary();
  file.end_dictionary();
  file.end_dictionary();
  return std::move(file).finish();
}

}  // namespace gpumem::cli
