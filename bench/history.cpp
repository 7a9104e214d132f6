// Reads the log twice: first for the extremes and the ranges ever used, then for the maps.
#include "history.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "bits.hpp"
#include "gpumem/request.hpp"

namespace gpumem::bench {
namespace {

double share(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

/// Disjoint ranges in order of address. Mapped ranges join their neighbours.
class address_ranges {
 public:
  using ranges = std::map<address, address>;  ///< begin to end

  void add(address begin, address end, bool joins) {
    auto next = ranges_.lower_bound(begin);
    if (joins && next != ranges_.end() && next->first <= end) {
      end = std::max(end, next->second);
      next = ranges_.erase(next);
    }
    if (joins && next != ranges_.begin() && std::prev(next)->second >= begin) {
      std::prev(next)->second = std::max(std::prev(next)->second, end);
      swallow(std::prev(next));
      return;
    }
    swallow(ranges_.insert_or_assign(begin, end).first);
  }

  void remove(address begin, address end) {
    auto at = ranges_.upper_bound(begin);
    if (at != ranges_.begin()) --at;
    while (at != ranges_.end() && at->first < end) {
      const auto [from, to] = *at;
      if (to <= begin) {
        ++at;
        continue;
      }
      at = ranges_.erase(at);
      if (from < begin) ranges_.emplace(from, begin);
      if (to > end) at = ranges_.emplace(end, to).first;
    }
  }

  [[nodiscard]] const ranges& all() const noexcept { return ranges_; }

 private:
  /// Merges the ranges that `grown` covers or touches into it.
  void swallow(ranges::iterator grown) {
    for (auto next = std::next(grown); next != ranges_.end() && next->first < grown->second;) {
      grown->second = std::max(grown->second, next->second);
      next = ranges_.erase(next);
    }
  }
  ranges ranges_;
};

/// The state at one moment.
struct moment {
  std::map<address, std::uint64_t> blocks;
  address_ranges reserved;
  history_point sums;
  std::uint64_t requested_bytes = 0;

  void apply(const memory_event& e) {
    switch (e.what) {
      case memory_change::taken:
      case memory_change::mapped:
        reserved.add(e.at, e.at + e.bytes, e.what == memory_change::mapped);
        sums.reserved_bytes += e.bytes;
        break;
      case memory_change::given_back:
        reserved.remove(e.at, e.at + e.bytes);
        sums.reserved_bytes -= e.bytes;
        break;
      case memory_change::allocated:
        blocks.emplace(e.at, e.bytes);
        sums.live_bytes += e.bytes;
        requested_bytes += e.requested_bytes;
        break;
      case memory_change::freed:
        blocks.erase(e.at);
        sums.live_bytes -= e.bytes;
        requested_bytes -= e.requested_bytes;
        break;
    }
  }
};

/// In every bucket, keeps the points with the extremes of live and of reserved, and the last point.
class extremes {
 public:
  explicit extremes(std::uint64_t ops_a_bucket) : width_{ops_a_bucket} {}

  void add(const history_point& p) {
    if (!kept_.empty() && p.op / width_ != kept_.front().op / width_) flush();
    if (kept_.empty()) {
      kept_.assign(5, p);
      return;
    }
    if (p.live_bytes < kept_[0].live_bytes) kept_[0] = p;
    if (p.live_bytes > kept_[1].live_bytes) kept_[1] = p;
    if (p.reserved_bytes < kept_[2].reserved_bytes) kept_[2] = p;
    if (p.reserved_bytes > kept_[3].reserved_bytes) kept_[3] = p;
    kept_[4] = p;
  }

  std::vector<history_point> points() {
    flush();
    return std::move(points_);
  }

 private:
  void flush() {
    std::stable_sort(kept_.begin(), kept_.end(), [](const auto& a, const auto& b) { return a.op < b.op; });
    std::unique_copy(kept_.begin(), kept_.end(), std::back_inserter(points_));
    kept_.clear();
  }
  std::uint64_t width_;
  std::vector<history_point> kept_;
  std::vector<history_point> points_;
};

/// A contiguous range of address space that was reserved at some time, and its cells.
struct piece {
  address begin = 0;
  address end = 0;
  address shown_end = 0;
  std::uint64_t first_cell = 0;
  std::uint64_t cells = 0;
};

std::vector<piece> pieces_of(const memory_log& log, history& into, std::uint64_t most_cells) {
  address_ranges ever;
  for (const memory_event& e : log.events) {
    if (e.what == memory_change::taken || e.what == memory_change::mapped) ever.add(e.at, e.at + e.bytes, true);
  }
  std::vector<piece> out;
  for (const auto& [begin, end] : ever.all()) out.push_back({.begin = begin, .end = end, .shown_end = begin});
  for (const memory_event& e : log.events) {
    if (e.what != memory_change::allocated) continue;
    const auto behind =
        std::upper_bound(out.begin(), out.end(), e.at, [](address at, const piece& p) { return at < p.begin; });
    if (behind == out.begin()) continue;  // a block outside reserved memory; the replay's own check reports it
    std::prev(behind)->shown_end = std::max(std::prev(behind)->shown_end, e.at + e.bytes);
  }
  std::uint64_t shown = 0;
  for (piece& p : out) {
    const std::uint64_t used = p.shown_end - p.begin;
    p.shown_end = p.end - p.shown_end <= used ? p.end : p.shown_end + used / 8;
    shown += p.shown_end - p.begin;
    into.never_used_bytes += p.end - p.shown_end;
  }
  into.cell_bytes = std::max<std::uint64_t>(round_up(shown / most_cells + 1, block_granularity), block_granularity);
  std::uint64_t cell = 0;
  for (piece& p : out) {
    p.first_cell = cell;
    p.cells = (p.shown_end - p.begin + into.cell_bytes - 1) / into.cell_bytes;
    cell += p.cells;
    into.piece_cells.push_back(p.cells);
  }
  return out;
}

/// Adds the bytes of `[begin, end)` to the cells that contain them.
void spread(const piece& p, address begin, address end, std::uint64_t cell_bytes, std::vector<std::uint64_t>& cells) {
  begin = std::max(begin, p.begin);
  end = std::min(end, p.shown_end);
  while (begin < end) {
    const std::uint64_t cell = (begin - p.begin) / cell_bytes;
    const address cell_end = std::min(end, p.begin + (cell + 1) * cell_bytes);
    cells[p.first_cell + cell] += cell_end - begin;
    begin = cell_end;
  }
}

char letter_of(std::uint64_t live, std::uint64_t reserved) {
  if (reserved == 0) return '.';
  if (live == 0) return 'a';
  if (live >= reserved) return 'i';
  return static_cast<char>('b' + live * 7 / reserved);
}

void count_holes(const moment& now, map_frame& into) {
  auto block = now.blocks.begin();
  for (const auto& [begin, end] : now.reserved.all()) {
    address free_from = begin;
    const auto hole = [&](address until) {
      if (until <= free_from) return;
      ++into.holes;
      into.largest_hole_bytes = std::max(into.largest_hole_bytes, until - free_from);
    };
    for (; block != now.blocks.end() && block->first < end; ++block) {
      hole(block->first);
      free_from = block->first + block->second;
    }
    hole(end);
  }
}

map_frame frame_of(const moment& now, const std::vector<piece>& pieces, std::uint64_t cell_bytes) {
  map_frame out{.op = now.sums.op,
                .live_bytes = now.sums.live_bytes,
                .requested_bytes = now.requested_bytes,
                .reserved_bytes = now.sums.reserved_bytes,
                .cells = {}};
  count_holes(now, out);
  const std::uint64_t cells = pieces.empty() ? 0 : pieces.back().first_cell + pieces.back().cells;
  std::vector<std::uint64_t> live(cells);
  std::vector<std::uint64_t> reserved(cells);
  auto block = now.blocks.begin();
  for (const piece& p : pieces) {
    for (auto r = now.reserved.all().lower_bound(p.begin); r != now.reserved.all().end() && r->first < p.end; ++r) {
      spread(p, r->first, r->second, cell_bytes, reserved);
    }
    for (; block != now.blocks.end() && block->first < p.end; ++block) {
      spread(p, block->first, block->first + block->second, cell_bytes, live);
    }
  }
  for (std::uint64_t i = 0; i < cells; ++i) out.cells += letter_of(live[i], reserved[i]);
  return out;
}

/// Evenly spaced operations, including the first, the last, and the one with the peak of live.
std::vector<std::uint64_t> ops_of_frames(const memory_log& log, std::uint64_t ops, std::uint64_t frames) {
  std::uint64_t live = 0;
  std::uint64_t peak = 0;
  std::vector<std::uint64_t> out{0};
  for (const memory_event& e : log.events) {
    if (e.what == memory_change::freed) live -= e.bytes;
    if (e.what == memory_change::allocated && (live += e.bytes) > peak) {
      peak = live;
      out.front() = e.op;
    }
  }
  for (std::uint64_t i = 0; i < frames; ++i) out.push_back(frames == 1 ? 0 : i * (ops - 1) / (frames - 1));
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

}  // namespace

double map_frame::external_fragmentation() const noexcept {
  return free_bytes() == 0 ? 0 : 1 - share(largest_hole_bytes, free_bytes());
}

double map_frame::internal_fragmentation() const noexcept {
  return live_bytes == 0 ? 0 : 1 - share(requested_bytes, live_bytes);
}

history make_history(const memory_log& log, std::uint64_t ops, const history_shape& shape) {
  history out;
  out.ops = ops;
  if (ops == 0) return out;
  const std::vector<piece> pieces = pieces_of(log, out, shape.cells);
  const std::vector<std::uint64_t> frame_ops = ops_of_frames(log, ops, std::min(shape.frames, ops));
  extremes kept{(ops + shape.buckets - 1) / shape.buckets};
  moment now;
  auto next = log.events.begin();
  for (std::uint64_t op = 0; op < ops; ++op) {
    now.sums.op = op;
    for (; next != log.events.end() && next->op == op; ++next) {
      now.apply(*next);
      kept.add(now.sums);  // also within an operation: memory may be taken before the block is handed out
    }
    kept.add(now.sums);
    if (out.frames.size() < frame_ops.size() && op == frame_ops[out.frames.size()]) {
      out.frames.push_back(frame_of(now, pieces, out.cell_bytes));
    }
  }
  out.points = kept.points();
  return out;
}

std::string run_lengths(const std::string& cells) {
  std::string out;
  for (std::size_t i = 0; i < cells.size();) {
    const std::size_t end = std::min(cells.find_first_not_of(cells[i], i), cells.size());
    fmt::format_to(std::back_inserter(out), "{}{}", cells[i], end - i);
    i = end;
  }
  return out;
}

}  // namespace gpumem::bench
