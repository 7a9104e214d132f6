/// A policy: how much device memory a pool takes, when, in which kind of segment, and what it gives back.
///
/// It sees byte counts and answers with byte counts: no pointer, stream, clock, lock or driver call. One that throws
/// fails the request that asked it, with `policy_failed` and its name; nothing is lost, and the next request asks
/// again. One instance serves one pool, which calls it one thread at a time. To write your own, derive,
/// `register_policy`, and choose it by name with GPUMEM_POLICY; examples/user_policy.cpp is a whole one.
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

enum class segment_kind : std::uint8_t {
  plain,   ///< one driver allocation
  mapped,  ///< a reserved address range with physical pages mapped behind it
  paged,   ///< a reserved address range with pages behind some of it: what is idle is mapped elsewhere
};

/// What a pool tells its policy. All in bytes.
struct pool_view {
  std::uint64_t total_bytes = 0;          ///< of the device
  std::uint64_t free_at_start_bytes = 0;  ///< of the device, when the pool was opened
  std::uint64_t limit_bytes = 0;          ///< what the pool may hold at most (the device's total where no limit is set)
  std::uint64_t reserved_bytes = 0;       ///< what it holds
  std::uint64_t live_bytes = 0;           ///< what of that the program holds
  std::uint64_t peak_live_bytes = 0;      ///< the most that it held so far
  std::uint64_t granularity_bytes = 0;    ///< sizes are rounded up to this
  std::uint64_t moved_bytes = 0;          ///< unmapped from idle addresses and mapped at others, in all so far
};

/// `bytes` are wanted; anything from `least_bytes` on is taken when the device or the limit has no more.
struct segment_request {
  std::uint64_t bytes = 0;
  std::uint64_t least_bytes = 0;
  segment_kind kind = segment_kind::plain;
};

/// How a pool that takes memory page by page lays it out. All in bytes.
struct page_rules {
  std::uint64_t range_bytes = 0;  ///< addresses reserved at a time; 0: the pool takes whole segments
  /// Where not even so many can be reserved for the first range, the pool takes whole segments. 0: it takes none, and a
  /// range may be as short as a request.
  std::uint64_t least_range_bytes = 0;
  /// Requests from here on take the lowest place that is large enough, smaller ones the best fit.
  std::uint64_t lowest_fit_bytes = UINT64_MAX;
  /// Requests below this take the upper end of their place, others the lower one: small and large blocks then share
  /// fewer pages. Only while the pool holds less than `upper_end_pool_bytes`.
  std::uint64_t upper_end_bytes = 0;
  std::uint64_t upper_end_pool_bytes = 0;
  /// Requests from `lowest_fit_bytes` on go where, by what is expected to come next, the fewest pages have to move. For
  /// policies whose pages are made one by one, so that each can move alone.
  bool looks_ahead = false;
};

/// What is done about pages that are missing behind a request.
struct page_request {
  std::uint64_t make_bytes = 0;  ///< made new, at most; what is missing beyond them is taken from idle memory
  std::uint64_t run_bytes = 0;   ///< made in pieces of at most this, each of which can only be moved as a whole
  /// What cannot be moved is made new as well, up to so much; before more is, idle pieces that are too long to be moved
  /// go back to the device.
  std::uint64_t over_bytes = UINT64_MAX;
  bool moves = true;  ///< what is missing may be taken from idle memory; else idle memory only goes back to the device
};

/// Why a pool considers giving segments back.
enum class give_back : std::uint8_t {
  pressure,  ///< a request fits neither in the pool nor in what may still be taken
  trim,      ///< the program asked, or lowered the limit
};

/// What a policy does about plans of placements (docs/planned.md).
struct plan_use {
  bool follows = false;  ///< serves by the plan that GPUMEM_PLAN names, where there is one
  bool records = false;  ///< writes a plan of what it served when the program ends
};

/// What a policy needs, and which parts of the pool's business it changes. The same for every pool.
struct policy_needs {
  bool limit = false;       ///< opening is refused without GPUMEM_LIMIT or GPUMEM_POOLS
  bool pools = false;       ///< opening is refused without GPUMEM_POOLS
  bool everything = false;  ///< takes all it may at the allocator's first use; without a limit, less GPUMEM_RESERVE
  plan_use plan{};
  /// The policy that serves in its place on a device that cannot map pages; empty where it serves there itself.
  std::string without_pages{};
};

class policy {
 public:
  virtual ~policy() = default;

  [[nodiscard]] virtual policy_needs needs() const { return {}; }
  /// Told once, before any other question but `needs`, where the pool follows a plan: what that needs in one segment.
  virtual void follow_plan(std::uint64_t /*plan_bytes*/) {}

  /// Taken when the pool serves its first request; `bytes` 0 for nothing ahead of demand.
  virtual segment_request first(const pool_view&) { return {}; }

  /// A request of `need_bytes` (already rounded) fits nowhere in the pool.
  /// Requires `least_bytes >= need_bytes` in the answer.
  virtual segment_request grow(const pool_view& view, std::uint64_t need_bytes) = 0;

  /// The pool grew by `bytes` (what it got, not what was asked).
  virtual void grew(const pool_view& /*after*/, std::uint64_t /*bytes*/) {}

