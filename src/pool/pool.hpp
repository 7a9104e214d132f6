// The pool: one heap, its policy, its budget and its stream order behind one lock. A logical device is one pool.
//
// Files: cache_allocate.cpp and cache_free.cpp (the paths without the lock), pool.cpp (those under it without a driver
// call), pool_caches.cpp (what threads' caches and the pool hand each other), cache_limits.cpp (how much they keep),
// oom_ladder.cpp (what happens when nothing fits), give_back.cpp (trim, limit), pool_check.cpp (statistics,
// invariants). The lock is never held across a driver call that can block; whoever grows holds the growth ticket
// instead, and frees go on meanwhile. Invariant: reserved = live + thread-cached + cached + fenced + idle + leaked,
// with `budget.reserved()` never above the limit but by lowering it. To the heap, what a cache holds is live: it is
// out, and its slot says whose it is.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "backing.hpp"
#include "best_fit.hpp"
#include "block_uses.hpp"
#include "budget.hpp"
#include "depot.hpp"
#include "follower.hpp"
#include "gpumem/policy.hpp"
#include "gpumem/request.hpp"
#include "gpumem/settings.hpp"
#include "gpumem/statistics.hpp"
#include "gpumem/status.hpp"
#include "guarded_policy.hpp"
#include "heap.hpp"
#include "lookahead.hpp"
#include "page_map.hpp"
#include "page_place.hpp"
#include "page_step.hpp"
#include "pointer_map.hpp"
#include "returning_sizes.hpp"
#include "stream_holds.hpp"
#include "stream_order.hpp"
#include "thread_caches.hpp"
#include "unlocked_section.hpp"

namespace gpumem {

struct pool_config {
  int ordinal = 0;  ///< logical
  std::string name;
  std::string policy_name;
  std::uint64_t limit_bytes = 0;
  std::uint64_t total_bytes = 0;
  std::uint64_t free_at_start_bytes = 0;
  stream_id_mode stream_ids = stream_id_mode::query;
  stream_reuse reuse = stream_reuse::device;
  bool thread_cache = true;
  std::shared_ptr<const plan::step_plan> plan;  ///< to be followed; may be null
  std::uint64_t allocator_number = 0;           ///< of the allocator that it is part of, which no later one repeats
  std::shared_ptr<group_ledger> group;          ///< a second cap, shared with other processes; may be null
  bool verbose = false;                         ///< GPUMEM_VERBOSE
  /// Told of every free before the block can be given out again, under the pool's lock; may be empty.
  std::function<void(address at, std::uint64_t requested_bytes, stream_ref order)> before_free;
};

class pool {
 public:
  /// `on` must outlive the pool. Takes nothing from the device yet.
  pool(device& on, pool_config config, std::unique_ptr<policy> decides);
  /// Returns every segment to the device; no other call may be under way.
  ~pool();
  pool(const pool&) = delete;
  pool& operator=(const pool&) = delete;

  /// A block of exactly this size (rounded up to 512) from this thread's cache, which `mine` is, for the stream that it
  /// served last, or 0. `requested` may be anything. No lock, no call.
  [[nodiscard]] address try_cache(thread_cache& mine, stream_ref of, std::uint64_t requested) noexcept;
  /// The same for any stream whose key costs no call, once the thread has a cache.
  [[nodiscard]] address try_cache_of_any_stream(stream_ref of, std::uint64_t requested) noexcept;
  /// True where the thread's cache, which `mine` is, took the block for its own stream; false where it did not, for
  /// whatever reason, and nothing changed. `stated` may be null; its device is the caller's to look at.
  [[nodiscard]] bool free_to_cache(thread_cache& mine, address at, const release* stated) noexcept;
  [[nodiscard]] bool free_to_cache_of_any_stream(address at, const release& stated) noexcept;

