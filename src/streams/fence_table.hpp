// The fences that slots and blocks wait for: references, and the fences that are yet to be recorded.
//
// A fence lives until its last reference is dropped. The pool's lock guards everything.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "gpumem/device.hpp"
#include "tracked_fence.hpp"

namespace gpumem {

class fence_table {
 public:
  explicit fence_table(device& device) noexcept : device_{device} {}
  ~fence_table();
  fence_table& operator=(fence_table&&) = delete;

  [[nodiscard]] tracked_fence& operator[](fence_index fence) noexcept { return fences_[fence]; }
  [[nodiscard]] const tracked_fence& operator[](fence_index fence) const noexcept { return fences_[fence]; }
  void ref(fence_index fence) noexcept { ++fences_[fence].refcount; }
  void unref(fence_index fence) noexcept;

  /// After this the next `add` throws nothing.
  void make_room();
  /// Adds a fence, with the references that it states.
  fence_index add(const tracked_fence& added);
  /// Adds a fence that is yet to be recorded, with one reference for the caller and one for the thread that records it.
  /// `order` as in `tracked_fence`. The entry that `take_unrecorded` returns has the new fence's index.
  fence_index add_unrecorded(unrecorded_fence wanted, owner_id order);
  /// An event on the whole context that is yet to be recorded; `no_fence` if there is none.
  [[nodiscard]] fence_index unrecorded_on_context() const noexcept;
  /// Removes and returns the fences to record. The caller records each without the lock and reports it to `recorded`.
  [[nodiscard]] std::vector<unrecorded_fence> take_unrecorded() noexcept { return std::exchange(unrecorded_, {}); }
  /// The driver has recorded the fence as `made`, or failed if that is empty. Drops the recording thread's reference.
  void recorded(const unrecorded_fence& unrecorded, std::optional<fence> made) noexcept;
  /// Counts a fence that was recorded before it was added (`stream_order::begin_batch`).
  void count_recorded() noexcept { ++recorded_; }

  [[nodiscard]] std::uint64_t count() const noexcept { return recorded_; }  ///< of fences recorded so far
  [[nodiscard]] std::uint64_t metadata_bytes() const noexcept {
    return fences_.capacity() * sizeof(tracked_fence) + unrecorded_.capacity() * sizeof(unrecorded_fence);
  }

 private:
  device& device_;
  std::vector<tracked_fence> fences_;
  std::vector<fence_index> spare_;
  std::vector<unrecorded_fence> unrecorded_;
  std::uint64_t next_number_ = 1;
  std::uint64_t recorded_ = 0;
};

}  // namespace gpumem
