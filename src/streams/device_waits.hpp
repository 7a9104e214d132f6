// The waits on the device that a stream still needs before it may have memory that other streams freed.
//
// A wait blocks the host while the queue of its stream is full, so it is made without the arena's lock. Whoever wants
// the memory asks `behind` and `behind_fence` under the lock. A wait that is missing is noted and the answer is false;
// then `fence_calls::order` makes all of these waits, and the caller looks for memory again. After `most_rounds` of
// these nothing is missing any more: threads that keep freeing cannot hold a request for ever.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "stream_order.hpp"

namespace gpumem {

class device_waits {
 public:
  static constexpr unsigned most_rounds = 4;

  device_waits(stream_order& streams, owner_id waiter) noexcept : streams_{streams}, waiter_{waiter} {}
  /// Lets go of the fences and the slots.
  ~device_waits();
  device_waits(const device_waits&) = delete;
  device_waits& operator=(const device_waits&) = delete;

  [[nodiscard]] owner_id waiter() const noexcept { return waiter_; }
  /// True where the waiter is ordered behind all that was freed on that slot up to that epoch.
  [[nodiscard]] bool behind(owner_id owner, std::uint64_t epoch) noexcept;
  /// The same up to now.
  [[nodiscard]] bool behind(owner_id owner) noexcept {
    return behind(owner, streams_[owner].epoch - (streams_[owner].dirty ? 0U : 1U));
  }
  /// The same of a fence that somebody else holds.
  [[nodiscard]] bool behind_fence(fence_index fence) noexcept;
  /// The epoch of that slot up to which the waiter is ordered behind it.
  [[nodiscard]] std::uint64_t waited(owner_id owner) const noexcept {
    const auto found = streams_[waiter_].waited.find(owner);
    return found != streams_[waiter_].waited.end() ? found->second : 0;
  }
  /// True where a wait is noted that nobody has tried to make.
  [[nodiscard]] bool missing() const noexcept;

  /// A wait that was noted; kept until the end.
  struct wait {
    enum class state : std::uint8_t { missing, made, refused };
    fence_index fence = no_fence;
    owner_id owner = idle_owner;  ///< the slot that the fence covers; nobody's: a use's
    std::uint64_t epoch = 0;      ///< up to which it does
    state status = state::missing;
  };
  /// For `fence_calls::order`, which tries each wait once and says in `tried` what came of it.
  [[nodiscard]] std::vector<wait>& begin_round() noexcept {
    ++rounds_;
    return waits_;
  }
  void tried(wait& entry, bool made) noexcept;

 private:
  void note(owner_id owner, std::uint64_t epoch) noexcept;

  /// The wait noted last for each stream's fences: it covers the earlier fences of that stream.
  std::unordered_map<owner_id, std::size_t> latest_;
  stream_order& streams_;
  const owner_id waiter_;
  std::vector<wait> waits_;
  unsigned rounds_ = 0;
};

}  // namespace gpumem
