/// growth: starts small and grows on demand up to the limit, as TensorFlow's allow_growth does.
///
/// The pool gives idle segments back before it grows, or merges them later, if that pays (growth_rule.hpp).
/// hard_cap and multi_pool are growth with a required setting. Pools enforce limits under every policy.
#include <fmt/format.h>

#include <algorithm>
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
  segment_request grow(const pool_view& view, std::uint64_t need_bytes) override {
    // A pool that has returned memory takes the steps of a pool of its new size.
    while (step_bytes_ > first_bytes && step_bytes_ - first_bytes > view.reserved_bytes) step_bytes_ /= 2;
    offered_bytes_ = step_bytes_;
    while (offered_bytes_ < need_bytes) offered_bytes_ = doubled(offered_bytes_);
    return request_within_limit(view, offered_bytes_, need_bytes);
  }

  void grew(const pool_view&, std::uint64_t) override {
    step_bytes_ = offered_bytes_ = offered_bytes_ > step_bytes_ ? offered_bytes_ : doubled(step_bytes_);
  }

 private:
  static constexpr std::uint64_t first_bytes = 2 * mib;
  static constexpr std::uint64_t doubled(std::uint64_t bytes) {
    return bytes <= UINT64_MAX / 2 ? bytes * 2 : UINT64_MAX;
  }

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
    const std::uint64_t step = std::max(least_step_bytes, view.reserved_bytes / step_share);
    return {.make_bytes = std::max(missing_bytes, round_down(step, granule_bytes(view))),
            .run_bytes = UINT64_MAX,
            .moves = false};
  }

 private:
  static constexpr std::uint64_t least_step_bytes = 4 * mib;
  static constexpr std::uint64_t step_share = 48;  ///< a step is 1/48 of the pool; at most the last step is wasted
};

constexpr const char* rate_also =
    ", and idle memory that goes back sooner; `0` never gives back before growth. With `backing=mapped`, and under "
    "`growth:segments`, it has no effect";

policy_parameter backing_parameter() {
  return {.name = "backing",
          .values = "`plain` or `mapped`",
          .default_text = "plain",
          .help =
              "`mapped`: one reserved region of addresses that grows by mapping the next stretch at its end, so that "
              "free memory coalesces across growth steps",
          .check = [](std::string_view value, std::string_view what) {
            if (value == "plain" || value == "mapped") return status{};
            return status{errc::bad_setting, fmt::format("{}={}: expected plain or mapped", what, printable(value))};
          }};
}

/// Creates `growth_in_one_region` for `backing=mapped` if the device can map pages, otherwise `growth`.
std::unique_ptr<policy> make_growth(const policy_setup& setup, policy_needs needs) {
  const growth_rule rule = rule_of(setup);
  const auto backing = setup.parameters.find("backing");
  if (backing != setup.parameters.end() && backing->second == "mapped" && setup.page_bytes != 0) {
    return std::make_unique<growth_in_one_region>(std::move(needs), rule);
  }
  return std::make_unique<growth>(std::move(needs), rule);
}

built_in_policy growth_with(policy_needs needs, const char* name, const char* summary, const char* takes,
                            const char* choose_when) {
  return {{.name = name,
           .summary = summary,
           .parameters = {backing_parameter(), exchange_rate_parameter(rate_also)},
           .takes = takes,
           .gives_back = "as `growth`",
           .choose_when = choose_when},
          [needs](const policy_setup& setup) { return make_growth(setup, needs); }};
}

}  // namespace

growth_rule rule_of(const policy_setup& setup, std::uint64_t default_rate) {
  const auto rate = setup.parameters.find("exchange_rate");
  const bool is_set = rate != setup.parameters.end();
  return {is_set ? *parse_exchange_rate(rate->second, rate->first) : default_rate,
          prices_of(setup.card, setup.compute_major)};
}

policy_parameter exchange_rate_parameter(const char* more_effects, std::uint64_t default_rate) {
  return {
      .name = "exchange_rate",
      .values = "microseconds per MiB (`96`)",
      .default_text = fmt::format("{}", default_rate),
      .help =
          fmt::format("the device time worth spending to hold one MiB less: more means smaller steps{}", more_effects),
      .check = [](std::string_view value, std::string_view what) { return parse_exchange_rate(value, what).why(); }};
}

built_in_policy growth_policy() {
  return {
      {.name = "growth",
       .summary = "on demand: a segment for each large request, steps for the rest; gives idle ones back if that pays",
       .parameters = {{.name = "segments",
                       .help = "grows as TensorFlow's allow_growth: segments from 2 MiB on, each twice the previous "
                               "one, shared by all sizes; they go back only on `trim`"},
                      backing_parameter(),
                      exchange_rate_parameter(rate_also)},
       .variants = {"backing=mapped"},
       .takes = "on demand: a large request gets a segment of its own, others share steps of 16 MiB or more, which "
                "grow with the root of the pool",
       .gives_back =
           "idle segments: on `trim`, before a request would fail, and before growth if that pays, the device "
           "is idle and no step repeats; where it was not idle, it makes one segment of them later",
       .choose_when = "the GPU is shared and the program's need is not known (default)"},
      [](const policy_setup& setup) -> std::unique_ptr<policy> {
        if (setup.parameters.contains("segments")) return std::make_unique<doubling_growth>();
        return make_growth(setup, {});
      }};
}

built_in_policy hard_cap_policy() {
  return growth_with({.limit = true}, "hard_cap", "as growth, with a limit that must be set", "as `growth`",
                     "a limit is required: it refuses to start without `GPUMEM_LIMIT`");
}

built_in_policy multi_pool_policy() {
  return growth_with({.pools = true}, "multi_pool", "as growth, in pools that must be set", "as `growth`, in each pool",
                     "one card serves as several: it refuses to start without `GPUMEM_POOLS`");
}

}  // namespace gpumem
