/// growth: starts small and grows on demand up to the limit, as TensorFlow's allow_growth does.
///
/// Before a request fails, the pool returns wholly idle segments, so that the request can get a segment of its own
/// size. hard_cap and multi_pool are growth with a required setting. Pools enforce limits under every policy.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "built_in.hpp"
#include "growth_steps.hpp"
#include "segment_sizes.hpp"
#include "text.hpp"

namespace gpumem {
namespace {

class growth : public policy {
 public:
  explicit growth(policy_needs needs) : needs_{std::move(needs)} {}

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

/// TensorFlow's allow_growth exactly: steps from 2 MiB on, each twice the previous one, kept until `trim`.
class doubling_growth final : public policy {
 public:
  segment_request grow(const pool_view& view, std::uint64_t need_bytes) override {
    steps_.pool_holds(view.reserved_bytes);
    return request_within_limit(view, steps_.covering(need_bytes), need_bytes);
  }

  void grew(const pool_view&, std::uint64_t) override { steps_.taken(); }

 private:
  doubling_steps steps_{doubling_steps::tensorflow_first_bytes};
};

/// Grows one region of addresses by mapping the next stretch at its end, so that free memory coalesces across growth
/// steps and no request needs its own segment. Mapped memory never moves; the pool returns idle stretches as it returns
/// segments. If the addresses cannot be reserved, the pool grows in segments.
class growth_in_one_region final : public growth {
 public:
  using growth::growth;

  [[nodiscard]] page_rules pages(const pool_view& view) const override {
    const std::uint64_t device = round_up(view.total_bytes, granule_bytes(view));
    return {.range_bytes = device * ranges_of_device, .least_range_bytes = device};
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
  /// The region is longer than the device's memory, because memory taken after a return is mapped at its end.
  static constexpr std::uint64_t ranges_of_device = 4;
};

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
  const auto backing = setup.parameters.find("backing");
  if (backing != setup.parameters.end() && backing->second == "mapped" && setup.page_bytes != 0) {
    return std::make_unique<growth_in_one_region>(std::move(needs));
  }
  return std::make_unique<growth>(std::move(needs));
}

}  // namespace

built_in_policy growth_policy() {
  return {
      {.name = "growth",
       .summary =
           "on demand: a segment for each large request, steps for the rest; gives idle ones back under pressure",
       .parameters = {{.name = "segments",
                       .help = "grows as TensorFlow's allow_growth: segments from 2 MiB on, each twice the previous "
                               "one, shared by all sizes; they go back only on `trim`"},
                      backing_parameter()},
       .variants = {"backing=mapped"},
       .takes = "on demand: a large request gets a segment of its own, others share steps of 16 to 128 MiB, then a "
                "share of what the pool holds",
       .gives_back = "idle segments, on `trim` and before a request would fail",
       .choose_when = "the GPU is shared and the program's need is not known (default)"},
      [](const policy_setup& setup) -> std::unique_ptr<policy> {
        if (setup.parameters.contains("segments")) return std::make_unique<doubling_growth>();
        return make_growth(setup, {});
      }};
}

built_in_policy hard_cap_policy() {
  return {{.name = "hard_cap",
           .summary = "as growth, with a limit that must be set",
           .parameters = {backing_parameter()},
           .takes = "as `growth`",
           .gives_back = "as `growth`",
           .choose_when = "a limit is required: it refuses to start without `GPUMEM_LIMIT`"},
          [](const policy_setup& setup) { return make_growth(setup, {.limit = true}); }};
}

built_in_policy multi_pool_policy() {
  return {{.name = "multi_pool",
           .summary = "as growth, in pools that must be set",
           .parameters = {backing_parameter()},
           .takes = "as `growth`, in each pool",
           .gives_back = "as `growth`",
           .choose_when = "one card serves as several: it refuses to start without `GPUMEM_POOLS`"},
          [](const policy_setup& setup) { return make_growth(setup, {.pools = true}); }};
}

}  // namespace gpumem
