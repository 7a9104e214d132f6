#include "referee.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace gpumem {
namespace {

address end_of(address at, std::uint64_t bytes) { return bytes > UINT64_MAX - at ? UINT64_MAX : at + bytes; }

}  // namespace

std::string_view to_string(hazard_kind kind) noexcept {
  switch (kind) {
    case hazard_kind::early_reuse:
      return "early_reuse";
    case hazard_kind::overlap:
      return "overlap";
    case hazard_kind::use_after_free:
      return "use_after_free";
  }
  return "unknown hazard";
}

std::string hazard::to_string() const {
  return fmt::format("{} at {} ns: {} bytes at {:#x}, user stream {}, receiver stream {}", gpumem::to_string(kind),
                     at_ns, bytes, at, user.handle, receiver.handle);
}

// --- what the program does -----------------------------------------------------------------------------------

void referee::handed_out(address at, std::uint64_t bytes, stream_ref to, work_point as) {
  if (bytes == 0) return;
  const address end = end_of(at, bytes);
  check_held(at, end, hazard_kind::overlap, to);
  handed_out_.insert_or_assign(at, holding{end, to});
  if (!memory_.accessible(at, end)) report(hazard_kind::use_after_free, at, end, to, to);

  auto it = split(at, end);
  check(it, end, hazard_kind::early_reuse, as.stream, to);
  if (as.stream == sim_streams::no_stream) return;
  if (it == regions_.end() || it->first != at) it = regions_.emplace_hint(it, at, region{});
  it->second.end = end;
  it->second.use = as;
  it->second.more.clear();
  auto last = ++it;
  while (last != regions_.end() && last->first < end) ++last;
  regions_.erase(it, last);
}

void referee::used(address at, std::uint64_t bytes, work_point by) {
  if (bytes == 0) return;
  const address end = end_of(at, bytes);
  if (!memory_.accessible(at, end)) {
    report(hazard_kind::use_after_free, at, end, streams_.handle_of(by.stream), {});
  }
  auto it = split(at, end);
  for (address next = at; next < end; ++it) {
    if (it == regions_.end() || it->first != next) {
      const address gap_end = it == regions_.end() ? end : std::min(end, it->first);
      it = regions_.emplace_hint(it, next, region{gap_end, by, {}});
    } else {
      add_use(it->second, by);
    }
    next = it->second.end;
  }
}

void referee::taken_away(address at, std::uint64_t bytes) {
  const address end = end_of(at, bytes);
  check_held(at, end, hazard_kind::use_after_free, {});
  auto first = split(at, end);
  check(first, end, hazard_kind::use_after_free, sim_streams::no_stream, {});
  auto last = first;
  while (last != regions_.end() && last->first < end) ++last;
  regions_.erase(first, last);
}

// --- regions -------------------------------------------------------------------------------------------------

void referee::split_at(address at) {
  auto it = regions_.lower_bound(at);
  if (it == regions_.begin()) return;
  auto before = std::prev(it);
  if (before->second.end <= at) return;
  region right = before->second;
  before->second.end = at;
  regions_.emplace_hint(it, at, std::move(right));
}

referee::region_map::iterator referee::split(address begin, address end) {
  auto it = regions_.find(begin);
  if (it != regions_.end() && it->second.end == end) return it;
  split_at(begin);
  split_at(end);
  return regions_.lower_bound(begin);
}

void referee::add_use(region& r, work_point by) const {
  const auto comes_first = [&](work_point use) { return streams_.comes_first(use, by.stream); };
  std::erase_if(r.more, comes_first);
  if (comes_first(r.use)) {
    r.use = by;
  } else {
    r.more.push_back(by);
  }
}

// --- checks --------------------------------------------------------------------------------------------------

void referee::check_held(address begin, address end, hazard_kind kind, stream_ref receiver) {
  auto it = handed_out_.lower_bound(begin);
  if (it != handed_out_.begin() && std::prev(it)->second.end > begin) --it;
  while (it != handed_out_.end() && it->first < end) {
    report(kind, std::max(begin, it->first), std::min(end, it->second.end), it->second.holder, receiver);
    it = handed_out_.erase(it);
  }
}

void referee::check_use(const region_map::value_type& r, work_point use, std::uint32_t stream) {
  if (streams_.comes_first(use, stream)) return;
  for (offence& known : offences_) {
    if (known.stream == use.stream) {
      known.end = r.second.end;
      return;
    }
  }
  offences_.push_back({use.stream, r.first, r.second.end});
}

void referee::check(region_map::iterator first, address end, hazard_kind kind, std::uint32_t stream,
                    stream_ref receiver) {
  offences_.clear();
  for (auto it = first; it != regions_.end() && it->first < end; ++it) {
    check_use(*it, it->second.use, stream);
    for (const work_point& use : it->second.more) check_use(*it, use, stream);
  }
  for (const offence& o : offences_) {
    report(kind, o.begin, o.end, streams_.handle_of(o.stream), receiver);
  }
}

void referee::report(hazard_kind kind, address begin, address end, stream_ref user, stream_ref receiver) {
  ++hazard_count_;
  if (hazards_.size() >= kept_hazards) return;
  hazards_.push_back({.kind = kind,
                      .at = begin,
                      .bytes = end - begin,
                      .user = user,
                      .receiver = receiver,
                      .at_ns = streams_.now_ns()});
}

}  // namespace gpumem
