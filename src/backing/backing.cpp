#include "backing.hpp"

namespace gpumem {
namespace {

result<backed_segment> acquire_mapped(device& on, std::uint64_t bytes) {
  result<address> range = on.reserve(bytes);
  if (!range) return range.why();
  backed_segment segment{.begin = *range, .bytes = bytes, .kind = segment_kind::mapped, .pages = {}};
  result<page_run> pages = on.create(bytes);
  status failed = pages.why();
  if (pages.ok()) {
    segment.pages = *pages;
    failed = on.map(segment.begin, bytes, segment.pages);
    if (failed.ok()) {
      failed = on.set_access(segment.begin, bytes);
      if (failed.ok()) return segment;
      static_cast<void>(on.unmap(segment.begin, bytes));  // the first error is the one to report
    }
    static_cast<void>(on.destroy(segment.pages));
  }
  static_cast<void>(on.release_range(segment.begin, bytes));
  return failed;
}

}  // namespace

result<backed_segment> acquire_segment(device& on, segment_kind kind, std::uint64_t bytes) {
  if (kind != segment_kind::plain) return acquire_mapped(on, bytes);
  result<address> begin = on.alloc(bytes);
  if (!begin) return begin.why();
  return backed_segment{.begin = *begin, .bytes = bytes, .kind = kind, .pages = {}};
}

status return_segment(device& on, const backed_segment& segment) {
  if (segment.kind == segment_kind::plain) return on.free(segment.begin);
  if (segment.kind == segment_kind::paged) return on.release_range(segment.begin, segment.bytes);
  if (status ok = on.unmap(segment.begin, segment.bytes); !ok) return ok;
  if (status ok = on.destroy(segment.pages); !ok) return ok;
  return on.release_range(segment.begin, segment.bytes);
}

}  // namespace gpumem
