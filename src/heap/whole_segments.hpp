// Which segments should stay whole for the large requests that keep coming to them.
//
// A small block, of at most a quarter of its segment, keeps large requests out for as long as it lives. If they come
// more often than that, each needs another segment, so the pool had better take a small step for the small block. The
// future is not known; it is taken to be as the past, by two times, both counted in requests:
//
// - the time between the latest two large requests to the segment, or to one that it took the place of. Once twice that
//   has passed, no more are expected;
// - how long the latest blocks of about the small one's size live: the time that all have lived so far, over the number
//   of those that were freed, and one (about the estimate of greatest likelihood where lives end at a constant rate).
//   It rises for as long as they stay. Older blocks, such as weights, do not count.
//
// The pool's lock guards everything.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <utility>

namespace gpumem {

/// The history of one segment. A block is large for its segment if it takes more than half of it.
struct segment_history {
  std::uint32_t small_blocks = 0;    ///< live, fenced or leaked ones
  std::uint64_t latest_large = 0;    ///< when a large block was last made while no small one was there; 0: never
  std::uint64_t large_interval = 0;  ///< the time from the one before to that one; 0 if there was none
};

class whole_segments {
 public:
  [[nodiscard]] static constexpr bool is_small(std::uint64_t segment_bytes, std::uint64_t bytes) noexcept {
    return bytes <= segment_bytes / 2;
  }

  /// A block of `bytes` is made in a segment of `segment_bytes`. Returns its generation.
  std::uint32_t made(segment_history& segment, std::uint64_t segment_bytes, std::uint64_t bytes) noexcept {
    ++requests_;
    if (is_small(segment_bytes, bytes)) {
      ++segment.small_blocks;
    } else if (segment.small_blocks == 0) {
      if (segment.latest_large != 0) segment.large_interval = requests_ - segment.latest_large;
      segment.latest_large = requests_;
    }
    return classes_[class_of(bytes)].add(requests_);
  }

  /// It is free again; `born` is its generation.
  void freed(segment_history& segment, std::uint64_t segment_bytes, std::uint64_t bytes, std::uint32_t born) noexcept {
    classes_[class_of(bytes)].remove(born, requests_);
    if (is_small(segment_bytes, bytes)) --segment.small_blocks;
  }

  /// A segment goes back, for example because a large request did not fit into it.
  void went(const segment_history& segment, std::uint64_t segment_bytes) noexcept {
    if (segment.large_interval == 0 || segment.latest_large < gone_.latest_large) return;
    gone_ = {.latest_large = segment.latest_large, .large_interval = segment.large_interval};
    gone_bytes_ = segment_bytes;
  }

  /// The history of a new segment: that of the one which it takes the place of, the latest that was used whole, if that
  /// had its size or, at least, half of it. A segment that is taken for a small block of `first_bytes` has none.
  [[nodiscard]] segment_history came(std::uint64_t segment_bytes, std::uint64_t first_bytes = 0) noexcept {
    if (first_bytes != 0 && is_small(segment_bytes, first_bytes)) return {};
    if (gone_bytes_ > segment_bytes || is_small(segment_bytes, gone_bytes_)) return {};
    gone_bytes_ = 0;
    return std::exchange(gone_, {});
  }

  /// Whether a block of `bytes` would probably still live in the segment when the next large request comes.
  [[nodiscard]] bool in_the_way(const segment_history& segment, std::uint64_t segment_bytes,
                                std::uint64_t bytes) const noexcept {
    if (segment.large_interval == 0 || segment.small_blocks != 0 || bytes > segment_bytes / 4) return false;
    if (requests_ - segment.latest_large > 2 * segment.large_interval) return false;
    return classes_[class_of(bytes)].mean_life(requests_) > segment.large_interval;
  }

 private:
  /// Blocks made one after the other.
  struct generation {
    std::uint64_t made = 0;
    std::uint64_t live = 0;
    std::uint64_t lived = 0;  ///< the sum of their lives until `when`
    std::uint64_t when = 0;
    [[nodiscard]] std::uint64_t lived_until(std::uint64_t time) const noexcept { return lived + live * (time - when); }
    void advance(std::uint64_t time) noexcept {
      lived = lived_until(time);
      when = time;
    }
  };

  /// The latest blocks of sizes from one power of two to the next, in two generations.
  class size_class {
   public:
    std::uint32_t add(std::uint64_t time) noexcept {
      if (recent_[newest_ % 2].made == made_each) recent_[++newest_ % 2] = {};
      generation& blocks = recent_[newest_ % 2];
      blocks.advance(time);
      ++blocks.made;
      ++blocks.live;
      return newest_;
    }
    void remove(std::uint32_t born, std::uint64_t time) noexcept {
      if (newest_ - born > 1) return;
      recent_[born % 2].advance(time);
      --recent_[born % 2].live;
    }
    [[nodiscard]] std::uint64_t mean_life(std::uint64_t time) const noexcept {
      const auto [one, other] = recent_;
      const std::uint64_t freed = one.made - one.live + other.made - other.live;
      return (one.lived_until(time) + other.lived_until(time)) / (freed + 1);
    }

   private:
    static constexpr std::uint64_t made_each = 16;
    std::array<generation, 2> recent_{};
    std::uint32_t newest_ = 1;  ///< the number of the newest generation
  };

  [[nodiscard]] static std::size_t class_of(std::uint64_t bytes) noexcept {
    return static_cast<std::size_t>(std::bit_width(bytes));
  }

  std::uint64_t requests_ = 0;  ///< so far, the unit of time
  std::array<size_class, 65> classes_{};
  segment_history gone_;          ///< of the segment that `went` last and was used whole latest
  std::uint64_t gone_bytes_ = 0;  ///< its size; 0: none, or another one has taken its place
};

}  // namespace gpumem
