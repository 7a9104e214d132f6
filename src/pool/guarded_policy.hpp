// A pool's policy, which may be the program's own. An exception from one of its functions, or an answer that no pool
// can use, becomes `policy_failed`, which names the policy and the function. The arena's lock guards it.
#pragma once

#include <memory>
#include <string>
#include <type_traits>

#include "gpumem/policy.hpp"

namespace gpumem {

class guarded_policy {
 public:
  guarded_policy(std::unique_ptr<policy> asked, std::string name);

  // The functions of policy.hpp. Each throws `thrown_status` if the policy throws; std::bad_alloc passes through.
  segment_request first(const pool_view& view) const { return ask("first", &policy::first, view); }
  segment_request grow(const pool_view& view, std::uint64_t need) const {
    return ask("grow", &policy::grow, view, need);
  }
  void grew(const pool_view& after, std::uint64_t bytes) const { ask("grew", &policy::grew, after, bytes); }
  std::uint64_t smaller(std::uint64_t refused, std::uint64_t least) const {
    return ask("smaller", &policy::smaller, refused, least);
  }
  page_rules pages(const pool_view& view) const;
  page_request page_in(const pool_view& view, std::uint64_t need, std::uint64_t missing) const {
    return ask("page_in", &policy::page_in, view, need, missing);
  }
  bool gives_back(give_back why, const pool_view& view) const {
    return ask("gives_back", &policy::gives_back, why, view);
  }
  bool keeps_segments_whole() const { return ask("keeps_segments_whole", &policy::keeps_segments_whole); }
  bool returns_before_growth(const pool_view& view, std::uint64_t segment_bytes, std::uint64_t grow_bytes) const {
    return ask("returns_before_growth", &policy::returns_before_growth, view, segment_bytes, grow_bytes);
  }
  bool merges_idle(const pool_view& view, std::uint64_t idle_bytes, std::uint64_t segments) const {
    return ask("merges_idle", &policy::merges_idle, view, idle_bytes, segments);
  }
  void returned(const pool_view& after, std::uint64_t segment_bytes) const {
    ask("returned", &policy::returned, after, segment_bytes);
  }
  /// Queried once, at construction.
  [[nodiscard]] unsigned segment_classes() const noexcept { return classes_; }
  /// Does not call the policy if there is one class.
  [[nodiscard]] unsigned segment_class(std::uint64_t bytes) const {
    return classes_ == 1 ? 0 : class_of_several(bytes);
  }

 private:
  template <typename Function, typename... Arguments>
  std::invoke_result_t<Function, policy&, const Arguments&...> ask(const char* name, Function function,
                                                                   const Arguments&... arguments) const {
    try {
      return (asked_.get()->*function)(arguments...);
    } catch (...) {
      fail_as_thrown(name);
    }
  }
  [[noreturn]] void fail_as_thrown(const char* function) const;
  [[noreturn]] void fail(const char* function, const std::string& message) const;
  [[nodiscard]] unsigned class_of_several(std::uint64_t bytes) const;

  std::unique_ptr<policy> asked_;
  std::string name_;
  unsigned classes_;
};

}  // namespace gpumem
