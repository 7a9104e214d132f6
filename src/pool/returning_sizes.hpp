// Which sizes come back: were freed, and then asked for again, by whatever thread; and for which of them it pays to
// keep a block on condition. Of sizes that share a place the latest freed is known. The pool locks.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace gpumem {

class returning_sizes {
 public:
  /// A block of that size was freed; true where the size has come back before. In units of 512 B, not 0.
  bool freed(std::uint32_t units) noexcept {
    place& p = at(units);
    if (p.units != units) p = {.units = units};
    return p.returned;
  }
  /// One was asked for that no cache had.
  void asked(std::uint32_t units) noexcept {
    place& p = at(units);
    p.returned |= p.units == units;
  }
  /// Blocks of it lay unused: it has to come back anew.
  void unused(std::uint32_t units) noexcept {
    place& p = at(units);
    p.returned &= p.units != units;
  }
  /// Whether a block of that size, freed just now, is to be kept on condition (cache_limits.cpp): where the latest ones
  /// were asked for again before they had to go back, and else now and then.
  [[nodiscard]] bool worth_keeping(std::uint32_t units) noexcept {
    place& p = at(units);
    return p.credit != 0 || ++p.passed_over % retry_after == 0;
  }
  /// One that was kept on condition has gone back to the heap.
  void kept(std::uint32_t units, bool in_vain) noexcept {
    place& p = at(units);
    if (p.units != units) return;
    if (in_vain) {
      p.credit = static_cast<std::uint8_t>(std::max(p.credit - 1, 0));
    } else {
      p.credit = static_cast<std::uint8_t>(std::min(p.credit + gain, most_credit));
    }
  }

 private:
  static constexpr int gain = 4;
  static constexpr int most_credit = 12;
  static constexpr unsigned retry_after = 8;
  struct place {
    std::uint32_t units = 0;
    bool returned = false;
    std::uint8_t credit = gain;    ///< for keeping on condition: how often more it may be in vain
    std::uint8_t passed_over = 0;  ///< since then, modulo 256
  };
  static constexpr unsigned places_log2 = 10;

  place& at(std::uint32_t units) noexcept { return places_[units * 0x9e37'79b1U >> (32 - places_log2)]; }

  std::array<place, std::size_t{1} << places_log2> places_{};
};

}  // namespace gpumem
