// Applies CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER to a list of cards, by the driver's rules. Needs no GPU and reads
// no environment.
//
// gpumem asks the driver if it can. These rules serve `gpumem run` without a driver, and explain why a card is hidden,
// which the driver does not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gpumem {

struct card {
  std::string uuid;  ///< `GPU-...`
  std::string name;
  std::string pci_bus_id;
  std::uint64_t cores_mhz = 0;         ///< a rough measure of speed; 0: unknown
  bool mig = false;                    ///< programs can use only its instances
  std::vector<std::string> instances;  ///< their UUIDs, `MIG-...`
};

struct visible_card {
  std::size_t card = 0;  ///< in the list of cards
  std::string uuid;      ///< of the card, or of its instance
  friend bool operator==(const visible_card&, const visible_card&) = default;
};

struct visibility {
  std::vector<visible_card> cards;  ///< by CUDA's ordinal
  std::vector<std::string> hidden;  ///< one line per hidden card or instance, with the reason
};

/// Sorts the cards into CUDA's order: by PCI address if `device_order` is PCI_BUS_ID, otherwise fastest first. Only the
/// driver knows the speed exactly; this uses cores times clock, then the PCI address.
void order_cards(std::vector<card>& cards, const std::optional<std::string>& device_order);

/// Returns the cards that CUDA_VISIBLE_DEVICES leaves. `cards` are in CUDA's order; `variable` is empty if it is not
/// set.
[[nodiscard]] visibility visible_cards(std::span<const card> cards, const std::optional<std::string>& variable);

}  // namespace gpumem