  /// The device refused `refused_bytes`: the next size to try, at least `least_bytes`, or 0 to stop.
  /// By default nine tenths, as TensorFlow's allocator does.
  virtual std::uint64_t smaller(std::uint64_t refused_bytes, std::uint64_t least_bytes) {
    const std::uint64_t next = refused_bytes / 10 * 9;
    if (refused_bytes <= least_bytes) return 0;
    return next > least_bytes ? next : least_bytes;
  }

  /// Asked once, when the pool is opened: with `range_bytes` the pool takes memory page by page, and asks `page_in`
  /// where it would ask `grow`.
  [[nodiscard]] virtual page_rules pages(const pool_view&) const { return {}; }
  /// The best place for a request of `need_bytes` lacks `missing_bytes`, whole pages. More than these may be made, for
  /// the requests to come.
  [[nodiscard]] virtual page_request page_in(const pool_view&, std::uint64_t /*need_bytes*/,
                                             std::uint64_t missing_bytes) const {
    return {.make_bytes = missing_bytes, .run_bytes = missing_bytes};
  }

  /// Requests of one class are served from segments of that class only. Below `segment_classes`.
  [[nodiscard]] virtual unsigned segment_class(std::uint64_t /*bytes*/) const { return 0; }
  [[nodiscard]] virtual unsigned segment_classes() const { return 1; }

  /// Whether wholly idle segments may go back to the device. By default only when asked.
  [[nodiscard]] virtual bool gives_back(give_back why, const pool_view&) const { return why == give_back::trim; }
};

/// What stands behind a policy's name, as in `expandable:slack=5%`. A word alone has an empty value.
using policy_parameters = std::map<std::string, std::string, std::less<>>;

/// What a policy may read when it is made: numbers, never the device.
struct policy_setup {
  std::uint64_t total_bytes = 0;
  std::uint64_t free_at_start_bytes = 0;
  int compute_major = 0;
  std::uint64_t granularity_bytes = 0;
  std::uint64_t page_bytes = 0;    ///< 0 where the device cannot map pages
  policy_parameters parameters{};  ///< declared by the policy, and checked; these win over those behind the name
};

using policy_factory = std::function<std::unique_ptr<policy>(const policy_setup&)>;

/// A parameter that a policy declares. The setting GPUMEM_<NAME>, where there is one, is another way to give it.
struct policy_parameter {
  std::string name;
  std::string values{};  ///< what may stand behind `=`, in Markdown; empty: the name stands alone
  std::string default_text{};
  std::string help{};
  /// Reads a value as the policy will; `what` names it in the message. Without one every text is good.
  std::function<status(std::string_view value, std::string_view what)> check{};
};

/// A policy's row of the registry: all that programs, tables and tests know of it.
struct policy_entry {
  std::string name;
  std::string summary;
  std::vector<policy_parameter> parameters{};
  bool own_parameters = false;  ///< declares none: the policy reads and refuses them itself when it is made
  /// Parameters worth a row of their own beside the plain policy: `gpumem advise` and the model test try them.
  std::vector<std::string> variants{};
  // Cells of the tables in README.md and docs/policies.md, Markdown without `|`; without the first it has no row there.
  std::string takes{};
  std::string gives_back{};
  std::string choose_when{};
  policy_needs needs{};  ///< as the policy answers, with the parameters that were named; not read by `register_policy`
};

/// Adds a policy under a name of its own. Refuses one that is taken. Any thread. The factory is called once at once,
/// with an empty setup, to ask what the policy needs.
status register_policy(policy_entry entry, policy_factory make);
status register_policy(std::string name, std::string summary, policy_factory make);

/// Adds the policies of a shared library (gpumem/policy_library.h): all, or none and a message that names the file,
/// what was found in it and what was expected. A file that was loaded before is not loaded again. The library stays
/// loaded.
status load_policy_library(const std::string& path);

/// Every policy, built in, of GPUMEM_POLICY_LIBRARY and registered, in this order.
std::vector<policy_entry> known_policies();

/// A policy by its name, alone or with parameters: `growth`, `planned:renew`, `expandable:slack=5%`. Between several
/// parameters stands `,` or `+`. `bad_setting`, naming what exists, where there is no such policy or parameter, where a
/// value is refused, and where GPUMEM_POLICY_LIBRARY cannot be loaded.
result<policy_entry> find_policy(std::string_view text);
result<std::unique_ptr<policy>> make_policy(std::string_view text, const policy_setup& setup);
/// The parameters that stand in `text`; checks nothing but their form.
result<policy_parameters> parameters_in(std::string_view text);

/// The table of policies in README.md and docs/policies.md, and that of their parameters, in Markdown.
std::string policy_table_markdown();
std::string policy_parameter_table_markdown();

/// What TensorFlow leaves free for context and libraries when no fraction is set: 225 MiB below 2 GiB of free
/// memory, else 500, 1050, 1536 or 1800 MiB by compute capability (gpu_device.cc, MinSystemMemory).
std::uint64_t default_reserve_bytes(std::uint64_t free_bytes, int compute_major) noexcept;

}  // namespace gpumem
