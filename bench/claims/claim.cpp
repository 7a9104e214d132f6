#include "claim.hpp"

#include "bits.hpp"
#include "gpumem/request.hpp"
#include "workload.hpp"

namespace gpumem::bench {

std::string_view to_string(verdict outcome) noexcept {
  if (outcome == verdict::holds) return "holds";
  return outcome == verdict::does_not_hold ? "does not hold" : "depends";
}

policy_row plain_row(std::string_view text) { return need(parse_policy_row(text, {}, "")); }

std::vector<trace> all_workloads(const claim_setup& setup) {
  std::vector<trace> traces = setup.bundled;
  for (const char* text : {"random,ops=40000", "training,ops=40000", "epochs,ops=40000", "serving,ops=40000",
                           "pipeline,ops=40000", "tenants,ops=40000"}) {
    traces.push_back(need(make_workload(text, setup.replay.seed)));
  }
  return traces;
}

std::optional<std::uint64_t> smallest_capacity(const trace& recorded, const policy_row& row,
                                               const replay_setup& setup) {
  const auto of_fit = need(fit_row(row));
  const std::uint64_t peak = peak_live_of(recorded, row.tenants);
  const replay_plan plan = plan_for(recorded, of_fit, setup);
  std::optional<std::uint64_t> smallest;
  for (std::uint64_t percent = 251; percent-- > 100;) {
    const std::uint64_t capacity = round_down(peak * percent / 100, block_granularity);
    auto under_test = open_rig(fit_device(setup, capacity), of_fit.config);
    if (!under_test) break;  // the policy cannot start in this capacity
    if (need(replay_timed(plan, *under_test->memory, *under_test->gpu)).oom) break;
    smallest = capacity;
  }
  return smallest;
}

verdict verdict_of(std::size_t agreeing, std::size_t count) noexcept {
  if (agreeing == count) return verdict::holds;
  return agreeing == 0 ? verdict::does_not_hold : verdict::depends;
}

}  // namespace gpumem::bench
