#include "page_place.hpp"

#include <algorithm>

#include "bits.hpp"

namespace gpumem {
namespace {

bool usable(const block& b, owner_id o) noexcept {
  if (b.state == block_state::unbacked) return true;
  return b.state == block_state::free && (b.owner == o || b.owner == idle_owner);
}

/// One span, block by block, with the unbacked bytes in front of each.
class span_of_blocks {
 public:
  span_of_blocks(const heap& in, block_index lowest, owner_id o) {
    for (block_index i = lowest; i != no_block && usable(in.at(i), o); i = in.at(i).above) {
      const block& b = in.at(i);
      blocks_.push_back({b.begin, unbacked_, i, b.state == block_state::unbacked});
      if (b.state == block_state::unbacked) unbacked_ += b.bytes;
      end_ = b.begin + b.bytes;
    }
  }
  [[nodiscard]] std::uint64_t begin() const noexcept { return blocks_.front().begin; }
  [[nodiscard]] std::uint64_t end() const noexcept { return end_; }
  [[nodiscard]] std::size_t size() const noexcept { return blocks_.size(); }
  [[nodiscard]] std::uint64_t begin_of(std::size_t k) const noexcept {
    return k < blocks_.size() ? blocks_[k].begin : end_;
  }
  [[nodiscard]] block_index block_at(std::uint64_t position) const noexcept { return at(position).index; }

  /// Unbacked bytes of every page that `[from, to)` touches.
  [[nodiscard]] std::uint64_t missing(std::uint64_t from, std::uint64_t to, std::uint64_t page) const noexcept {
    return unbacked_below(std::min(round_up(to, page), end_)) -
           unbacked_below(std::max(round_down(from, page), begin()));
  }

 private:
  struct entry {
    std::uint64_t begin;
    std::uint64_t unbacked_below;
    block_index index;
    bool unbacked;
  };
  [[nodiscard]] const entry& at(std::uint64_t position) const noexcept {
    return *std::prev(std::upper_bound(blocks_.begin(), blocks_.end(), position,
                                       [](std::uint64_t p, const entry& e) { return p < e.begin; }));
  }
  [[nodiscard]] std::uint64_t unbacked_below(std::uint64_t position) const noexcept {
    if (position >= end_) return unbacked_;
    const entry& e = at(position);
    return e.unbacked_below + (e.unbacked ? position - e.begin : 0);
  }

  std::vector<entry> blocks_;
  std::uint64_t unbacked_ = 0;
  std::uint64_t end_ = 0;
};

/// The lowest block of the span around a unbacked one; none where another unbacked block lies lower in it.
block_index span_begin(const heap& in, block_index unbacked, owner_id o) noexcept {
  block_index lowest = unbacked;
  for (block_index i = in.at(unbacked).below; i != no_block && usable(in.at(i), o); i = in.at(i).below) {
    if (in.at(i).state == block_state::unbacked) return no_block;
    lowest = i;
  }
  return lowest;
}

}  // namespace

std::optional<page_place> cheapest_place(const heap& in, unsigned klass, owner_id o, std::uint64_t bytes,
                                         std::uint64_t alignment, std::uint64_t page_bytes) {
  std::optional<page_place> best;
  for (block_index h = in.first_unbacked(); h != no_block; h = in.at(h).in_index.newer) {
    if (in.at(h).klass != klass) continue;
    const block_index lowest = span_begin(in, h, o);
    if (lowest == no_block) continue;
    const span_of_blocks span{in, lowest, o};
    const auto consider = [&](std::uint64_t begin) {
      if (begin < span.begin() || begin > span.end() || span.end() - begin < bytes) return;
      const std::uint64_t missing = span.missing(begin, begin + bytes, page_bytes);
      if (best && (missing > best->missing_bytes || (missing == best->missing_bytes && begin >= best->begin))) return;
      best = page_place{.begin = begin, .first = span.block_at(begin), .missing_bytes = missing};
    };
    // Where a window slides, what it misses is least with one of its ends at the end of a block.
    for (std::size_t k = 0; k <= span.size(); ++k) {
      const std::uint64_t edge = span.begin_of(k);
      consider(round_up(edge, alignment));
      if (edge >= bytes) consider(round_down(edge - bytes, alignment));
    }
  }
  return best;
}

std::vector<unbacked_piece> missing_pieces(const heap& in, const page_place& at, std::uint64_t bytes,
                                           std::uint64_t page_bytes) {
  const std::uint64_t low = round_down(at.begin, page_bytes);
  const std::uint64_t high = round_up(at.begin + bytes, page_bytes);
  std::vector<unbacked_piece> pieces;
  for (block_index i = at.first; i != no_block && in.at(i).begin < high; i = in.at(i).above) {
    const block& b = in.at(i);
    if (b.state != block_state::unbacked) continue;
    const std::uint64_t begin = std::max(b.begin, low);
    const std::uint64_t end = std::min(b.begin + b.bytes, high);
    if (begin < end) pieces.push_back({begin, end - begin});
  }
  return pieces;
}

}  // namespace gpumem
