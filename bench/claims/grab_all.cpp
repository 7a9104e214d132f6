/// Claims about taking all memory at once.
#include <fmt/format.h>

#include <array>

#include "bits.hpp"
#include "card.hpp"
#include "gpumem/settings.hpp"

namespace gpumem::bench {
namespace {

/// Nearly all: nine tenths of the free memory.
constexpr double nearly = 0.9;

/// The cards of the experiment, each with its free memory at the start.
std::vector<experiment_card> every_card(const claim_setup& setup) {
  constexpr std::array<std::pair<std::uint64_t, std::uint64_t>, 4> simulated{
      {{80 * gib, 0}, {40 * gib, 0}, {24 * gib, 6 * gib}, {8 * gib, 0}}};
  std::vector<experiment_card> cards;
  for (std::size_t i = 0; i < (setup.replay.cuda ? 1 : simulated.size()); ++i) {
    sim_config config;
    config.ordinal = static_cast<int>(i);
    config.capacity_bytes = simulated[i].first;
    config.foreign_bytes = simulated[i].second;
    config.first_address += i << 44;
    config.referee = false;
    cards.push_back(need(open_card(setup, config)));
  }
  return cards;
}

findings takes_every_device(const claim_setup& setup) {
  const auto cards = every_card(setup);
  const auto row = plain_row("grab_all");
  std::vector<device*> devices;
  for (const experiment_card& each : cards) devices.push_back(each.gpu.get());
  auto memory = need(allocator::open(devices, row.config));
  findings found;
  need(memory->try_allocate({.bytes = mib}));
  std::size_t nearly_all = 0;
  double least = 1;
  for (const experiment_card& each : cards) {
    const auto taken = each.taken_bytes();
    const double share = static_cast<double>(taken) / static_cast<double>(each.free_bytes);
    nearly_all += share >= nearly ? 1U : 0U;
    least = std::min(least, share);
    found.figures.push_back({{"device", each.gpu->info().ordinal},
                             {"total_bytes", each.gpu->info().total_bytes},
                             {"free_bytes", each.free_bytes},
                             {"taken_by_first_use_bytes", taken}});
  }
  found.measured = fmt::format(
      "One allocation of 1 MiB, on device {}: of {} {} {} gave at least {:.0f} % of what was free, and the least share "
      "is {:.1f} %, since what is left for the context and libraries weighs most on a small card.",
      devices[0]->info().ordinal, cards.size(), cards.size() == 1 ? "card" : "cards", nearly_all, nearly * 100,
      least * 100);
  found.outcome = verdict_of(nearly_all, cards.size());
  return found;
}

findings fragments_less(const claim_setup& setup) {
  auto traces = all_workloads(setup);
  const auto all = plain_row("grab_all");
  const auto growing = plain_row("growth:segments");
  findings found;
  std::size_t less = 0;
  std::size_t same = 0;
  std::string exceptions;
  double most = 0;
  double sum = 0;
  for (const trace& t : traces) {
    const auto single = smallest_capacity(t, all, setup.replay);
    const auto several = smallest_capacity(t, growing, setup.replay);
    const std::uint64_t one_bytes = single.value_or(0);
    const std::uint64_t several_bytes = several.value_or(0);
    found.figures.push_back({{"workload", t.name},
                             {"peak_live_bytes", t.peak_live_bytes},
                             {"grab_all_needs_bytes", single ? figures_json(one_bytes) : figures_json(nullptr)},
                             {"growth_needs_bytes", several ? figures_json(several_bytes) : figures_json(nullptr)}});
    less += single && (!several || one_bytes < several_bytes) ? 1U : 0U;
    if (several && (!single || several_bytes < one_bytes)) exceptions += (exceptions.empty() ? "" : ", ") + t.name;
    same += single == several ? 1U : 0U;
    if (!single || !several) continue;
    const double more = static_cast<double>(several_bytes) / static_cast<double>(one_bytes) - 1;
    most = std::max(most, more);
    sum += more;
  }
  found.measured = fmt::format(
      "grab_all needs less than growth:segments on {} of {} workloads and the same on {}; the latter needs {:.1f} % "
      "more on "
      "average, {:.1f} % at "
      "the most.{}",
      less, traces.size(), same, sum * 100 / static_cast<double>(traces.size()), most * 100,
      exceptions.empty() ? "" : " It needs less on " + exceptions + ".");
  found.outcome = verdict_of(less, traces.size());
  return found;
}

/// Starts two programs on one card, one after the other; each allocates 4 GiB.
findings second_program_fails(const claim_setup& setup) {
  constexpr std::uint64_t wanted = 4 * gib;
  findings found;
  std::size_t failed = 0;
  std::size_t cases = 0;
  std::size_t other_cases = 0;
  std::size_t others_done = 0;
  for (const std::uint64_t card_bytes : {24 * gib, 80 * gib}) {
    for (const std::string_view text : {"grab_all", "grab_all,limit=40%", "growth", "growth,limit=40%"}) {
      std::array<std::uint64_t, 2> got{};
      std::array<std::uint64_t, 2> holds{};
      for (std::size_t i = 0; i < got.size(); ++i) {
        sim_config config;
        config.capacity_bytes = card_bytes;
        config.foreign_bytes = i == 0 ? 0 : holds[0];
        config.referee = false;
        auto program = start_process(setup, config, text);
        if (!program) continue;  // it cannot open its allocator, so it has no memory
        while (got[i] < wanted && program->memory->try_allocate({.bytes = 256 * mib}).ok()) got[i] += 256 * mib;
        const auto taken = program->card.taken_bytes();
        holds[i] = taken;
      }
      const bool by_default = text == "grab_all";
      const bool fails = got[0] == wanted && got[1] < wanted;
      (by_default ? cases : other_cases) += 1;
      failed += by_default && fails ? 1U : 0U;
      others_done += !by_default && got[1] == wanted ? 1U : 0U;
      found.figures.push_back({{"both", text},
                               {"card_bytes", card_bytes},
                               {"wanted_bytes", wanted},
                               {"first_got_bytes", got[0]},
                               {"first_holds_bytes", holds[0]},
                               {"second_got_bytes", got[1]},
                               {"second_holds_bytes", holds[1]}});
    }
  }
  found.measured = fmt::format(
      "With grab_all for both the second program failed in {} of {} cases. With a limit of 40 %, with growth, and with "
      "both it got all it wanted in {} of {}.",
      failed, cases, others_done, other_cases);
  found.outcome = verdict_of(failed, cases);
  return found;
}

}  // namespace

std::vector<claim> grab_all_claims() {
  return {
      {.id = "grab-all-takes-every-device",
       .statement = "By default nearly all memory of every visible GPU is taken.",
       .source = "TensorFlow, [guide \"Use a GPU\"](https://www.tensorflow.org/guide/gpu), limiting GPU memory "
                 "growth; its issues [4706](https://github.com/tensorflow/tensorflow/issues/4706), "
                 "[493](https://github.com/tensorflow/tensorflow/issues/493) and "
                 "[8021](https://github.com/tensorflow/tensorflow/issues/8021).",
       .experiment =
           "Four simulated cards of 80, 40, 24 (6 of them in use) and 8 GiB, one allocator with grab_all over all of "
           "them, one allocation of 1 MiB on the first. It holds where each card then gave at least 90 % of what was "
           "free.",
       .expected = "All four give more than 90 %, at the first use of one of them.",
       .run = takes_every_device,
       .on_card = "The card that is named is the only one that is taken from."},
      {.id = "second-program-fails",
       .statement = "While a program has a card by default, a second one on it fails.",
       .source = "TensorFlow issues [8170](https://github.com/tensorflow/tensorflow/issues/8170), skflow issue "
                 "[174](https://github.com/tensorflow/skflow/issues/174).",
       .experiment =
           "Simulated cards of 24 and 80 GiB: two programs one behind the other, each with 4 GiB to allocate "
           "in blocks of 256 MiB, both with grab_all, both with growth, and each with a limit of 40 %, too. It "
           "holds where with grab_all the second does not get its 4 GiB on either card.",
       .expected = "The second fails with grab_all, and gets its memory every other way.",
       .run = second_program_fails},
      {.id = "grab-all-fragments-less",
       .statement = "Taking everything at once fragments less than growing on demand.",
       .source = "TensorFlow, [guide \"Use a GPU\"](https://www.tensorflow.org/guide/gpu): the process maps "
                 "nearly all memory to reduce fragmentation; issue "
                 "[6111](https://github.com/tensorflow/tensorflow/issues/6111).",
       .experiment =
           "The smallest simulated card on which each workload runs, in steps of 1 % of the peak of live, under "
           "grab_all and under growth:segments, TensorFlow's form of growing: bundled traces, and synthetic workloads "
           "of 40,000 operations. It holds where "
           "grab_all needs less on all.",
       .expected = "grab_all needs less everywhere: a block cannot span two segments.",
       .run = fragments_less}};
}

}  // namespace gpumem::bench
