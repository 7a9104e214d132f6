// How much threads' caches may keep: nothing of large blocks while the program grows or is short, a share of what is
// free once it is calm. The rules and where their constants come from are in retention.cpp. The pool's lock guards it.
#pragma once

#include <cstdint>

#include "arena_below.hpp"

namespace gpumem {

class retention {
 public:
  /// Of a paged arena, a larger block (in units of 512 B) is kept only of a pair that repeats.
  static constexpr std::uint32_t most_units_of_paged = 64;

  /// A request that no cache served, of so many bytes; `peak_live` bytes were live at most so far.
  void served_below(std::uint64_t bytes, std::uint64_t peak_live) noexcept;
  /// A request for which caches had to be emptied: the count to calm begins anew.
  void pressure() noexcept;
  /// True where large blocks may be kept.
  [[nodiscard]] bool calm() const noexcept { return calm_; }

  /// Bytes that one thread may keep of blocks of that size, where `cached` bytes are in caches and `peak_live` were
  /// live at most.
  [[nodiscard]] std::uint64_t may_keep(std::uint64_t bytes, const class_room& room, std::uint64_t cached,
                                       std::uint64_t peak_live) const noexcept;

 private:
  bool calm_ = false;
  std::uint64_t peak_ = 0;      ///< of live bytes, as it was when the count began anew
  std::uint64_t requests_ = 0;  ///< since then
  std::uint64_t bytes_ = 0;     ///< asked for since then
};

}  // namespace gpumem
