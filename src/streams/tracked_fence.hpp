// A fence with its known state, and a fence that is yet to be recorded.
#pragma once

#include <cstdint>

#include "block_ids.hpp"
#include "gpumem/device.hpp"

namespace gpumem {

/// The index of a fence in the `fence_table`. Several slots and blocks may wait for it.
using fence_index = std::uint32_t;
inline constexpr fence_index no_fence = 0xffff'ffff;

struct tracked_fence {
  enum class state : std::uint8_t { unrecorded, pending, done, failed };
  fence device_fence;
  std::uint32_t refcount = 0;
  state status = state::pending;
  bool foreign = false;        ///< an event on another context
  bool record_failed = false;  ///< failed before it was recorded: another fence is tried
  /// The slot on whose stream it is recorded; `idle_owner`: on the context. Fences of one stream complete in the order
  /// of their numbers.
  owner_id order = idle_owner;
  std::uint64_t number = 0;
};

/// Where to record a fence. The driver blocks while the stream's queue is full (about 1,000 entries), so the call is
/// made without the pool's lock: see `stream_order::reserve_fence`.
struct unrecorded_fence {
  fence_index fence = no_fence;
  stream_ref stream;          ///< if `by_stream`
  std::uint64_t foreign = 0;  ///< the stream's context, if it is not the device's own; else 0
  bool by_stream = false;     ///< else an event on the whole context
  /// Recording it invalidates no capture: it is on a stream other than the default stream, in the device's own context,
  /// that is part of no capture.
  bool spares_captures = false;
  std::uint64_t key = 0;  ///< the stream's key
  bool at_end = false;    ///< reserved by the call that ends the stream, which records it before it returns
};

}  // namespace gpumem
