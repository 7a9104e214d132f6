/// Simulated cards that several processes share: how much memory each of them holds, in a file that all of them map.
///
/// Only memory is shared: each process has streams, addresses and time of its own. A process that ended, however it
/// did, holds nothing any more: it is told from a later one of the same id by when it began. All processes have to see
/// the same ids (one PID namespace). One object is for one thread at a time; who reads needs no turn.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gpumem::simcuda {

class shared_cards {
 public:
  static constexpr int most_processes = 256;
  static constexpr int most_cards = 16;

  /// A name that can be a file's: 1 to 64 letters, digits, `_`, `-`.
  static bool valid_name(std::string_view name);
  /// Removes the file where no living process has joined.
  static void remove_unused(std::string_view name);

  shared_cards() = default;
  ~shared_cards();
  shared_cards(const shared_cards&) = delete;
  shared_cards& operator=(const shared_cards&) = delete;

  /// Makes the file where it is missing, or left by processes that all ended, and enters this process. Empty, or why it
  /// cannot be: the cards of those who are in it are others, or the file cannot be had.
  std::string join(std::string_view name, int cards, std::uint64_t bytes_each);
  /// Only to read. False: there is no such file.
  bool watch(std::string_view name);

  /// Nobody else takes memory until `unlock`.
  void lock();
  void unlock();
  /// What this process holds of the card from now on.
  void publish(int card, std::uint64_t bytes);
  [[nodiscard]] std::uint64_t held_by_others(int card) const;
  /// When this process began, as the others tell it from a later one of the same id.
  [[nodiscard]] std::uint64_t began() const;
  /// The process of that id and begin is one of them, and has not ended.
  [[nodiscard]] bool lives(std::uint64_t pid, std::uint64_t began) const;
  [[nodiscard]] std::uint64_t card_bytes() const;
  /// Living processes that hold memory of the card, by id, each with its bytes.
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
