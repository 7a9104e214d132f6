/// growth: starts small and grows on demand up to the limit, as TensorFlow's allow_growth does.
///
/// The pool gives idle segments back before it grows, or merges them later, if that pays (growth_rule.hpp).
/// hard_cap and multi_pool are growth with a required setting. Pools enforce limits under every policy.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "built_in.hpp"
#include "segment_sizes.hpp"
#include "text.hpp"
#include "units.hpp"

namespace gpumem {
namespace {

class growth : public policy {
 public:
  growth(policy_needs needs, growth_rule rule) : needs_{std::move(needs)}, rule_{rule} {}

  [[nodiscard]] policy_needs needs() const override { return needs_; }
  segment_request grow(const pool_view& view, std::uint64_t need_bytes) override {
    return request_within_limit(view, rule_.covering(need_bytes, view.reserved_bytes), need_bytes);
  }

  [[nodiscard]] bool gives_back(give_back, const pool_view&) const override { return true; }
  [[nodiscard]] bool keeps_segments_whole() const override { return true; }
  [[nodiscard]] bool returns_before_growth(const pool_view& view, std::uint64_t segment_bytes,
                                           std::uint64_t grow_bytes) const override {
    return rule_.returns(segment_bytes, grow_bytes, view.reserved_bytes);
  }
  [[nodiscard]] bool merges_idle(const pool_view& view, std::uint64_t idle, std::uint64_t segments) const override {
    const std::uint64_t peak = view.peak_live_bytes;
    return rule_.merges(idle, segments, std::max(view.reserved_bytes, peak) - peak);
  }
  void returned(const pool_view&, std::uint64_t segment_bytes) override { rule_.returned(segment_bytes); }

 private:
  policy_needs needs_;
  growth_rule rule_;
};

/// TensorFlow's allow_growth (bfc_allocator.cc, Extend): steps from 2 MiB on, each twice the previous one, kept until
/// `trim`. A step that covers its request only after doubling is not doubled again. Unlike there, a refused step
/// changes nothing.
class doubling_growth final : public policy {
 public:
  explicit doubling_growth(policy_needs needs) : needs_{std::move(needs)} {}

  [[nodiscard]] policy_needs needs() const override { return needs_; }
  segment_request grow(const pool_view& view, std::uint64_t need_bytes) override {
    // A pool that has returned memory takes the steps of a pool of its new size.
    while (step_bytes_ > first_bytes && step_bytes_ - first_bytes > view.reserved_bytes) step_bytes_ /= 2;
    offered_bytes_ = std::max(step_bytes_, std::bit_ceil(std::min(need_bytes, view.total_bytes)));
    return request_within_limit(view, offered_bytes_, need_bytes);
  }
  void grew(const pool_view&, std::uint64_t) override {
    step_bytes_ = offered_bytes_ = offered_bytes_ > step_bytes_ ? offered_bytes_ : 2 * step_bytes_;
  }

 private:
  static constexpr std::uint64_t first_bytes = 2 * mib;
  policy_needs needs_;
  std::uint64_t step_bytes_ = first_bytes;
  std::uint64_t offered_bytes_ = first_bytes;
};

/// Grows one region of addresses by mapping the next stretch at its end, so that free memory coalesces across growth
/// steps and no request needs its own segment. Mapped memory never moves; the pool returns idle stretches as it returns
/// segments. If the addresses cannot be reserved, the pool grows in segments.
class growth_in_one_region final : public growth {
 public:
  using growth::growth;

  [[nodiscard]] page_rules pages(const pool_view& view) const override {
    return {.range_bytes = address_range_bytes(view), .least_range_bytes = view.total_bytes};
  }

  [[nodiscard]] page_request page_in(const pool_view& view, std::uint64_t, std::uint64_t missing_bytes) const override {
    const std::uint64_t step = round_down(view.reserved_bytes / 48, granule_bytes(view));  // wastes a 48th at most
    return {.make_bytes = std::max(missing_bytes, step), .run_bytes = UINT64_MAX, .moves = false};
  }
};

/// Adds the parameters to `entry`, the row of a policy with these needs.
built_in_policy growth_with(policy_needs needs, policy_entry entry) {
  entry.parameters = {
      {.name = "segments",
       .help = "grows as TensorFlow's allow_growth: segments from 2 MiB on, each twice the previous one, shared by all "
               "sizes; they go back only on `trim`"},
      {.name = "backing",
       .values = "`plain` or `mapped`",
       .default_text = "plain",
       .help = "`mapped`: one reserved region of addresses that grows by mapping the next stretch at its end, so that "
               "free memory coalesces across growth steps",
       .check =
           [](std::string_view value, std::string_view what) {
             if (value == "plain" || value == "mapped") return status{};
             return status{errc::bad_setting, fmt::format("{}={}: expected plain or mapped", what, printable(value))};
           }},
      exchange_rate_parameter(", and idle memory that goes back sooner; `0` never gives back before growth. Has no "
                              "effect under `segments` and `backing=mapped`")};
  return {std::move(entry), [needs](const policy_setup& setup) -> std::unique_ptr<policy> {
            if (setup.parameters.contains("segments")) return std::make_unique<doubling_growth>(needs);
            const bool mapped = setup.parameter("backing") == "mapped" && setup.page_bytes != 0;
            if (mapped) return std::make_unique<growth_in_one_region>(needs, rule_of(setup));
            return std::make_unique<growth>(needs, rule_of(setup));
          }};
}

}  // namespace

growth_rule rule_of(const policy_setup& setup, std::uint64_t default_rate) {
  const std::string_view rate = setup.parameter("exchange_rate");
  return {rate.empty() ? default_rate : *parse_exchange_rate(rate, "exchange_rate"),
          prices_of(setup.card, setup.compute_major)};
}

policy_parameter exchange_rate_parameter(const char* more_effects, std::uint64_t default_rate) {
  return {
      .name = "exchange_rate",
      .values = "microseconds per MiB (`96`)",
      .default_text = fmt::format("{}", default_rate),
      .help = fmt::format("device time worth spending to hold a MiB less: more means smaller steps{}", more_effects),
      .check = [](std::string_view value, std::string_view what) { return parse_exchange_rate(value, what).why(); }};
}

built_in_policy growth_policy() {
  return growth_with(
      {},
      {.name = "growth",
       .summary = "on demand: a segment for each large request, steps for the rest; gives idle ones back if that pays",
       .variants = {"backing=mapped"},
       .takes = "on demand: a large request gets a segment of its own, others share steps of 16 MiB or more, which "
                "grow with the root of the pool",
       .gives_back = "idle segments: on `trim`, before a request would fail, and before growth if that pays, the "
                     "device is idle and no step repeats; where it was not idle, it makes one segment of them later",
       .choose_when = "the GPU is shared and the program's need is not known (default)"});
}

built_in_policy hard_cap_policy() {
  return growth_with({.limit = true},
                     {.name = "hard_cap",
                      .summary = "as growth, with a limit that must be set",
                      .takes = "as `growth`",
                      .gives_back = "as `growth`",
                      .choose_when = "a limit is required: it refuses to start without `GPUMEM_LIMIT`"});
}

built_in_policy multi_pool_policy() {
  return growth_with({.pools = true},
                     {.name = "multi_pool",
                      .summary = "as growth, in pools that must be set",
                      .takes = "as `growth`, in each pool",
                      .gives_back = "as `growth`",
                      .choose_when = "one card serves as several: it refuses to start without `GPUMEM_POOLS`"});
}

}  // namespace gpumem
