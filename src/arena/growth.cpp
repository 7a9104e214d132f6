#include "growth.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "bits.hpp"
#include "log.hpp"

namespace gpumem {

void growth::open(arena_lock& lock, pending_request& w) {
  if (in_.gate.taken()) return in_.gate.wait_for_ticket(lock);  // whoever has it opens the pool
  const growth_ticket ticket{in_.gate};
  const segment_request ask = in_.decides.first(in_.view());
  if (ask.bytes == 0) {
    opened_ = true;
    return;
  }
  const std::uint64_t got = add_segment(lock, ask, w);
  opened_ = true;
  in_.counts.asked_at_start_bytes = ask.bytes;
  in_.counts.got_at_start_bytes = got;
  if (in_.config.verbose || got < round_down(ask.bytes, in_.on.info().granularity_bytes)) {
    log_if_possible([&] {
      return fmt::format("pool {} ({}): got {} of {} at first use", in_.config.name, in_.config.policy_name,
                         format_bytes(got), format_bytes(ask.bytes));
    });
  }
  if (got != 0) in_.decides.grew(in_.view(), got);
}

grown growth::grow(arena_lock& lock, pending_request& w) {
  if (in_.gate.taken()) {
    in_.gate.wait_for_ticket(lock);
    return grown::waited;
  }
  const growth_ticket ticket{in_.gate};
  if (in_.paged()) {
    const grown paged_in = pager_.page_in(lock, w);
    if (in_.paged()) return paged_in;  // else the first range was refused
  }
  const std::uint64_t need = w.alignment <= block_granularity ? w.bytes : w.bytes + w.alignment;
  const std::uint64_t got = add_segment(lock, in_.decides.grow(in_.view(), need), w);
  if (got == 0) return grown::refused;
  in_.decides.grew(in_.view(), got);
  return grown::grew;
}

// Bytes of the new segment, 0 where the limit or the device refused; `w` notes which. Requires the ticket.
std::uint64_t growth::add_segment(arena_lock& lock, const segment_request& ask, pending_request& w) {
  const std::uint64_t unit = in_.on.info().granularity_bytes;
  const std::optional<std::uint64_t> least = checked_round_up(std::max<std::uint64_t>(ask.least_bytes, 1), unit);
  std::uint64_t size = ask.bytes;
  for (;;) {
    const std::uint64_t left = round_down(in_.cap.left(), unit);
    if (!least || *least > left) {
      w.limit_refused = true;
      return 0;
    }
    size = std::clamp(round_up(std::min(size, left), unit), *least, left);
    if (!in_.cap.reserve(size)) continue;  // the limit was lowered in between
    reservation reserved{in_.cap, size};
    const result<address> acquired = in_.with_room_for_segment(lock, [&] { return in_.on.alloc(size); });
    if (acquired.ok()) {
      reserved.keep(size);
      in_.blocks.add_segment(*acquired, size, w.klass);
      ++in_.counts.grown_segments;
      in_.count_taken(size);
      return size;
    }
    if (acquired.code() != errc::out_of_memory) {
      w.driver_error = acquired.why();
      return 0;
    }
    w.device_refused = true;
    const std::uint64_t next = in_.decides.smaller(size, *least);
    if (next == 0 || next >= size) return 0;
    size = std::max(round_down(next, unit), *least);
  }
}

}  // namespace gpumem
