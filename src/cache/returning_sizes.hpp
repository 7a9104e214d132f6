// Which sizes come back: were freed, and then asked for again, by whatever thread. Of sizes that share a place the
// latest freed is known. The pool locks.
#pragma once

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

 private:
  struct place {
    std::uint32_t units = 0;
    bool returned = false;
  };
  static constexpr unsigned places_log2 = 10;

  place& at(std::uint32_t units) noexcept { return places_[units * 0x9e37'79b1U >> (32 - places_log2)]; }

  std::array<place, std::size_t{1} << places_log2> places_{};
};

}  // namespace gpumem
