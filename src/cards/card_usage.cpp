#include "card_usage.hpp"

#include <algorithm>

#include "claim_table.hpp"

namespace gpumem {
namespace {

constexpr std::uint64_t gib = std::uint64_t{1} << 30;

/// Whether the card uses more memory than a card without programs. Checks memory because NVML does not list processes
/// of other containers. Ignores processes that only draw, and the host's use of an integrated GPU's memory.
bool holds_memory(const gpu_usage& card, std::optional<std::uint64_t> idle_bytes) {
  if (card.measured_by == memory_source::host || card.measured_by == memory_source::unknown) return false;
  std::uint64_t unused = idle_bytes.value_or(std::min(gib, card.total_bytes / 20));
  if (card.measured_by == memory_source::probe) unused += gib;  // the probe's own context, of less than 1 GiB
  return card.used_bytes > unused + card.reserved_bytes + card.graphics_bytes;
}

}  // namespace

std::vector<card> cards_of(std::span<const gpu_usage> usage) {
  std::vector<card> cards;
  for (const gpu_usage& u : usage) {
    card& c = cards.emplace_back();
    c.uuid = u.uuid;
    c.name = u.name;
    c.pci_bus_id = u.pci_bus_id;
    c.cores_mhz = u.cores_mhz;
    c.mig = u.mig;
    for (const gpu_instance& i : u.instances) c.instances.push_back(i.uuid);
  }
  return cards;
}

card_state state_of(std::span<const gpu_usage> usage, std::string_view uuid, std::optional<std::uint64_t> idle_bytes) {
  card_state state;
  state.uuid = uuid;
  for (const gpu_usage& u : usage) {
    if (bare_uuid(u.uuid) == bare_uuid(uuid)) {
      state.name = u.name;
      state.total_bytes = u.total_bytes;
      state.free_bytes = u.free_bytes;
      state.processes = u.processes.size();
      state.busy_percent = u.busy_percent.value_or(0);
      state.holds_memory = holds_memory(u, idle_bytes);
      state.memory_known = u.measured_by != memory_source::unknown;
      state.known = true;
      return state;
    }
    for (const gpu_instance& i : u.instances) {
      if (bare_uuid(i.uuid) != bare_uuid(uuid)) continue;
      // NVML lists processes by card only, so used memory tells whether an instance is in use.
      const std::uint64_t held_by_nobody = idle_bytes.value_or(std::uint64_t{64} << 20);
      state.name = u.name + " (MIG)";
      state.total_bytes = i.total_bytes;
      state.free_bytes = i.free_bytes;
      state.processes = i.used_bytes > held_by_nobody ? 1 : 0;
      state.known = true;
      return state;
    }
  }
  return state;
}

}  // namespace gpumem
