/// Simulated cards shared by several processes: how much memory each process holds, in a file that all of them map.
///
/// Only memory is shared: each process has its own streams, addresses and time. A process that has ended holds nothing;
/// its start time distinguishes it from a later process with the same id. All processes must be in one PID namespace.
/// One thread at a time per object; readers need no lock.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gpumem::simcuda {

/// Returns the start time of the process, in the kernel's ticks; 0 if it has ended.
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
  shared_cards& operator=(shared_cards&&) = delete;

  /// Enters this process in the file, after creating it or replacing one whose processes have all ended. Returns an
  /// empty text, or an error: the processes in it share different cards, or the file cannot be opened.
  std::string join(std::string_view name, int cards, std::uint64_t bytes_each);
  /// Opens the file for reading only. False if it does not exist.
  bool watch(std::string_view name);

  /// Blocks allocations of all other processes until `unlock`.
  void lock();
  void unlock();
  /// Publishes how much of the card this process holds.
  void publish(int card, std::uint64_t bytes);
  [[nodiscard]] std::uint64_t held_by_others(int card) const;
  /// When this process began: other processes identify it by this and its id.
  [[nodiscard]] std::uint64_t began() const;
  /// Whether the process with that id and start time has joined and not ended.
  [[nodiscard]] bool lives(std::uint64_t pid, std::uint64_t began) const;
  [[nodiscard]] std::uint64_t card_bytes() const;
  /// Returns the living processes that hold memory of the card, by id, with their bytes.
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
