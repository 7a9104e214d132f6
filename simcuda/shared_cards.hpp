/// Simulated cards shared by several processes: how much memory each holds, in a file that all of them map.
///
/// Only memory is shared: each process has its own streams, addresses and time. A process that has ended, for whatever
/// reason, holds nothing: its start time tells it from a later process of the same id. All processes must be in one PID
/// namespace. One thread at a time per object; readers need no lock.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gpumem::simcuda {

/// The start time of the process, in the kernel's ticks; 0 if it has ended.
[[nodiscard]] std::uint64_t process_begin(std::uint64_t pid);

class shared_cards {
 public:
  static constexpr int most_processes = 256;
  static constexpr int most_cards = 16;

  /// Whether the name is valid: 1 to 64 letters, digits, `_`, `-`.
  static bool valid_name(std::string_view name);
  /// Removes the file if no living process has joined.
  static void remove_unused(std::string_view name);

  shared_cards() = default;
  ~shared_cards();
  shared_cards(const shared_cards&) = delete;
  shared_cards& operator=(const shared_cards&) = delete;

  /// Creates the file, also in place of one whose processes have all ended, and enters this process. Returns an empty
  /// text, or an error: the processes in it share different cards, or the file cannot be opened.
  std::string join(std::string_view name, int cards, std::uint64_t bytes_each);
  /// Opens the file for reading only. False if it does not exist.
  bool watch(std::string_view name);

  /// Keeps all other processes from allocating until `unlock`.
  void lock();
  void unlock();
  /// Sets how much of the card this process holds.
  void publish(int card, std::uint64_t bytes);
  [[nodiscard]] std::uint64_t held_by_others(int card) const;
  /// When this process began, as the others tell it from a later one of the same id.
  [[nodiscard]] std::uint64_t began() const;
  /// The process of that id and begin is one of them, and has not ended.
  [[nodiscard]] bool lives(std::uint64_t pid, std::uint64_t began) const;
  [[nodiscard]] std::uint64_t card_bytes() const;
  /// The living processes that hold memory of the card, by id, with their bytes.
  [[nodiscard]] std::vector<std::pair<int, std::uint64_t>> holders(int card) const;

 private:
  struct region;
  [[nodiscard]] bool mine() const;
  bool map_file();

  int file_ = -1;
  region* all_ = nullptr;
  int slot_ = -1;
};

}  // namespace gpumem::simcuda
