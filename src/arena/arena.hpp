// The arena: one heap, its policy, its budget and its stream order behind one lock, and how a request is served there.
//
// Composed of parts over one state (arena_state.hpp). The lock is the caller's to take, since threads' caches stand
// under the same one; it is never held across a driver call that can block: whoever grows holds the growth ticket
// instead, and frees go on meanwhile. Invariant: reserved = out + cached + fenced + idle + leaked, and
// `budget.reserved()` is above the limit only if the limit was lowered. Blocks in a cache above count as out, like the
// program's.
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
  /// Keys of streams; what else it says needs the lock.
  [[nodiscard]] const stream_order& streams() const noexcept { return state_.streams; }
  [[nodiscard]] budget& pool_budget() noexcept { return state_.pool_budget; }
  [[nodiscard]] const budget& pool_budget() const noexcept { return state_.pool_budget; }
  /// Frees behind all work of the device. Only its owner and `record` are for others.
  [[nodiscard]] context_order& context_ordered_frees() noexcept { return context_order_; }
  [[nodiscard]] const context_order& context_ordered_frees() const noexcept { return context_order_; }

  // --- streams and captures; each takes the lock -------------------------------------------------------------
  // Keys are `streams().key_of`'s, the same in every arena of one device.
  status stream_release(std::uint64_t key);
  /// Takes note of fences that are done. The last chance before an announced capture, while which none is asked.
  void poll();
  /// The stream captures. `announced` before the capture begins on the device, `noticed` after that. From here on no
  /// call begins that would invalidate the capture; of those under way neither function waits.
  result<pool_capture> capture_begin(stream_ref capture_stream, std::uint64_t key, capture_effect effect);
  /// A capture on a stream that is none of the pool's.
  pool_capture capture_elsewhere(capture_effect effect);
  /// Waits, without a limit, for the calls of other threads that would invalidate a capture which begins on the device
  /// after this. `stream_key`: of its stream, where that is the pool's.
  void wait_for_calls(capture_effect effect, std::optional<std::uint64_t> stream_key);
  status graph_release(std::uint64_t graph);
  /// `graph_release` closes it.
  std::uint64_t open_region(stream_ref stream, std::uint64_t key);
  /// From here on `all` stands for everything that the device is given (context_order.hpp). Once, before the first
  /// request.
  status stand_for_all_work(stream_ref all);
  void on_out_of_memory(const oom_callback& callback);
  /// Needs no lock.
  [[nodiscard]] segment_observers& observers() noexcept { return state_.observers; }

  // --- a request and a free ----------------------------------------------------------------------------------
  /// Takes now what the policy takes ahead of demand, once. Fails only with a driver error other than out of memory; a
  /// later request tries again.
  status open(arena_lock& lock) GPUMEM_UNDER_LOCK;
  /// Whose memory serves the request, and of which class. `invalid_argument` where its region is not open.
  [[nodiscard]] result<pending_request> prepare(const request& request, std::uint64_t rounded,
                                                std::uint64_t stream_key) GPUMEM_UNDER_LOCK;
  /// A live block for the request: from free memory, else by the out-of-memory ladder. `no_block` if memory is short
  /// (`explain` says why), `unsupported` if `request.place` is not free.
  [[nodiscard]] result<block_index> allocate(arena_lock& lock, pending_request& request) GPUMEM_UNDER_LOCK;
  /// Who will own a live block that is freed on stream `stream` (null: no stream named). A block that a capture
  /// allocated stays with its graph. Throws as `stream_order::slot_of`, with nothing changed.
  [[nodiscard]] owner_id owner_of_free(block_index index, const stream_ref* stream,
                                       std::uint64_t key) GPUMEM_UNDER_LOCK;
  /// The program has freed the block in the order of `owner`, which owns it from here on; it still counts as out.
  void transfer_ownership(block_index index, owner_id owner) GPUMEM_UNDER_LOCK;
  /// The program names that stream in this call, so it lives (`stream_order::fence_named`). May give the lock up.
  void stream_named(arena_lock& lock, owner_id stream, std::uint64_t key, bool was_asked) GPUMEM_UNDER_LOCK;
  /// A cache above keeps the number of that stream, so that it is not another one's meanwhile.
  void ref_owner(owner_id owner) noexcept GPUMEM_UNDER_LOCK { ++state_.streams[owner].references; }
  void unref_owner(owner_id owner) noexcept GPUMEM_UNDER_LOCK { --state_.streams[owner].references; }
  /// Frees a block that no other stream uses.
  void free_block(block_index index, owner_id owner) noexcept GPUMEM_UNDER_LOCK;
  /// Frees blocks behind a fence on all work of the device. Takes the fence over.
  void free_behind_fence(std::span<const block_index> blocks, fence batch_fence) noexcept GPUMEM_UNDER_LOCK;
  /// Whether other streams use the block, so that its free has to wait for them.
  [[nodiscard]] bool has_uses(block_index index) const GPUMEM_UNDER_LOCK { return state_.uses.any(index); }
  void free_behind_uses(arena_lock& lock, block_index index, owner_id owner) GPUMEM_UNDER_LOCK;
  /// Makes room for a use of the live block by that stream and returns the stream's owner number, or `idle_owner` if
  /// the stream owns the block. Throws as `stream_order::slot_of`, with nothing changed.
  [[nodiscard]] owner_id prepare_use(block_index index, stream_ref stream, std::uint64_t key) GPUMEM_UNDER_LOCK;
  void add_use(block_index index, owner_id user) noexcept GPUMEM_UNDER_LOCK { state_.uses.add(index, user); }

  // --- what is short, and what goes --------------------------------------------------------------------------
  trim_result trim(arena_lock& lock, std::uint64_t bytes) GPUMEM_UNDER_LOCK { return trimmer_.trim(lock, bytes); }
  /// Why a request failed, but for the statistics.
  void explain(const pending_request& request, oom_report* report) const GPUMEM_UNDER_LOCK;
  /// What the device, the group and NVML say of it, asked without the lock; with it the cause may be fragmentation.
  /// Requires the statistics.
  void ask_device(arena_lock& lock, oom_report* report) const GPUMEM_UNDER_LOCK;

  // --- figures -----------------------------------------------------------------------------------------------
  [[nodiscard]] const heap& blocks() const GPUMEM_UNDER_LOCK { return state_.blocks; }
  /// The latest events of the slow path.
  [[nodiscard]] const flight_record& flight() const noexcept GPUMEM_UNDER_LOCK { return state_.flight; }
  /// Keeps one more of them.
  void note(slow_event kind, std::uint64_t amount) noexcept GPUMEM_UNDER_LOCK { state_.note(kind, amount); }
  /// What is counted at each event; `add_figures` adds the rest.
  [[nodiscard]] statistics& counts() GPUMEM_UNDER_LOCK { return state_.counts; }
  /// The counters, and bytes and blocks by state; what is out counts as live.
  [[nodiscard]] statistics figures() const GPUMEM_UNDER_LOCK;
  [[nodiscard]] bool paged() const noexcept GPUMEM_UNDER_LOCK { return state_.paged(); }
  /// True where the block's segment is of pages.
  [[nodiscard]] bool mapped(block_index index) const GPUMEM_UNDER_LOCK;
  /// Every block, with what is out as live.
  [[nodiscard]] std::vector<segment_view> segments() const GPUMEM_UNDER_LOCK;
  /// Proves that no byte was lost; `corrupt` names what does not hold.
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
