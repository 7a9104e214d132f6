/// A policy decides how much device memory a pool takes and when, in segments or page by page, and when it returns it.
///
/// A policy receives byte counts and answers with byte counts. It sees no pointer, stream, clock, lock or driver call.
/// If it throws, the current request fails with `policy_failed` and the policy's name; nothing is lost, and the next
/// request calls the policy again. One instance serves one pool, which calls it from one thread at a time and holds its
/// lock: a policy that calls the allocator, or waits for a thread that does, deadlocks. To write your own, derive, call
/// `register_policy`, and choose it by name with GPUMEM_POLICY; examples/user_policy.cpp is complete.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gpumem/export.h"
#include "gpumem/settings.hpp"
#include "gpumem/status.hpp"

namespace GPUMEM_API gpumem {

/// The state of a pool, as its policy sees it. All in bytes.
struct pool_view {
  std::uint64_t total_bytes = 0;          ///< of the device
  std::uint64_t free_at_start_bytes = 0;  ///< of the device, when the pool was opened
  std::uint64_t limit_bytes = 0;          ///< the most that the pool may hold (by default the device's total)
  std::uint64_t reserved_bytes = 0;       ///< held by the pool
  std::uint64_t live_bytes = 0;           ///< the part of it that the program holds
  std::uint64_t peak_live_bytes = 0;      ///< the highest `live_bytes` so far
  std::uint64_t granularity_bytes = 0;    ///< sizes are rounded up to this
  std::uint64_t moved_bytes = 0;          ///< pages moved to other addresses, or returned to make room for others
  /// The program has made three times as many requests as up to its latest new one: of another size than all before, at
  /// other `live_bytes` (to 2 MiB), or after another request of 1 MiB and more. Of requests above 4 KiB that no
  /// thread's cache served, and where there are many, of a sample.
  bool repeats = false;
};

/// Asks for `bytes`. If the device or the limit has less, the pool takes any amount from `least_bytes` on.
struct segment_request {
  std::uint64_t bytes = 0;
  std::uint64_t least_bytes = 0;
};

/// The layout of a pool that takes memory page by page. All in bytes.
struct page_rules {
  std::uint64_t range_bytes = 0;  ///< addresses reserved at a time; 0: the pool takes whole segments
  /// The pool falls back to whole segments if it cannot reserve this much for the first range. 0: no fallback, and a
  /// range may be as short as a request.
  std::uint64_t least_range_bytes = 0;
  /// Requests of this size and more take the lowest place that is large enough, smaller ones the best fit.
  std::uint64_t lowest_fit_bytes = UINT64_MAX;
  /// Requests below this size take the upper end of their place, others the lower end, so that small and large blocks
  /// share fewer pages. Applies while the pool holds less than `upper_end_pool_bytes`.
  std::uint64_t upper_end_bytes = 0;
  std::uint64_t upper_end_pool_bytes = 0;
  /// The first stream's blocks are in segment class 0, those of all other streams in class 1, in another range, so that
  /// they do not divide the memory that the first stream frees and will ask for again. Under `GPUMEM_STREAM_REUSE=poll`
  /// pages move from one range to the other; a request takes a place in the other range only if
  /// `page_request::other_range_first` says so, if pages may not move, or if it would be refused. Under `device` and
  /// `host` it does so before the pool grows. Requires `classes_apart` segment classes.
  bool streams_apart = false;
  static constexpr unsigned classes_apart = 2;
};

/// How a pool supplies the pages that a request lacks.
struct page_request {
  std::uint64_t make_bytes = 0;  ///< the most bytes of new pages; free pages supply the rest
  std::uint64_t run_bytes = 0;   ///< the longest run of new pages; a run moves only as a whole
  /// Where the new pages are all that is missing, the one in which the request ends is a run of its own, since other
  /// blocks will begin there.
  bool end_apart = true;
  /// The most bytes of new pages in place of idle pages that cannot be moved. Beyond this, the pool first returns idle
  /// runs that are too long to move to the device.
  std::uint64_t over_bytes = UINT64_MAX;
  /// Idle pages, and those of blocks that the request's own stream has freed, may supply the request. If false, they
  /// only go back to the device.
  bool moves = true;
  /// Before new pages are made, the request takes a place in the other range (`page_rules::streams_apart`), if one
  /// fits.
  bool other_range_first = false;
};

/// Why a pool considers giving segments back.
enum class give_back : std::uint8_t {
  pressure,  ///< a request fits neither in the pool nor in the rest of the limit
  trim,      ///< the program called `trim` or lowered the limit
};

/// How a policy uses plans of placements (docs/planned.md).
struct plan_use {
  bool follows = false;  ///< follows the plan named by GPUMEM_PLAN, if it exists
  bool records = false;  ///< writes a plan of the served requests when the program ends
};

/// The requirements of a policy, and how it changes the pool's work. The same for every pool.
struct policy_needs {
  bool limit = false;  ///< opening is refused without GPUMEM_LIMIT or GPUMEM_POOLS
  bool pools = false;  ///< opening is refused without GPUMEM_POOLS
  bool everything =
      false;  ///< takes all allowed memory at the allocator's first use; without a limit, all but GPUMEM_RESERVE
  plan_use plan{};
  /// The policy that replaces it on a device that cannot map pages; empty if it needs no replacement.
  std::string without_pages{};
};

class policy {
 public:
  virtual ~policy() = default;

