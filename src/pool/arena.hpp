// The arena: one heap, its policy, its budget and its stream order behind one lock.
//
// Composed of parts over one state (arena_state.hpp). The caller takes the lock, because threads' caches share it. The
// arena never holds it across a driver call that can block: a thread that grows holds the growth ticket instead, and
// frees continue. Invariant: reserved = out + cached + fenced + idle + leaked, and `budget.reserved()` exceeds the
// limit only if the limit was lowered. Blocks in threads' caches count as out, like the program's.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "arena_state.hpp"
#include "context_order.hpp"
#include "plan_executor.hpp"
#include "pool_capture.hpp"

namespace gpumem {

class arena {
 public:
  /// `device` and `client` must outlive it. Takes nothing from the device yet.
  arena(device& device, arena_config config, cache_client& client, std::unique_ptr<policy> policy);
  /// Returns every segment to the device; no other call may be under way.
  ~arena();
  arena(const arena&) = delete;
  arena& operator=(const arena&) = delete;

  // --- without the lock --------------------------------------------------------------------------------------
  [[nodiscard]] arena_mutex& mutex() const noexcept { return mutex_; }
  [[nodiscard]] const arena_config& config() const noexcept { return config_; }
  /// Without the lock, use it only to get keys of streams.
  [[nodiscard]] const stream_order& streams() const noexcept { return state_.streams; }
  [[nodiscard]] budget& pool_budget() noexcept { return state_.pool_budget; }
  [[nodiscard]] const budget& pool_budget() const noexcept { return state_.pool_budget; }
  /// Frees ordered behind all work of the device. Callers use `owner`, `record` and `cover`.
  [[nodiscard]] context_order& context_ordered_frees() noexcept { return context_order_; }
  [[nodiscard]] const context_order& context_ordered_frees() const noexcept { return context_order_; }

  // --- streams and captures; each takes the lock -------------------------------------------------------------
  // Keys come from `streams().key_of` and are the same in every arena of one device.
  status stream_release(std::uint64_t key);
  /// Updates fences that are done. Called before an announced capture, during which no fence is queried.
  void poll();
  /// Begins a capture of the stream: `announced` before the capture begins on the device, `noticed` after that. From
  /// then on no call begins that would invalidate the capture. Neither this nor `capture_elsewhere` waits for calls
  /// under way.
  result<pool_capture> capture_begin(stream_ref capture_stream, std::uint64_t key, capture_effect effect);
  /// The same for a capture on a stream that is not this pool's.
  pool_capture capture_elsewhere(capture_effect effect);
  /// Waits, without a limit, for calls of other threads that would invalidate a capture that begins on the device
  /// afterwards. `stream_key`: the capturing stream's key, if it is this pool's.
  void wait_for_calls(capture_effect effect, std::optional<std::uint64_t> stream_key);
  status graph_release(std::uint64_t graph);
  /// Opens a region for the stream and returns its number; `graph_release` closes it.
  std::uint64_t open_region(stream_ref stream, std::uint64_t key);
  /// Makes `all` represent all work of the device (context_order.hpp). Called once, before the first request.
  status stand_for_all_work(stream_ref all);
  void on_out_of_memory(const oom_callback& callback);
  /// Needs no lock.
  [[nodiscard]] segment_observers& observers() noexcept { return state_.observers; }

