// Which bytes of the cards' memory have values that a card would have, too.
//
// Kernels do nothing here, but some programs' small operations are computed on the host (simcuda/values), and copies
// and fills move bytes. A mark says of a byte whether its value is true, and whether it reads as zero although its
// memory holds something else: what an operation that was not computed would have written. Those zeros are written when
// the bytes are read, so that large blocks are never touched. Marks decide warnings and the words of a verdict, and
// nothing else. Bytes without a mark are untrue, and read as they are.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>

namespace gpumem::simcuda {

struct value_mark {
  bool computed = false;  ///< the value is true
  bool zero_due = false;  ///< the value is zero, and the memory does not hold it yet
};

class value_marks {
 public:
  void set(std::uint64_t begin, std::uint64_t bytes, value_mark mark);
  void erase(std::uint64_t begin, std::uint64_t bytes);
  /// The marks of `src` become those of `dst`; both are `bytes` long.
  void copy(std::uint64_t dst, std::uint64_t src, std::uint64_t bytes);
  /// Something may have written anywhere: nothing is true any more. Bytes and zeros that are due stay.
  void doubt_all();
  /// Every byte is true. An empty range is.
  [[nodiscard]] bool all_computed(std::uint64_t begin, std::uint64_t bytes) const;
  /// Every byte is zero, whatever memory holds.
  [[nodiscard]] bool all_zero_due(std::uint64_t begin, std::uint64_t bytes) const;
  /// Writes the zeros that are due in the range into memory. Returns whether every byte is true.
  bool write_zeros(std::uint64_t begin, std::uint64_t bytes);
  /// Ranges with a mark.
  [[nodiscard]] std::size_t ranges() const;

 private:
  struct range {
    std::uint64_t end = 0;
    bool zero_due = false;
    std::uint64_t epoch = 0;  ///< true where it is `epoch_` or later; 0: never
  };
  using ranges_by_begin = std::map<std::uint64_t, range>;

  void set_locked(std::uint64_t begin, std::uint64_t end, range value);
  void erase_locked(std::uint64_t begin, std::uint64_t end);
  [[nodiscard]] ranges_by_begin::const_iterator first_behind(std::uint64_t address) const;
  template <typename Holds>
  [[nodiscard]] bool all(std::uint64_t begin, std::uint64_t bytes, Holds&& holds) const;

  mutable std::mutex mutex_;
  ranges_by_begin ranges_;
  std::uint64_t epoch_ = 1;
};

value_marks& the_value_marks();

}  // namespace gpumem::simcuda
