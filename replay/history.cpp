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
    auto entry = ranges_.upper_bound(begin);
    if (entry != ranges_.begin()) --entry;
    while (entry != ranges_.end() && entry->first < end) {
      const auto [from, to] = *entry;
      if (to <= begin) {
        ++entry;
        continue;
      }
      entry = ranges_.erase(entry);
      if (from < begin) ranges_.emplace(from, begin);
      if (to > end) entry = ranges_.emplace(end, to).first;
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

  void apply(const memory_event& event) {
    switch (event.change) {
      case memory_change::taken:
      case memory_change::mapped:
        reserved.add(event.begin, event.begin + event.bytes, event.change == memory_change::mapped);
        sums.reserved_bytes += event.bytes;
        break;
      case memory_change::given_back:
        reserved.remove(event.begin, event.begin + event.bytes);
        sums.reserved_bytes -= event.bytes;
        break;
      case memory_change::allocated:
        blocks.emplace(event.begin, event.bytes);
        sums.live_bytes += event.bytes;
        requested_bytes += event.requested_bytes;
        break;
      case memory_change::freed:
        blocks.erase(event.begin);
        sums.live_bytes -= event.bytes;
        requested_bytes -= event.requested_bytes;
        break;
    }
  }
};

/// In every bucket, keeps the points with the extremes of live and of reserved, and the last point.
class extremes {
 public:
  explicit extremes(std::uint64_t ops_a_bucket) : width_{ops_a_bucket} {}

  void add(const history_point& point) {
    if (!kept_.empty() && point.op / width_ != kept_.front().op / width_) flush();
    if (kept_.empty()) {
      kept_.assign(5, point);
      return;
    }
    if (point.live_bytes < kept_[0].live_bytes) kept_[0] = point;
    if (point.live_bytes > kept_[1].live_bytes) kept_[1] = point;
    if (point.reserved_bytes < kept_[2].reserved_bytes) kept_[2] = point;
    if (point.reserved_bytes > kept_[3].reserved_bytes) kept_[3] = point;
    kept_[4] = point;
  }

  std::vector<history_point> points() {
    flush();
    return std::move(points_);
  }

