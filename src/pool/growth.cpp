// How a pool takes memory from the device: the policy says how much, the budget whether, the ticket who.
//
// One thread grows at a time and gives up the pool's lock while the driver works; frees go on meanwhile. Whoever
// finds the ticket taken waits until it is returned and then searches again before it grows itself.
#include <fmt/format.h>

#include <algorithm>

#include "bits.hpp"
#include "log.hpp"
#include "pool.hpp"

namespace gpumem {

void pool::open_first(guard& lock, want& w) {
  if (growing_) {
    ticket_returned_.wait(lock, [this] { return !growing_; });
    return;  // whoever had the ticket has opened the pool
  }
  growing_ = true;
  const segment_request ask = policy_->first(view());
  if (ask.bytes != 0) {
    counts_.asked_at_start_bytes = ask.bytes;
    const std::uint64_t got = add_segment(lock, ask, w);
    counts_.got_at_start_bytes = got;
    const std::string line = fmt::format("pool {} ({}): got {} of {} at first use", config_.name, config_.policy_name,
                                         format_bytes(got), format_bytes(ask.bytes));
    if (config_.say)
      config_.say(line);
    else if (got < round_down(ask.bytes, device_.info().granularity_bytes))
      log_line(line);
  }
  opened_ = true;
  return_ticket();
}

status pool::open_ahead() {
  guard lock = enter();
  if (opened_) return {};
  want nobodys;
  open_first(lock, nobodys);
  return std::move(nobodys.driver_error);
}

pool::growth pool::grow(guard& lock, want& w) {
  if (growing_) {
    ticket_returned_.wait(lock, [this] { return !growing_; });
    return growth::waited;
  }
  growing_ = true;
  if (paged()) {
    const growth out = page_in(lock, w);
    return_ticket();
    return out;
  }
  const std::uint64_t need = w.alignment <= block_granularity ? w.bytes : w.bytes + w.alignment;
  const std::uint64_t got = add_segment(lock, policy_->grow(view(), need), w);
  return_ticket();
  return got != 0 ? growth::grew : growth::refused;
}

void pool::return_ticket() {
  growing_ = false;
  ticket_returned_.notify_all();
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
    lock.unlock();
    const result<backed_segment> acquired = acquire_segment(device_, kind, size);
    lock.lock();
    if (acquired.ok()) {
      const segment_index s = heap_.add_segment(acquired->begin, size, w.klass);
      if (s >= backed_.size()) backed_.resize(s + 1);
      backed_[s] = *acquired;
      ++counts_.grown_segments;
      counts_.peak_reserved_bytes = std::max(counts_.peak_reserved_bytes, budget_.reserved());
      policy_->grew(view(), size);
      return size;
    }
    budget_.give_back(size);
    if (acquired.code() != errc::out_of_memory) {
      w.driver_error = acquired.why();
      return 0;
    }
    w.device_refused = true;
    const std::uint64_t next = policy_->smaller(size, *least);
    if (next == 0 || next >= size) return 0;
    size = std::max(round_down(next, unit), *least);
  }
}

}  // namespace gpumem
