// The arena: the part of a pool that serves requests and takes frees under the lock. Only the pool's own files include
// it.
//
// Composed of parts over one state (arena_state.hpp). The caller takes the lock, because threads' caches share it. The
// arena never holds it across a driver call that can block: a thread that grows holds the growth ticket instead, and
// frees continue. Invariant: reserved = out + cached + fenced + idle + leaked, and `budget.reserved()` exceeds the
// limit only if the limit was lowered. Blocks in threads' caches count as out, like the program's.
#pragma once

#include <memory>
#include <span>

#include "arena_state.hpp"
#include "context_order.hpp"
#include "plan_executor.hpp"
#include "step_places.hpp"

namespace gpumem {

class arena final : public cache_source {
 public:
  /// `device` must outlive it. Takes nothing from the device yet.
  arena(device& device, pool_config config, std::unique_ptr<policy> policy);
  /// Returns every segment to the device; no other call may be under way.
  ~arena();
  arena& operator=(arena&&) = delete;

  arena_state state;
  fence_calls fences;
  context_order context_frees;
  pager paging;
  growth growing;
  trimmer trimming;
  segment_merger merging;
  oom_ladder ladder;
  plan_executor planning;

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
  /// Returns the owner that a live block gets if `stream` frees it (null: no stream named). A block that a capture
  /// allocated stays with its graph. Throws like `stream_order::slot_of`, with nothing changed.
  [[nodiscard]] owner_id owner_of_free(block_index index, const stream_ref* stream,
                                       std::uint64_t key) GPUMEM_UNDER_LOCK;
  /// Transfers a block that the program freed in the order of `owner` to that owner. The block still counts as out.
  void transfer_ownership(block_index index, owner_id owner) GPUMEM_UNDER_LOCK;
  /// The program names `stream` in this call, so its handle is valid (`stream_order::fence_named`). May release the
  /// lock.
  void stream_named(arena_lock& lock, owner_id stream, std::uint64_t key, bool was_asked) GPUMEM_UNDER_LOCK;
  /// Frees a block that no other stream uses.
  void free_block(block_index index, owner_id owner) noexcept GPUMEM_UNDER_LOCK override;
  void free_behind_fence(std::span<const block_index> blocks, fence batch_fence) noexcept GPUMEM_UNDER_LOCK override;
  /// Frees a block that other streams use, behind their work.
  void free_behind_uses(arena_lock& lock, block_index index, owner_id owner) GPUMEM_UNDER_LOCK;
  /// The owner word of a live block, from the pointer map; for `no_block` and any other block the word that says that
  /// nobody holds it. Another thread may change the word unless every cache is stopped.
  [[nodiscard]] owner_word held_as(block_index index) const noexcept GPUMEM_UNDER_LOCK;
  /// Makes room for a use of the live block by `stream` and returns the stream's owner number, or `idle_owner` if the
  /// stream owns the block. Throws like `stream_order::slot_of`, with nothing changed.
  [[nodiscard]] owner_id prepare_use(block_index index, stream_ref stream, std::uint64_t key) GPUMEM_UNDER_LOCK;

  // --- refusals (refusals.cpp) -------------------------------------------------------------------------------
  /// Refuses a request for which there is no memory, with a report if the host has memory for it. Releases the lock.
  status refuse(arena_lock& lock, const request& request, const pending_request& pending,
                oom_slot* refusal) GPUMEM_UNDER_LOCK;
  /// Refuses the free of an address that the program does not hold: says why it is not a live block.
  status refuse_free(address pointer, const pointer_map::lookup& seen) GPUMEM_UNDER_LOCK;
  [[nodiscard]] status freed_twice(address pointer) const;
  [[nodiscard]] status not_in_live_block(address pointer) const;

  // --- figures (pool_check.cpp); each requires that every cache is stopped ----------------------------------
  /// The counters, and bytes and blocks by state.
  [[nodiscard]] statistics figures() const GPUMEM_UNDER_LOCK;
  /// Checks that every byte is accounted for; `corrupt` names the broken invariant.
  [[nodiscard]] status check() const GPUMEM_UNDER_LOCK;

  // --- what caches ask ---------------------------------------------------------------------------------------
  void ref_owner(owner_id owner) noexcept GPUMEM_UNDER_LOCK override { ++state.streams[owner].references; }
  void unref_owner(owner_id owner) noexcept GPUMEM_UNDER_LOCK override { --state.streams[owner].references; }
  [[nodiscard]] std::uint64_t out_bytes() const noexcept GPUMEM_UNDER_LOCK override {
    return state.blocks.totals().live_bytes;
  }
  [[nodiscard]] class_usage usage_of(unsigned segment_class) const noexcept GPUMEM_UNDER_LOCK override;

 private:
  [[nodiscard]] block_index place_in_region(const pending_request& request) GPUMEM_UNDER_LOCK;
  /// Carves a live block at `place` if one block that is free for the request's owner covers it.
  [[nodiscard]] block_index take_place(const pending_request& request, address place) GPUMEM_UNDER_LOCK;
  [[nodiscard]] status check_references() const GPUMEM_UNDER_LOCK;
  [[nodiscard]] status check_blocks(const statistics& found) const GPUMEM_UNDER_LOCK;
  [[nodiscard]] status check_caches() const GPUMEM_UNDER_LOCK;
  [[nodiscard]] status broken(std::string_view message, std::uint64_t first_value, std::uint64_t second_value) const;

  step_places places_ GPUMEM_GUARDED_BY(under_arena_lock);
  const status no_report_;  // for a refused request if the host has no memory for a report
};

}  // namespace gpumem
