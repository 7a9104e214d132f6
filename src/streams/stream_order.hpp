// Stream order: decides which stream may reuse a freed block; fences make the block available to all.
//
// Every stream that allocates or frees has a slot, and the slot owns the memory that the stream freed. A slot counts
// time in epochs: a free stamps its block with the slot's epoch, a fence covers every epoch so far and begins the next.
// When a fence is done, all blocks up to its epoch become idle; so one fence serves any number of frees.
//
// A fence on a stream needs its handle, which the program may destroy. Under `notify` the program reports that, and a
// fence is recorded when another stream wants the memory. Under `query` a handle is known to be valid only during a
// call that names it, so such calls record a fence once the stream has freed a batch (`fence_named`). An event on the
// whole context covers later frees. It also waits for other streams' work, and would invalidate a capture that gpumem
// has not noticed: only a request that would otherwise be refused records one (`context_events`). The pool's lock
// guards everything; no function waits.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "capture_effect.hpp"
#include "gpumem/device.hpp"
#include "gpumem/settings.hpp"
#include "heap.hpp"
#include "tracked_fence.hpp"

namespace gpumem {

struct stream_slot {
  struct pending {
    std::uint64_t epoch;
    fence_index fence;
  };

  bool in_use = false;
  bool ended = false;  ///< the stream ended, or the graph was released
  bool capturing = false;
  bool is_graph = false;             ///< owns a capture's allocations, which no other owner may use
  bool everything = false;           ///< represents all work of the device: its fences are on the whole context
  bool dirty = false;                ///< something was freed since the last fence
  std::uint32_t unfenced_frees = 0;  ///< frees since the last fence
  std::uint64_t unfenced_bytes = 0;  ///< their bytes
  std::uint64_t asked_in_round = 0;  ///< the latest poll in which a fence of the stream was pending
  std::uint64_t pending_number = 0;  ///< the number of the first such fence
  std::uint32_t handle_calls = 0;    ///< fences that are being recorded on the stream's handle
  bool needed_by_plan = false;       ///< a plan gives some of this memory to another stream
  bool is_watched = false;           ///< in `watched_`, the slots that `poll` visits
  bool was_named = false;            ///< named since streams were last forgotten
  stream_ref stream;
  std::uint64_t key = 0;                 ///< the stream's key, or the graph's number
  std::uint64_t foreign = 0;             ///< the context of the stream or graph, if it is not the device's own; else 0
  std::uint64_t origin_key = 0;          ///< for a graph: the key of the capturing stream
  owner_id withheld_owner = idle_owner;  ///< for a graph: owns blocks that other streams of its capture freed
  owner_id graph = idle_owner;           ///< while capturing: the graph's slot
  std::uint64_t epoch = 1;               ///< never repeats a value, even when another stream gets the slot
  std::uint64_t done = 0;                ///< everything freed up to this epoch is known to be done
  std::uint32_t references = 0;          ///< blocks, uses and requests that name this slot
  std::vector<pending> fences;           ///< oldest first
  std::unordered_map<owner_id, std::uint64_t>
      waited;  ///< by slot: the epoch up to which this stream is ordered behind it
};

class stream_order {
 public:
  stream_order(device& device, heap& heap, stream_id_mode ids);
  ~stream_order();
  stream_order(const stream_order&) = delete;
  stream_order& operator=(const stream_order&) = delete;