  /// What the policy takes ahead of demand, taken now; nothing where the pool is open already. The driver's error,
  /// where it is not that memory is short; a later request tries again.
  status open_ahead();
  /// `r.bytes` is not 0 and `r.alignment` a power of two; `rounded` is `r.bytes` rounded up to 512.
  /// `at` is where the block begins, on success.
  status allocate(const request& r, std::uint64_t rounded, address* at, oom_slot* refusal);
  /// `unknown_pointer` where no block of this pool begins there.
  status release_block(address at, const release& stated);
  status record_use(address at, stream_ref s);
  /// What stands for the stream in the next three, the same in every pool of one device.
  [[nodiscard]] result<std::uint64_t> key_of(stream_ref s) const { return streams_.key_of(s); }
  status stream_release(std::uint64_t key);
  /// `has_begun`: the stream captures already, so that nothing may be recorded here.
  status capture_begin(stream_ref s, std::uint64_t key, bool has_begun = false);
  /// Between two captures of one stream, the second of which has begun: as while one is under way.
  void forbid_fences(bool yes);
  result<std::uint64_t> capture_end(std::uint64_t key);
  status graph_release(std::uint64_t graph);

  trim_result trim(std::uint64_t bytes);
  limit_result set_limit(std::uint64_t limit_bytes);
  void on_out_of_memory(const oom_callback& callback);
  void count_misuse();

  /// True where a segment of this pool covers the address.
  [[nodiscard]] bool contains(address at) const;
  [[nodiscard]] result<block_info> describe(address at) const;
  [[nodiscard]] statistics stats();
  [[nodiscard]] status check() const;
  [[nodiscard]] const pool_config& config() const noexcept { return config_; }
  [[nodiscard]] std::uint64_t limit() const noexcept { return budget_.limit(); }

 private:
  using guard = pool_lock;

  /// A request on its way: what to look for, and what stood in its way.
  struct want {
    owner_id owner = idle_owner;
    unsigned klass = 0;
    std::uint64_t bytes = 0;
    std::uint64_t alignment = 0;
    bool capturing = false;
    bool plain = false;  ///< what is known of the block fits into its slot, and a cache may have it
    bool limit_refused = false;
    bool device_refused = false;
    status driver_error;
    block_index placed = no_block;     ///< by `page_in`
    large_requests::number asked = 0;  ///< of a paged pool's large request
  };
  enum class growth : std::uint8_t { grew, waited, refused };
  enum class page_plan : std::uint8_t { ready, wait_first, give_back_first, impossible };

  // cache_allocate.cpp, cache_free.cpp
  [[nodiscard]] thread_cache* mine_without_lock() const noexcept;
  [[nodiscard]] address try_cache_by_key(std::uint64_t key, std::uint64_t requested) noexcept;
  [[nodiscard]] result<std::uint64_t> key_of_stated(address at, stream_ref s);
  [[nodiscard]] address try_stream_cache(thread_cache& mine, stream_cache& s, std::uint64_t requested) noexcept;
  address pop(thread_cache& mine, stream_cache::bin& from, std::uint64_t requested) noexcept;
  address pop_under_lock(thread_cache& mine, stream_cache::bin& from, std::uint64_t requested) noexcept;
  [[nodiscard]] bool free_to_cache_by_key(address at, std::uint64_t key, const release& stated) noexcept;
  [[nodiscard]] bool free_to_stream_cache(thread_cache& mine, address at, const release* stated,
                                          const stream_cache* only) noexcept;

  // pool_caches.cpp
  [[nodiscard]] guard enter();
  [[nodiscard]] thread_cache* fold_mine();
  void fold(thread_cache& c) noexcept;
  void note_live() noexcept;
  [[nodiscard]] static bool plain_of(owner_id o, const stream_slot& slot, std::uint64_t bytes) noexcept;
  [[nodiscard]] bool cacheable(owner_id o, std::uint64_t bytes) const noexcept;
  void count_cached(thread_cache& c, std::uint32_t units, std::int64_t blocks) noexcept;
  address refill(thread_cache& mine, owner_id o, std::uint64_t bytes, std::uint64_t requested);
  bool keep(thread_cache& mine, slot_index place, owner_id o);
  void hold(thread_cache& mine, stream_cache& s, stream_cache::bin& bin, slot_index i, std::uint64_t most);
  stream_cache* stream_cache_for(thread_cache& mine, owner_id o) noexcept;
  stream_cache* new_stream_cache(thread_cache& mine, owner_id o) noexcept;
  stream_cache::bin& bin_for(thread_cache& mine, stream_cache& s, std::uint32_t units);
  bool hand_over(thread_cache& mine, stream_cache& s, stream_cache::bin& bin, std::uint64_t most);
  void empty(thread_cache& c, stream_cache& s, stream_cache::bin& bin, std::uint32_t keep_latest = 0);
  void empty(thread_cache& c, owner_id o);
  void empty_depot(owner_id o);
  void to_heap(slot_index i, owner_id o);
  bool flush_caches();
  void flush_stopped();
  void make_room_for_slot_of(block_index i);
  void forget_caches(owner_id o);
  void thread_ends(thread_cache& c);

