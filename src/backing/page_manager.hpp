// The pages of a heap's paged segments: what is missing behind a place is made new, or moved there from idle memory.
//
// It plans steps, and takes into account what they did; the driver calls in between (remap_batch.hpp) are the caller's,
// without its lock. It knows no streams: the caller says whether pages may be unmapped, and whether fences are worth
// asking. Pages move from idle blocks only. Runs on their way belong to nobody (`lost_bytes`). The arena's lock guards
// it.
#pragma once

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
  /// `name` is the pool's, for the log.
  page_manager(heap& pool_heap, device& gpu, std::string name)
      : heap_{pool_heap}, device_{gpu}, name_{std::move(name)} {}
  page_manager(const page_manager&) = delete;
  page_manager& operator=(const page_manager&) = delete;

  [[nodiscard]] std::uint64_t page_bytes() const noexcept { return device_.info().page_bytes; }

  /// What may be done about missing pages.
  struct paging_limits {
    page_request policy;                    ///< what the policy wants
    std::uint64_t room_bytes = UINT64_MAX;  ///< new at most: the limit's, and less than what the device refused
    std::uint64_t run_bytes = UINT64_MAX;   ///< in runs of at most this: the device refused longer ones
    bool unmap = true;                      ///< pages may be moved and given back: no capture is under way
    bool poll = true;                       ///< fences that are done by now may make more memory idle
    bool give_back = true;                  ///< idle runs that are too long to move may be given back
  };
  enum class verdict : std::uint8_t {
    ready,            ///< `out` is the step
    poll_first,       ///< ask the fences, then plan again
    give_back_first,  ///< `out->new_bytes` of idle runs, then plan again
    impossible,
  };
  /// Plans the pages that are missing behind `bytes` at the place.
  [[nodiscard]] verdict plan(const page_place& place, std::uint64_t bytes, const paging_limits& limits,
                             remap_batch* step) const;

  /// Before `execute(device, step)`: what moves leaves the heap. Throws std::bad_alloc with nothing changed; `finish`
  /// needs no host memory.
  void begin(const remap_batch& step);
  struct finished {
    std::uint64_t new_bytes = 0;   ///< held now, of what was made
    std::uint64_t gone_bytes = 0;  ///< held before, and destroyed
    std::uint64_t mapped_pages = 0;
    std::uint64_t remapped_pages = 0;
  };
  /// After it, whatever became of the step.
  finished finish(const remap_batch& step);
  /// A live block for `owner` at the place, of which `within` has just got its memory; none where another thread has
  /// taken part of it meanwhile.
  [[nodiscard]] block_index carve(const page_place& place, std::uint64_t bytes, owner_id owner, address within);

  /// Takes idle runs from the upper end of the longest stretch of them: `bytes` or more, where it is that long. Not the
  /// pages of `keep`. They are lost until `finish` says what `return_runs` did with them. Empty where none is idle.
  /// Throws std::bad_alloc with nothing changed.
  [[nodiscard]] std::vector<mapped_run> take_longest_idle(std::uint64_t bytes, page_span keep);
  /// After it: runs that the driver did not unmap are idle again.
  void finish(std::span<const mapped_run> going, const returned_runs& done);
  /// At the end: every page goes back to the device once its work is done. Makes driver calls.
  void return_everything();

  /// Runs that a failed step left mapped where nothing of the heap is, since a capture forbade to unmap them. They are
  /// lost until `finish_stranded` says what `return_runs` did with the last of them.
  [[nodiscard]] const std::vector<mapped_run>& stranded() const noexcept { return stranded_; }
  void finish_stranded(const returned_runs& done) noexcept;

  [[nodiscard]] const page_map& map() const noexcept { return map_; }
  [[nodiscard]] std::uint64_t in_transit_bytes() const noexcept { return in_transit_bytes_; }
  /// Every run has memory of the heap before it, and nothing unbacked.
  [[nodiscard]] status check() const;

 private:
  [[nodiscard]] std::vector<remap_batch::run> runs_to_move(const std::vector<unbacked_piece>& pieces, page_span keep,
                                                           std::uint64_t bytes,
                                                           std::vector<std::uint64_t>* filled) const;
  std::uint64_t plan_ahead(std::uint64_t bytes, std::uint64_t run_bytes, remap_batch* step) const;
  [[nodiscard]] block_index unbacked_at(address target) const noexcept;
  [[nodiscard]] block_index free_at(address target, owner_id owner) const noexcept;
  void take(address begin, std::uint64_t bytes);

  heap& heap_;
  device& device_;
  const std::string name_;
  page_map map_;
  std::vector<mapped_run> stranded_;
  std::uint64_t in_transit_bytes_ = 0;
};

}  // namespace gpumem
