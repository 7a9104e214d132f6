// The pool: one heap, its policy, its budget and its stream order behind one lock. A logical device is one pool.
//
// Threads' caches stand before it (src/cache). Files: pool.cpp (the paths under the lock without a driver call),
// oom_ladder.cpp (what happens when nothing fits), give_back.cpp (trim, limit), pool_check.cpp (statistics,
// invariants). The lock is never held across a driver call that can block; whoever grows holds the growth ticket
// instead, and frees go on meanwhile. Invariant: reserved = live + thread-cached + cached + fenced + idle + leaked,
// with `budget.reserved()` never above the limit but by lowering it. To the heap, what a cache holds is live.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backing.hpp"
#include "best_fit.hpp"
#include "block_cache.hpp"
#include "block_uses.hpp"
#include "budget.hpp"
#include "checked_mutex.hpp"
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
#include "planned.hpp"
#include "stream_holds.hpp"
#include "stream_order.hpp"
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

class pool final : private arena_below {
 public:
  /// `on` must outlive the pool. Takes nothing from the device yet.
  pool(device& on, pool_config config, std::unique_ptr<policy> decides);
  /// Returns every segment to the device; no other call may be under way.
  ~pool();
  pool(const pool&) = delete;
  pool& operator=(const pool&) = delete;

  /// Without the lock: a block from this thread's cache, or 0 (block_cache.hpp). `requested` may be anything.
  [[nodiscard]] address try_cache(stream_ref of, std::uint64_t requested) noexcept {
    return streams_.key_is_known(of) ? cache_.allocate_and_remember(of, streams_.known_key(of), requested) : 0;
  }
  /// Without the lock: true where this thread's cache took the block.
  [[nodiscard]] bool free_to_cache(address at, const free_args& stated) noexcept;

  /// From here on `all` stands for everything that the device is given: what is freed in its order is free for others
  /// when all of that is done. Once, before the first allocation.
  status stand_for_all_work(stream_ref all);
  /// Without the lock: true where this thread has set such a free aside; else `release_block` is to be asked.
  [[nodiscard]] bool free_behind_all_work(address at) noexcept;

  /// What the policy takes ahead of demand, taken now; nothing where the pool is open already. The driver's error,
  /// where it is not that memory is short; a later request tries again.
  status open_ahead();
  /// `r.bytes` is not 0 and `r.alignment` a power of two; `rounded` is `r.bytes` rounded up to 512.
  /// `at` is where the block begins, on success.
  status allocate(const request& r, std::uint64_t rounded, address* at, oom_slot* refusal);
  /// `unknown_pointer` where no block of this pool begins there.
  status release_block(address at, const free_args& stated);
  status record_use(address at, stream_ref s);
  /// What stands for the stream in the next three, the same in every pool of one device.
  [[nodiscard]] result<std::uint64_t> key_of(stream_ref s) const { return streams_.key_of(s); }
  status stream_release(std::uint64_t key);
  /// `has_begun`: the stream captures already, so that nothing may be recorded here.
  status capture_begin(stream_ref s, std::uint64_t key, bool has_begun = false);
  /// Between two captures of one stream, the second of which has begun: as while one is under way.
  void forbid_fences(bool yes);
  /// While a capture is under way on another device.
  void forbid_foreign_fences(bool yes);
  result<std::uint64_t> capture_end(std::uint64_t key);
  status graph_release(std::uint64_t graph);
  /// `graph_release` closes it.
  result<std::uint64_t> open_region(stream_ref s, std::uint64_t key);

  trim_result trim(std::uint64_t bytes);
  limit_result set_limit(std::uint64_t limit_bytes);
  void on_out_of_memory(const oom_callback& callback);
  void count_misuse();

  /// True where a segment of this pool covers the address.
  [[nodiscard]] bool contains(address at) const;
  [[nodiscard]] result<block_info> describe(address at) const;
  [[nodiscard]] statistics stats();
  [[nodiscard]] std::vector<segment_view> segments() const;
  void reset_peak_reserved();
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