  // cache_limits.cpp
  void note_calm(std::uint64_t bytes) noexcept;
  void note_pressure() noexcept;
  [[nodiscard]] std::uint64_t may_keep(std::uint64_t bytes, unsigned klass) const noexcept;
  [[nodiscard]] static stream_cache* next_bin(thread_cache& mine, std::uint32_t* place) noexcept;
  void age(thread_cache& mine);
  void shed(thread_cache& mine, std::uint64_t left);

  // pool.cpp
  [[nodiscard]] static placement_request placement_of(const want& w) noexcept {
    return {.owner = w.owner, .klass = w.klass, .bytes = w.bytes, .alignment = w.alignment};
  }
  [[nodiscard]] block_index search(const want& w);
  [[nodiscard]] block_index search(owner_id o, unsigned klass, std::uint64_t bytes, std::uint64_t alignment);
  [[nodiscard]] block_index search_of(const want& w, owner_id other);
  address hand_out(block_index i, owner_id o, bool plain, std::uint64_t requested_bytes);
  status serve(guard& lock, const request& r, want& w, std::uint64_t key, address* at, oom_slot* refusal);
  status out_of_memory(guard& lock, const request& r, const want& w, oom_slot* refusal);
  status why_not_live(address at, block_index i) const;
  [[nodiscard]] owner_word held_as(block_index i) const noexcept;
  void poll();

  // planned.cpp
  block_index place_planned(guard& lock, want& w, std::uint64_t stream_key);
  [[nodiscard]] bool plan_has_memory();
  void note_placed(std::uint32_t place, block_index i) noexcept;
  [[nodiscard]] block_index free_at(const want& w, std::uint32_t place, address begin, owner_id* in_the_way);
  [[nodiscard]] block_index free_when_done(guard& lock, const want& w, std::uint32_t place, address begin);
  void fence_promised() noexcept;
  block_index climb_beside_plan(guard& lock, want& w);

  // oom_ladder.cpp
  block_index climb(guard& lock, want& w);
  block_index reuse_other_streams(guard& lock, want& w);
  void wait_for(guard& lock, fence_index f);
  block_index join_all(const want& w);
  block_index return_and_grow(guard& lock, want& w);
  [[nodiscard]] owner_id best_other(const want& w, block_index* found) const;
  [[nodiscard]] bool others_hold(const want& w) const;
  bool wait_for_fences(guard& lock);
  bool ask_callbacks(guard& lock, std::uint64_t bytes);
  [[nodiscard]] oom_cause cause_of(const want& w) const;
  void fill_report(guard& lock, const request& r, const want& w, oom_report* report);

  // growth.cpp
  void open_first(guard& lock, want& w);
  growth grow(guard& lock, want& w);
  std::uint64_t add_segment(guard& lock, const segment_request& ask, want& w);
  void make_room_for_backing();
  void note_backing(segment_index s, const backed_segment& behind) noexcept;
  /// Makes room for the records of one segment, and asks the driver for it without the lock; that room is kept.
  template <typename Call>
  auto with_room_for_segment(guard& lock, const Call& call) {
    make_room_for_backing();
    heap_.set_blocks_aside(1);
    auto made = [&] {
      const unlocked_section waits{lock};
      return call();
    }();
    heap_.set_blocks_aside(0);
    return made;
  }

