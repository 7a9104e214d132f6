// What stands behind a segment: one driver allocation (`plain`), or an address range with pages mapped (`mapped`).
//
// Makes driver calls that can block, so it is called without a lock. Either all of a segment is acquired or nothing.
#pragma once

#include "gpumem/device.hpp"
#include "gpumem/policy.hpp"

namespace gpumem {

struct backed_segment {
  address begin = 0;
  std::uint64_t bytes = 0;
  segment_kind kind = segment_kind::plain;
  page_run pages;  ///< of a mapped one; what is mapped in a paged one is in the pool's page_map
};

/// `bytes` is a multiple of the device's granularity, and of its page for a mapped segment.
result<backed_segment> acquire_segment(device& on, segment_kind kind, std::uint64_t bytes);

/// Requires that nothing in flight uses it, and of a paged one that nothing is mapped in it any more. On an error the
/// memory is lost to this process, not half returned.
status return_segment(device& on, const backed_segment& segment);

}  // namespace gpumem
