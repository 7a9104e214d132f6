/// growth: what TensorFlow calls allow_growth. Small at first, larger at every step, up to the limit.
///
/// Also serves hard_cap and multi_pool: every pool keeps its limit under every policy, so these two are growth
/// with a setting that the registry insists on.
#include "built_in.hpp"
#include "growth_steps.hpp"
#include "segment_sizes.hpp"

namespace gpumem {
namespace {

class growth final : public policy {
 public:
  segment_request grow(const pool_view& view, std::uint64_t need_bytes) override {
    return request_within_limit(view, steps_.covering(need_bytes, view.reserved_bytes), need_bytes);
  }

  void grew(const pool_view&, std::uint64_t) override { steps_.taken(); }

 private:
  growth_steps steps_;
};

}  // namespace

std::unique_ptr<policy> make_growth(const policy_setup&) { return std::make_unique<growth>(); }

}  // namespace gpumem
