// Stream order: who may use a free block when, and the fences that widen that circle.
//
// Every stream that allocates or frees has a slot, and the slot is the owner of what the stream freed. Time on a slot
// is counted in epochs: a free stamps its block with the slot's epoch, a fence covers every epoch so far and begins the
// next. When a fence is done, all blocks up to its epoch become idle; so one fence serves any number of frees, and none
// is recorded until another stream wants the memory. A slot whose stream may be gone is fenced by an event on the whole
// context, never on the handle. The pool's lock guards all of it; no function here waits.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "flat_map.hpp"
#include "gpumem/device.hpp"
#include "gpumem/settings.hpp"
#include "heap.hpp"

namespace gpumem {

/// A recorded fence that several slots and blocks may wait for. Index into `stream_table::fences`.
using fence_index = std::uint32_t;
inline constexpr fence_index no_fence = 0xffff'ffff;

struct tracked_fence {
  enum class state : std::uint8_t { pending, done, failed };
  fence device_fence;
  std::uint32_t holders = 0;
  state seen = state::pending;
};

struct stream_slot {
  struct pending {
    std::uint32_t epoch;
    fence_index behind;
  };

  bool in_use = false;
  bool gone = false;  ///< the stream ended, or the graph was released
  bool capturing = false;
  bool is_graph = false;  ///< owns what a capture allocated; nobody else may touch it
  bool dirty = false;     ///< something was freed since the last fence
  stream_ref stream;
  std::uint64_t key = 0;        ///< of the stream, or the graph's number
  owner_id graph = idle_owner;  ///< while capturing, the graph's slot
  std::uint32_t epoch = 1;
  std::uint32_t done = 0;             ///< everything freed up to this epoch is known to be done
  std::uint32_t references = 0;       ///< blocks, uses and requests that name this slot
  std::vector<pending> fences;        ///< oldest first
  std::vector<std::uint32_t> waited;  ///< by slot: the epoch up to which this stream is ordered behind that one
};

class stream_table {
 public:
  stream_table(device& on, heap& of, stream_id_mode ids);
  ~stream_table();
  stream_table(const stream_table&) = delete;
  stream_table& operator=(const stream_table&) = delete;

  /// True where the key costs no call: the default stream, or any but a per-thread one where the program tells its end.
  [[nodiscard]] bool key_is_known(stream_ref s) const noexcept {
    const auto handle = reinterpret_cast<std::uintptr_t>(s.handle);
    return handle <= 1 || (ids_ == stream_id_mode::notify && handle != 2);
  }
  /// Requires `key_is_known`.
  [[nodiscard]] static std::uint64_t known_key(stream_ref s) noexcept {
    const auto handle = reinterpret_cast<std::uintptr_t>(s.handle);
    return handle <= 1 ? 0 : static_cast<std::uint64_t>(handle);
  }
  /// The key that stands for the stream; under `query` this asks the device. No lock needed.
  [[nodiscard]] result<std::uint64_t> key_of(stream_ref s) const {
    if (key_is_known(s)) return known_key(s);
    return device_.stream_id(s);
  }
  /// The stream's slot, made where it has none.
  owner_id slot_of(stream_ref s, std::uint64_t key);
  /// True where the latest `slot_of` was for that stream.
  [[nodiscard]] bool was_latest(std::uint64_t key) const noexcept {
    return key == last_key_ && last_slot_ != idle_owner;
  }
  /// The same, or nothing.
  [[nodiscard]] std::optional<owner_id> find(std::uint64_t key) const;
  [[nodiscard]] stream_slot& operator[](owner_id o) noexcept { return slots_[o]; }
  [[nodiscard]] const stream_slot& operator[](owner_id o) const noexcept { return slots_[o]; }
  [[nodiscard]] owner_id end() const noexcept { return static_cast<owner_id>(slots_.size()); }

  /// True while only one stream has ever been seen: then idle memory may as well be its own.
  [[nodiscard]] bool single() const noexcept { return seen_ <= 1; }
  [[nodiscard]] unsigned captures() const noexcept { return captures_; }
  [[nodiscard]] std::uint64_t in_use() const noexcept;

  // --- fences ---------------------------------------------------------------------------------------------
  /// A fence behind everything freed on the slot so far; the caller holds it. `no_fence` when all of that is done.
  /// `unsupported` while a capture forbids it.
  result<fence_index> cover(owner_id o);
  /// A new fence behind everything the slot's stream was given so far, whether or not it freed anything.
  result<fence_index> record(owner_id o);
  void hold(fence_index f) noexcept { ++fences_[f].holders; }
  void let_go(fence_index f) noexcept;
  [[nodiscard]] tracked_fence& tracked(fence_index f) noexcept { return fences_[f]; }
  /// Asks the device where that is allowed and nothing is known yet.
  tracked_fence::state ask(fence_index f);
  /// Settles every slot up to the fences that are done, and forgets streams that left nothing behind.
  void poll();
  /// Makes `waiter` wait on the device for what `o` freed up to now.
  status order_behind(owner_id waiter, owner_id o);
  status order_behind_fence(owner_id waiter, fence_index f);

  // --- life -----------------------------------------------------------------------------------------------
  void stream_gone(owner_id o);
  result<owner_id> capture_begin(owner_id o);
  result<std::uint64_t> capture_end(owner_id o);  ///< the graph's number
  status graph_gone(std::uint64_t graph);

  [[nodiscard]] std::uint64_t fences_recorded() const noexcept { return recorded_; }
  [[nodiscard]] std::uint64_t device_waits() const noexcept { return device_waits_; }
  [[nodiscard]] std::uint64_t metadata_bytes() const noexcept;

 private:
  owner_id add_slot(stream_ref s, std::uint64_t key);
  [[nodiscard]] bool record_on_stream(const stream_slot& s) const noexcept;
  void retire(owner_id o);

  device& device_;
  heap& heap_;
  stream_id_mode ids_;
  std::vector<stream_slot> slots_;  // by owner; slot 0 stands for idle memory
  flat_map by_key_;
  flat_map graphs_;
  std::vector<tracked_fence> fences_;
  std::vector<fence_index> spare_fences_;
  std::uint64_t last_key_ = 0;  // the stream of the latest call, which most calls repeat
  owner_id last_slot_ = idle_owner;
  std::uint64_t next_graph_ = 1;
  std::uint64_t recorded_ = 0;
  std::uint64_t device_waits_ = 0;
  unsigned captures_ = 0;
  unsigned seen_ = 0;
};

}  // namespace gpumem
