/// planned: takes one segment of the plan's size at first use. Requests that depart from the plan get other segments,
/// as under growth.
///
/// The pool, not the policy, follows the plan and places blocks in the segment. Without a plan the policy works as
/// growth, but gives nothing back before it grows, and keeps no segment whole. `planned:record` and `planned:renew`
/// also write the plan.
#include "built_in.hpp"
#include "growth_rule.hpp"
#include "segment_sizes.hpp"

namespace gpumem {
namespace {

class planned final : public policy {
 public:
  planned(plan_use use, growth_rule rule) : use_{use}, rule_{rule} {}

  [[nodiscard]] policy_needs needs() const override { return {.plan = use_}; }
  void follow_plan(std::uint64_t plan_bytes) override { plan_bytes_ = plan_bytes; }

  segment_request first(const pool_view&) override { return {.bytes = plan_bytes_, .least_bytes = plan_bytes_}; }

  segment_request grow(const pool_view& view, std::uint64_t need_bytes) override {
    const std::uint64_t other_bytes = view.reserved_bytes > plan_bytes_ ? view.reserved_bytes - plan_bytes_ : 0;
    return request_within_limit(view, rule_.covering(need_bytes, other_bytes), need_bytes);
  }

  [[nodiscard]] unsigned segment_class(std::uint64_t) const override { return plan_bytes_ == 0 ? 0 : 1; }
  [[nodiscard]] unsigned segment_classes() const override { return plan_bytes_ == 0 ? 1 : 2; }

  /// Never with a plan, because the plan's segment must stay.
  [[nodiscard]] bool gives_back(give_back, const pool_view&) const override { return plan_bytes_ == 0; }

 private:
  plan_use use_;
  std::uint64_t plan_bytes_ = 0;
  growth_rule rule_;
};

}  // namespace

built_in_policy planned_policy() {
  return {
      {.name = "planned",
       .summary = "one segment, placed by the plan in GPUMEM_PLAN; beside it as growth",
       .parameters = {{.name = "record", .help = "serves as `growth` and writes the run's plan at the end"},
                      {.name = "renew",
                       .help = "follows the plan, serves as `growth` if there is none, and writes a new one after a "
                               "run that departs from it"},
                      exchange_rate_parameter("")},
       .takes = "one segment for the plan of an earlier run; beside it as `growth`",
       .gives_back = "nothing; without a plan as `growth`",
       .choose_when = "the program repeats the same step"},
      [](const policy_setup& setup) {
        const bool renews = setup.parameters.contains("renew");
        const bool records = setup.parameters.contains("record");
        return std::make_unique<planned>(plan_use{.follows = renews || !records, .records = renews || records},
                                         rule_of(setup));
      }};
}

}  // namespace gpumem
