// Manages the pages of a heap's paged segments: plans new pages, or chooses free blocks whose pages move.
//
// Pages of idle blocks are unmapped and mapped where they are needed. Pages of blocks that are free for the stream of
// the request move as well, while work on them is pending: its order protects them, as when it reuses a freed block.
// They are mapped at the new addresses, too, and stay mapped at the old ones until that work is done (vacating).
//
// Plans paging steps and accounts for their results. The caller executes the driver calls in between without its lock
// (remap_batch.hpp). The page manager knows no streams: the caller says whether pages may be unmapped, and whether
// polling fences could help. Runs in transit belong to no block (`in_transit_bytes`). The arena's lock guards it.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gpumem/policy.hpp"
#include "heap.hpp"
#include "page_map.hpp"
#include "page_place.hpp"
#include "remap_batch.hpp"

namespace gpumem {

class page_manager {
 public:
  /// `name` is the pool's name for the log.
  page_manager(heap& pool_heap, device& gpu, std::string name)
      : heap_{pool_heap}, device_{gpu}, name_{std::move(name)} {}
  page_manager& operator=(page_manager&&) = delete;

  [[nodiscard]] std::uint64_t page_bytes() const noexcept { return device_.info().page_bytes; }

  /// Constraints on a step.
  struct paging_limits {
    page_request policy;                    ///< the policy's request
    std::uint64_t room_bytes = UINT64_MAX;  ///< most new bytes: within the limit, and less than the device refused
    std::uint64_t run_bytes = UINT64_MAX;   ///< longest new run; the device refused longer ones
    bool unmap = true;                      ///< pages may be moved and returned, because no stream captures
    bool poll = true;                       ///< polling fences may make more memory idle
    bool give_back = true;                  ///< idle runs that are too long to move may be returned
  };
  enum class verdict : std::uint8_t {
    ready,            ///< `*step` can be executed
    poll_first,       ///< poll the fences, then plan again
    give_back_first,  ///< return `step->new_bytes` of idle runs, then plan again
    impossible,
  };
  /// Plans a step that backs the missing pages of `bytes` at `place`. It may use free blocks of `step->owner` besides
  /// the idle ones, once polling is over; if it does not, `step->owner` becomes `idle_owner`.
  [[nodiscard]] verdict plan(const page_place& place, std::uint64_t bytes, const paging_limits& limits,
                             remap_batch* step) const;

  /// Call before `execute(device, step)`: takes the moving runs out of the heap, and reserves the host memory for
  /// `finish`. Throws std::bad_alloc without changes.
  void begin(const remap_batch& step);
  struct finished {
    std::uint64_t new_bytes = 0;   ///< new bytes that the pool holds, lost and stranded ones included
    std::uint64_t gone_bytes = 0;  ///< bytes that the pool held before and the step destroyed
    std::uint64_t mapped_pages = 0;
    std::uint64_t remapped_pages = 0;
    std::uint32_t vacating_runs = 0;  ///< added to `vacating`
    std::uint32_t freed_runs = 0;     ///< free for `step.owner` since now: these, or back at their old addresses
    std::uint64_t freed_bytes = 0;
  };
  /// Call after `execute`, even if it failed: accounts for each run's outcome. `epoch` is that of `step.owner` now,
  /// if runs stay mapped.
  finished finish(const remap_batch& step, std::uint64_t epoch = 0);
  /// Carves a live block of `bytes` for `owner` at `place`. `within` is an address there that the step backed. Returns
  /// no_block if another thread has taken part of the place meanwhile.
  [[nodiscard]] block_index carve(const page_place& place, std::uint64_t bytes, owner_id owner, address within);

  /// Takes idle runs of at least `bytes`, or fewer if there are not so many, from the upper end of the longest idle
  /// stretch outside `keep`. They are in transit until `finish` gets the result of `return_runs`. Empty if no run is
  /// idle. Throws std::bad_alloc without changes.
  [[nodiscard]] std::vector<mapped_run> take_longest_idle(std::uint64_t bytes, page_span keep);
  /// Call after `return_runs`: makes the runs idle again if the driver did not unmap them.
  void finish(std::span<const mapped_run> going, const returned_runs& done);
  /// Called when the pool closes: synchronizes the device, then returns every page to it.
  void return_everything();

  /// Runs that a failed step left mapped at unbacked addresses, because a capture forbade an unmap. The last one stays
  /// in transit until `finish_stranded` gets the result of `return_runs` for it.
  [[nodiscard]] const std::vector<mapped_run>& stranded() const noexcept { return stranded_; }
  void finish_stranded(const returned_runs& done) noexcept;

  /// The old addresses of a run that moved while work on them was pending. It ends when `owner` is done up to `epoch`.
  struct vacating_run {
    mapped_run run;
    segment_index segment = 0;
    owner_id owner = idle_owner;
    std::uint64_t epoch = 0;
  };
  [[nodiscard]] const std::vector<vacating_run>& vacating() const noexcept { return vacating_; }
  /// Call after the addresses of `count` of these from index `first` on were unmapped.
  void finish_vacating(std::size_t first, std::size_t count) noexcept;

  /// The bytes of pages that went back to the device to make room for others.
  [[nodiscard]] std::uint64_t replaced_bytes() const noexcept { return replaced_bytes_; }
  void count_replaced(std::uint64_t bytes) noexcept { replaced_bytes_ += bytes; }
  [[nodiscard]] const page_map& map() const noexcept { return map_; }
  [[nodiscard]] std::uint64_t metadata_bytes() const noexcept {
    return map_.metadata_bytes() + vacating_.capacity() * sizeof(vacating_run);
  }
  [[nodiscard]] std::uint64_t in_transit_bytes() const noexcept { return in_transit_bytes_; }
  /// Checks that runs are whole pages and do not overlap, that their bytes equal the heap's, and that no block
  /// without memory has a run.
  [[nodiscard]] status check() const;

 private:
  std::uint64_t move_runs(owner_id owner, page_span keep, std::uint64_t bytes, std::vector<std::uint64_t>* filled,
                          remap_batch* step) const;
  std::uint64_t plan_ahead(std::uint64_t bytes, remap_batch* step) const;
  [[nodiscard]] block_index unbacked_at(address target) const noexcept;
  [[nodiscard]] block_index free_at(address target, owner_id owner) const noexcept;
  [[nodiscard]] std::function<bool(const mapped_run&)> unfit(page_span keep) const;
  void take(address begin, std::uint64_t bytes);
  void vacate(const mapped_run& run, owner_id owner);

  heap& heap_;
  device& device_;
  const std::string name_;
  page_map map_;
  std::vector<mapped_run> stranded_;
  std::vector<vacating_run> vacating_;
  std::uint64_t in_transit_bytes_ = 0;
  std::uint64_t replaced_bytes_ = 0;
};

}  // namespace gpumem
