/// A policy that takes a segment for each request, and gives idle segments back under pressure if a test sets it.
#pragma once

#include "gpumem/policy.hpp"

namespace gpumem {

struct segment_each final : policy {
  bool gives = false;
  bool two_classes = false;  ///< as a policy that follows plans has them: all but the plan's segment is of class 1
  std::uint64_t at_first = 0;
  explicit segment_each(bool gives_under_pressure = false) : gives{gives_under_pressure} {}
  segment_request first(const pool_view&) override { return {.bytes = at_first, .least_bytes = at_first}; }
  segment_request grow(const pool_view&, std::uint64_t need) override { return {.bytes = need, .least_bytes = need}; }
  [[nodiscard]] bool gives_back(give_back why, const pool_view&) const override {
    return gives || why == give_back::trim;
  }
  [[nodiscard]] unsigned segment_classes() const override { return two_classes ? 2 : 1; }
  [[nodiscard]] unsigned segment_class(std::uint64_t) const override { return two_classes ? 1 : 0; }
};

}  // namespace gpumem