  [[nodiscard]] virtual policy_needs needs() const { return {}; }
  /// Called once if the pool follows a plan, before any other function except `needs`, with the size of the plan's
  /// segment.
  virtual void follow_plan(std::uint64_t /*plan_bytes*/) {}

  /// The segment to take before the pool serves its first request; none if `bytes` is 0.
  virtual segment_request first(const pool_view&) { return {}; }

  /// The segment to take when a request of `need_bytes` (already rounded) fits nowhere in the pool. The answer must
  /// have `least_bytes >= need_bytes`. The pool also calls this to learn the size without growing, so a second call
  /// with the same view must give the same answer.
  virtual segment_request grow(const pool_view& view, std::uint64_t need_bytes) = 0;

  /// Called after the pool grew by `bytes`, which may be less than it asked for.
  virtual void grew(const pool_view& /*after*/, std::uint64_t /*bytes*/) {}

  /// The next size to try after the device refused `refused_bytes`: at least `least_bytes`, or 0 to stop. By default
  /// nine tenths, as in TensorFlow's allocator.
  virtual std::uint64_t smaller(std::uint64_t refused_bytes, std::uint64_t least_bytes) {
    const std::uint64_t next = refused_bytes / 10 * 9;
    if (refused_bytes <= least_bytes) return 0;
    return next > least_bytes ? next : least_bytes;
  }

  /// Called once, when the pool opens. If `range_bytes` is not 0, the pool takes memory page by page and calls
  /// `page_in` instead of `grow`.
  [[nodiscard]] virtual page_rules pages(const pool_view&) const { return {}; }
  /// The best place for a request of `need_bytes` lacks `missing_bytes`, in whole pages. The answer may make more, for
  /// later requests.
  [[nodiscard]] virtual page_request page_in(const pool_view&, std::uint64_t /*need_bytes*/,
                                             std::uint64_t missing_bytes) const {
    return {.make_bytes = missing_bytes, .run_bytes = missing_bytes};
  }

  /// Segments of a class serve only requests of that class. The answer is below `segment_classes`.
  [[nodiscard]] virtual unsigned segment_class(std::uint64_t /*bytes*/) const { return 0; }
  [[nodiscard]] virtual unsigned segment_classes() const { return 1; }

  /// Whether wholly idle segments may go back to the device. By default only on `trim`.
  [[nodiscard]] virtual bool gives_back(give_back why, const pool_view&) const { return why == give_back::trim; }

  /// Whether a pool of whole segments grows rather than divide a segment to which large requests keep coming, for a
  /// block that would probably still live when the next one comes: blocks of about its size have lately lived longer
  /// than the time between the latest two large requests. The pool still divides the segment if another such segment
  /// is wholly free, and if the pool cannot grow. Once the program repeats (`pool_view::repeats`) it divides any.
  /// Called when the pool opens, and again if it falls back from pages to segments. By default not.
  [[nodiscard]] virtual bool keeps_segments_whole() const { return false; }

