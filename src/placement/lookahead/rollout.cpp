#include "rollout.hpp"

#include <algorithm>
#include <limits>

#include "bits.hpp"

namespace gpumem {
namespace {

/// What one step later is worth of what moves now: thirty steps later, a fifth.
constexpr double each_later_step = 0.95;

}  // namespace

page_sketch::page_sketch(const heap& in, unsigned klass, const std::vector<bool>& serves, std::uint64_t page_bytes,
                         std::size_t most_extents)
    : page_{page_bytes} {
  std::vector<const heap_segment*> segments;
  for (const heap_segment& s : in.segments()) {
    if (s.bytes != 0 && s.klass == klass) segments.push_back(&s);
  }
  std::sort(segments.begin(), segments.end(),
            [](const heap_segment* a, const heap_segment* b) { return a->begin < b->begin; });
  for (const heap_segment* s : segments) {
    extents_.push_back({s->begin, s->begin, state::wall});
    for (block_index i = s->first; i != no_block && extents_.size() <= most_extents; i = in.at(i).above) {
      const block& b = in.at(i);
      const bool free = b.state == block_state::free && b.owner < serves.size() && serves[b.owner];
      const state is = b.state == block_state::unbacked ? state::unbacked : free ? state::free : state::used;
      if (extents_.back().is == is) {
        extents_.back().end = b.begin + b.bytes;
      } else {
        extents_.push_back({b.begin, b.begin + b.bytes, is});
      }
    }
  }
}

// The extent that holds the position.
std::size_t page_sketch::index_of(std::uint64_t position) const noexcept {
  const auto above = std::upper_bound(extents_.begin(), extents_.end(), position,
                                      [](std::uint64_t p, const extent& e) { return p < e.end; });
  return static_cast<std::size_t>(above - extents_.begin());
}

void page_sketch::set(std::uint64_t begin, std::uint64_t end, state to) {
  if (begin >= end) return;
  ++looked_at_;
  std::size_t first = index_of(begin);
  std::size_t last = index_of(end - 1) + 1;
  extent made[3];
  std::size_t count = 0;
  if (extents_[first].begin < begin) made[count++] = {extents_[first].begin, begin, extents_[first].is};
  made[count++] = {begin, end, to};
  if (extents_[last - 1].end > end) made[count++] = {end, extents_[last - 1].end, extents_[last - 1].is};
  // With neighbours of the same state they are one.
  const auto joins = [](const extent& low, const extent& high) { return low.is == high.is && low.end == high.begin; };
  for (std::size_t k = 1; k < count;) {
    if (!joins(made[k - 1], made[k])) {
      ++k;
      continue;
    }
    made[k - 1].end = made[k].end;
    std::copy(made + k + 1, made + count, made + k);
    --count;
  }
  if (joins(extents_[first - 1], made[0])) made[0].begin = extents_[--first].begin;
  if (last < extents_.size() && joins(made[count - 1], extents_[last])) made[count - 1].end = extents_[last++].end;
  const std::size_t same = std::min(count, last - first);
  const auto at = extents_.begin() + static_cast<std::ptrdiff_t>(first);
  std::copy(made, made + same, at);
  if (count > same) {
    extents_.insert(at + static_cast<std::ptrdiff_t>(same), made + same, made + count);
  } else {
    extents_.erase(at + static_cast<std::ptrdiff_t>(same), extents_.begin() + static_cast<std::ptrdiff_t>(last));
  }
}

bool page_sketch::open(std::uint64_t begin, std::uint64_t bytes) const noexcept {
  std::size_t k = index_of(begin);
  if (k == extents_.size() || begin < extents_[k].begin) return false;
  for (; k < extents_.size() && extents_[k].begin < begin + bytes; ++k) {
    if (extents_[k].is != state::free && extents_[k].is != state::unbacked) return false;
  }
  return extents_[k - 1].end >= begin + bytes;
}

std::uint64_t page_sketch::missing(std::uint64_t begin, std::uint64_t bytes) const noexcept {
  const std::uint64_t low = round_down(begin, page_);
  const std::uint64_t high = round_up(begin + bytes, page_);
  std::uint64_t sum = 0;
  for (std::size_t k = index_of(low); k < extents_.size() && extents_[k].begin < high; ++k, ++looked_at_) {
    const extent& e = extents_[k];
    if (e.is == state::unbacked) sum += std::min(e.end, high) - std::max(e.begin, low);
  }
  return sum;
}

std::vector<std::uint64_t> page_sketch::places(std::uint64_t bytes) const {
  std::vector<std::uint64_t> begins;
  looked_at_ += 4 * extents_.size();
  for (std::size_t k = 0; k < extents_.size();) {
    const auto open = [](const extent& e) { return e.is == state::free || e.is == state::unbacked; };
    if (!open(extents_[k])) {
      ++k;
      continue;
    }
    const std::size_t first = k;
    while (k < extents_.size() && open(extents_[k])) ++k;
    const std::uint64_t low = extents_[first].begin;
    const std::uint64_t high = extents_[k - 1].end;
    if (high - low < bytes) continue;
    begins.push_back(low);
    if (k < extents_.size() && extents_[k].is == state::used) begins.push_back(high - bytes);
    for (std::size_t f = first; f < k; ++f) {
      if (extents_[f].is != state::free) continue;
      if (high - extents_[f].begin >= bytes) begins.push_back(extents_[f].begin);
      if (extents_[f].end - low >= bytes) begins.push_back(extents_[f].end - bytes);
    }
  }
  std::sort(begins.begin(), begins.end());
  begins.erase(std::unique(begins.begin(), begins.end()), begins.end());
  return begins;
}

std::optional<std::uint64_t> page_sketch::usual_place(std::uint64_t bytes) const {
  std::optional<std::uint64_t> lowest;
  looked_at_ += extents_.size();
  for (const extent& e : extents_) {
    if (e.is != state::free || e.end - e.begin < bytes) continue;
    if (e.end - e.begin == bytes) return e.begin;
    if (!lowest) lowest = e.begin;
  }
  if (lowest) return lowest;
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  for (const std::uint64_t begin : places(bytes)) {
    if (const std::uint64_t lacks = missing(begin, bytes); lacks < least) {
      least = lacks;
      lowest = begin;
    }
  }
  return lowest;
}

// So many bytes of idle pages become unbacked, the shortest stretches first, as far as there are any outside what is
// kept.
std::uint64_t page_sketch::move_away(std::uint64_t bytes, std::uint64_t keep, std::uint64_t keep_end) {
  struct stretch {
    std::uint64_t bytes;
    std::uint64_t begin;
    bool operator<(const stretch& o) const noexcept { return bytes != o.bytes ? bytes < o.bytes : begin < o.begin; }
  };
  std::vector<stretch> idle;
  const auto add = [&](std::uint64_t low, std::uint64_t high) {
    low = round_up(low, page_);
    high = round_down(high, page_);
    if (low < high) idle.push_back({high - low, low});
  };
  for (const extent& e : extents_) {
    if (e.is != state::free) continue;
    add(e.begin, std::min(e.end, keep));
    add(std::max(e.begin, keep_end), e.end);
  }
  std::sort(idle.begin(), idle.end());
  looked_at_ += extents_.size() + 4 * idle.size();
  std::uint64_t moved = 0;
  for (const stretch& s : idle) {
    if (moved == bytes) break;
    const std::uint64_t now = std::min(s.bytes, bytes - moved);
    set(s.begin, s.begin + now, state::unbacked);
    moved += now;
  }
  return moved;
}

std::uint64_t page_sketch::place(std::uint64_t begin, std::uint64_t bytes, page_supply* supply, const may_make& make) {
  std::uint64_t moved = 0;
  if (const std::uint64_t lacks = missing(begin, bytes); lacks != 0) {
    const std::uint64_t low = round_down(begin, page_);
    const std::uint64_t high = round_up(begin + bytes, page_);
    const std::uint64_t fresh = std::min(lacks, make(*supply, bytes, lacks));
    moved = lacks - fresh;
    supply->reserved_bytes += lacks - move_away(moved, low, high);
    // What the pages hold beside the request is free now.
    for (std::size_t k = index_of(low); k < extents_.size() && extents_[k].begin < high; ++k) {
      const extent e = extents_[k];
      if (e.is != state::unbacked) continue;
      set(std::max(e.begin, low), std::min(e.end, high), state::free);
      k = index_of(std::min(e.end, high) - 1);
    }
  }
  set(begin, begin + bytes, state::used);
  supply->live_bytes += bytes;
  supply->peak_live_bytes = std::max(supply->peak_live_bytes, supply->live_bytes);
  return moved;
}

void page_sketch::free(std::uint64_t begin, std::uint64_t bytes, page_supply* supply) {
  const std::size_t k = index_of(begin);
  if (k == extents_.size() || begin < extents_[k].begin) return;  // of another class
  set(begin, begin + bytes, state::free);
  supply->live_bytes -= std::min(bytes, supply->live_bytes);
}

namespace {

/// How the requests that are expected are placed.
enum class strategy : std::uint8_t { usual, where_it_lay };

std::optional<std::uint64_t> place_of(const page_sketch& on, const expected_step& step, strategy how) {
  if (how == strategy::where_it_lay) {
    for (const std::uint64_t begin : step.lay) {
      if (begin != 0 && on.open(begin, step.bytes) && on.missing(begin, step.bytes) == 0) return begin;
    }
  }
  return on.usual_place(step.bytes);
}

/// Where every simulation begins, and what all of them may cost.
struct rollout {
  const page_sketch& now;
  std::uint64_t bytes;
  const std::vector<expected_step>& expected;
  const page_supply& supply;
  const may_make& make;
  std::uint64_t looks_left;
};

// What moves with the request placed there and all that is expected after it; not much more than `most` where it is
// more, and `most` where it would take too long to tell.
double simulate(rollout* s, std::uint64_t begin, strategy how, double most) {
  struct placed {
    std::uint64_t begin = 0;
    std::uint64_t bytes = 0;
  };
  page_sketch on = s->now;
  page_supply supply = s->supply;
  std::vector<placed> where(s->expected.size());
  auto moved = static_cast<double>(on.place(begin, s->bytes, &supply, s->make));
  double worth = 1;
  for (std::size_t k = 0; k < s->expected.size() && moved < most; ++k) {
    if (on.looked_at() - s->now.looked_at() > s->looks_left) {
      s->looks_left = 0;
      return most;
    }
    const expected_step& step = s->expected[k];
    worth *= each_later_step;
    switch (step.is) {
      case expected_step::kind::nothing:
        break;
      case expected_step::kind::request:
        if (const std::optional<std::uint64_t> at = place_of(on, step, how)) {
          moved += worth * static_cast<double>(on.place(*at, step.bytes, &supply, s->make));
          where[k] = {*at, step.bytes};
        }
        break;
      case expected_step::kind::free_expected:
        on.free(where[step.step].begin, where[step.step].bytes, &supply);
        where[step.step] = {};
        break;
      case expected_step::kind::free_requested:
        on.free(begin, s->bytes, &supply);
        break;
      case expected_step::kind::free_live:
        on.free(step.begin, step.bytes, &supply);
        break;
    }
  }
  s->looks_left -= std::min(s->looks_left, on.looked_at() - s->now.looked_at());
  return moved;
}

// The cheaper of both strategies.
double cheapest_rollout(rollout* s, std::uint64_t begin, double most) {
  const double usual = simulate(s, begin, strategy::usual, most);
  if (usual == 0) return 0;
  return std::min(usual, simulate(s, begin, strategy::where_it_lay, std::min(usual, most)));
}

}  // namespace

std::optional<std::uint64_t> better_place(const page_sketch& now, const std::vector<std::uint64_t>& places,
                                          std::uint64_t usual, std::uint64_t bytes,
                                          const std::vector<expected_step>& expected, const page_supply& supply,
                                          const may_make& make, std::uint64_t most_looks) {
  rollout s{.now = now, .bytes = bytes, .expected = expected, .supply = supply, .make = make, .looks_left = most_looks};
  double least = cheapest_rollout(&s, usual, std::numeric_limits<double>::infinity());
  std::optional<std::uint64_t> best;
  for (const std::uint64_t begin : places) {
    if (least == 0 || s.looks_left == 0) break;
    // Even what may be made new is not worth having where the usual place lets less than that move.
    if (begin == usual || static_cast<double>(now.missing(begin, bytes)) >= least) continue;
    const double moved = cheapest_rollout(&s, begin, least);
    if (moved >= least) continue;
    least = moved;
    best = begin;
  }
  return best;
}

}  // namespace gpumem
