// Stream order: who may use a free block when, and the fences that widen that circle.
//
// Every stream that allocates or frees has a slot, and the slot is the owner of what the stream freed. Time on a slot
// is counted in epochs: a free stamps its block with the slot's epoch, a fence covers every epoch so far and begins the
// next. When a fence is done, all blocks up to its epoch become idle; so one fence serves any number of frees.
//
// A fence on a stream needs its handle, which the program may destroy. Where it tells (`notify`), a fence is recorded
// when another stream wants the memory. Under `query` a handle is known to live only during a call that names it, so
// such calls record a fence behind what the stream has freed once that is a batch (`fence_named`). What was freed since
// is covered by an event on the whole context, which waits for other streams' work, too, and would invalidate a capture
// that nobody told of: only a request that would else be refused records one (`context_events`). The pool's lock guards
// all of it; no function here waits.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

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
  bool is_graph = false;             ///< owns what a capture allocated; nobody else may touch it
  bool everything = false;           ///< stands for all that the device is given: its fences are the whole context's
  bool dirty = false;                ///< something was freed since the last fence
  std::uint32_t unfenced_frees = 0;  ///< so many
  std::uint64_t unfenced_bytes = 0;  ///< of so many bytes
  std::uint64_t asked_in_round = 0;  ///< the latest poll in which a fence of the stream was pending
  std::uint64_t pending_number = 0;  ///< the number of the first that was
  std::uint32_t handle_calls = 0;    ///< fences that are being recorded on the stream's handle
  bool needed_by_plan = false;       ///< a plan gives some of that to another stream
  bool is_watched = false;           ///< `poll` looks at it
  bool was_named = false;            ///< since streams were last forgotten
  stream_ref stream;
  std::uint64_t key = 0;                 ///< of the stream, or the graph's number
  std::uint64_t foreign = 0;             ///< the stream's or graph's context, if it is not the device's own; else 0
  std::uint64_t origin_key = 0;          ///< of a graph: the stream whose capture it is
  owner_id withheld_owner = idle_owner;  ///< of a graph: owns what other streams of its capture freed; nobody gets that
  owner_id graph = idle_owner;           ///< while capturing, the graph's slot
  std::uint64_t epoch = 1;               ///< never repeats a value, even when the slot is another stream's
  std::uint64_t done = 0;                ///< everything freed up to this epoch is known to be done
  std::uint32_t references = 0;          ///< blocks, uses and requests that name this slot
  std::vector<pending> fences;           ///< oldest first
  std::unordered_map<owner_id, std::uint64_t>
      waited;  ///< by slot: the epoch up to which this stream is ordered behind that one
};

/// The calls that a pool must not make while a capture is under way.
enum class capture_effect : std::uint8_t {
  announced,  ///< the program says when it ends: no event on the context; no fence is asked, none is waited for
  noticed,    ///< gpumem may see its end late: no event on the context; fences of other streams go on
  foreign,    ///< on another device: no event on that device's contexts
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
  /// The key that stands for the stream; under `query` this asks the device. No lock needed.
  [[nodiscard]] result<std::uint64_t> key_of(stream_ref stream) const {
    if (key_is_known(stream)) return known_key(stream);
    return device_.stream_id(stream);
  }
  /// True for a created stream that the program may have destroyed without telling.
  [[nodiscard]] bool has_lasting_handle(stream_ref stream) const noexcept {
    return ids_ == stream_id_mode::query && reinterpret_cast<std::uintptr_t>(stream.handle) > 2;
  }
  /// The key of the latest stream with that handle, dead or not; the driver is not asked.
  [[nodiscard]] std::optional<std::uint64_t> key_of_handle(stream_ref stream) const noexcept;
  /// The stream's slot, made if it has none; slots that are long unused may be forgotten then. Throws `thrown_status`
  /// or std::bad_alloc with nothing changed: a stream whose context is unknown must not be fenced on the pool's own.
  owner_id slot_of(stream_ref stream, std::uint64_t key);
  /// The owner of a block that `owner` had and the stream with that key frees. A stream that ended keeps its slot, so
  /// that its handle is not asked. Throws as `slot_of`.
  owner_id owner_of_free(owner_id owner, stream_ref stream, std::uint64_t key);
  /// The stream's slot, if it has one.
  [[nodiscard]] std::optional<owner_id> find(std::uint64_t key) const;
  [[nodiscard]] stream_slot& operator[](owner_id owner) noexcept { return slots_[owner]; }
  [[nodiscard]] const stream_slot& operator[](owner_id owner) const noexcept { return slots_[owner]; }
  [[nodiscard]] owner_id end() const noexcept { return static_cast<owner_id>(slots_.size()); }