  /// Whether an idle segment goes back before the pool grows by `grow_bytes`. Called only for a pool of whole segments;
  /// the segment goes only if the device has no work, because the driver's free waits for it. Not called before growth
  /// once the program repeats (`pool_view::repeats`), since a step that repeats would take the segment again each time.
  /// By default not.
  [[nodiscard]] virtual bool returns_before_growth(const pool_view&, std::uint64_t /*segment_bytes*/,
                                                   std::uint64_t /*grow_bytes*/) const {
    return false;
  }
  /// Whether the pool replaces its idle segments, `segments` of `idle_bytes` in total, by one of that size, less what
  /// it grew by beside them. Asked, also where none or one is idle, when the device is idle again after the pool grew
  /// beside segments that `returns_before_growth` allows to go; these go. Not asked if there are several segment
  /// classes. By default not.
  [[nodiscard]] virtual bool merges_idle(const pool_view&, std::uint64_t /*idle_bytes*/,
                                         std::uint64_t /*segments*/) const {
    return false;
  }
  /// Called after a segment went back for one of these reasons.
  virtual void returned(const pool_view& /*after*/, std::uint64_t /*segment_bytes*/) {}
};

/// The parameters after a policy's name, as in `expandable:slack=5%`. A word without `=` has an empty value.
using policy_parameters = std::map<std::string, std::string, std::less<>>;

/// The facts that a policy may use when it is created: numbers, never the device itself.
struct policy_setup {
  std::uint64_t total_bytes = 0;
  std::uint64_t free_at_start_bytes = 0;
  std::string card{};  ///< the device's name
  int compute_major = 0;
  std::uint64_t granularity_bytes = 0;
  std::uint64_t page_bytes = 0;    ///< 0 if the device cannot map pages
  policy_parameters parameters{};  ///< checked against the declared ones; override parameters in the policy's text

  /// The value of a parameter; empty if it is not set, and for a word.
  [[nodiscard]] std::string_view parameter(std::string_view name) const {
    const auto found = parameters.find(name);
    return found == parameters.end() ? std::string_view{} : found->second;
  }
};

using policy_factory = std::function<std::unique_ptr<policy>(const policy_setup&)>;

/// A parameter that a policy declares. The setting GPUMEM_<NAME>, if it exists, also sets it.
struct policy_parameter {
  std::string name;
  std::string values{};  ///< the values after `=`, in Markdown; empty for a word without `=`
  std::string default_text{};
  std::string help{};
  /// Checks a value; `what` names it in the message. Null accepts every text.
  std::function<status(std::string_view value, std::string_view what)> check{};
};

/// A policy's row in the registry, which programs, tables and tests read.
struct policy_entry {
  std::string name;
  std::string summary;
  std::vector<policy_parameter> parameters{};
  bool own_parameters = false;  ///< true: the policy itself reads and checks its parameters, and declares none
  /// Parameters that `gpumem advise` and the model test also try, besides the plain policy.
  std::vector<std::string> variants{};
  // Cells of the tables in README.md and docs/policies.md, Markdown without `|`. No row if `takes` is empty.
  std::string takes{};
  std::string gives_back{};
  std::string choose_when{};
  policy_needs needs{};  ///< the policy's answer, with the named parameters; `register_policy` ignores it
};

/// Registers a policy. Refuses a name that is taken. Calls the factory once, with an empty setup, to ask for the
/// policy's `needs`. Any thread.
status register_policy(policy_entry entry, policy_factory make);
status register_policy(std::string name, std::string summary, policy_factory make);

/// Registers the policies of a shared library (gpumem/policy_library.h). On an error registers none, and the message
/// names the file, the value found and the value expected. Loads a file only once and keeps it loaded.
status load_policy_library(const std::string& path);

/// Every policy, in this order: built in, from GPUMEM_POLICY_LIBRARY, registered by the program.
std::vector<policy_entry> known_policies();

/// Finds a policy by name, with or without parameters: `growth`, `planned:renew`, `expandable:slack=5%`. Several
/// parameters are separated by `,` or `+`. `bad_setting` for an unknown policy or parameter (the message lists the
/// known ones), a bad value, or if GPUMEM_POLICY_LIBRARY cannot be loaded.
result<policy_entry> find_policy(std::string_view text);
result<std::unique_ptr<policy>> make_policy(std::string_view text, const policy_setup& setup);
/// The parameters in `text`; checks only their form.
result<policy_parameters> parameters_in(std::string_view text);

/// The memory that TensorFlow leaves free for context and libraries if no fraction is set: 225 MiB below 2 GiB of free
/// memory, else 500, 1050, 1536 or 1800 MiB by compute capability (gpu_device.cc, MinSystemMemory).
std::uint64_t default_reserve_bytes(std::uint64_t free_bytes, int compute_major) noexcept;

}  // namespace gpumem
