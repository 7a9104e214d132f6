/// Claims about devices: one card as two logical devices, device visibility, and one replica on each device.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "bits.hpp"
#include "claim.hpp"
#include "gpumem/settings.hpp"
#include "visible_cards.hpp"
#include "workload.hpp"

namespace gpumem::bench {
namespace {

/// `count` cards of 80 GiB in one address space.
std::vector<std::unique_ptr<sim_device>> simulated_cards(std::size_t count) {
  std::vector<std::unique_ptr<sim_device>> devices;
  for (std::size_t i = 0; i < count; ++i) {
    sim_config config;
    config.ordinal = static_cast<int>(i);
    config.first_address += i << 44;
    config.referee = false;
    devices.push_back(std::make_unique<sim_device>(config));
  }
  return devices;
}

findings one_card_as_two(const claim_setup& setup) {
  const auto row = plain_row("multi_pool,pools=2GiB+2GiB");
  findings found;
  std::size_t ran = 0;
  std::size_t count = 0;
  for (const trace& t : setup.bundled) {
    const auto got = need(measure_checked(t, row, setup.replay));
    ++count;
    ran += got.outcome.oom || got.hazards.value_or(0) != 0 ? 0U : 1U;
    found.figures.push_back({{"workload", t.name},
                             {"peak_live_of_one_bytes", t.peak_live_bytes},
                             {"peak_reserved_of_both_bytes", got.peak_reserved_bytes},
                             {"out_of_memory", got.outcome.oom},
                             {"hazards", got.hazards.value_or(0)}});
  }
  found.measured =
      fmt::format("{} of {} traces ran once on each of two logical devices of 2 GiB of the same card.", ran, count);
  found.outcome = verdict_of(ran, count);
  return found;
}

findings splitting_costs(const claim_setup& setup) {
  const auto split = plain_row("multi_pool,pools=50%+50%");
  const auto shared = plain_row("growth,tenants=2");
  findings found;
  std::size_t dearer = 0;
  double most = 0;
  double sum = 0;
  for (const trace& t : setup.bundled) {
    const auto two = need(measure_checked(t, split, setup.replay));
    const auto single = need(measure_checked(t, shared, setup.replay));
    const double ratio = static_cast<double>(two.peak_reserved_bytes) / static_cast<double>(single.peak_reserved_bytes);
    dearer += two.peak_reserved_bytes > single.peak_reserved_bytes ? 1U : 0U;
    most = std::max(most, ratio);
    sum += ratio;
    found.figures.push_back({{"workload", t.name},
                             {"peak_live_bytes", single.outcome.peak_live_bytes},
                             {"two_pools_reserved_bytes", two.peak_reserved_bytes},
                             {"one_pool_reserved_bytes", single.peak_reserved_bytes}});
  }
  const auto count = static_cast<double>(setup.bundled.size());
  found.measured = fmt::format(
      "Two pools reserved more than one shared pool on {} of {} traces: {:.2f} times as much on average, {:.2f} "
      "at the most.",
      dearer, setup.bundled.size(), sum / count, most);
  found.outcome = verdict_of(dearer, setup.bundled.size());
  return found;
}

findings visible_devices(const claim_setup& /*setup*/) {
  struct selection {
    std::optional<std::string> variable;  ///< CUDA_VISIBLE_DEVICES
    std::vector<std::size_t> seen;
  };
  // An entry that names no card ends the list; a duplicate empties it.
  const std::array<selection, 8> selections{{{std::nullopt, {0, 1, 2, 3}},
                                             {"1", {1}},
                                             {"2,0", {2, 0}},
                                             {"GPU-c", {2}},
                                             {"3,7,1", {3}},
                                             {"1,1", {}},
                                             {"-1", {}},
                                             {"", {}}}};
  std::vector<card> machine(4);
  for (std::size_t i = 0; i < machine.size(); ++i) machine[i].uuid = fmt::format("GPU-{}", "abcd"[i]);
  const auto row = plain_row("grab_all");
  findings found;
  std::size_t right = 0;
  for (const selection& each : selections) {
    const auto all = simulated_cards(4);
    std::vector<device*> visible;
    for (const visible_card& selected : visible_cards(machine, each.variable).cards)
      visible.push_back(all[selected.card].get());
    auto memory = allocator::open(visible, row.config);
    if (memory) {
      for (const logical_device& of : (*memory)->devices()) {
        need((*memory)->try_allocate({.bytes = mib, .device = of.ordinal}));
      }
    }
    bool as_expected = memory.ok() != each.seen.empty();
    figures_json taken = figures_json::array();
    for (std::size_t i = 0; i < all.size(); ++i) {
      const bool seen = std::find(each.seen.begin(), each.seen.end(), i) != each.seen.end();
      taken.push_back(all[i]->used_bytes());
      as_expected &= seen == (all[i]->used_bytes() > 0);
    }
    right += as_expected ? 1U : 0U;
    const std::string how = !each.variable ? "unset" : each.variable->empty() ? "empty" : *each.variable;
    found.figures.push_back({{"visible", how},
                             {"visible_count", each.seen.size()},
                             {"opened", memory.ok()},
                             {"taken_bytes", taken},
                             {"message", memory ? "" : memory.why().message()}});
  }
  found.measured = fmt::format(
      "For {} of {} values exactly the visible cards were taken from; with none visible there is an error that says "
      "so.",
      right, selections.size());
  found.outcome = verdict_of(right, selections.size());
  return found;
}

/// A training step whose batch is split over `towers` devices: each has all weights and gradients, and its share of the
/// activations.
findings towers_split_the_batch(const claim_setup& setup) {
  constexpr std::uint64_t weights = 512 * mib;
  constexpr std::uint64_t activations = 6 * gib;
  constexpr unsigned layers = 16;
  findings found;
  for (const std::size_t towers : {1U, 2U, 4U}) {
    const auto all = simulated_cards(towers);
    std::vector<device*> devices;
    devices.reserve(all.size());
    for (const auto& each : all) devices.push_back(each.get());
    const auto row = plain_row("growth");
    auto memory = need(allocator::open(devices, row.config));
    random_numbers random{setup.replay.seed};
    const auto take = [&](std::uint64_t bytes, int device, std::vector<void*>& taken) {
      taken.push_back(need(memory->try_allocate({.bytes = bytes, .device = device})));
    };
    std::vector<void*> kept;
    for (int device = 0; device < static_cast<int>(towers); ++device) {
      for (unsigned i = 0; i < layers; ++i) take(weights / layers, device, kept);
    }
    for (int step = 0; step < 40; ++step) {
      const std::uint64_t batch = activations / 64 * (48 + random.below(17));  // ragged batches, split evenly
      for (int device = 0; device < static_cast<int>(towers); ++device) {
        std::vector<void*> blocks;
        for (unsigned i = 0; i < layers; ++i) take(batch / towers / layers, device, blocks);
        for (unsigned i = 0; i < layers; ++i) take(weights / layers, device, blocks);  // gradients
        for (; !blocks.empty(); blocks.pop_back()) memory->deallocate(blocks.back());
      }
    }
    std::uint64_t most = 0;
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < towers; ++i) {
      const auto stats = need(memory->stats(static_cast<int>(i)));
      most = std::max(most, stats.peak_live_bytes);
      sum += stats.peak_reserved_bytes;
    }
    found.figures.push_back({{"devices", towers}, {"most_live_on_one_bytes", most}, {"reserved_on_all_bytes", sum}});
  }
  const auto live = [&](std::size_t index) {
    return found.figures[index]["most_live_on_one_bytes"].get<std::uint64_t>();
  };
  const auto reserved = [&](std::size_t index) {
    return found.figures[index]["reserved_on_all_bytes"].get<std::uint64_t>();
  };
  found.measured = fmt::format(
      "On one, two and four devices the fullest one holds {}, {} and {}; all together reserve {}, {} and {}: weights "
      "and gradients "
      "are there once a device.",
      format_bytes(live(0)), format_bytes(live(1)), format_bytes(live(2)), format_bytes(reserved(0)),
      format_bytes(reserved(1)), format_bytes(reserved(2)));
  // Agrees if each doubling of the devices lowers the memory on one device, but by less than half.
  std::size_t agree = 0;
  for (const std::size_t i : {0U, 1U}) agree += live(i + 1) < live(i) && live(i + 1) > live(i) / 2 ? 1U : 0U;
  found.outcome = verdict_of(agree, 2);
  return found;
}

}  // namespace

