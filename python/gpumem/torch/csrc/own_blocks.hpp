// The segments of a MemPool's allocator cut into blocks: by address, and the free ones by stream and size.
//
// A block serves the stream that its segment was allocated for. A free block merges with its free neighbours. The
// caller locks. A free needs no host memory.
#pragma once

#include <cstdint>
#include <iterator>
#include <list>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "memory_source.hpp"
#include "stream_fences.hpp"

class own_blocks {
  using state = gpumem::block_view::state;
  using free_key = std::tuple<cudaStream_t, std::size_t, char*>;
  using free_set = std::set<free_key>;

 public:
  struct piece {
    std::size_t bytes = 0;
    std::size_t requested = 0;
    state block_state = state::cached;
    std::list<stream_use> uses{};
    std::size_t pending = 0;           // uses that a free waits for
    free_set::node_type index_node{};  // node for `free_` while the piece is not free
  };
  using piece_map = std::map<char*, piece>;
  struct segment {
    std::size_t bytes = 0;
    cudaStream_t stream = nullptr;
    std::uint64_t number = 0;
    piece_map pieces{};  // by address, without gaps
  };
  using segment_map = std::map<char*, segment>;
  /// A block and its segment, which is null if there is none.
  struct place {
    segment* owner = nullptr;
    piece_map::iterator position{};
    [[nodiscard]] piece& block() const { return position->second; }
  };

  static std::size_t rounded(std::size_t bytes) {
    return (bytes + gpumem::block_granularity - 1) / gpumem::block_granularity * gpumem::block_granularity;
  }
  /// A segment holds many small blocks, or one large block: MemPool allocators are slow and round up to pages.
  static std::size_t segment_bytes(std::size_t block) {
    constexpr std::size_t page = std::size_t{2} << 20;
    if (block <= page / 2) return page;
    if (block < 5 * page) return 10 * page;
    return (block + page - 1) / page * page;
  }

  /// Adds a segment whose first `bytes` are a live block. Throws with nothing changed.
  void add(char* begin, std::size_t whole, std::size_t bytes, const memory_request& asked) {
    segment made{whole, asked.stream, numbers_ + 1, {}};
    made.pieces.emplace(begin, piece{bytes, asked.bytes, state::live}).first->second.index_node = new_node();
    free_set rest;
    if (whole > bytes) {
      made.pieces.emplace(begin + bytes, piece{whole - bytes});
      rest.emplace(asked.stream, whole - bytes, begin + bytes);
    }
    segments_.emplace(begin, std::move(made));
    free_.merge(rest);
    ++numbers_;
    bytes_ += whole;
    live_bytes_ += bytes;
  }
  /// Takes the stream's smallest free piece that fits; null if there is none.
  void* carve(const memory_request& asked) {
    const std::size_t bytes = rounded(asked.bytes);
    const auto best = free_.lower_bound({asked.stream, bytes, nullptr});
    if (best == free_.end() || std::get<0>(*best) != asked.stream) return nullptr;
    char* const begin = std::get<2>(*best);
    const place found = find(begin);
    piece& block = found.block();
    const bool was_whole = found.owner->pieces.size() == 1;
    const std::size_t rest = block.bytes - bytes;
    if (rest != 0) {
      free_set::node_type spare = new_node();
      found.owner->pieces.emplace(begin + bytes, piece{rest});
      block.index_node = free_.extract(best);
      spare.value() = {found.owner->stream, rest, begin + bytes};
      free_.insert(std::move(spare));
    } else {
      block.index_node = free_.extract(best);
    }
    if (was_whole) count_whole(-1, found.owner->bytes);
    block.bytes = bytes;
    block.requested = asked.bytes;
    block.block_state = state::live;
    live_bytes_ += bytes;
    return begin;
  }
  [[nodiscard]] place find(void* ptr) {
    const auto owner = around(segments_, ptr);
    if (owner == segments_.end()) return {};
    const auto found = owner->second.pieces.find(static_cast<char*>(ptr));
    return found != owner->second.pieces.end() ? place{&owner->second, found} : place{};
  }
  /// A live block was freed, and waits.
  void fence(const place& freed) noexcept {
    freed.block().block_state = state::fenced;
    live_bytes_ -= freed.block().bytes;
    fenced_bytes_ += freed.block().bytes;
    ++fenced_;
  }
  /// Makes a live or fenced block free.
  void free(const place& freed) noexcept {
    segment& owner = *freed.owner;
    auto position = freed.position;
    if (position->second.block_state == state::fenced) {
      fenced_bytes_ -= position->second.bytes;
      --fenced_;
    } else {
      live_bytes_ -= position->second.bytes;
    }
    free_set::node_type node = std::move(position->second.index_node);
    position->second.block_state = state::cached;
    if (const auto next = std::next(position);
        next != owner.pieces.end() && next->second.block_state == state::cached) {
      free_.erase(key_of(owner, next));
      position->second.bytes += next->second.bytes;
      owner.pieces.erase(next);
    }
    if (position != owner.pieces.begin()) {
      if (const auto before = std::prev(position); before->second.block_state == state::cached) {
        free_.erase(key_of(owner, before));
        before->second.bytes += position->second.bytes;
        owner.pieces.erase(position);
        position = before;
      }
    }
    node.value() = key_of(owner, position);
    free_.insert(std::move(node));
    if (owner.pieces.size() == 1) count_whole(1, owner.bytes);
  }

