#include "device_selection.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <optional>

#include "assign_or_return.hpp"
#include "card_claims.hpp"
#include "card_usage.hpp"
#include "gpumem/cuda_device.hpp"
#include "log.hpp"

namespace gpumem {
namespace {

/// The leases of `auto`, as rows.
std::vector<card_claim> leases_of(const placement& placed, const std::vector<card_state>& states) {
  std::vector<card_claim> rows;
  for (std::size_t i = 0; i < placed.cards.size(); ++i) {
    if (!placed.places[i]) continue;
    rows.push_back({.uuid = std::string{bare_uuid(states[placed.cards[i]].uuid)},
                    .place = placed.places[i],
                    .since_ns = boot_time_ns(),
                    .pid = ::getpid(),
                    .pid_space = own_pid_space()});
  }
  return rows;
}

}  // namespace

result<std::vector<device*>> selected_devices(std::span<device* const> visible, const settings& options,
                                              const std::function<result<std::vector<gpu_usage>>()>& usage) {
  if (!options.devices) return std::vector<device*>(visible.begin(), visible.end());
  if (options.devices.how == device_choice::kind::none) {
    return status{errc::bad_setting, fmt::format("GPUMEM_DEVICES={}: no device to allocate from; expected one",
                                                 options.devices.to_string())};
  }
  std::vector<gpu_usage> cards;
  if (options.devices.how == device_choice::kind::automatic || options.soft_placement) {
    result<std::vector<gpu_usage>> told = usage();
    if (told) {
      cards = *std::move(told);
    } else {
      log_line(fmt::format("GPUMEM_DEVICES={}: {}", options.devices.to_string(), told.why().message()));
    }
  }
  std::vector<card_state> states;
  for (const device* d : visible) {
    card_state& state = states.emplace_back(state_of(cards, d->info().uuid, options.idle_bytes));
    state.name = d->info().name;
  }
  std::optional<claim_table> table;
  held_claims leases;
  if (options.devices.how == device_choice::kind::automatic || options.soft_placement) {
    result<claim_table> opened = claim_table::open(options.shared_folder);
    if (!opened && opened.code() != errc::unsupported) return opened.why();
    if (!opened) log_line(opened.why().message());
    if (opened) table = *std::move(opened);
    if (table) count_claims(states, table->others(leases), cards, boot_time_ns(), boot_time_ns());
  }
  ASSIGN_OR_RETURN(auto placed, place_on_cards(options.devices, states, options.soft_placement));
  for (const std::string& line : placed.warnings) log_line(line);
  if (options.verbose) {
    for (const std::string& line : placed.notes) log_line(line);
  }
  if (placed.cards.empty()) {
    return status{errc::bad_setting,
                  fmt::format("GPUMEM_DEVICES={}: no device is left to allocate from", options.devices.to_string())};
  }
  if (table) {
    if (status taken = table->replace(leases, leases_of(placed, states)); !taken) return taken;
    leases.keep_until_exit();
  }
  std::vector<device*> chosen;
  for (const std::size_t i : placed.cards) chosen.push_back(visible[i]);
  return chosen;
}

result<opened_devices> open_selected_devices(const settings& options) {
  ASSIGN_OR_RETURN(const auto count, cuda_device_count());
  if (count == 0) {
    return status{errc::device_error,
                  "the CUDA driver shows no GPU to this process: see nvidia-smi and CUDA_VISIBLE_DEVICES"};
  }
  opened_devices opened;
  std::vector<device*> visible;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    ASSIGN_OR_RETURN(auto gpu, open_cuda_device({.ordinal = ordinal, .driver = nullptr}));
    visible.push_back(gpu.get());
    opened.all.push_back(std::move(gpu));
  }
  ASSIGN_OR_RETURN(opened.chosen, selected_devices(visible, options, gpu_usage_now));
  return opened;
}

}  // namespace gpumem
