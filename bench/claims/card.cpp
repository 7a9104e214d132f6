#include "card.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>

#include "assign_or_return.hpp"
#include "bits.hpp"
#include "gpumem/cuda_device.hpp"
#include "gpumem/gpu_usage.hpp"

namespace gpumem::bench {

std::uint64_t experiment_card::taken_bytes() const {
  const std::uint64_t left = need(gpu->memory()).free_bytes;
  return free_bytes > left ? free_bytes - left : 0;
}

std::uint64_t experiment_card::context_bytes() const {
  if (!gpu->info().simulated) {
    if (const auto all = gpu_usage_now()) {
      for (const gpu_usage& usage : *all) {
        if (usage.uuid != gpu->info().uuid) continue;
        for (const gpu_process& each : usage.processes) {
          if (each.pid == static_cast<std::uint32_t>(::getpid()) && each.used_bytes) return *each.used_bytes;
        }
      }
    }
  }
  const memory_info current = need(gpu->memory());
  return current.total_bytes - current.free_bytes;
}

result<experiment_card> open_card(const claim_setup& setup, const sim_config& simulated) {
  experiment_card card;
  if (setup.replay.cuda) {
    ASSIGN_OR_RETURN(card.gpu, open_cuda_device({.ordinal = setup.replay.cuda->info.ordinal}));
    if (status made = card.gpu->synchronize(); !made) return made;  // creates the context
  } else {
    auto made = std::make_unique<sim_device>(simulated);
    card.simulated = made.get();
    card.gpu = std::move(made);
  }
  ASSIGN_OR_RETURN(const auto current, card.gpu->memory());
  card.free_bytes = current.free_bytes;
  return card;
}

result<process> start_process(const claim_setup& setup, const sim_config& simulated, std::string_view row_text) {
  const policy_row row = plain_row(row_text);
  ASSIGN_OR_RETURN(auto card, open_card(setup, simulated));
  const std::array<device*, 1> devices{card.gpu.get()};
  ASSIGN_OR_RETURN(auto opened, allocator::open(devices, row.config));
  return process{std::move(card), std::move(opened)};
}

std::uint64_t sized_for(const experiment_card& card, std::uint64_t wanted) {
  return std::min(wanted, round_down(card.free_bytes / 8, card.gpu->info().granularity_bytes));
}

}  // namespace gpumem::bench