std::vector<claim> device_claims() {
  return {
      {.id = "one-card-as-two",
       .statement = "One card can pose as two logical devices, and code for two devices runs on it.",
       .source = "TensorFlow, [guide \"Use a GPU\"](https://www.tensorflow.org/guide/gpu), "
                 "[set_logical_device_configuration](https://www.tensorflow.org/api_docs/python/tf/config/"
                 "set_logical_device_configuration).",
       .experiment =
           "Every bundled trace by two tenants, half a trace out of step, one on each logical device of 2 GiB of one "
           "simulated card (multi_pool,pools=2GiB+2GiB). It holds where none runs out of memory and the referee sees "
           "no "
           "hazard.",
       .expected = "All run: each fits 2 GiB.",
       .run = one_card_as_two,
       .on_card = "The same on the card; no referee is there, so what counts is that none runs out of memory."},
      {.id = "splitting-costs-memory",
       .statement = "Splitting a card into pools costs memory, compared with sharing one pool.",
       .source = "What follows from pools that cannot lend to each other; measured here.",
       .experiment = "Every bundled trace by two tenants, half a trace out of step, in two pools "
                     "(multi_pool,pools=50%+50%) and in one "
                     "(growth,tenants=2): peak of reserved. It holds where two pools reserve more on every trace.",
       .expected = "Two pools reserve more: their peaks add up, though they come at different times.",
       .run = splitting_costs,
       .on_card = "The same on the card."},
      {.id = "visible-devices",
       .statement = "Exactly the visible devices are used, and by default that is every card.",
       .source = "CUDA's "
                 "[CUDA_VISIBLE_DEVICES](https://docs.nvidia.com/cuda/cuda-c-programming-guide/"
                 "index.html#cuda-environment-variables); "
                 "TensorFlow, "
                 "[set_visible_devices](https://www.tensorflow.org/api_docs/python/tf/config/set_visible_devices).",
       .experiment =
           "Four simulated cards, grab_all over those that CUDA_VISIBLE_DEVICES leaves, which gpumem reads as the "
           "driver does: unset, 1, 2,0, a UUID's beginning, a list that ends at a card that is not there, one "
           "card twice, -1, empty; one allocation on each. It holds where memory is taken from the visible ones "
           "and no other.",
       .expected = "Exactly the visible ones; with none an error.",
       .run = visible_devices},
      {.id = "towers-split-the-batch",
       .statement = "With one replica on each device, a step needs less memory on each the more devices there are.",
       .source = "TensorFlow, [guide \"Use a GPU\"](https://www.tensorflow.org/guide/gpu), using multiple GPUs; "
                 "multi-tower training.",
       .experiment = "40 steps with ragged batches of 4.5 to 6 GiB of activations, split over one, two and four "
                     "simulated cards, each with "
                     "512 MiB of weights and as much for gradients. It holds where each doubling lessens what the "
                     "fullest card holds, but "
                     "by less than half.",
       .expected = "Less on each, more in all: weights are replicated.",
       .run = towers_split_the_batch}};
}

}  // namespace gpumem::bench
