/// planned: one segment of the plan's size, at first use, and what departs from the plan beside it, as growth would.
///
/// Where in the segment a block goes is not a policy's business: the pool follows the plan. Without a plan all of it is
/// growth.
#include "built_in.hpp"
#include "growth_steps.hpp"
#include "segment_sizes.hpp"

namespace gpumem {
namespace {

class planned final : public policy {
 public:
  explicit planned(std::uint64_t plan_bytes) : plan_bytes_{plan_bytes} {}

  segment_request first(const pool_view&) override { return {.bytes = plan_bytes_, .least_bytes = plan_bytes_}; }

  segment_request grow(const pool_view& view, std::uint64_t need_bytes) override {
    const std::uint64_t beside = view.reserved_bytes > plan_bytes_ ? view.reserved_bytes - plan_bytes_ : 0;
    return request_within_limit(view, steps_.covering(need_bytes, beside), need_bytes);
  }
  void grew(const pool_view&, std::uint64_t bytes) override {
    if (bytes < plan_bytes_ || plan_bytes_ == 0 || opened_) steps_.taken();
    opened_ = true;
  }

  [[nodiscard]] unsigned segment_class(std::uint64_t) const override { return plan_bytes_ == 0 ? 0 : 1; }
  [[nodiscard]] unsigned segment_classes() const override { return plan_bytes_ == 0 ? 1 : 2; }

  /// The plan's places stay where they are.
  [[nodiscard]] bool gives_back(give_back why, const pool_view&) const override {
    return plan_bytes_ == 0 && why == give_back::trim;
  }

 private:
  std::uint64_t plan_bytes_;
  bool opened_ = false;
  growth_steps steps_;
};

}  // namespace

std::unique_ptr<policy> make_planned(const policy_setup& setup) { return std::make_unique<planned>(setup.plan_bytes); }

}  // namespace gpumem
