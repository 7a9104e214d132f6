/// Claims about taking everything at once.
#include <fmt/format.h>

#include <array>

#include "bits.hpp"
#include "claim.hpp"
#include "gpumem/settings.hpp"

namespace gpumem::bench {
namespace {

/// Nearly all: nine tenths of what was free.
constexpr double nearly = 0.9;

result<findings> takes_every_device(const claim_setup& /*setup*/) {
  constexpr std::array<std::pair<std::uint64_t, std::uint64_t>, 4> cards{
      {{80 * gib, 0}, {40 * gib, 0}, {24 * gib, 6 * gib}, {8 * gib, 0}}};
  std::vector<std::unique_ptr<sim_device>> owned;
  std::vector<device*> devices;
  for (std::size_t i = 0; i < cards.size(); ++i) {
    sim_config config;
    config.ordinal = static_cast<int>(i);
    config.capacity_bytes = cards[i].first;
    config.foreign_bytes = cards[i].second;
    config.first_address += i << 44;
    config.referee = false;
    owned.push_back(std::make_unique<sim_device>(config));
    devices.push_back(owned.back().get());
  }
  const auto row = plain_row("grab_all");
  if (!row) return row.why();
  auto memory = allocator::open(devices, row->with);
  if (!memory) return memory.why();
  findings out;
  if (const auto got = (*memory)->try_allocate({.bytes = mib}); !got) return got.why();
  std::size_t at_once = 0;
  std::vector<std::uint64_t> first;
  for (const auto& each : owned) {
    first.push_back(each->used_bytes());
    at_once += first.back() > 0 ? 1U : 0U;
  }
  std::size_t nearly_all = 0;
  double least = 1;
  for (std::size_t i = 0; i < cards.size(); ++i) {
    if (const auto got = (*memory)->try_allocate({.bytes = mib, .device = static_cast<int>(i)}); !got) return got.why();
    const std::uint64_t free = cards[i].first - cards[i].second;
    const std::uint64_t taken = owned[i]->used_bytes();
    const double share = static_cast<double>(taken) / static_cast<double>(free);
    nearly_all += share >= nearly ? 1U : 0U;
    least = std::min(least, share);
    out.figures.push_back({{"device", i},
                           {"total_bytes", cards[i].first},
                           {"free_bytes", free},
                           {"taken_by_first_use_of_device_0_bytes", first[i]},
                           {"taken_bytes", taken}});
  }
  out.measured = fmt::format(
      "Of {} cards {} gave at least {:.0f} % of what was free, and the least share is {:.1f} %: what is left for the "
      "context and "
      "libraries weighs most on a small card. The first allocation, on device 0, took memory on {} of them.",
      cards.size(), nearly_all, nearly * 100, least * 100, at_once);
  out.outcome = verdict_of(nearly_all, cards.size());
  return out;
}

result<findings> fragments_less(const claim_setup& setup) {
  auto traces = all_workloads(setup);
  if (!traces) return traces.why();
  const auto all = plain_row("grab_all");
  const auto growing = plain_row("growth");
  if (!all || !growing) return all ? growing.why() : all.why();
  findings out;
  std::size_t less = 0;
  std::size_t same = 0;
  std::string exceptions;
  double most = 0;
  double sum = 0;
  for (const trace& t : *traces) {
    const auto one = smallest_capacity(t, *all, setup.replay);
    const auto several = smallest_capacity(t, *growing, setup.replay);
    if (!one || !several) return one ? several.why() : one.why();
    const std::uint64_t one_bytes = one->value_or(0);
    const std::uint64_t several_bytes = several->value_or(0);
    out.figures.push_back({{"workload", t.name},
                           {"peak_live_bytes", t.peak_live_bytes},
                           {"grab_all_needs_bytes", *one ? figures_json(one_bytes) : figures_json(nullptr)},
                           {"growth_needs_bytes", *several ? figures_json(several_bytes) : figures_json(nullptr)}});
    less += *one && (!*several || one_bytes < several_bytes) ? 1U : 0U;
    if (*several && (!*one || several_bytes < one_bytes)) exceptions += (exceptions.empty() ? "" : ", ") + t.name;
    same += *one == *several ? 1U : 0U;
    if (!*one || !*several) continue;
    const double more = static_cast<double>(several_bytes) / static_cast<double>(one_bytes) - 1;
    most = std::max(most, more);
    sum += more;
  }
  out.measured = fmt::format(
      "grab_all needs less than growth on {} of {} workloads and the same on {}; growth needs {:.1f} % more on "
      "average, {:.1f} % at "
      "the most.{}",
      less, traces->size(), same, sum * 100 / static_cast<double>(traces->size()), most * 100,
      exceptions.empty() ? "" : " growth needs less on " + exceptions + ".");
  out.outcome = verdict_of(less, traces->size());
  return out;
}

}  // namespace

std::vector<claim> grab_all_claims() {
  return {
      {.id = "grab-all-takes-every-device",
       .statement = "By default nearly all memory of every visible GPU is taken.",
       .source = "TensorFlow, guide \"Use a GPU\", limiting GPU memory growth; its issues 4706, 493 and 8021.",
       .experiment =
           "Four simulated cards of 80, 40, 24 (6 of them in use) and 8 GiB, one allocator with grab_all over all of "
           "them, one allocation of 1 MiB on the first and then one on each. It holds where each card gives at least "
           "90 % of what was "
           "free.",
       .expected = "All four give more than 90 %.",
       .run = takes_every_device},
      {.id = "grab-all-fragments-less",
       .statement = "Taking everything at once fragments less than growing on demand.",
       .source =
           "TensorFlow, guide \"Use a GPU\": the process maps nearly all memory to reduce fragmentation; issue 6111.",
       .experiment =
           "The smallest simulated card on which each workload runs, in steps of 1 % of the peak of live, under "
           "grab_all and under growth: bundled traces, and synthetic workloads of 40,000 operations. It holds where "
           "grab_all needs less on all.",
       .expected = "grab_all needs less everywhere: blocks cannot span the segments of growth.",
       .run = fragments_less}};
}

}  // namespace gpumem::bench