  // What the caches ask of what lies below them.
  void take_back(block_index i, owner_id o) noexcept GPUMEM_REQUIRES(mutex_) override;
  void take_back_behind(std::span<const block_index> blocks, fence behind) noexcept GPUMEM_REQUIRES(mutex_) override;
  [[nodiscard]] std::uint64_t out_bytes() const noexcept GPUMEM_REQUIRES(mutex_) override {
    return heap_.totals().live_bytes;
  }
  [[nodiscard]] class_room room_of(unsigned klass) const noexcept GPUMEM_REQUIRES(mutex_) override;

  // pool.cpp
  void thread_ends(thread_cache& c);
  [[nodiscard]] result<std::uint64_t> key_of_stated(address at, stream_ref s);
  /// True where all that is known of a block fits into its owner word, so that a cache may have it.
  [[nodiscard]] static bool plain_of(owner_id o, const stream_slot& slot, std::uint64_t bytes) noexcept;
  [[nodiscard]] bool cacheable(owner_id o, std::uint64_t bytes) const noexcept GPUMEM_REQUIRES(mutex_);
  [[nodiscard]] static placement_request placement_of(const want& w) noexcept {
    return {.owner = w.owner, .klass = w.klass, .bytes = w.bytes, .alignment = w.alignment};
  }
  [[nodiscard]] block_index search(const want& w) GPUMEM_REQUIRES(mutex_);
  [[nodiscard]] block_index search(owner_id o, unsigned klass, std::uint64_t bytes, std::uint64_t alignment)
      GPUMEM_REQUIRES(mutex_);
  [[nodiscard]] block_index search_of(const want& w, owner_id other) GPUMEM_REQUIRES(mutex_);
  address hand_out(block_index i, owner_id o, bool plain, std::uint64_t requested_bytes) GPUMEM_REQUIRES(mutex_);
  status serve(guard& lock, const request& r, want& w, std::uint64_t key, address* at, oom_slot* refusal)
      GPUMEM_REQUIRES(mutex_);
  status out_of_memory(guard& lock, const request& r, const want& w, oom_slot* refusal) GPUMEM_REQUIRES(mutex_);
  status why_not_live(address at, block_index i) const GPUMEM_REQUIRES(mutex_);
  [[nodiscard]] block_index place_in_region(const want& w, address at) GPUMEM_REQUIRES(mutex_);
  [[nodiscard]] owner_word held_as(block_index i) const noexcept GPUMEM_REQUIRES(mutex_);
  void poll(guard& lock) GPUMEM_REQUIRES(mutex_);
  void record_fences(guard& lock) GPUMEM_REQUIRES(mutex_);
  std::optional<fence> record_unlocked(guard& lock, const unrecorded_fence& f) GPUMEM_REQUIRES(mutex_);

  // behind_all_work.cpp
  void fence_all_work(guard& lock, std::uint64_t bytes) GPUMEM_REQUIRES(mutex_);

  // planned.cpp
  block_index place_planned(guard& lock, want& w, std::uint64_t stream_key) GPUMEM_REQUIRES(mutex_);
  [[nodiscard]] block_index free_at(const want& w, const planned::place& place, owner_id* in_the_way)
      GPUMEM_REQUIRES(mutex_);
  [[nodiscard]] block_index free_when_done(guard& lock, const want& w, const planned::place& place)
      GPUMEM_REQUIRES(mutex_);
  void fence_promised(guard& lock) GPUMEM_REQUIRES(mutex_);
  block_index climb_beside_plan(guard& lock, want& w) GPUMEM_REQUIRES(mutex_);

  // oom_ladder.cpp
  block_index climb(guard& lock, want& w) GPUMEM_REQUIRES(mutex_);
  block_index reuse_other_streams(guard& lock, want& w) GPUMEM_REQUIRES(mutex_);
  void wait_for(guard& lock, fence_index f) GPUMEM_REQUIRES(mutex_);
  block_index join_all(const want& w) GPUMEM_REQUIRES(mutex_);
  block_index return_and_grow(guard& lock, want& w) GPUMEM_REQUIRES(mutex_);
  [[nodiscard]] owner_id best_other(const want& w, block_index* found) const GPUMEM_REQUIRES(mutex_);
  [[nodiscard]] bool others_hold(const want& w) const GPUMEM_REQUIRES(mutex_);
  bool wait_for_fences(guard& lock) GPUMEM_REQUIRES(mutex_);
  bool ask_callbacks(guard& lock, std::uint64_t bytes) GPUMEM_REQUIRES(mutex_);
  [[nodiscard]] oom_cause cause_of(const want& w) const GPUMEM_REQUIRES(mutex_);
  void fill_report(guard& lock, const request& r, const want& w, oom_report* report) GPUMEM_REQUIRES(mutex_);

