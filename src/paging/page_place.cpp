#include "page_place.hpp"

#include <algorithm>

#include "bits.hpp"

namespace gpumem {
namespace {

bool usable(const block& candidate, owner_id owner) noexcept {
  if (candidate.state == block_state::unbacked) return true;
  return candidate.state == block_state::free && (candidate.owner == owner || candidate.owner == idle_owner);
}

/// The block boundaries of one span, with the unbacked bytes below each.
class span_of_blocks {
 public:
  struct edge {
    std::uint64_t begin;
    std::uint64_t unbacked_below;
    block_index block;  ///< the block that begins there
  };
  span_of_blocks(const heap& pool_heap, block_index lowest, owner_id owner) {
    edge next{pool_heap.at(lowest).begin, 0, lowest};
    for (; next.block != no_block && usable(pool_heap.at(next.block), owner);
         next.block = pool_heap.at(next.block).next) {
      edges_.push_back(next);
      const block& b = pool_heap.at(next.block);
      if (b.state == block_state::unbacked) next.unbacked_below += b.bytes;
      next.begin += b.bytes;
    }
    edges_.push_back(next);
  }
  [[nodiscard]] const std::vector<edge>& edges() const noexcept { return edges_; }
  [[nodiscard]] std::uint64_t begin() const noexcept { return edges_.front().begin; }
  [[nodiscard]] std::uint64_t end() const noexcept { return edges_.back().begin; }
  [[nodiscard]] block_index block_at(std::uint64_t position) const noexcept { return below(position)->block; }

  /// The unbacked bytes in the pages that `[low, high)` touches.
  [[nodiscard]] std::uint64_t missing(std::uint64_t low, std::uint64_t high, std::uint64_t page) const noexcept {
    return unbacked_below(std::min(round_up(high, page), end())) -
           unbacked_below(std::max(round_down(low, page), begin()));
  }

 private:
  [[nodiscard]] std::vector<edge>::const_iterator below(std::uint64_t position) const noexcept {
    return std::prev(std::ranges::upper_bound(edges_, position, {}, &edge::begin));
  }
  [[nodiscard]] std::uint64_t unbacked_below(std::uint64_t position) const noexcept {
    const auto e = below(position);
    if (position == end()) return e->unbacked_below;
    return e->unbacked_below + std::min(position - e->begin, std::next(e)->unbacked_below - e->unbacked_below);
  }

  std::vector<edge> edges_;
};

/// Returns the lowest block of the span around `unbacked`, or no_block if the span has a lower unbacked block, so that
/// each span is considered once.
block_index span_begin(const heap& pool_heap, block_index unbacked, owner_id owner) noexcept {
  block_index lowest = unbacked;
  for (block_index i = pool_heap.at(unbacked).prev; i != no_block && usable(pool_heap.at(i), owner);
       i = pool_heap.at(i).prev) {
    if (pool_heap.at(i).state == block_state::unbacked) return no_block;
    lowest = i;
  }
  return lowest;
}

}  // namespace

std::optional<page_place> cheapest_place(const heap& pool_heap, unsigned segment_class, owner_id owner,
                                         std::uint64_t bytes, std::uint64_t alignment, std::uint64_t page_bytes) {
  std::optional<page_place> best;
  for (block_index h = pool_heap.unbacked().first(); h != no_block; h = pool_heap.at(h).in_index.newer) {
    const block& found = pool_heap.at(h);
    if (found.state != block_state::unbacked || found.segment_class != segment_class) continue;
    const block_index lowest = span_begin(pool_heap, h, owner);
    if (lowest == no_block) continue;
    const span_of_blocks span{pool_heap, lowest, owner};
    const auto consider = [&](std::uint64_t begin) {
      if (begin < span.begin() || begin > span.end() || span.end() - begin < bytes) return;
      const std::uint64_t missing = span.missing(begin, begin + bytes, page_bytes);
      if (best && (missing > best->missing_bytes || (missing == best->missing_bytes && begin >= best->begin))) return;
      best = page_place{.begin = begin, .first = span.block_at(begin), .missing_bytes = missing};
    };
    // Try only places with one end at a block boundary: the missing bytes are least at one of these.
    for (const span_of_blocks::edge& edge : span.edges()) {
      consider(round_up(edge.begin, alignment));
      if (edge.begin >= bytes) consider(round_down(edge.begin - bytes, alignment));
    }
  }
  return best;
}

std::vector<unbacked_piece> missing_pieces(const heap& pool_heap, const page_place& place, std::uint64_t bytes,
                                           std::uint64_t page_bytes) {
  const std::uint64_t low = round_down(place.begin, page_bytes);
  const std::uint64_t high = round_up(place.begin + bytes, page_bytes);
  std::vector<unbacked_piece> pieces;
  for (block_index i = place.first; i != no_block && pool_heap.at(i).begin < high; i = pool_heap.at(i).next) {
    const block& b = pool_heap.at(i);
    if (b.state != block_state::unbacked) continue;
    const std::uint64_t begin = std::max(b.begin, low);
    const std::uint64_t end = std::min(b.begin + b.bytes, high);
    if (begin < end) pieces.push_back({begin, end - begin});
  }
  return pieces;
}

}  // namespace gpumem
