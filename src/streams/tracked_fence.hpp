// A fence and what is known of it, and one that is yet to be recorded.
#pragma once

#include <cstdint>

#include "block_ids.hpp"
#include "gpumem/device.hpp"

namespace gpumem {

/// A recorded fence that several slots and blocks may wait for. Index into `stream_order::fences`.
using fence_index = std::uint32_t;
inline constexpr fence_index no_fence = 0xffff'ffff;

struct tracked_fence {
  enum class state : std::uint8_t { unrecorded, pending, done, failed };
  fence device_fence;
  std::uint32_t refcount = 0;
  state status = state::pending;
  bool foreign = false;        ///< an event on another context
  bool record_failed = false;  ///< failed before it was recorded: another one is tried
  /// Of the slot on whose stream it is recorded; `idle_owner`: on the context. Fences of one stream are done in the
  /// order of their numbers.
  owner_id order = idle_owner;
  std::uint64_t number = 0;
};

/// Where a fence is to be recorded. The driver blocks while the stream's queue is full (about 1,000 entries), so it is
/// asked without the pool's lock: see `stream_order::record`.
struct unrecorded_fence {
  fence_index fence = no_fence;
  stream_ref stream;          ///< where `by_stream`
  std::uint64_t foreign = 0;  ///< the context of a stream that is not of the device's own; 0: it is
  bool by_stream = false;     ///< else an event on the whole context
  bool apart = false;         ///< invalidates no capture: on a created stream of the device, which captures nothing
  std::uint64_t key = 0;      ///< of the stream
  bool at_end = false;        ///< reserved by the call that ends the stream, which records it before it returns
};

}  // namespace gpumem