  /// True if the key needs no driver call: the default stream, and under `notify` every stream but a per-thread one.
  [[nodiscard]] bool key_is_known(stream_ref stream) const noexcept {
    const auto handle = reinterpret_cast<std::uintptr_t>(stream.handle);
    return handle <= 1 || (ids_ == stream_id_mode::notify && handle != 2);
  }
  /// Requires `key_is_known`.
  [[nodiscard]] static std::uint64_t known_key(stream_ref stream) noexcept {
    const auto handle = reinterpret_cast<std::uintptr_t>(stream.handle);
    return handle <= 1 ? 0 : static_cast<std::uint64_t>(handle);
  }
  /// The stream's key; under `query` this asks the device. Needs no lock.
  [[nodiscard]] result<std::uint64_t> key_of(stream_ref stream) const {
    if (key_is_known(stream)) return known_key(stream);
    return device_.stream_id(stream);
  }
  /// True for a created stream that the program may have destroyed without notice.
  [[nodiscard]] bool has_lasting_handle(stream_ref stream) const noexcept {
    return ids_ == stream_id_mode::query && reinterpret_cast<std::uintptr_t>(stream.handle) > 2;
  }
  /// The key of the latest stream with that handle, which may have ended; does not ask the driver.
  [[nodiscard]] std::optional<std::uint64_t> key_of_handle(stream_ref stream) const noexcept;
  /// The stream's slot, created if it has none; this may forget slots that have long been unused. Throws
  /// `thrown_status` or std::bad_alloc with nothing changed. A stream whose context is unknown gets no slot, because a
  /// fence on the pool's own context would not cover it.
  owner_id slot_of(stream_ref stream, std::uint64_t key);
  /// The new owner of a block of `owner` that the stream with `key` frees. A stream that ended keeps its slot, so its
  /// handle is not queried. Throws like `slot_of`.
  owner_id owner_of_free(owner_id owner, stream_ref stream, std::uint64_t key);
  /// The stream's slot, if it has one.
  [[nodiscard]] std::optional<owner_id> find(std::uint64_t key) const;
  [[nodiscard]] stream_slot& operator[](owner_id owner) noexcept { return slots_[owner]; }
  [[nodiscard]] const stream_slot& operator[](owner_id owner) const noexcept { return slots_[owner]; }
  [[nodiscard]] owner_id end() const noexcept { return static_cast<owner_id>(slots_.size()); }

  /// True while only one stream has been seen: idle memory may then join its own.
  [[nodiscard]] bool single() const noexcept { return seen_ <= 1 && !keeps_idle_apart_; }
  /// Keeps idle memory apart even with one stream, because a plan may have places for later streams in it.
  void keep_idle_apart() noexcept { keeps_idle_apart_ = true; }
  /// The number of captures under way on the device. During a capture no event is recorded on its context and nothing
  /// is given back.
  [[nodiscard]] unsigned captures() const noexcept {
    return count_of(capture_effect::announced) + count_of(capture_effect::noticed);
  }
  /// True while an announced capture is under way: no fence is queried or waited for.
  [[nodiscard]] bool fences_paused() const noexcept { return count_of(capture_effect::announced) != 0; }
  void begin_effect(capture_effect effect) noexcept { ++effects_[static_cast<std::size_t>(effect)]; }
  void end_effect(capture_effect effect) noexcept { --effects_[static_cast<std::size_t>(effect)]; }
  /// Whether other streams may reuse this owner's free memory behind a fence. False for a graph that may run again.
  [[nodiscard]] bool serves_others(owner_id owner) const noexcept {
    const stream_slot& slot = slots_[owner];
    return slot.in_use && (!slot.is_graph || slot.ended);
  }
  /// True if a capture may be under way unnoticed. A fence on the whole context is then recorded only when memory is
  /// wanted, by a request whose stream was queried.
  [[nodiscard]] bool fences_may_spoil() const noexcept {
    return ids_ == stream_id_mode::query && device_.info().reports_captures;
  }
  /// True while a blocking stream captures, noticed or not: an event on the context, or a give-back, would invalidate
  /// that capture. Asks the driver, which does not report non-blocking streams. Needs no lock or stream handle, and
  /// invalidates nothing.
  [[nodiscard]] bool blocking_stream_captures() const noexcept;
  /// The number of slots of streams and batches.
  [[nodiscard]] std::uint64_t in_use() const noexcept { return in_use_; }

  /// True if an event on the whole context is deferred until a request would otherwise be refused (`context_events`).
  [[nodiscard]] bool context_events_wait() const noexcept { return fences_may_spoil(); }
  /// The number of `context_events` objects of the thread that holds the pool's lock.
  [[nodiscard]] unsigned& context_event_permits() noexcept { return context_events_; }

