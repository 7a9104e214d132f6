// Tells the kind of a stream from its handle without a driver call, and finds the slot of a stream.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "block_ids.hpp"
#include "gpumem/device.hpp"

namespace gpumem {

/// The legacy default stream (null, or the driver's alias 1) lives as long as its context.
inline bool never_ends(stream_ref stream) noexcept { return reinterpret_cast<std::uintptr_t>(stream.handle) <= 1; }

/// The per-thread default stream: one handle, but a stream of its own in every thread.
inline bool is_per_thread(stream_ref stream) noexcept { return reinterpret_cast<std::uintptr_t>(stream.handle) == 2; }

inline std::uint64_t number_of(stream_ref stream) noexcept { return reinterpret_cast<std::uintptr_t>(stream.handle); }

inline owner_id slot_in(const std::unordered_map<std::uint64_t, owner_id>& slots, std::uint64_t number) noexcept {
  const auto found = slots.find(number);
  return found != slots.end() ? found->second : idle_owner;
}

}  // namespace gpumem
