/// Percentiles and ratios with bounds. Arithmetic on values only.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "latency.hpp"

namespace gpumem::bench {
namespace {

round_time medians_of(const latency_row& row) { return {row.median_ns, row.simulated_share_ns.value_or(0)}; }

/// The median of a figure over the rounds that measured all rows; without such a round, the figure of their medians.
template <typename Figure, typename... Row>
double over_rounds(Figure figure, const Row&... rows) {
  std::vector<double> values;
  for (std::size_t i = 0; i < std::min({rows.rounds.size()...}); ++i) {
    if ((rows.rounds[i].has_value() && ...)) values.push_back(figure(*rows.rounds[i]...));
  }
  if (values.empty()) return figure(medians_of(rows)...);
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double whole_times(const round_time& numerator, const round_time& denominator) { return numerator.ns / denominator.ns; }

/// The ratio of the allocators' own code. Infinite if a simulated part exceeds its row's time, which can happen because
/// the two are measured at different moments of the round.
double own_code(const round_time& numerator, const round_time& denominator) {
  const double of_b = denominator.ns - denominator.simulated_share_ns;
  return of_b > 0 ? (numerator.ns - numerator.simulated_share_ns) / of_b : std::numeric_limits<double>::infinity();
}

class ratio_list {
 public:
  explicit ratio_list(const std::vector<latency_row>& rows) : rows_{rows} {}

  void add_all_of(const std::string& gpumem) {
    add_against_cub(gpumem, "pair_4KiB", ">= 8");
    add_against_cub(gpumem, "pair_2MiB", ">= 8");
    add_scaling(gpumem);
    add_handoff(gpumem);
    for (const latency_row& row : rows_) {
      if (row.allocator != gpumem || row.iteration != iteration_kind::operation || row.oom) continue;
      add_against_cub(gpumem, row.name, ">= 3");
    }
  }
  [[nodiscard]] std::vector<latency_ratio> take() { return std::move(ratios_); }

 private:
  /// The row; null if it was not measured or ran out of memory.
  [[nodiscard]] const latency_row* find(std::string_view allocator, std::string_view name, unsigned threads = 1) const {
    const auto found = std::find_if(rows_.begin(), rows_.end(), [&](const latency_row& row) {
      return row.allocator == allocator && row.name == name && row.threads == threads && !row.oom;
    });
    return found != rows_.end() ? &*found : nullptr;
  }
  /// The faster of CUB's configurations in this case.
  [[nodiscard]] const latency_row* best_cub(std::string_view name) const {
    const latency_row* best = nullptr;
    for (const char* kind : {"cub", "cub_default"}) {
      const latency_row* const row = find(kind, name);
      if (row != nullptr && (best == nullptr || row->median_ns < best->median_ns)) best = row;
    }
    return best;
  }
  void add(latency_ratio ratio) {
    if (!std::isfinite(ratio.value)) return;
    // The bounds do not apply to rows with a driver call in each pair.
    if (find(ratio.allocator, "driver_part") != nullptr) ratio.bound.clear();
    ratios_.push_back(std::move(ratio));
  }

  void add_against_cub(const std::string& gpumem, const std::string& name, const char* bound) {
    const latency_row* const ours = find(gpumem, name);
    const latency_row* const theirs = best_cub(name);
    if (ours == nullptr || theirs == nullptr) return;
    const double own = over_rounds(own_code, *theirs, *ours);
    add({.name = name + " cub/gpumem",
         .value = over_rounds(whole_times, *theirs, *ours),
         .bound = bound,
         .allocator = gpumem,
         .medians = fmt::format("{} {:.1f} / {:.1f} ns", theirs->allocator, theirs->median_ns, ours->median_ns),
         .own_code = std::isfinite(own) ? std::optional{own} : std::nullopt});
  }
  void add_scaling(const std::string& gpumem) {
    const latency_row* const one_thread = find(gpumem, "pair_4KiB");
    const latency_row* const two = find(gpumem, "pair_4KiB", 2);
    const latency_row* const spin_one = find("floor", "spin");
    const latency_row* const spin_two = find("floor", "spin", 2);
    if (one_thread == nullptr || two == nullptr || spin_one == nullptr || spin_two == nullptr) return;
    const double value = over_rounds([](const auto& lhs, const auto& rhs, const auto& base_lhs,
                                        const auto& base_rhs) { return lhs.ns / rhs.ns / (base_lhs.ns / base_rhs.ns); },
                                     *one_thread, *two, *spin_one, *spin_two);
    add({"pair_4KiB 2 threads, of spin's scaling", value, "", gpumem,
         fmt::format("x {:.2f} / x {:.2f}", one_thread->median_ns / two->median_ns,
                     spin_one->median_ns / spin_two->median_ns)});
  }
  void add_handoff(const std::string& gpumem) {
    const latency_row* const handed = find(gpumem, "handoff");
    const latency_row* const pair = find(gpumem, "pair_4KiB");
    if (handed == nullptr || pair == nullptr) return;
    add({"handoff / pair_4KiB", over_rounds(whole_times, *handed, *pair), "", gpumem,
         fmt::format("{:.1f} / {:.1f} ns", handed->median_ns, pair->median_ns)});
  }
  const std::vector<latency_row>& rows_;
  std::vector<latency_ratio> ratios_;
};

}  // namespace

std::vector<std::uint32_t> operation_times::all() const {
  std::vector<std::uint32_t> known;
  known.reserve(ns_.size());
  std::copy_if(ns_.begin(), ns_.end(), std::back_inserter(known), [](std::uint32_t ns) { return ns != unknown; });
  return known;
}

std::vector<std::uint32_t> operation_times::medians() const {
  const std::size_t repetitions = std::min(begun_, ns_.size() / std::max<std::size_t>(operations_, 1));
  std::vector<std::uint32_t> middles;
  std::vector<std::uint32_t> samples(repetitions);
  for (std::size_t k = 0; k < operations_ && repetitions != 0; ++k) {
    for (std::size_t r = 0; r < repetitions; ++r) samples[r] = ns_[r * operations_ + k];
    if (std::count(samples.begin(), samples.end(), unknown) != 0) continue;
    const auto middle = samples.begin() + static_cast<std::ptrdiff_t>(repetitions / 2);
    std::nth_element(samples.begin(), middle, samples.end());
    middles.push_back(*middle);
  }
  return middles;
}

tail_times tail_of(const operation_times& times, std::optional<std::uint64_t> device_ops) {
  tail_times tail;
  tail.device_ops = device_ops;
  const auto percentile_us = [](std::vector<std::uint32_t>& ns, double share) {
    const auto rank = static_cast<std::size_t>(std::ceil(share * static_cast<double>(ns.size()) - 1e-9));
    const auto nth = ns.begin() + static_cast<std::ptrdiff_t>(std::clamp<std::size_t>(rank, 1, ns.size()) - 1);
    std::nth_element(ns.begin(), nth, ns.end());
    return *nth * 1e-3;
  };
  std::vector<std::uint32_t> ns = times.all();
  tail.ops = ns.size();
  if (ns.empty()) return tail;
  tail.p50_us = percentile_us(ns, 0.5);
  tail.p99_us = percentile_us(ns, 0.99);
  tail.p99_9_us = percentile_us(ns, 0.999);
  tail.p99_999_us = percentile_us(ns, 0.99999);
  tail.max_us = percentile_us(ns, 1);
  ns = times.medians();
  if (ns.empty()) return tail;
  tail.p99_999_of_medians_us = percentile_us(ns, 0.99999);
  tail.max_of_medians_us = percentile_us(ns, 1);
  return tail;
}

namespace {

std::vector<latency_ratio> ratios_of(const std::vector<latency_row>& rows) {
  ratio_list list{rows};
  std::vector<std::string> seen;
  for (const latency_row& row : rows) {
    if (!row.allocator.starts_with("gpumem/") || std::count(seen.begin(), seen.end(), row.allocator) != 0) continue;
    seen.push_back(row.allocator);
    list.add_all_of(row.allocator);
  }
  return list.take();
}

}  // namespace

std::vector<latency_ratio> latency_ratios(const std::vector<latency_row>& rows) {
  std::vector<latency_row> least = rows;
  for (latency_row& row : least) {
    row.median_ns = row.least_ns;
    row.simulated_share_ns = row.least_share_ns;
    row.rounds.clear();
    row.tail.reset();  // the tail covers all repetitions, so it does not apply to least times
  }
  const std::vector<latency_ratio> of_least = ratios_of(least);
  std::vector<latency_ratio> ratios = ratios_of(rows);
  for (latency_ratio& each : ratios) {
    const auto same = std::find_if(of_least.begin(), of_least.end(), [&each](const latency_ratio& candidate) {
      return candidate.name == each.name && candidate.allocator == each.allocator;
    });
    if (same != of_least.end()) each.of_least = same->value;
  }
  return ratios;
}

}  // namespace gpumem::bench