  /// For `fence_named`, this many frees or bytes since the stream's last fence are a batch.
  static constexpr std::uint32_t frees_a_batch = 16;
  static constexpr std::uint64_t bytes_a_batch = std::uint64_t{1} << 20;
  /// Called when the program names the slot's stream, so that its handle is valid. Reserves a fence on the stream if
  /// its frees are a batch (of `batch_bytes` here) and, unless `batch_bytes` is given, another stream is known. Does
  /// nothing for a stream that captures or whose handle is known to be valid. The caller records the fence before it
  /// releases the lock for anything else. `was_asked`: this call has queried the stream's id; otherwise the handle may
  /// be a later stream's, and the device is queried.
  void fence_named(owner_id owner, bool was_asked, std::uint64_t batch_bytes = bytes_a_batch) noexcept;

  /// Frees a live or fenced block for its owner, who may reuse it at once. Drops the block's reference to the slot.
  void free_block(block_index index, owner_id owner) noexcept {
    stream_slot& slot = slots_[owner];
    --slot.references;
    slot.dirty = true;
    ++slot.unfenced_frees;
    slot.unfenced_bytes += heap_.at(index).bytes;
    heap_.release(index, owner, slot.epoch, single());
  }

  // --- fences ---------------------------------------------------------------------------------------------
  /// A fence behind everything freed on the slot so far, with a reference for the caller. `no_fence` if all of that is
  /// done, `unsupported` while a capture forbids a fence.
  result<fence_index> cover(owner_id owner) noexcept;
  /// The oldest fence that covers the slot's frees up to `epoch`; without one, the same as `cover(owner)`.
  result<fence_index> cover(owner_id owner, std::uint64_t epoch) noexcept;
  /// Reserves a fence behind everything the slot's stream was given so far, without recording it, because recording can
  /// block. The caller takes it with `take_unrecorded` before it releases the lock, records it without the lock by
  /// `record_on_device`, and reports the result to `recorded`. `lives`: the caller knows that the stream still exists.
  result<fence_index> record(owner_id owner, bool lives = false) noexcept;
  /// The epoch up to which `fence`, a pending fence of the slot, covers it; 0 if it is not pending there.
  [[nodiscard]] std::uint64_t epoch_of(owner_id owner, fence_index fence) const noexcept;
  /// Like `cover`, without a reference for the caller; true if there is a fence.
  bool fence_behind(owner_id owner) noexcept;
  [[nodiscard]] std::vector<unrecorded_fence> take_unrecorded() noexcept { return std::exchange(unrecorded_, {}); }
  [[nodiscard]] result<fence> record_on_device(const unrecorded_fence& unrecorded) const noexcept;  ///< no lock needed
  /// Bracket the record of a fence without the lock. False if its stream has ended or captures: the fence must not be
  /// recorded. `stream_slot::handle_calls` counts the calls in between.
  [[nodiscard]] bool begin_handle_call(const unrecorded_fence& unrecorded) noexcept;
  void end_handle_call(const unrecorded_fence& unrecorded) noexcept;
  void recorded(const unrecorded_fence& unrecorded,
                std::optional<fence> made) noexcept;  ///< none: the record failed
  void ref(fence_index fence) noexcept { ++fences_[fence].refcount; }
  void unref(fence_index fence) noexcept;
  [[nodiscard]] tracked_fence& tracked(fence_index fence) noexcept { return fences_[fence]; }
  /// False while a wait on the host would invalidate a capture.
  [[nodiscard]] bool may_wait_for(fence_index fence) const noexcept {
    return may_ask(fence) && (count_of(capture_effect::foreign) == 0 || !fences_[fence].foreign);
  }
  /// Queries a pending fence if that is allowed, each stream at most once in a round. Returns the known state.
  tracked_fence::state ask(fence_index fence) noexcept;
  void begin_round() noexcept { ++round_; }
  /// Begins a round, updates every slot with its fences that are done, and forgets streams that ended and left nothing
  /// behind.
  void poll() noexcept;
  /// Creates an owner for blocks that were freed before `batch_fence`, a fence on the whole context, was recorded
  /// without the lock. After `end_batch` the fence covers them, and the owner ends when it is done. Takes ownership of
  /// the fence, unless this throws std::bad_alloc.
  owner_id begin_batch(stream_ref stream, fence batch_fence);
  void end_batch(owner_id owner) noexcept;

