#include "page_place.hpp"

#include <algorithm>

#include "bits.hpp"

namespace gpumem {
namespace {

bool usable(const block& b, owner_id o) noexcept {
  if (b.state == block_state::unbacked) return true;
  return b.state == block_state::free && (b.owner == o || b.owner == idle_owner);
}

/// Where one span's blocks begin, and its end, each with the unbacked bytes below it.
class span_of_blocks {
 public:
  struct edge {
    std::uint64_t at;
    std::uint64_t unbacked_below;
    block_index above;  ///< the block that begins there
  };
  span_of_blocks(const heap& in, block_index lowest, owner_id o) {
    edge next{in.at(lowest).begin, 0, lowest};
    for (; next.above != no_block && usable(in.at(next.above), o); next.above = in.at(next.above).above) {
      edges_.push_back(next);
      const block& b = in.at(next.above);
      if (b.state == block_state::unbacked) next.unbacked_below += b.bytes;
      next.at += b.bytes;
    }
    edges_.push_back(next);
  }
  [[nodiscard]] const std::vector<edge>& edges() const noexcept { return edges_; }
  [[nodiscard]] std::uint64_t begin() const noexcept { return edges_.front().at; }
  [[nodiscard]] std::uint64_t end() const noexcept { return edges_.back().at; }
  [[nodiscard]] block_index block_at(std::uint64_t position) const noexcept { return below(position)->above; }

  /// Unbacked bytes of every page that `[from, to)` touches.
  [[nodiscard]] std::uint64_t missing(std::uint64_t from, std::uint64_t to, std::uint64_t page) const noexcept {
    return unbacked_below(std::min(round_up(to, page), end())) -
           unbacked_below(std::max(round_down(from, page), begin()));
  }

 private:
  [[nodiscard]] std::vector<edge>::const_iterator below(std::uint64_t position) const noexcept {
    return std::prev(std::ranges::upper_bound(edges_, position, {}, &edge::at));
  }
  [[nodiscard]] std::uint64_t unbacked_below(std::uint64_t position) const noexcept {
    const auto e = below(position);
    if (position == end()) return e->unbacked_below;
    return e->unbacked_below + std::min(position - e->at, std::next(e)->unbacked_below - e->unbacked_below);
  }

  std::vector<edge> edges_;
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
    for (const span_of_blocks::edge& edge : span.edges()) {
      consider(round_up(edge.at, alignment));
      if (edge.at >= bytes) consider(round_down(edge.at - bytes, alignment));
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