  /// Removes all segments that are wholly free. `put_back` undoes that.
  segment_map take_whole() noexcept {
    segment_map whole;
    for (auto each = segments_.begin(); each != segments_.end();) {
      const auto next = std::next(each);
      const auto first = each->second.pieces.begin();
      if (each->second.pieces.size() == 1 && first->second.block_state == state::cached) {
        first->second.index_node = free_.extract(key_of(each->second, first));
        count_whole(-1, each->second.bytes);
        bytes_ -= each->second.bytes;
        whole.insert(segments_.extract(each));
      }
      each = next;
    }
    return whole;
  }
  void put_back(segment_map whole) noexcept {
    for (auto& [begin, each] : whole) {
      free_.insert(std::move(each.pieces.begin()->second.index_node));
      count_whole(1, each.bytes);
      bytes_ += each.bytes;
    }
    segments_.merge(whole);
  }

  /// The segment that contains the address; empty if there is none.
  [[nodiscard]] segment_range segment_around(const void* ptr) const {
    const auto found = around(segments_, ptr);
    return found != segments_.end() ? segment_range{found->first, found->second.bytes} : segment_range{};
  }
  void describe(memory_map& map, const pool_id& pool) const {
    for (const auto& [begin, each] : segments_) {
      memory_map::own_segment& made = map.own.emplace_back();
      made.pool = pool;
      made.number = each.number;
      made.view.begin = reinterpret_cast<gpumem::address>(begin);
      made.view.bytes = each.bytes;
      for (const auto& [at, block] : each.pieces) {
        made.view.blocks.push_back({.begin = reinterpret_cast<gpumem::address>(at),
                                    .bytes = block.bytes,
                                    .requested_bytes = block.block_state == state::live ? block.requested : 0,
                                    .stream = {each.stream},
                                    .is = block.block_state});
      }
    }
  }
  void count(memory_totals& totals, const pool_id& pool) const {
    totals.pieces += segments_.size();
    totals.fenced += fenced_;
    totals.fenced_bytes += fenced_bytes_;
    totals.split += free_.size() - whole_;
    totals.split_bytes += bytes_ - live_bytes_ - fenced_bytes_ - whole_bytes_;
    totals.add_pool(pool, bytes_, live_bytes_);
  }

 private:
  static free_key key_of(const segment& owner, piece_map::const_iterator position) {
    return {owner.stream, position->second.bytes, position->first};
  }
  static free_set::node_type new_node() {
    free_set nodes{free_key{}};
    return nodes.extract(nodes.begin());
  }
  template <typename Map>
  static auto around(Map& segments, const void* ptr) -> decltype(segments.begin()) {
    const auto next = segments.upper_bound(static_cast<char*>(const_cast<void*>(ptr)));
    if (next == segments.begin()) return segments.end();
    const auto found = std::prev(next);
    return ptr < found->first + found->second.bytes ? found : segments.end();
  }
  void count_whole(int segments, std::size_t bytes) noexcept {
    whole_ += static_cast<std::size_t>(segments);
    whole_bytes_ += static_cast<std::size_t>(segments) * bytes;
  }

  segment_map segments_;
  free_set free_;
  std::uint64_t numbers_ = 0;
  std::size_t bytes_ = 0, live_bytes_ = 0;
  std::size_t fenced_ = 0, fenced_bytes_ = 0;
  std::size_t whole_ = 0, whole_bytes_ = 0;  // segments that are one free block
};