  /// True while only one stream has ever been seen: then idle memory may as well be its own.
  [[nodiscard]] bool single() const noexcept { return seen_ <= 1 && !keeps_idle_apart_; }
  /// Keeps idle memory idle while only one stream is known: a plan may have places for later streams in it.
  void keep_idle_apart() noexcept { keeps_idle_apart_ = true; }
  /// The captures under way of the device. While there are any, no event is recorded on its context and nothing is
  /// given back.
  [[nodiscard]] unsigned captures() const noexcept {
    return count_of(capture_effect::announced) + count_of(capture_effect::noticed);
  }
  /// True while an announced capture is under way: no fence is asked, and nothing is waited for.
  [[nodiscard]] bool fences_paused() const noexcept { return count_of(capture_effect::announced) != 0; }
  void begin_effect(capture_effect effect) noexcept { ++effects_[static_cast<std::size_t>(effect)]; }
  void end_effect(capture_effect effect) noexcept { --effects_[static_cast<std::size_t>(effect)]; }
  /// Whether others may get this owner's free memory behind a fence. False for a graph that may run again.
  [[nodiscard]] bool serves_others(owner_id owner) const noexcept {
    const stream_slot& slot = slots_[owner];
    return slot.in_use && (!slot.is_graph || slot.ended);
  }
  /// True if a capture may be under way unnoticed. A fence on the whole context is then recorded only when memory is
  /// wanted, by a request whose stream was asked.
  [[nodiscard]] bool fences_may_spoil() const noexcept {
    return ids_ == stream_id_mode::query && device_.info().reports_captures;
  }
  /// True while a blocking stream captures, noticed or not: an event on the context, or a give-back, would invalidate
  /// that capture. Asks the driver; needs no lock and no stream's handle, and invalidates nothing. The driver tells
  /// nothing of non-blocking streams.
  [[nodiscard]] bool blocking_stream_captures() const noexcept;
  /// Slots of streams and batches.
  [[nodiscard]] std::uint64_t in_use() const noexcept { return in_use_; }

  /// True where an event on the whole context waits until a request would else be refused (`context_events`).
  [[nodiscard]] bool context_events_wait() const noexcept { return fences_may_spoil(); }
  /// The number of `context_events` objects of the thread that holds the pool's lock.
  [[nodiscard]] unsigned& context_event_permits() noexcept { return context_events_; }

  /// What `fence_named` takes for a batch: a stream's frees, or the bytes of these, since its last fence.
  static constexpr std::uint32_t frees_a_batch = 16;
  static constexpr std::uint64_t bytes_a_batch = std::uint64_t{1} << 20;
  /// The program names the slot's stream in this call, so it lives: takes a fence on it behind what it has freed, where
  /// that is a batch, of `batch_bytes` here, and another stream is known. None for a stream that captures, or whose
  /// handle is known to live. The caller records it before the lock is given up for anything else. `was_asked`: this
  /// call asked the device for the stream's id; otherwise the handle may be a later stream's, and the device is asked.
  void fence_named(owner_id owner, bool was_asked, std::uint64_t batch_bytes = bytes_a_batch) noexcept;

  /// Frees a live or fenced block for its owner, who may have it again at once. The block's reference to the slot ends.
  void free_block(block_index index, owner_id owner) noexcept {
    stream_slot& slot = slots_[owner];
    --slot.references;
    slot.dirty = true;
    ++slot.unfenced_frees;
    slot.unfenced_bytes += heap_.at(index).bytes;
    heap_.release(index, owner, slot.epoch, single());
  }

