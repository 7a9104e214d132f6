// CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER, as the driver reads them, over a list of cards: no GPU, no environment.
//
// Where the driver can be asked, it is asked; this is for a program that must know before there is one (`gpumem run`),
// and it says why a card is not there, which the driver does not.
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
  std::uint64_t cores_mhz = 0;         ///< how fast it is, roughly; 0: not known
  bool mig = false;                    ///< only its instances can be used
  std::vector<std::string> instances;  ///< their UUIDs, `MIG-...`
};

struct visible_card {
  std::size_t card = 0;  ///< in the list of cards
  std::string uuid;      ///< the card's, or its instance's
  friend bool operator==(const visible_card&, const visible_card&) = default;
};

struct visibility {
  std::vector<visible_card> cards;  ///< by CUDA's ordinal
  std::vector<std::string> hidden;  ///< a line a card (or instance) that is not there: which, and why
};

/// Puts the cards into the order in which CUDA counts them. PCI_BUS_ID: by PCI address. Anything else, or nothing:
/// fastest first, which only the driver knows for certain; here it is cores times clock, and the PCI address among
/// equals.
void order_cards(std::vector<card>& cards, const std::optional<std::string>& device_order);

/// What the variable leaves of the cards, which are in CUDA's order; none: the variable is not set.
[[nodiscard]] visibility visible_cards(std::span<const card> cards, const std::optional<std::string>& variable);

}  // namespace gpumem