  // growth.cpp
  void open_first(guard& lock, want& w) GPUMEM_REQUIRES(mutex_);
  growth grow(guard& lock, want& w) GPUMEM_REQUIRES(mutex_);
  std::uint64_t add_segment(guard& lock, const segment_request& ask, want& w) GPUMEM_REQUIRES(mutex_);
  void make_room_for_backing() GPUMEM_REQUIRES(mutex_);
  void note_backing(segment_index s, const backed_segment& behind) noexcept GPUMEM_REQUIRES(mutex_);
  /// Makes room for the records of one segment, and asks the driver for it without the lock; that room is kept.
  template <typename Call>
  auto with_room_for_segment(guard& lock, const Call& call) GPUMEM_REQUIRES(mutex_) {
    make_room_for_backing();
    heap_.set_blocks_aside(1);
    auto made = without_lock(lock, call);
    heap_.set_blocks_aside(0);
    return made;
  }
  template <typename Call>
  auto without_lock(guard& lock, const Call& call) GPUMEM_REQUIRES(mutex_) {
    const unlocked_section waits{lock, mutex_};
    return call();
  }

  // paging.cpp
  [[nodiscard]] bool paged() const noexcept GPUMEM_REQUIRES(mutex_) { return page_rules_.range_bytes != 0; }
  growth page_in(guard& lock, want& w) GPUMEM_REQUIRES(mutex_);
  bool add_range(guard& lock, want& w) GPUMEM_REQUIRES(mutex_);
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
                                     page_step* out) const GPUMEM_REQUIRES(mutex_);
  std::uint64_t plan_ahead(std::uint64_t bytes, std::uint64_t run_bytes, page_step* out) const GPUMEM_REQUIRES(mutex_);
  [[nodiscard]] std::vector<page_step::run> runs_to_move(const std::vector<hollow_piece>& pieces, const page_place& at,
                                                         std::uint64_t need_bytes, std::uint64_t bytes,
                                                         std::vector<std::uint64_t>* filled) const
      GPUMEM_REQUIRES(mutex_);
  [[nodiscard]] block_index hollow_at(address at) const GPUMEM_REQUIRES(mutex_);
  [[nodiscard]] block_index idle_at(address at) const GPUMEM_REQUIRES(mutex_);
  [[nodiscard]] block_index free_at(address at, owner_id o) const GPUMEM_REQUIRES(mutex_);
  [[nodiscard]] bool may_settle() const GPUMEM_REQUIRES(mutex_);
  void take_stretch(address begin, std::uint64_t bytes) GPUMEM_REQUIRES(mutex_);
  void take_moving(const page_step& step) GPUMEM_REQUIRES(mutex_);
  void settle_step(const page_step& step, reservation* reserved) GPUMEM_REQUIRES(mutex_);
  block_index carve_place(const want& w, const page_place& at, address within) GPUMEM_REQUIRES(mutex_);
  status carry(guard& lock, page_step& step, reservation* reserved) GPUMEM_REQUIRES(mutex_);
  /// Where no page may go from.
  struct page_span {
    address begin = 0;
    address end = 0;
  };
  [[nodiscard]] page_span pages_of(const page_place& at, std::uint64_t bytes) const GPUMEM_REQUIRES(mutex_);
  std::uint64_t return_stretches(guard& lock, std::uint64_t bytes, page_span keep) GPUMEM_REQUIRES(mutex_);
  std::uint64_t return_pages(guard& lock, std::uint64_t bytes) GPUMEM_REQUIRES(mutex_);
  void return_everything_paged() GPUMEM_REQUIRES(mutex_);
  [[nodiscard]] status check_pages() const GPUMEM_REQUIRES(mutex_);

  // foresight.cpp
  [[nodiscard]] block_index search_large(guard& lock, want& w) GPUMEM_REQUIRES(mutex_);
  [[nodiscard]] std::optional<page_place> better_place(const want& w, address usual, bool at_once)
      GPUMEM_REQUIRES(mutex_);
  [[nodiscard]] std::vector<bool> owners_that_serve(owner_id o, bool all) const GPUMEM_REQUIRES(mutex_);
  [[nodiscard]] bool looks_ahead(const want& w) const noexcept GPUMEM_REQUIRES(mutex_);
  [[nodiscard]] bool free_for(const want& w, const page_place& at) const GPUMEM_REQUIRES(mutex_);
  bool page_in_ahead(guard& lock, want& w) GPUMEM_REQUIRES(mutex_);
  block_index page_in_at(guard& lock, const want& w, const page_place& at, page_step& step) GPUMEM_REQUIRES(mutex_);

  // give_back.cpp
  std::uint64_t return_idle(guard& lock, std::uint64_t bytes) GPUMEM_REQUIRES(mutex_);
  void explain_rest(bool allowed, trim_result* out) const GPUMEM_REQUIRES(mutex_);
  void explain_pages(const heap_segment& segment, bool allowed, trim_result* out) const GPUMEM_REQUIRES(mutex_);

  // pool_check.cpp
  [[nodiscard]] statistics stats_of_stopped() const GPUMEM_REQUIRES(mutex_);
  [[nodiscard]] block_view view_of(block_index i) const GPUMEM_REQUIRES(mutex_);
  [[nodiscard]] status check_stopped() const GPUMEM_REQUIRES(mutex_);
  [[nodiscard]] status check_caches() const GPUMEM_REQUIRES(mutex_);
  [[nodiscard]] pool_view view() const GPUMEM_REQUIRES(mutex_);
  [[nodiscard]] bool nothing_behind(segment_index s) const GPUMEM_REQUIRES(mutex_);

  pool_config config_;
  device& device_;
  block_cache cache_;

  guarded_policy policy_ GPUMEM_GUARDED_BY(mutex_);
  budget budget_;

  mutable checked_mutex mutex_;
  heap heap_ GPUMEM_GUARDED_BY(mutex_);
  stream_order streams_;
  block_uses uses_ GPUMEM_GUARDED_BY(mutex_);
  std::vector<backed_segment> backed_ GPUMEM_GUARDED_BY(mutex_);  // by segment_index
  page_rules page_rules_ GPUMEM_GUARDED_BY(mutex_);
  page_map pages_ GPUMEM_GUARDED_BY(mutex_);
  best_fit best_fit_ GPUMEM_GUARDED_BY(mutex_);
  lookahead lookahead_ GPUMEM_GUARDED_BY(mutex_);  ///< of a paged pool whose policy asks for it
  std::vector<oom_callback> callbacks_ GPUMEM_GUARDED_BY(mutex_);
  growth_gate growth_ GPUMEM_GUARDED_BY(mutex_);
  lasting_calls calls_ GPUMEM_GUARDED_BY(mutex_);
  struct {
    owner_id owner = idle_owner;  // of what is freed behind all work; nobody: there are no such frees
    std::uint32_t unfenced = 0;   // of these by the lock, since a fence was recorded
    std::uint64_t unfenced_bytes = 0;
    record_gate records;  // without the lock
  } all_work_;
  bool opened_ GPUMEM_GUARDED_BY(mutex_) = false;
  statistics counts_ GPUMEM_GUARDED_BY(mutex_);  // the counters; the bytes are filled in from the heap when asked
  status no_report_ GPUMEM_GUARDED_BY(mutex_);   // of a request that fails where the host has no memory for a report
  std::uint64_t lost_bytes_ GPUMEM_GUARDED_BY(mutex_) = 0;  // segments that the driver failed to take back: leaked
  planned planned_ GPUMEM_GUARDED_BY(mutex_);
  bool promised_ GPUMEM_GUARDED_BY(mutex_) = false;  // a slot's `promised` is set
};

}  // namespace gpumem
