// Stream order: decides which stream may reuse a freed block; fences make the block available to all.
//
// Every stream that allocates or frees has a slot, and the slot owns the memory that the stream freed. A slot counts
// time in epochs: a free stamps its block with the slot's epoch, a fence covers every epoch so far and begins the next.
// When a fence is done, all blocks up to its epoch become idle; so one fence serves any number of frees.
//
// A fence on a stream needs its handle, which the program may destroy. Under `notify` the program reports that, and a
// fence is recorded when another stream wants the memory. Under `query` a handle is known to be valid only during a
// call that names it, so such calls record a fence once the stream has freed a batch (`fence_named`). The frees since
// the last batch are covered only by an event on the whole context. Such an event also waits for other streams' work,
// and would invalidate a capture that gpumem has not noticed. So it needs a permit (`context_events`): a request
// that would otherwise be refused has one, as have `trim` and the moving of pages. The pool's lock guards everything;
// no function waits.
#pragma once

#include <cstdint>
#include <optional>

#include "capture_counts.hpp"
#include "fence_table.hpp"
#include "gpumem/device.hpp"
#include "gpumem/settings.hpp"
#include "heap.hpp"
#include "stream_keys.hpp"
#include "stream_slots.hpp"

namespace gpumem {

class stream_order {
 public:
  stream_order(device& device, heap& heap, stream_id_mode ids)
      : device_{device}, heap_{heap}, keys_{device, ids}, slots_{heap}, fences_{device} {}
  stream_order& operator=(stream_order&&) = delete;

  [[nodiscard]] const stream_keys& keys() const noexcept { return keys_; }
  [[nodiscard]] stream_slots& slots() noexcept { return slots_; }
  [[nodiscard]] const stream_slots& slots() const noexcept { return slots_; }
  [[nodiscard]] stream_slot& operator[](owner_id owner) noexcept { return slots_[owner]; }
  [[nodiscard]] const stream_slot& operator[](owner_id owner) const noexcept { return slots_[owner]; }
  [[nodiscard]] fence_table& fences() noexcept { return fences_; }
  [[nodiscard]] const fence_table& fences() const noexcept { return fences_; }
  [[nodiscard]] capture_counts& captures() noexcept { return captures_; }
  [[nodiscard]] const capture_counts& captures() const noexcept { return captures_; }

  // --- streams --------------------------------------------------------------------------------------------
  /// The stream's slot, created if it has none; this may forget slots that have long been unused. Throws
  /// `thrown_status` or std::bad_alloc with nothing changed. A stream whose context is unknown gets no slot, because a
  /// fence on the pool's own context would not cover it.
  owner_id slot_of(stream_ref stream, std::uint64_t key);
  /// The new owner of a block of `owner` that the stream with `key` frees. A stream that ended keeps its slot, so its
  /// handle is not queried. Throws like `slot_of`.
  owner_id owner_of_free(owner_id owner, stream_ref stream, std::uint64_t key);
  void end_stream(owner_id owner) noexcept;
  /// Releases a graph. Its latest run may be in flight on any stream.
  void end_graph(owner_id graph) noexcept;
  /// Counts a user of the pool's memory: a new stream, a capture or a region.
  void note_user() noexcept { ++users_; }
  /// True while there is at most one user: its frees then merge with idle neighbours.
  [[nodiscard]] bool single() const noexcept { return users_ <= 1 && !keeps_idle_apart_; }
  /// Keeps idle memory apart even with one stream, because a plan may have places for later streams in it.
  void keep_idle_apart() noexcept { keeps_idle_apart_ = true; }

  /// Frees a live or fenced block for its owner, who may reuse it at once. Drops the block's reference to the slot.
  void free_block(block_index index, owner_id owner) noexcept {
    stream_slot& slot = slots_[owner];
    --slot.references;
    slot.dirty = true;
    ++slot.unfenced.frees;
    slot.unfenced.bytes += heap_.at(index).bytes;
    heap_.release(index, owner, slot.epoch, single());
  }