  // --- life -----------------------------------------------------------------------------------------------
  void end_stream(owner_id owner) noexcept;
  /// Begins a capture of the stream into a graph, a new owner. The caller begins and ends its effect on fences.
  result<owner_id> capture_begin(owner_id owner);
  /// Ends the capture and returns the graph's number. Requires that the stream captures.
  std::uint64_t capture_end(owner_id owner) noexcept;
  status graph_gone(std::uint64_t graph);
  /// Creates a graph's slot without a capture and returns its number. It may own allocations of several captures of the
  /// stream. Throws like `slot_of`.
  std::uint64_t open_region(stream_ref stream, std::uint64_t key);
  /// The slot of an open graph or region; `idle_owner` if there is none.
  [[nodiscard]] owner_id region(std::uint64_t number) const noexcept;
  /// The owner of a graph's block that the stream with `key` has freed. The capturing stream's frees stay with the
  /// graph, which may reuse them at once; other streams' go to `withheld_owner` until the graph is released.
  owner_id graph_owner_of_free(owner_id graph, std::uint64_t key);

  [[nodiscard]] std::uint64_t fences_recorded() const noexcept { return recorded_; }
  [[nodiscard]] std::uint64_t metadata_bytes() const noexcept;

 private:
  static constexpr std::size_t least_forgotten = 64;

  owner_id take_slot();
  fence_index spare_fence();
  [[nodiscard]] bool record_on_stream(const stream_slot& slot) const noexcept;
  [[nodiscard]] bool captures_nothing(stream_ref alive) const noexcept;
  void watch(owner_id owner) noexcept;
  void settle(owner_id owner) noexcept;
  void retire(owner_id owner) noexcept;
  void release_slot(owner_id owner) noexcept;
  [[nodiscard]] bool is_unused(owner_id owner) const noexcept;
  void forget_unused();
  [[nodiscard]] unsigned count_of(capture_effect effect) const noexcept {
    return effects_[static_cast<std::size_t>(effect)];
  }
  [[nodiscard]] bool may_ask(fence_index asked) const noexcept {
    return !fences_paused() && !slots_[fences_[asked].order].capturing;
  }
  owner_id add_graph(const stream_slot& origin);
  void release_graph(owner_id graph);

  device& device_;
  heap& heap_;
  stream_id_mode ids_;
  std::vector<stream_slot> slots_;                                      // by owner; slot 0 is idle memory
  using slots_by_number = std::unordered_map<std::uint64_t, owner_id>;  // `idle_owner`: none
  slots_by_number by_key_;                                              // of streams that have not ended
  slots_by_number graphs_;
  slots_by_number by_handle_;      // the latest slot of a handle; its stream may have ended
  std::vector<owner_id> watched_;  // slots with fences, and those that have ended; each once
  std::vector<tracked_fence> fences_;
  std::vector<fence_index> spare_fences_;
  std::vector<unrecorded_fence> unrecorded_;
  std::uint64_t last_key_ = 0;  // the stream of the latest call, which most calls repeat
  owner_id last_slot_ = idle_owner;
  owner_id named_ = idle_owner;  // its stream's handle is valid during this call
  std::uint64_t round_ = 1;      // of `poll`
  std::uint64_t next_number_ = 1;
  unsigned context_events_ = 0;
  std::uint64_t next_graph_ = 1;
  std::uint64_t recorded_ = 0;
  std::array<unsigned, 3> effects_{};  // captures under way, by `capture_effect`
  unsigned seen_ = 0;
  owner_id left_behind_ = idle_owner;  // owns the free blocks of forgotten streams
  std::uint64_t in_use_ = 0;
  std::size_t forget_when_ = least_forgotten;  // when this many streams are known
  bool keeps_idle_apart_ = false;
  friend class context_events;
};

/// While it lives, its thread may record events on the whole context even if an unnoticed capture may be under way.
class context_events {
 public:
  explicit context_events(stream_order& streams) noexcept : streams_{streams} { ++streams_.context_events_; }
  ~context_events() { --streams_.context_events_; }
  context_events(const context_events&) = delete;
  context_events& operator=(const context_events&) = delete;

 private:
  stream_order& streams_;
};

}  // namespace gpumem
