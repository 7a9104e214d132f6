// What stands behind a segment: one driver allocation (`plain`), or an address range with pages mapped (`mapped`).
//
// Makes driver calls that can block, so it is called without a lock. Either all of a segment is acquired or nothing.
#pragma once

#include <utility>
#include <vector>

#include "block.hpp"
#include "gpumem/device.hpp"
#include "gpumem/policy.hpp"

namespace gpumem {

struct backed_segment {
  address begin = 0;
  std::uint64_t bytes = 0;  ///< 0: no segment
  segment_kind kind = segment_kind::plain;
  page_run pages;  ///< of a mapped one; what is mapped in a paged one is in paged_backing
};

/// `bytes` is a multiple of the device's granularity, and of its page for a mapped segment.
result<backed_segment> acquire_segment(device& on, segment_kind kind, std::uint64_t bytes);

/// Requires that nothing in flight uses it, and of a paged one that nothing is mapped in it any more. On an error the
/// memory is lost to this process, not half returned.
status return_segment(device& on, const backed_segment& segment);

/// What stands behind each segment of a heap. The arena's lock guards it.
class backed_segments {
 public:
  /// The next `note` throws nothing. Throws std::bad_alloc.
  void make_room() {
    if (table_.size() == table_.capacity()) table_.reserve(2 * table_.size() + 1);
  }
  /// Requires room where `s` was never noted.
  void note(segment_index s, const backed_segment& behind) noexcept {
    if (s >= table_.size()) table_.resize(s + 1);
    table_[s] = behind;
  }
  /// On its way to the driver: lost until it is `returned`.
  [[nodiscard]] backed_segment take(segment_index s) noexcept {
    lost_bytes_ += table_[s].bytes;
    return std::exchange(table_[s], {});
  }
  void returned(const backed_segment& gone) noexcept { lost_bytes_ -= gone.bytes; }

  [[nodiscard]] const backed_segment& operator[](segment_index s) const noexcept { return table_[s]; }
  [[nodiscard]] const std::vector<backed_segment>& all() const noexcept { return table_; }
  [[nodiscard]] std::uint64_t lost_bytes() const noexcept { return lost_bytes_; }
  [[nodiscard]] std::uint64_t metadata_bytes() const noexcept { return table_.capacity() * sizeof(backed_segment); }

 private:
  std::vector<backed_segment> table_;  // by segment_index
  std::uint64_t lost_bytes_ = 0;
};

}  // namespace gpumem