  // --- fences ---------------------------------------------------------------------------------------------
  /// A fence behind everything freed on the slot so far; the caller holds it. `no_fence` when all of that is done.
  /// `unsupported` while a capture forbids it.
  result<fence_index> cover(owner_id owner) noexcept;
  /// The oldest fence behind what was freed on the slot up to that epoch, else as `cover`.
  result<fence_index> cover(owner_id owner, std::uint64_t epoch) noexcept;
  /// Reserves a fence behind everything the slot's stream was given so far, without recording it, because recording can
  /// block. The caller takes it with `take_unrecorded` before the lock is given up, records it without the lock by
  /// `record_on_device`, and reports the result to `recorded`. `lives`: the stream exists now, whatever is known of its
  /// handle.
  result<fence_index> record(owner_id owner, bool lives = false) noexcept;
  /// The epoch up to which a pending fence of the slot covers it.
  [[nodiscard]] std::uint64_t epoch_of(owner_id owner, fence_index fence) const noexcept;
  /// The fence of `cover`, held by nobody but those that need it; true where there is one.
  bool fence_behind(owner_id owner) noexcept;
  [[nodiscard]] std::vector<unrecorded_fence> take_unrecorded() noexcept { return std::exchange(unrecorded_, {}); }
  [[nodiscard]] result<fence> record_on_device(const unrecorded_fence& unrecorded) const noexcept;  ///< no lock needed
  /// Around the record of a fence without the lock: false where its stream ends or captures meanwhile, and the fence is
  /// not to be recorded. `stream_slot::handle_calls` counts those between the two.
  [[nodiscard]] bool begin_handle_call(const unrecorded_fence& unrecorded) noexcept;
  void end_handle_call(const unrecorded_fence& unrecorded) noexcept;
  void recorded(const unrecorded_fence& unrecorded,
                std::optional<fence> made) noexcept;  ///< nothing: it could not be made
  void ref(fence_index fence) noexcept { ++fences_[fence].refcount; }
  void unref(fence_index fence) noexcept;
  [[nodiscard]] tracked_fence& tracked(fence_index fence) noexcept { return fences_[fence]; }
  /// False while the host would spoil a capture by waiting for it.
  [[nodiscard]] bool may_wait_for(fence_index fence) const noexcept {
    return may_ask(fence) && (count_of(capture_effect::foreign) == 0 || !fences_[fence].foreign);
  }
  /// Asks the device where that is allowed and nothing is known yet, each stream once in a round.
  tracked_fence::state ask(fence_index fence) noexcept;
  void begin_round() noexcept { ++round_; }
  /// Settles every slot up to the fences that are done, and forgets streams that ended and left nothing behind. Begins
  /// a round.
  void poll() noexcept;
  /// A new owner for blocks that were freed before `batch_fence`, a fence on the whole context that was recorded
  /// without the lock. After `end_batch` the fence covers them, and the owner ends when it is done. Takes the fence
  /// over, unless this throws std::bad_alloc.
  owner_id begin_batch(stream_ref stream, fence batch_fence);
  void end_batch(owner_id owner) noexcept;

  // --- life -----------------------------------------------------------------------------------------------
  void end_stream(owner_id owner) noexcept;
  /// The stream captures into a graph, a new owner. Its effect on fences is the caller's to begin and end.
  result<owner_id> capture_begin(owner_id owner);
  /// Requires that the stream captures. The graph's number.
  std::uint64_t capture_end(owner_id owner) noexcept;
  status graph_gone(std::uint64_t graph);
  /// A graph's slot without a capture: it may own what several captures of the stream allocate. Its number.
  /// Throws as `slot_of`.
  std::uint64_t open_region(stream_ref stream, std::uint64_t key);
  /// The slot of a graph or region that is open; nobody's where there is none.
  [[nodiscard]] owner_id region(std::uint64_t number) const noexcept;
  /// Who owns a block of the graph that the stream with this key has freed: the graph, whose capturing stream may have
  /// it again at once, or, where another stream of the capture freed it, nobody until the graph is gone.
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
  std::vector<stream_slot> slots_;                                      // by owner; slot 0 stands for idle memory
  using slots_by_number = std::unordered_map<std::uint64_t, owner_id>;  // `idle_owner`: of none
  slots_by_number by_key_;                                              // of streams that have not ended
  slots_by_number graphs_;
  slots_by_number by_handle_;      // the latest slot of a handle that may be dead
  std::vector<owner_id> watched_;  // slots with fences, and those that have ended; each once
  std::vector<tracked_fence> fences_;
  std::vector<fence_index> spare_fences_;
  std::vector<unrecorded_fence> unrecorded_;
  std::uint64_t last_key_ = 0;  // the stream of the latest call, which most calls repeat
  owner_id last_slot_ = idle_owner;
  owner_id named_ = idle_owner;  // its stream lives during this call
  std::uint64_t round_ = 1;      // of `poll`
  std::uint64_t next_number_ = 1;
  unsigned context_events_ = 0;
  std::uint64_t next_graph_ = 1;
  std::uint64_t recorded_ = 0;
  std::array<unsigned, 3> effects_{};  // captures under way, by `capture_effect`
  unsigned seen_ = 0;
  owner_id left_behind_ = idle_owner;  // owns the free blocks of forgotten streams
  std::uint64_t in_use_ = 0;
  std::size_t forget_when_ = least_forgotten;  // so many streams are known
  bool keeps_idle_apart_ = false;
  friend class context_events;
};

/// While it lives, its thread may record events on the whole context although a capture may be under way unnoticed.
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
