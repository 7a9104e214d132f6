#include "device_selection.hpp"

#include <fmt/format.h>

#include "card_usage.hpp"
#include "gpumem/cuda_device.hpp"
#include "log.hpp"

namespace gpumem {

result<std::vector<device*>> selected_devices(std::span<device* const> visible, const settings& with,
                                              const std::function<result<std::vector<gpu_usage>>()>& usage) {
  if (!with.devices) return std::vector<device*>(visible.begin(), visible.end());
  if (with.devices.how == device_choice::kind::none) {
    return status{errc::bad_setting,
                  fmt::format("GPUMEM_DEVICES={}: no device to allocate from; expected one", with.devices.to_string())};
  }
  std::vector<gpu_usage> cards;
  if (with.devices.how == device_choice::kind::automatic || with.soft_placement) {
    result<std::vector<gpu_usage>> told = usage();
    if (told) {
      cards = *std::move(told);
    } else {
      log_line(fmt::format("GPUMEM_DEVICES={}: {}", with.devices.to_string(), told.why().message()));
    }
  }
  std::vector<card_state> states;
  for (const device* d : visible) {
    card_state& state = states.emplace_back(state_of(cards, d->info().uuid, with.idle_bytes));
    state.name = d->info().name;
  }
  result<placement> placed = place_on_cards(with.devices, states, with.soft_placement);
  if (!placed) return placed.why();
  for (const std::string& line : placed->warnings) log_line(line);
  if (with.verbose) {
    for (const std::string& line : placed->notes) log_line(line);
  }
  if (placed->cards.empty()) {
    return status{errc::bad_setting,
                  fmt::format("GPUMEM_DEVICES={}: no device is left to allocate from", with.devices.to_string())};
  }
  for (card_lease& lease : placed->leases) lease.keep_until_exit();
  std::vector<device*> chosen;
  for (const std::size_t i : placed->cards) chosen.push_back(visible[i]);
  return chosen;
}

result<opened_devices> open_selected_devices(const settings& with) {
  const result<int> count = cuda_device_count();
  if (!count) return count.why();
  if (*count == 0) {
    return status{errc::device_error,
                  "the CUDA driver shows no GPU to this process: see nvidia-smi and CUDA_VISIBLE_DEVICES"};
  }
  opened_devices out;
  std::vector<device*> visible;
  for (int ordinal = 0; ordinal < *count; ++ordinal) {
    result<std::unique_ptr<device>> one = open_cuda_device({.ordinal = ordinal, .driver = nullptr});
    if (!one) return one.why();
    visible.push_back(one->get());
    out.all.push_back(*std::move(one));
  }
  result<std::vector<device*>> chosen = selected_devices(visible, with, gpu_usage_now);
  if (!chosen) return chosen.why();
  out.chosen = *std::move(chosen);
  return out;
}

}  // namespace gpumem
