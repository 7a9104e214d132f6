#include "summary.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

namespace gpumem::bench::sweep {
namespace {

using json = nlohmann::ordered_json;

constexpr double same = 1e-9;          // smaller differences of utilization count as equal
constexpr double clearly_less = 0.05;  // part of the best utilization; counts as a loss
constexpr std::size_t worst_shown = 20;
constexpr std::size_t points_of_curve = 101;
constexpr std::size_t most_kinds = 40;

/// The value below which this share of the sorted values lies.
double quantile(const std::vector<double>& sorted, double share) {
  const auto position = static_cast<std::size_t>(std::llround(share * static_cast<double>(sorted.size() - 1)));
  return sorted[position];
}

/// Rounds to four digits, which is all that the page shows.
double rounded(double value) { return std::round(value * 1e4) / 1e4; }

json distribution(std::vector<double> values) {
  if (values.empty()) return nullptr;
  std::sort(values.begin(), values.end());
  json curve = json::array();
  for (std::size_t i = 0; i < points_of_curve; ++i) {
    curve.push_back(rounded(quantile(values, static_cast<double>(i) / (points_of_curve - 1))));
  }
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return {{"least", rounded(values.front())},
          {"p5", rounded(quantile(values, 0.05))},
          {"p25", rounded(quantile(values, 0.25))},
          {"median", rounded(quantile(values, 0.5))},
          {"p75", rounded(quantile(values, 0.75))},
          {"p95", rounded(quantile(values, 0.95))},
          {"most", rounded(values.back())},
          {"mean", rounded(sum / static_cast<double>(values.size()))},
          {"curve", std::move(curve)}};
}

bool ran(const summary_row* row) { return row != nullptr && !row->failed && !row->oom; }

/// The figure to compare; empty if the policy takes everything, ran out of memory or failed.
std::optional<double> utilization_of(const summary_row* row) {
  if (!ran(row) || row->utilization <= 0 || (row->takes_everything && row->device_ms >= 0)) return std::nullopt;
  return row->utilization;
}

double best_of(const std::vector<const summary_row*>& rows) {
  double best = 0;
  for (const summary_row* each : rows) best = std::max(best, utilization_of(each).value_or(0));
  return best;
}

double least_ms_of(const std::vector<const summary_row*>& rows) {
  double least = -1;
  for (const summary_row* each : rows) {
    if (ran(each) && each->device_ms >= 0 && (least < 0 || each->device_ms < least)) least = each->device_ms;
  }
  return least;
}

std::string kind_of(const std::string& trace) { return trace.substr(0, trace.find('-')); }

}  // namespace

void summary::add(summary_row row) {
  if (index_.emplace(row.policy, policies_.size()).second) policies_.push_back(row.policy);
  rows_.push_back(std::move(row));
}

std::vector<summary::one_case> summary::cases() const {
  std::vector<one_case> all;
  std::map<std::pair<std::string, std::string>, std::size_t> known;
  for (const summary_row& row : rows_) {
    const auto [at, added] = known.emplace(std::pair{row.trace, row.rest}, all.size());
    if (added) all.push_back({row.trace, row.rest, std::vector<const summary_row*>(policies_.size())});
    all[at->second].rows[index_.at(row.policy)] = &row;
  }
  return all;
}

json summary::policy_json(std::size_t policy, const std::vector<one_case>& all) const {
  std::vector<double> utilizations;
  std::vector<double> costs;
  std::uint64_t failed = 0;
  std::uint64_t oom = 0;
  std::uint64_t best = 0;
  std::uint64_t alone = 0;
  std::uint64_t cheapest = 0;
  std::uint64_t lost = 0;
  bool takes_everything = false;
  std::vector<std::pair<double, json>> worst;
  for (const one_case& each : all) {
    const summary_row* const own = each.rows[policy];
    if (own == nullptr) continue;
    failed += own->failed ? 1U : 0U;
    oom += own->oom ? 1U : 0U;
    takes_everything |= own->takes_everything;
    if (ran(own) && own->device_ms >= 0) {
      costs.push_back(own->device_ms);
      if (own->device_ms <= least_ms_of(each.rows)) ++cheapest;
    }
    const auto used = utilization_of(own);
    const double top = best_of(each.rows);
    if (used) utilizations.push_back(*used);
    if (top <= 0 || own->failed || (own->takes_everything && own->device_ms >= 0 && !own->oom)) continue;
    const double value = used.value_or(0);
    if (value >= top - same) {
      ++best;
      alone += std::count_if(each.rows.begin(), each.rows.end(),
                             [&](const summary_row* candidate) {
                               return utilization_of(candidate).value_or(0) >= top - same;
                             }) == 1
                   ? 1U
                   : 0U;
      continue;
    }
    if (value >= top * (1 - clearly_less)) continue;
    ++lost;
    std::string winner;
    for (const summary_row* candidate : each.rows) {
      if (winner.empty() && utilization_of(candidate).value_or(0) >= top - same) winner = candidate->policy;
    }
    worst.emplace_back(value / top, json{{"trace", each.trace},
                                         {"where", each.rest},
                                         {"utilization", used ? json(rounded(*used)) : json(nullptr)},
                                         {"oom", own->oom},
                                         {"best", rounded(top)},
                                         {"best_policy", winner}});
  }
  std::stable_sort(worst.begin(), worst.end(), [](const auto& lhs, const auto& rhs) { return lhs.first < rhs.first; });
  json shown = json::array();
  for (std::size_t i = 0; i < std::min(worst.size(), worst_shown); ++i) shown.push_back(worst[i].second);
  return {{"policy", policies_[policy]},
          {"takes_everything", takes_everything},
          {"failed", failed},
          {"oom", oom},
          {"best", best},
          {"alone_best", alone},
          {"cheapest", cheapest},
          {"lost", lost},
          {"utilization", distribution(std::move(utilizations))},
          {"device_ms", distribution(std::move(costs))},
          {"worst", std::move(shown)}};
}

/// By kind of trace: how often each policy is best, and its median.
json summary::kinds_json(const std::vector<one_case>& all) const {
  std::map<std::string, std::vector<const one_case*>> kinds;
  for (const one_case& each : all) kinds[kind_of(each.trace)].push_back(&each);
  if (kinds.size() > most_kinds) return json::array();
  json listed = json::array();
  for (const auto& [kind, members] : kinds) {
    json policies = json::array();
    for (std::size_t p = 0; p < policies_.size(); ++p) {
      std::vector<double> values;
      std::uint64_t best = 0;
      std::uint64_t lost = 0;
      for (const one_case* each : members) {
        const auto used = utilization_of(each->rows[p]);
        const double top = best_of(each->rows);
        if (used) values.push_back(*used);
        if (used && *used >= top - same) ++best;
        if (used && *used < top * (1 - clearly_less)) ++lost;
      }
      std::sort(values.begin(), values.end());
      policies.push_back({{"policy", policies_[p]},
                          {"best", best},
                          {"lost", lost},
                          {"median", values.empty() ? json(nullptr) : json(rounded(quantile(values, 0.5)))}});
    }
    listed.push_back({{"kind", kind}, {"cases", members.size()}, {"policies", std::move(policies)}});
  }
  return listed;
}

/// For each pair of policies, over the cases that both ran: how often the first is better by more than a thousandth.
json summary::pairs_json(const std::vector<one_case>& all) const {
  json pairs = json::array();
  for (std::size_t a = 0; a < policies_.size(); ++a) {
    json row = json::array();
    for (std::size_t b = 0; b < policies_.size(); ++b) {
      std::uint64_t both = 0;
      std::uint64_t better = 0;
      for (const one_case& each : all) {
        const auto first = utilization_of(each.rows[a]);
        const auto second = utilization_of(each.rows[b]);
        if (!first || !second) continue;
        ++both;
        better += *first > *second * 1.001 ? 1U : 0U;
      }
      row.push_back(a == b || both == 0 ? json(nullptr)
                                        : json(rounded(static_cast<double>(better) / static_cast<double>(both))));
    }
    pairs.push_back(std::move(row));
  }
  return pairs;
}

json summary::to_json() const {
  const std::vector<one_case> all = cases();
  json policies = json::array();
  for (std::size_t p = 0; p < policies_.size(); ++p) policies.push_back(policy_json(p, all));
  return {{"cases", all.size()},
          {"clearly_less", clearly_less},
          {"policies", std::move(policies)},
          {"kinds", kinds_json(all)},
          {"pairs", pairs_json(all)}};
}

}  // namespace gpumem::bench::sweep
