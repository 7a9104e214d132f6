// The large requests and frees of a pool in their order, and what came next when the same came before.
//
// Training and inference repeat themselves, step by step and layer by layer, so the last few large requests and frees
// say what the next ones will be. The latest place where the same eight came is taken to repeat itself; where there is
// none, the latest where the same came at another scale: blocks freed at the same age, sizes in the same relation to a
// power of two (the same step with a larger batch). Predicting by the longest known context is PPM's idea (Cleary and
// Witten 1984); the sizes and ages are of these requests. Memory is fixed, what is old is forgotten. The pool's lock
// guards it; positions are the heap's.
#pragma once

#include <array>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace gpumem {

/// What is expected, in order.
struct expected_step {
  enum class kind : std::uint8_t {
    nothing,         ///< a free, but nobody can tell of what
    request,         ///< of `bytes`
    free_expected,   ///< of what step number `step` asked for
    free_requested,  ///< of what is being asked for now
    free_live,       ///< of the live block `[begin, begin + bytes)`
  };
  kind is = kind::nothing;
  std::uint32_t step = 0;
  std::uint64_t bytes = 0;
  std::uint64_t begin = 0;
  std::array<std::uint64_t, 2> lay{};  ///< of a request: where it was placed the last times, latest first; 0: unknown
};

class large_requests {
 public:
  /// Counts from 1; 0 stands for none.
  using number = std::uint64_t;

  /// A request, before it has a place. Throws bad_alloc the first time, or never.
  number requested(std::uint64_t bytes);
  /// It lies there now. Throws bad_alloc.
  void placed(number n, std::uint64_t begin);
  /// The block that begins there was freed; nothing where it was none of these.
  void freed(std::uint64_t begin) noexcept;
  /// What followed, for `most` steps, when what led to the request came before; empty where it did not.
  [[nodiscard]] std::vector<expected_step> expected_after(number n, std::uint32_t most) const;
  /// Where it lay when the same came before, latest first; at another scale it lay nowhere.
  [[nodiscard]] std::vector<std::uint64_t> earlier_places(number n) const;
  /// Of the latest request or free.
  [[nodiscard]] number latest() const noexcept { return count_; }
  [[nodiscard]] std::uint64_t metadata_bytes() const noexcept;

 private:
  static constexpr std::uint32_t remembered = 8192;    // requests and frees; a power of two
  static constexpr std::uint32_t context = 8;          // of these decide
  static constexpr std::uint32_t nearest_ages = 8;     // a free may come so much earlier or later than the last time
  static constexpr std::size_t earlier_looked_at = 3;  // places of a request
  static constexpr std::uint64_t same_size_part = 64;  // two sizes are the same within a 64th

  struct event {
    std::uint64_t bytes = 0;
    std::uint64_t begin = 0;  // of a request: where it lies, or lay; 0: nowhere yet
    number of = 0;            // of a free: the request that it ends
    number repeats = 0;       // of a request: the earlier one that it is taken to repeat
    number repeated_by = 0;   // and the later one
    bool live = false;
  };
  struct seen {
    std::uint64_t hash = 0;
    number at = 0;
  };

  [[nodiscard]] bool known(number n) const noexcept { return n != 0 && n <= count_ && n + remembered > count_; }
  [[nodiscard]] const event& at(number n) const noexcept { return events_[n % remembered]; }
  [[nodiscard]] event& at(number n) noexcept { return events_[n % remembered]; }
  number add(const event& e);
  [[nodiscard]] std::uint64_t exact_context() const noexcept;
  [[nodiscard]] std::uint64_t scaled_context() const noexcept;
  static number replace(std::vector<seen>* table, std::uint64_t hash, number n) noexcept;
  [[nodiscard]] bool may_be_freed(number n, number now, std::uint64_t bytes,
                                  const std::vector<number>& gone) const noexcept;
  [[nodiscard]] number freed_like(number then, number same_age, number now, std::uint64_t bytes,
                                  const std::vector<number>& gone) const noexcept;

  std::vector<event> events_;
  std::vector<seen> by_exact_;
  std::vector<seen> by_scaled_;
  std::unordered_map<std::uint64_t, std::uint32_t> live_;  // begin in units of 512 B -> place in `events_`
  number count_ = 0;
};

}  // namespace gpumem
