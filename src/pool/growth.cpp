// How a pool takes memory from the device: the policy says how much, the budget whether, the ticket who.
//
// One thread grows at a time and gives up the pool's lock while the driver works; frees go on meanwhile. Whoever
// finds the ticket taken waits until it is returned and then searches again before it grows itself. All host memory
// that a new segment needs is taken before the driver is asked, so that what the driver gave is never without a record.
#include <fmt/format.h>

#include <algorithm>

#include "bits.hpp"
#include "log.hpp"
#include "pool.hpp"
#include "without_exceptions.hpp"

namespace gpumem {

void pool::open_first(guard& lock, want& w) {
  if (growth_.taken()) return growth_.wait_for_ticket(lock);  // whoever has it opens the pool
  const growth_ticket ticket{growth_};
  const segment_request ask = policy_.first(view());
  if (ask.bytes == 0) {
    opened_ = true;
    return;
  }
  const std::uint64_t got = add_segment(lock, ask, w);
  opened_ = true;
  counts_.asked_at_start_bytes = ask.bytes;
  counts_.got_at_start_bytes = got;
  if (config_.verbose || got < round_down(ask.bytes, device_.info().granularity_bytes)) {
    log_if_possible([&] {
      return fmt::format("pool {} ({}): got {} of {} at first use", config_.name, config_.policy_name,
                         format_bytes(got), format_bytes(ask.bytes));
    });
  }
  if (got != 0) policy_.grew(view(), got);
}

status pool::open_ahead() {
  guard lock{mutex_};
  ++counts_.locks;
  if (opened_) return {};
  want nobodys;
  open_first(lock, nobodys);
  return std::move(nobodys.driver_error);
}

pool::growth pool::grow(guard& lock, want& w) {
  if (growth_.taken()) {
    growth_.wait_for_ticket(lock);
    return growth::waited;
  }
  const growth_ticket ticket{growth_};
  if (paged()) {
    const growth paged_in = page_in(lock, w);
    if (paged()) return paged_in;
  }
  const std::uint64_t need = w.alignment <= block_granularity ? w.bytes : w.bytes + w.alignment;
  const std::uint64_t got = add_segment(lock, policy_.grow(view(), need), w);
  if (got == 0) return growth::refused;
  policy_.grew(view(), got);
  return growth::grew;
}

// Bytes of the new segment, 0 where the limit or the device refused; `w` notes which. Requires the ticket.
std::uint64_t pool::add_segment(guard& lock, const segment_request& ask, want& w) {
  const device_info& info = device_.info();
  const segment_kind kind = info.page_bytes == 0 ? segment_kind::plain : ask.kind;
  const std::uint64_t unit =
      kind == segment_kind::plain ? info.granularity_bytes : std::max(info.page_bytes, info.granularity_bytes);
  const std::optional<std::uint64_t> least = checked_round_up(std::max<std::uint64_t>(ask.least_bytes, 1), unit);
  std::uint64_t size = ask.bytes;
  for (;;) {
    const std::uint64_t left = round_down(budget_.left(), unit);
    if (!least || *least > left) {
      w.limit_refused = true;
      return 0;
    }
    size = std::clamp(round_up(std::min(size, left), unit), *least, left);
    if (!budget_.reserve(size)) continue;  // the limit was lowered in between
    reservation reserved{budget_, size};
    const result<backed_segment> acquired =
        with_room_for_segment(lock, [&] { return acquire_segment(device_, kind, size); });
    if (acquired.ok()) {
      reserved.settle(size);
      const segment_index s = heap_.add_segment(acquired->begin, size, w.klass);
      note_backing(s, *acquired);
      counts_.taken_bytes += size;
      counts_.peak_reserved_bytes = std::max(counts_.peak_reserved_bytes, budget_.reserved());
      return size;
    }
    if (acquired.code() != errc::out_of_memory) {
      w.driver_error = acquired.why();
      return 0;
    }
    w.device_refused = true;
    const std::uint64_t next = policy_.smaller(size, *least);
    if (next == 0 || next >= size) return 0;
    size = std::max(round_down(next, unit), *least);
  }
}

void pool::make_room_for_backing() {
  heap_.make_room_for_segment();
  heap_.make_room_for_blocks(1);
  if (backed_.size() == heap_.segments().size()) make_room(backed_);
}

// Requires room for it.
void pool::note_backing(segment_index s, const backed_segment& behind) noexcept {
  if (s >= backed_.size()) backed_.resize(s + 1);
  backed_[s] = behind;
  ++counts_.grown_segments;
}

}  // namespace gpumem
