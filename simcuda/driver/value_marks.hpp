// Records which bytes of the cards' memory have the values that a real card would compute.
//
// Kernels do nothing here, but the small operations of some programs are computed on the host (simcuda/values), and
// copies and fills move bytes. A mark says whether a byte is true (a card would have the same value), and whether it
// must read as zero although memory holds another value: the result of an operation that was not computed. Those zeros
// are written only when the bytes are read, so that large blocks are never touched. Marks affect only warnings and the
// text of a verdict. Bytes without a mark are untrue and read unchanged.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>

namespace gpumem::simcuda {

struct value_mark {
  bool computed = false;  ///< the value is true
  bool zero_due = false;  ///< the value is zero, but memory does not hold it yet
};

class value_marks {
 public:
  void set(std::uint64_t begin, std::uint64_t bytes, value_mark mark);
  void erase(std::uint64_t begin, std::uint64_t bytes);
  /// Copies the marks of `src` to `dst`; both ranges have `bytes` bytes.
  void copy(std::uint64_t dst, std::uint64_t src, std::uint64_t bytes);
  /// Makes every byte untrue, because a kernel may have written anywhere. Keeps bytes and due zeros.
  void doubt_all();
  /// Whether every byte is true; yes for an empty range.
  [[nodiscard]] bool all_computed(std::uint64_t begin, std::uint64_t bytes) const;
  /// Whether every byte reads as zero, whatever memory holds.
  [[nodiscard]] bool all_zero_due(std::uint64_t begin, std::uint64_t bytes) const;
  /// Writes the due zeros of the range into memory. Returns whether every byte is true.
  bool write_zeros(std::uint64_t begin, std::uint64_t bytes);
  /// Returns the number of ranges with a mark.
  [[nodiscard]] std::size_t ranges() const;

 private:
  struct range {
    std::uint64_t end = 0;
    bool zero_due = false;
    std::uint64_t epoch = 0;  ///< true if at least `epoch_`; 0: never
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