  // --- fences (stream_fences.cpp) -------------------------------------------------------------------------
  /// A fence behind everything freed on the slot so far, with a reference for the caller. `no_fence` if all of that is
  /// done, `unsupported` while a capture forbids a fence.
  result<fence_index> cover(owner_id owner) noexcept;
  /// The oldest fence that covers the slot's frees up to `epoch`; without one, the same as `cover(owner)`.
  result<fence_index> cover(owner_id owner, std::uint64_t epoch) noexcept;
  /// Like `cover`, without a reference for the caller; true if there is a fence.
  bool fence_behind(owner_id owner) noexcept;
  /// For `fence_named`, this many frees or bytes since the stream's last fence are a batch.
  static constexpr std::uint32_t frees_a_batch = 16;
  static constexpr std::uint64_t bytes_a_batch = std::uint64_t{1} << 20;
  /// Called when the program names the slot's stream, so that its handle is valid. Reserves a fence on the stream if
  /// its frees since the last fence are a batch: `frees_a_batch` blocks or `batch_bytes`; with the default
  /// `batch_bytes` only if a second user is known (`single`). Does nothing for an ended, capturing, default or foreign
  /// stream, or one whose handle stays valid. The caller then calls `fence_calls::record`. `was_asked`: this call
  /// determined the key from the handle. If false, the handle may name a later stream by now, so the device is queried
  /// first.
  void fence_named(owner_id owner, bool was_asked, std::uint64_t batch_bytes = bytes_a_batch) noexcept;
  /// Reserves a fence behind everything the slot's stream was given so far, without recording it, because recording can
  /// block. The caller takes it with `fence_table::take_unrecorded` before it releases the lock, records it without the
  /// lock by `record_on_device`, and reports to `fence_table::recorded`. `is_known_to_live`: the stream exists.
  result<fence_index> reserve_fence(owner_id owner, bool is_known_to_live = false) noexcept;
  [[nodiscard]] result<fence> record_on_device(const unrecorded_fence& unrecorded) const noexcept;  ///< no lock needed
  /// Bracket the record of a fence without the lock. False if its stream has ended or captures: the fence must not be
  /// recorded. `stream_slot::handle_calls` counts the calls in between.
  [[nodiscard]] bool begin_handle_call(const unrecorded_fence& unrecorded) noexcept;
  void end_handle_call(const unrecorded_fence& unrecorded) noexcept;
  /// The epoch up to which `fence`, a pending fence of the slot, covers it; 0 if it is not pending there.
  [[nodiscard]] std::uint64_t epoch_of(owner_id owner, fence_index fence) const noexcept;
  /// False while a wait on the host would invalidate a capture.
  [[nodiscard]] bool may_wait_for(fence_index fence) const noexcept {
    return may_ask(fence) && (!captures_.any_foreign() || !fences_[fence].foreign);
  }
  /// Queries a pending fence if that is allowed, each stream at most once in a round. Returns the known state.
  tracked_fence::state ask(fence_index fence) noexcept;
  void begin_round() noexcept { ++round_; }
  /// Begins a round, updates every slot with its fences that are done, and forgets streams that ended and left nothing
  /// behind.
  void poll() noexcept;
  /// Creates an owner for blocks that were freed before `batch_fence`, a fence on the whole context, was recorded
  /// without the lock. The caller frees them to this owner before `end_batch`; the fence covers exactly these, and the
  /// slot is removed once it is done. Takes ownership of the fence, unless this throws std::bad_alloc.
  owner_id begin_batch(stream_ref stream, fence batch_fence);
  void end_batch(owner_id owner) noexcept;

 private:
  static constexpr std::size_t least_forgotten = 64;

  /// Whether a fence can be recorded on the slot's stream at any time, not only in a call that names the stream.
  [[nodiscard]] bool handle_stays_valid(const stream_slot& slot) const noexcept;
  /// Asks the slot's pending fences and makes idle all blocks that finished fences cover.
  void collect_done_fences(owner_id owner) noexcept;
  /// Releases the slot of an ended stream or graph once no block, reference or call needs it.
  void release_if_ended(owner_id owner) noexcept;
  void remove(owner_id owner) noexcept;
  [[nodiscard]] bool is_unused(owner_id owner) const noexcept;
  void forget_unused();
  [[nodiscard]] bool may_ask(fence_index asked) const noexcept {
    return !captures_.pause_fences() && !slots_[fences_[asked].order].capturing();
  }

  device& device_;
  heap& heap_;
  stream_keys keys_;
  stream_slots slots_;
  fence_table fences_;
  capture_counts captures_;
  std::uint64_t last_key_ = 0;  // the stream of the latest call, which most calls repeat
  owner_id last_slot_ = idle_owner;
  owner_id named_ = idle_owner;  // its stream's handle is valid during this call
  std::uint64_t round_ = 1;      // of `poll`
  unsigned users_ = 0;
  owner_id left_behind_ = idle_owner;          // owns the free blocks of forgotten streams
  std::size_t forget_when_ = least_forgotten;  // when this many streams are known
  bool keeps_idle_apart_ = false;
};

}  // namespace gpumem
