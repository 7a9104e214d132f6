// A pool's streams: captures, graphs, regions, and streams that end. Each function takes the lock, except `captures`,
// which takes none, and `key_of`, which takes it only if the stream captures.
//
// Keys come from `key_of` and are the same in every pool of one device.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "block_ids.hpp"
#include "capture_effect.hpp"
#include "gpumem/device.hpp"
#include "unlocked_section.hpp"

namespace gpumem {

class arena;
struct arena_state;
class pool_streams;

/// One pool's part in a capture: while it lives, the pool makes no call that would invalidate the capture. A capture of
/// several pools has one for each.
class pool_capture {
 public:
  pool_capture() = default;
  pool_capture(pool_capture&& moved) noexcept { *this = std::move(moved); }
  pool_capture& operator=(pool_capture&& moved) noexcept {
    std::swap(pool_, moved.pool_);
    std::swap(stream_, moved.stream_);
    std::swap(effect_, moved.effect_);
    return *this;
  }
  /// Ends the capture, and releases a graph that `end` has not returned.
  ~pool_capture();
  /// Ends the capture. Returns the number of the graph that owns the capture's blocks, for
  /// `pool_streams::graph_release`; 0 if the capturing stream is not the pool's.
  std::uint64_t end() noexcept;

 private:
  friend class pool_streams;
  pool_capture(pool_streams& pool, owner_id stream, capture_effect effect) noexcept
      : pool_{&pool}, stream_{stream}, effect_{effect} {}

  pool_streams* pool_ = nullptr;
  owner_id stream_ = idle_owner;
  capture_effect effect_ = capture_effect::announced;
};

class pool_streams {
 public:
  explicit pool_streams(arena& pool_arena) noexcept;

  /// The stream's key; under `query` this asks the device. Takes the lock only if the stream captures.
  [[nodiscard]] result<std::uint64_t> key_of(stream_ref stream) const;
  /// Whether the stream is part of a capture, if its key depends on that; else false.
  [[nodiscard]] result<bool> captures(stream_ref stream) const;
  /// The key of a stream that is, or is not, part of a capture.
  [[nodiscard]] result<std::uint64_t> key_of(stream_ref stream, bool captures) const;
  /// Call before the stream with that key is destroyed: returns its cached blocks to the heap, records a fence behind
  /// its frees, and waits until no thread uses its handle. Does nothing for an unknown key; refuses a stream that
  /// captures.
  status stream_release(std::uint64_t key);
  /// Updates fences that are done. Called before an announced capture, during which no fence is queried.
  void poll();
  /// Begins a capture of the stream: `announced` before the capture begins on the device, `noticed` after that. From
  /// then on no call begins that would invalidate the capture. Neither this nor `capture_elsewhere` waits for calls
  /// under way.
  result<pool_capture> capture_begin(stream_ref capture_stream, std::uint64_t key, capture_effect effect);
  /// The same for a capture on a stream that is not this pool's.
  pool_capture capture_elsewhere(capture_effect effect);
  /// Waits, without a limit, for calls of other threads that would invalidate a capture that begins on the device
  /// afterwards. `stream_key`: the capturing stream's key, if it is this pool's.
  void wait_for_calls(capture_effect effect, std::optional<std::uint64_t> stream_key);
  status graph_release(std::uint64_t graph);
  /// Opens a region for the stream and returns its number; `graph_release` closes it. `captures`: the stream is part of
  /// a capture.
  std::uint64_t open_region(stream_ref stream, std::uint64_t key, bool captures = false);
  /// Makes `all` represent all work of the device (context_order.hpp). Called once, before the first request.
  status stand_for_all_work(stream_ref all);

 private:
  friend class pool_capture;
  /// Waits until no thread records a fence on the handle of the stream with that key.
  void wait_for_handle_calls(arena_lock& lock, owner_id stream, std::uint64_t key) GPUMEM_UNDER_LOCK;
  void begin_effect(capture_effect effect) noexcept GPUMEM_UNDER_LOCK;
  std::uint64_t capture_end(owner_id stream, capture_effect effect) noexcept;

  arena& arena_;
  arena_state& state_;
};

}  // namespace gpumem
