// The waits on the device that a stream still needs before it may use memory that other streams freed.
//
// A wait blocks the host while its stream's queue is full, so it is made without the arena's lock. A search calls
// `behind` and `behind_fence` under the lock. If a wait is missing they note it and return false; `fence_calls::order`
// then makes all noted waits, and the caller searches again. After `most_rounds` rounds no more waits are noted, so
// threads that keep freeing cannot hold a request forever.
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
  /// Drops the references to fences and slots.
  ~device_waits();
  device_waits& operator=(device_waits&&) = delete;

  [[nodiscard]] owner_id waiter() const noexcept { return waiter_; }
  /// True if the waiter is ordered behind everything freed on `owner` up to `epoch`. If not, notes the missing wait, if
  /// one can be made, and returns false.
  [[nodiscard]] bool behind(owner_id owner, std::uint64_t epoch) noexcept;
  /// The same for everything freed until now.
  [[nodiscard]] bool behind(owner_id owner) noexcept {
    return behind(owner, streams_[owner].epoch - (streams_[owner].dirty ? 0U : 1U));
  }
  /// The same for one fence, on which the caller or a block holds a reference; takes another if it notes a wait.
  [[nodiscard]] bool behind_fence(fence_index fence) noexcept;
  /// The epoch of `owner` up to which the waiter is ordered behind it.
  [[nodiscard]] std::uint64_t waited(owner_id owner) const noexcept {
    const auto found = streams_[waiter_].waited.find(owner);
    return found != streams_[waiter_].waited.end() ? found->second : 0;
  }
  /// True if a noted wait has not been tried.
  [[nodiscard]] bool missing() const noexcept;

  /// A noted wait; kept until the destructor.
  struct wait {
    enum class state : std::uint8_t { missing, made, refused };
    fence_index fence = no_fence;
    owner_id owner = idle_owner;  ///< the slot that the fence covers; `idle_owner` for a use's fence
    std::uint64_t epoch = 0;      ///< the fence covers the slot up to this epoch
    state status = state::missing;
  };
  /// For `fence_calls::order`, which tries each wait once and reports the result to `tried`.
  [[nodiscard]] std::vector<wait>& begin_round() noexcept {
    ++rounds_;
    return waits_;
  }
  void tried(wait& entry, bool made) noexcept;

 private:
  void note(owner_id owner, std::uint64_t epoch) noexcept;

  /// The latest wait noted for each stream's fences; it covers the earlier fences of that stream.
  std::unordered_map<owner_id, std::size_t> latest_;
  stream_order& streams_;
  const owner_id waiter_;
  std::vector<wait> waits_;
  unsigned rounds_ = 0;
};

}  // namespace gpumem