  // paging.cpp
  [[nodiscard]] bool paged() const noexcept { return page_rules_.range_bytes != 0; }
  growth page_in(guard& lock, want& w);
  bool add_range(guard& lock, want& w);
  /// How much may be made new, and in how long runs: what the device refused was more.
  struct new_pages_at_most {
    std::uint64_t bytes = UINT64_MAX;
    std::uint64_t run_bytes = UINT64_MAX;
  };
  /// What may still be tried before more is made than the policy wants.
  struct page_means {
    bool wait = true;       ///< for fences
    bool give_back = true;  ///< runs that are too long to move
  };
  [[nodiscard]] page_plan plan_pages(const want& w, const page_place& at, new_pages_at_most most, page_means left,
                                     page_step* out) const;
  std::uint64_t plan_ahead(std::uint64_t bytes, std::uint64_t run_bytes, page_step* out) const;
  [[nodiscard]] std::vector<page_step::run> runs_to_move(const std::vector<hollow_piece>& pieces, const page_place& at,
                                                         std::uint64_t need_bytes, std::uint64_t bytes,
                                                         std::vector<std::uint64_t>* filled) const;
  [[nodiscard]] block_index hollow_at(address at) const;
  [[nodiscard]] block_index idle_at(address at) const;
  [[nodiscard]] block_index free_at(address at, owner_id o) const;
  [[nodiscard]] bool may_settle() const;
  void take_stretch(address begin, std::uint64_t bytes);
  void take_moving(const page_step& step);
  void settle_step(const page_step& step, reservation* reserved);
  block_index carve_place(const want& w, const page_place& at, address within);
  status carry(guard& lock, page_step& step, reservation* reserved);
  /// Where no page may go from.
  struct page_span {
    address begin = 0;
    address end = 0;
  };
  [[nodiscard]] page_span pages_of(const page_place& at, std::uint64_t bytes) const;
  std::uint64_t return_stretches(guard& lock, std::uint64_t bytes, page_span keep);
  std::uint64_t return_pages(guard& lock, std::uint64_t bytes);
  void return_everything_paged();
  [[nodiscard]] status check_pages() const;

  // foresight.cpp
  [[nodiscard]] block_index search_large(guard& lock, want& w);
  [[nodiscard]] std::optional<page_place> better_place(const want& w, address usual, bool at_once);
  [[nodiscard]] std::vector<bool> owners_that_serve(owner_id o, bool all) const;
  [[nodiscard]] bool looks_ahead(const want& w) const noexcept;
  [[nodiscard]] bool free_for(const want& w, const page_place& at) const;
  bool page_in_ahead(guard& lock, want& w);
  block_index page_in_at(guard& lock, const want& w, const page_place& at, page_step& step);

  // give_back.cpp
  std::uint64_t return_idle(guard& lock, std::uint64_t bytes);
  void explain_rest(bool allowed, trim_result* out) const;
  void explain_pages(const heap_segment& segment, bool allowed, trim_result* out) const;

  // pool_check.cpp
  [[nodiscard]] statistics stats_of_stopped() const;
  [[nodiscard]] status check_stopped() const;
  [[nodiscard]] status check_caches() const;
  [[nodiscard]] pool_view view() const;
  [[nodiscard]] std::uint64_t live_out() const noexcept;
  [[nodiscard]] bool nothing_behind(segment_index s) const;

  pool_config config_;
  // What hits read without the lock. Nothing else lies in these lines, so that nobody's miss takes them away.
  alignas(64) device& device_;
  pointer_map pointers_;

  guarded_policy policy_;
  budget budget_;

  mutable std::mutex mutex_;
  heap heap_;
  depot depot_;
  returning_sizes returning_;
  stream_order streams_;
  block_uses uses_;
  std::vector<backed_segment> backed_;  // by segment_index
  page_rules page_rules_;
  /// Of a paged pool, larger blocks are not kept in caches; see cache_limits.cpp.
  static constexpr std::uint32_t freely_kept_units = 64;
  page_map pages_;
  best_fit best_fit_;
  lookahead lookahead_;  ///< of a paged pool whose policy asks for it
  std::vector<oom_callback> callbacks_;
  growth_gate growth_;
  blocking_calls calls_;
  bool calm_ = false;                ///< large blocks may be kept; see cache_limits.cpp
  std::uint64_t calm_peak_ = 0;      ///< of live bytes, as it was when the count began anew
  std::uint64_t calm_requests_ = 0;  ///< since then
  std::uint64_t calm_bytes_ = 0;     ///< handed out by the heap since then
  bool opened_ = false;
  statistics counts_;                         // the counters; the bytes are filled in from the heap when asked
  status no_report_;                          // of a request that fails where the host has no memory for a report
  std::uint64_t lost_bytes_ = 0;              // segments that the driver failed to take back: leaked
  std::uint64_t in_caches_bytes_ = 0;         // as counted when each thread was here last
  std::unique_ptr<plan::follower> follower_;  // null: no plan
  segment_index plan_segment_ = 0;
  address plan_begin_ = 0;  // 0: the plan's memory could not be had
  bool promised_ = false;   // a slot's `promised` is set
  thread_caches caches_;
};

}  // namespace gpumem