 private:
  void flush() {
    std::stable_sort(kept_.begin(), kept_.end(), [](const auto& lhs, const auto& rhs) { return lhs.op < rhs.op; });
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

std::vector<piece> pieces_of(const memory_log& log, history& target, std::uint64_t most_cells) {
  address_ranges ever;
  for (const memory_event& e : log.events) {
    if (e.change == memory_change::taken || e.change == memory_change::mapped)
      ever.add(e.begin, e.begin + e.bytes, true);
  }
  std::vector<piece> pieces;
  for (const auto& [begin, end] : ever.all()) pieces.push_back({.begin = begin, .end = end, .shown_end = begin});
  for (const memory_event& e : log.events) {
    if (e.change != memory_change::allocated) continue;
    const auto following =
        std::upper_bound(pieces.begin(), pieces.end(), e.begin,
                         [](address position, const piece& candidate) { return position < candidate.begin; });
    if (following == pieces.begin()) continue;  // a block outside reserved memory; the replay's own check reports it
    std::prev(following)->shown_end = std::max(std::prev(following)->shown_end, e.begin + e.bytes);
  }
  std::uint64_t shown = 0;
  for (piece& p : pieces) {
    const std::uint64_t used = p.shown_end - p.begin;
    p.shown_end = p.end - p.shown_end <= used ? p.end : p.shown_end + used / 8;
    shown += p.shown_end - p.begin;
    target.never_used_bytes += p.end - p.shown_end;
  }
  target.cell_bytes = std::max<std::uint64_t>(round_up(shown / most_cells + 1, block_granularity), block_granularity);
  std::uint64_t cell = 0;
  for (piece& p : pieces) {
    p.first_cell = cell;
    p.cells = (p.shown_end - p.begin + target.cell_bytes - 1) / target.cell_bytes;
    cell += p.cells;
    target.piece_cells.push_back(p.cells);
  }
  return pieces;
}

/// Adds the bytes of `[begin, end)` to the cells that contain them.
void spread(const piece& target, address begin, address end, std::uint64_t cell_bytes,
            std::vector<std::uint64_t>& cells) {
  begin = std::max(begin, target.begin);
  end = std::min(end, target.shown_end);
  while (begin < end) {
    const std::uint64_t cell = (begin - target.begin) / cell_bytes;
    const address cell_end = std::min(end, target.begin + (cell + 1) * cell_bytes);
    cells[target.first_cell + cell] += cell_end - begin;
    begin = cell_end;
  }
}

char letter_of(std::uint64_t live, std::uint64_t reserved) {
  if (reserved == 0) return '.';
  if (live == 0) return 'a';
  if (live >= reserved) return 'i';
  return static_cast<char>('b' + live * 7 / reserved);
}

void count_holes(const moment& state, map_frame& frame) {
  auto block = state.blocks.begin();
  for (const auto& [begin, end] : state.reserved.all()) {
    address free_from = begin;
    const auto hole = [&](address until) {
      if (until <= free_from) return;
      ++frame.holes;
      frame.largest_hole_bytes = std::max(frame.largest_hole_bytes, until - free_from);
    };
    for (; block != state.blocks.end() && block->first < end; ++block) {
      hole(block->first);
      free_from = block->first + block->second;
    }
    hole(end);
  }
}

map_frame frame_of(const moment& state, const std::vector<piece>& pieces, std::uint64_t cell_bytes) {
  map_frame frame{.op = state.sums.op,
                  .live_bytes = state.sums.live_bytes,
                  .requested_bytes = state.requested_bytes,
                  .reserved_bytes = state.sums.reserved_bytes,
                  .cells = {}};
  count_holes(state, frame);
  const std::uint64_t cells = pieces.empty() ? 0 : pieces.back().first_cell + pieces.back().cells;
  std::vector<std::uint64_t> live(cells);
  std::vector<std::uint64_t> reserved(cells);
  auto block = state.blocks.begin();
  for (const piece& p : pieces) {
    for (auto r = state.reserved.all().lower_bound(p.begin); r != state.reserved.all().end() && r->first < p.end; ++r) {
      spread(p, r->first, r->second, cell_bytes, reserved);
    }
    for (; block != state.blocks.end() && block->first < p.end; ++block) {
      spread(p, block->first, block->first + block->second, cell_bytes, live);
    }
  }
  for (std::uint64_t i = 0; i < cells; ++i) frame.cells += letter_of(live[i], reserved[i]);
  return frame;
}

/// Evenly spaced operations, including the first, the last, and the one with the peak of live.
std::vector<std::uint64_t> ops_of_frames(const memory_log& log, std::uint64_t ops, std::uint64_t frames) {
  std::uint64_t live = 0;
  std::uint64_t peak = 0;
  std::vector<std::uint64_t> frame_ops{0};
  for (const memory_event& e : log.events) {
    if (e.change == memory_change::freed) live -= e.bytes;
    if (e.change == memory_change::allocated && (live += e.bytes) > peak) {
      peak = live;
      frame_ops.front() = e.op;
    }
  }
  for (std::uint64_t i = 0; i < frames; ++i) frame_ops.push_back(frames == 1 ? 0 : i * (ops - 1) / (frames - 1));
  std::sort(frame_ops.begin(), frame_ops.end());
  frame_ops.erase(std::unique(frame_ops.begin(), frame_ops.end()), frame_ops.end());
  return frame_ops;
}

}  // namespace

double map_frame::external_fragmentation() const noexcept {
  return free_bytes() == 0 ? 0 : 1 - share(largest_hole_bytes, free_bytes());
}

double map_frame::internal_fragmentation() const noexcept {
  return live_bytes == 0 ? 0 : 1 - share(requested_bytes, live_bytes);
}

history make_history(const memory_log& log, std::uint64_t ops, const history_shape& shape) {
  history recorded_history;
  recorded_history.ops = ops;
  if (ops == 0) return recorded_history;
  const std::vector<piece> pieces = pieces_of(log, recorded_history, shape.cells);
  const std::vector<std::uint64_t> frame_ops = ops_of_frames(log, ops, std::min(shape.frames, ops));
  extremes kept{(ops + shape.buckets - 1) / shape.buckets};
  moment state;
  auto next = log.events.begin();
  for (std::uint64_t op = 0; op < ops; ++op) {
    state.sums.op = op;
    for (; next != log.events.end() && next->op == op; ++next) {
      state.apply(*next);
      kept.add(state.sums);  // also within an operation: memory may be taken before the block is handed out
    }
    kept.add(state.sums);
    if (recorded_history.frames.size() < frame_ops.size() && op == frame_ops[recorded_history.frames.size()]) {
      recorded_history.frames.push_back(frame_of(state, pieces, recorded_history.cell_bytes));
    }
  }
  recorded_history.points = kept.points();
  return recorded_history;
}

std::string run_lengths(const std::string& cells) {
  std::string text;
  for (std::size_t i = 0; i < cells.size();) {
    const std::size_t end = std::min(cells.find_first_not_of(cells[i], i), cells.size());
    fmt::format_to(std::back_inserter(text), "{}{}", cells[i], end - i);
    i = end;
  }
  return text;
}

}  // namespace gpumem::bench
