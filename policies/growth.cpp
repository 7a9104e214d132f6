/// growth: what TensorFlow calls allow_growth. Small at first, more on demand, up to the limit.
///
/// One step before out of memory, segments that are wholly idle go back, so that the request gets one of its own size.
/// hard_cap and multi_pool are growth with a setting that must not be forgotten: every pool keeps its limit under every
/// policy.
#include <utility>

#include "built_in.hpp"
#include "growth_steps.hpp"
#include "segment_sizes.hpp"

namespace gpumem {
namespace {

class growth final : public policy {
 public:
  explicit growth(policy_needs needs = {}) : needs_{std::move(needs)} {}

  [[nodiscard]] policy_needs needs() const override { return needs_; }

  segment_request grow(const pool_view& view, std::uint64_t need_bytes) override {
    return request_within_limit(view, steps_.covering(need_bytes, view.reserved_bytes), need_bytes);
  }

  void grew(const pool_view&, std::uint64_t) override { steps_.taken(); }

  [[nodiscard]] bool gives_back(give_back, const pool_view&) const override { return true; }

 private:
  policy_needs needs_;
  growth_steps steps_;
};

}  // namespace

built_in_policy growth_policy() {
  return {{.name = "growth",
           .summary =
               "on demand: a segment for each large request, steps for the rest; gives idle ones back under pressure",
           .takes = "on demand: a large request gets a segment of its own, others share steps of 16 to 128 MiB, then a "
                    "share of the pool",
           .gives_back = "idle segments, on `trim` and before a request would fail",
           .choose_when = "the GPU is shared and the program's need is not known (default)"},
          [](const policy_setup&) { return std::make_unique<growth>(); }};
}

built_in_policy hard_cap_policy() {
  return {{.name = "hard_cap",
           .summary = "as growth, with a limit that must be set",
           .takes = "as `growth`",
           .gives_back = "as `growth`",
           .choose_when = "a share must hold: it refuses to start without `GPUMEM_LIMIT`"},
          [](const policy_setup&) { return std::make_unique<growth>(policy_needs{.limit = true}); }};
}

built_in_policy multi_pool_policy() {
  return {{.name = "multi_pool",
           .summary = "as growth, in pools that must be set",
           .takes = "as `growth`, in each pool",
           .gives_back = "as `growth`",
           .choose_when = "one card must serve as several: it refuses to start without `GPUMEM_POOLS`"},
          [](const policy_setup&) { return std::make_unique<growth>(policy_needs{.pools = true}); }};
}

}  // namespace gpumem