  // --- a request and a free ----------------------------------------------------------------------------------
  /// Takes the memory that the policy wants ahead of demand, once. Fails only with a driver error other than out of
  /// memory; later requests still try to grow.
  status open(arena_lock& lock) GPUMEM_UNDER_LOCK;
  /// Determines the request's owner and segment class. `invalid_argument` if its region is not open, or another
  /// stream's.
  [[nodiscard]] result<pending_request> prepare(const request& request, std::uint64_t rounded,
                                                std::uint64_t stream_key) GPUMEM_UNDER_LOCK;
  /// Returns a live block: from free memory, else through the out-of-memory ladder. `no_block` if memory is short
  /// (`explain` says why), `unsupported` if `request.place` is not free.
  [[nodiscard]] result<block_index> allocate(arena_lock& lock, pending_request& request) GPUMEM_UNDER_LOCK;
  /// Returns the owner of a live block once it is freed on `stream` (null: no stream named). A block that a capture
  /// allocated stays with its graph. Throws like `stream_order::slot_of`, with nothing changed.
  [[nodiscard]] owner_id owner_of_free(block_index index, const stream_ref* stream,
                                       std::uint64_t key) GPUMEM_UNDER_LOCK;
  /// Transfers a block that the program freed in the order of `owner` to that owner. The block still counts as out.
  void transfer_ownership(block_index index, owner_id owner) GPUMEM_UNDER_LOCK;
  /// The program names `stream` in this call, so its handle is valid (`stream_order::fence_named`). May release the
  /// lock.
  void stream_named(arena_lock& lock, owner_id stream, std::uint64_t key, bool was_asked) GPUMEM_UNDER_LOCK;
  /// Keeps the owner number assigned to its stream while a cache refers to it.
  void ref_owner(owner_id owner) noexcept GPUMEM_UNDER_LOCK { ++state_.streams[owner].references; }
  void unref_owner(owner_id owner) noexcept GPUMEM_UNDER_LOCK { --state_.streams[owner].references; }
  /// Frees a block that no other stream uses.
  void free_block(block_index index, owner_id owner) noexcept GPUMEM_UNDER_LOCK;
  /// Frees blocks behind a fence on all work of the device. Takes ownership of the fence.
  void free_behind_fence(std::span<const block_index> blocks, fence batch_fence) noexcept GPUMEM_UNDER_LOCK;
  /// Whether other streams use the block, so that its free must wait for them.
  [[nodiscard]] bool has_uses(block_index index) const GPUMEM_UNDER_LOCK { return state_.uses.any(index); }
  void free_behind_uses(arena_lock& lock, block_index index, owner_id owner) GPUMEM_UNDER_LOCK;
  /// Makes room for a use of the live block by `stream` and returns the stream's owner number, or `idle_owner` if the
  /// stream owns the block. Throws like `stream_order::slot_of`, with nothing changed.
  [[nodiscard]] owner_id prepare_use(block_index index, stream_ref stream, std::uint64_t key) GPUMEM_UNDER_LOCK;
  void add_use(block_index index, owner_id user) noexcept GPUMEM_UNDER_LOCK { state_.uses.add(index, user); }

  // --- shortage of memory ------------------------------------------------------------------------------------
  trim_result trim(arena_lock& lock, std::uint64_t bytes) GPUMEM_UNDER_LOCK { return trimmer_.trim(lock, bytes); }
  /// Fills in why a request failed, except for the statistics.
  void explain(const pending_request& request, oom_report* report) const GPUMEM_UNDER_LOCK;
  /// Adds free and held memory from the device, the group and NVML, queried without the lock. May change the cause to
  /// fragmentation. Requires the report's statistics.
  void ask_device(arena_lock& lock, oom_report* report) const GPUMEM_UNDER_LOCK;

  // --- figures -----------------------------------------------------------------------------------------------
  [[nodiscard]] const heap& blocks() const GPUMEM_UNDER_LOCK { return state_.blocks; }
  /// The latest events of the slow path.
  [[nodiscard]] const flight_record& flight() const noexcept GPUMEM_UNDER_LOCK { return state_.flight; }
  /// Records a slow-path event.
  void note(slow_event kind, std::uint64_t amount) noexcept GPUMEM_UNDER_LOCK { state_.note(kind, amount); }
  /// Counters updated at each event; `figures` adds the rest.
  [[nodiscard]] statistics& counts() GPUMEM_UNDER_LOCK { return state_.counts; }
  /// The counters, and bytes and blocks by state; blocks that are out count as live.
  [[nodiscard]] statistics figures() const GPUMEM_UNDER_LOCK;
  [[nodiscard]] bool paged() const noexcept GPUMEM_UNDER_LOCK { return state_.paged(); }
  /// True if the block lies in a paged segment.
  [[nodiscard]] bool mapped(block_index index) const GPUMEM_UNDER_LOCK;
  /// All segments with their blocks; blocks that are out appear as live.
  [[nodiscard]] std::vector<segment_view> segments() const GPUMEM_UNDER_LOCK;
  /// Checks that every byte is accounted for; `corrupt` names the broken invariant.
  [[nodiscard]] status check() const GPUMEM_UNDER_LOCK;

 private:
  void wait_for_handle_calls(arena_lock& lock, owner_id stream, std::uint64_t key) GPUMEM_UNDER_LOCK;
  friend class pool_capture;
  void begin_effect(capture_effect effect) noexcept GPUMEM_UNDER_LOCK;
  std::uint64_t capture_end(owner_id stream, capture_effect effect) noexcept;
  [[nodiscard]] block_index place_in_region(const pending_request& request) GPUMEM_UNDER_LOCK;
  [[nodiscard]] block_view view_of(block_index index) const GPUMEM_UNDER_LOCK;
  [[nodiscard]] status check_references() const GPUMEM_UNDER_LOCK;
  [[nodiscard]] status broken(std::string_view message, std::uint64_t first_value, std::uint64_t second_value) const;

  const arena_config config_;
  mutable arena_mutex mutex_;
  arena_state state_;
  fence_calls fences_;
  context_order context_order_;
  pager pager_;
  growth growth_;
  trimmer trimmer_;
  oom_ladder ladder_;
  plan_executor plan_executor_;
};

}  // namespace gpumem
