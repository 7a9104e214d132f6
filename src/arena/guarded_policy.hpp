// A pool's policy, which may be the program's own: whatever one of its functions throws becomes `policy_failed`, which
// names the policy and the function. So does an answer that no pool can use. The arena's lock guards it.
#pragma once

#include <memory>
#include <string>

#include "gpumem/policy.hpp"

namespace gpumem {

class guarded_policy {
 public:
  guarded_policy(std::unique_ptr<policy> asked, std::string name);

  // As in policy.hpp. Each throws `thrown_status` where the policy throws; std::bad_alloc is passed on.
  segment_request first(const pool_view& view);
  segment_request grow(const pool_view& view, std::uint64_t need_bytes);
  void grew(const pool_view& after, std::uint64_t bytes);
  std::uint64_t smaller(std::uint64_t refused_bytes, std::uint64_t least_bytes);
  [[nodiscard]] page_rules pages(const pool_view& view) const;
  [[nodiscard]] page_request page_in(const pool_view& view, std::uint64_t need_bytes,
                                     std::uint64_t missing_bytes) const;
  [[nodiscard]] bool gives_back(give_back why, const pool_view& view) const;
  /// Asked once, when this is made.
  [[nodiscard]] unsigned segment_classes() const noexcept { return classes_; }
  /// Where there is one class, nobody is asked.
  [[nodiscard]] unsigned segment_class(std::uint64_t bytes) const {
    return classes_ == 1 ? 0 : class_of_several(bytes);
  }

 private:
  template <typename Call>
  auto ask(const char* function, const Call& call) const -> decltype(call());
  [[noreturn]] void fail(const char* function, const char* what) const;
  [[nodiscard]] unsigned class_of_several(std::uint64_t bytes) const;

  std::unique_ptr<policy> asked_;
  std::string name_;
  unsigned classes_;
};

}  // namespace gpumem
