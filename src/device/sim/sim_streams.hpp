// The simulated device's virtual clock, streams, fences and captures, and the order between streams.
//
// Each piece of work takes the next sequence number of its stream. A vector clock holds, by dense stream index, the
// sequence number up to which that stream's work comes first. Each stream has a clock (the work it waited for), and so
// do each fence and the host (the work it saw complete). The host's clock only grows. Every order query consults it, so
// later work needs no copy. sim_device holds the lock. Invariant: a new stream gets an index only if the host knows
// that all earlier work of the index is done.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gpumem/sim_device.hpp"

namespace gpumem {

/// A piece of work: its stream's dense index and its sequence number.
struct work_point {
  std::uint32_t stream = 0;
  std::uint64_t sequence = 0;
};

class sim_streams {
 public:
  using vector_clock = std::vector<std::uint64_t>;
  static constexpr std::uint32_t no_stream = UINT32_MAX;

  explicit sim_streams(std::uint32_t queue_depth = 0);

  // --- the host's clock ------------------------------------------------------------------------------------
  [[nodiscard]] std::uint64_t now_ns() const noexcept { return now_ns_; }
  [[nodiscard]] std::uint64_t in_calls_ns() const noexcept { return in_calls_ns_; }
  void advance_to(std::uint64_t ns) noexcept;
  void advance_by(std::uint64_t ns) noexcept;
  /// As `advance_by`, for time spent inside a device call.
  void charge(std::uint64_t ns) noexcept;

  // --- streams ---------------------------------------------------------------------------------------------
  stream_ref create(sim_stream kind);
  status destroy(stream_ref stream);
  /// Returns the stream's dense index, or `no_stream` if the stream does not exist.
  [[nodiscard]] std::uint32_t find(stream_ref stream) const noexcept;
  [[nodiscard]] stream_ref handle_of(std::uint32_t stream) const noexcept { return streams_[stream].handle; }
  [[nodiscard]] result<std::uint64_t> id(stream_ref stream) const;
  /// Takes a place in the stream's queue; waits if the queue is full. Orders a blocking stream after the legacy stream
  /// of its context, and the legacy stream after all blocking streams. Every call that enqueues begins with this.
  void enter_queue(std::uint32_t stream);
  /// Enqueues work that is done `lag_ns` after now and not before the stream's earlier work.
  work_point enqueue(std::uint32_t stream, std::uint64_t lag_ns);
  /// Enqueues a point in the stream's order that takes no time.
  work_point mark(std::uint32_t stream) noexcept { return {stream, ++streams_[stream].sequence}; }

  // --- order -----------------------------------------------------------------------------------------------
  [[nodiscard]] bool host_knows_done(work_point point) const noexcept {
    return at(host_, point.stream) >= point.sequence;
  }
  /// True if work enqueued now on `stream` (with `no_stream`: work known to the host) begins after `point` is done.
  [[nodiscard]] bool comes_first(work_point point, std::uint32_t stream) const noexcept {
    return point.stream == stream || host_knows_done(point) ||
           (stream != no_stream && at(streams_[stream].ordered_behind, point.stream) >= point.sequence);
  }

  // --- fences ----------------------------------------------------------------------------------------------
  result<fence> record(stream_ref stream);
  result<fence> record_context(std::uint32_t context);
  result<bool> query(fence fence);
  /// The time at which the work before the fence is done.
  result<std::uint64_t> done_ns(fence fence);
  status wait_host(fence fence);
  /// Waits for the fence that is done first, for at most `most_ns`; true if it is then done.
  result<bool> wait_any(std::span<const fence> fences, std::uint64_t most_ns);
  status wait_stream(stream_ref waiter, fence fence);
  void drop(fence fence) noexcept;
  /// Waits on the host for all work of all streams, including destroyed ones.
  void wait_for_all();
  /// The same, for the streams of one context.
  void wait_for_context(std::uint32_t context);

  // --- captures --------------------------------------------------------------------------------------------
  status begin_capture(stream_ref stream);
  status end_capture(stream_ref stream);
  /// If any stream (of `context`) captures, refuses the call and invalidates these captures.
  status refuse_while_capturing(device_call call);
  status refuse_while_capturing(device_call call, std::uint32_t context);
  void invalidate(stream_ref stream, std::string_view cause);
  [[nodiscard]] bool is_invalidated(stream_ref stream) const noexcept;

 private:
  struct stream_state {
    stream_ref handle;
    std::uint64_t id = 0;
    std::uint64_t sequence = 0;  ///< number of its last work
    std::uint64_t tail_ns = 0;   ///< time at which its last work is done
    vector_clock ordered_behind;
    std::uint32_t context = 0;
    bool blocking = false;
    bool legacy = false;
    std::uint64_t legacy_seen = 0;  ///< for a blocking stream: the legacy stream's last work that it is ordered after
    std::uint64_t seen_by_legacy = 0;  ///< its own last work that the legacy stream is ordered after
    std::deque<std::uint64_t> queued;  ///< end time of each entry of its queue
    bool capturing = false;
    std::uint64_t captured_lag_ns = 0;
    std::string invalidated_by;  ///< the call that invalidated the capture, or empty
  };
  struct fence_state {
    std::uint32_t generation = 0;
    bool live = false;
    std::uint64_t stream_id = 0;  ///< 0: the whole context
    std::uint64_t done_ns = 0;
    vector_clock covered;
  };

  static std::uint64_t at(const vector_clock& clock, std::uint32_t stream) noexcept {
    return stream < clock.size() ? clock[stream] : 0;
  }
  static void merge(vector_clock& target, const vector_clock& source);
  /// Takes an index for a new stream: a retired index if the host knows that its work is done, otherwise a new one.
  std::uint32_t take_index();
  fence new_fence(std::uint64_t stream_id, std::uint64_t done_ns, fence_state*& state);
  fence_state* find(fence fence) noexcept;
  void wait_until(std::uint64_t ns) noexcept;
  void order_legacy(std::uint32_t stream);
  void order_behind(stream_state& waiter, std::uint32_t stream);
  status refuse_on(stream_state& state, device_call call);
  [[nodiscard]] static status unknown(std::string_view call, stream_ref stream);
  [[nodiscard]] static status unknown(device_call call, fence fence);

  std::uint64_t now_ns_ = 0;
  std::uint64_t in_calls_ns_ = 0;
  std::uint64_t last_id_ = 0;
  std::uint32_t capturing_ = 0;
  const std::uint32_t queue_depth_;  ///< 0: unlimited
  bool any_blocking_ = false;
  std::vector<stream_state> streams_;          ///< by dense index; 0 is the legacy default stream
  std::vector<std::uint32_t> retired_;         ///< indices of destroyed streams
  std::vector<std::uint32_t> stream_of_slot_;  ///< dense index by handle slot
  std::vector<std::uint32_t> free_slots_;
  std::vector<fence_state> fences_;
  std::vector<std::uint32_t> free_fences_;
  vector_clock host_;
};

}  // namespace gpumem
