// The rules, in the order in which they apply:
// - Not set: all cards. Empty: none.
// - The first entry decides the kind of all entries: ordinals (a number and any further text, as strtoul reads it),
//   GPU-... or MIG-... (a UUID, or a unique prefix of one). An entry of another kind is invalid.
// - An invalid entry (an unknown card, -1, empty, an ambiguous prefix) ends the list; the entries before it are valid.
// - If these name a card twice, no card is visible.
// - A card in MIG mode means its first instance. CUDA shows a process one instance, and no other card or instance.
#include "visible_cards.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "text.hpp"

namespace gpumem {
namespace {

enum class entry_kind : std::uint8_t { ordinal, gpu, instance };

entry_kind kind_of(std::string_view entry) {
  if (entry.starts_with("GPU-")) return entry_kind::gpu;
  return entry.starts_with("MIG-") ? entry_kind::instance : entry_kind::ordinal;
}

/// Parses as strtoul does; empty if the text does not begin with a number, or the number is negative.
std::optional<std::size_t> leading_number(std::string_view entry) {
  if (entry.starts_with('+')) entry.remove_prefix(1);
  std::size_t value = 0;
  std::size_t digits = 0;
  for (const char c : entry) {
    if (c < '0' || c > '9') break;
    value = std::min<std::size_t>(value * 10 + static_cast<std::size_t>(c - '0'), 1U << 30);
    ++digits;
  }
  return digits == 0 ? std::nullopt : std::optional{value};
}

/// A card, or an instance of a card.
struct place {
  std::size_t card = 0;
  std::optional<std::size_t> instance;
  friend bool operator==(const place&, const place&) = default;
};

const std::string& uuid_of(std::span<const card> cards, const place& place) {
  return place.instance ? cards[place.card].instances[*place.instance] : cards[place.card].uuid;
}

/// The card of an entry, or the reason why the entry is invalid.
struct named {
  std::optional<place> found;
  std::string invalid;
};

named by_beginning(std::span<const card> cards, std::string_view entry, entry_kind kind) {
  named match;
  for (std::size_t i = 0; i < cards.size(); ++i) {
    std::vector<place> places;
    if (kind == entry_kind::gpu) places.push_back({i, std::nullopt});
    for (std::size_t m = 0; kind == entry_kind::instance && m < cards[i].instances.size(); ++m)
      places.push_back({i, m});
    for (const place& p : places) {
      if (!uuid_of(cards, p).starts_with(entry)) continue;
      if (match.found) return {std::nullopt, "names more than one"};
      match.found = p;
    }
  }
  if (!match.found) match.invalid = "does not exist";
  return match;
}

named read_entry(std::span<const card> cards, std::string_view entry, entry_kind kind) {
  if (entry.empty()) return {std::nullopt, "is empty"};
  if (kind_of(entry) != kind) return {std::nullopt, "is of another kind than the first entry"};
  if (kind != entry_kind::ordinal) return by_beginning(cards, entry, kind);
  const std::optional<std::size_t> number = leading_number(entry);
  if (!number) return {std::nullopt, "is no ordinal and no UUID"};
  if (*number >= cards.size()) return {std::nullopt, "does not exist"};
  return {place{*number, std::nullopt}, ""};
}

/// The valid part of the list.
struct reading {
  std::vector<place> places;
  std::string reason = "CUDA_VISIBLE_DEVICES does not name it";  ///< for cards that are not in the list
};

reading read_list(std::span<const card> cards, std::string_view list) {
  reading parsed;
  if (trimmed(list).empty()) return {{}, "CUDA_VISIBLE_DEVICES is empty"};
  const entry_kind kind = kind_of(trimmed(list));
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    const std::string_view entry = trimmed(list.substr(begin, end - begin));
    const named next = read_entry(cards, entry, kind);
    if (!next.found) {
      parsed.reason = fmt::format("the list ends before its entry '{}', which {}", printable(entry), next.invalid);
      return parsed;
    }
    if (std::find(parsed.places.begin(), parsed.places.end(), *next.found) != parsed.places.end()) {
      return {{}, fmt::format("the list names {} twice, which leaves none", printable(entry))};
    }
    parsed.places.push_back(*next.found);
    begin = end + 1;
  }
  return parsed;
}

}  // namespace

void order_cards(std::vector<card>& cards, const std::optional<std::string>& device_order) {
  const bool by_address = device_order && trimmed(*device_order) == "PCI_BUS_ID";
  std::stable_sort(cards.begin(), cards.end(), [by_address](const card& lhs, const card& rhs) {
    if (!by_address && lhs.cores_mhz != rhs.cores_mhz) return lhs.cores_mhz > rhs.cores_mhz;
    return lowered(lhs.pci_bus_id) < lowered(rhs.pci_bus_id);
  });
}

visibility visible_cards(std::span<const card> cards, const std::optional<std::string>& variable) {
  reading read;
  if (variable) {
    read = read_list(cards, *variable);
  } else {
    for (std::size_t i = 0; i < cards.size(); ++i) read.places.push_back({i, std::nullopt});
  }
  visibility visible;
  std::vector<std::string> why(cards.size(), read.reason);
  bool instance_taken = false;
  for (place p : read.places) {
    if (cards[p.card].mig && !p.instance) {
      if (cards[p.card].instances.empty()) {
        why[p.card] = "in MIG mode without an instance";
        continue;
      }
      p.instance = 0;
    }
    if (instance_taken || (p.instance && !visible.cards.empty())) {
      why[p.card] = "CUDA shows a process one MIG instance and nothing beside it";
      continue;
    }
    instance_taken = p.instance.has_value();
    visible.cards.push_back({p.card, uuid_of(cards, p)});
  }
  for (std::size_t i = 0; i < cards.size(); ++i) {
    const bool shown = std::any_of(visible.cards.begin(), visible.cards.end(),
                                   [i](const visible_card& candidate) { return candidate.card == i; });
    if (!shown) visible.hidden.push_back(fmt::format("{} ({}): {}", cards[i].uuid, cards[i].name, why[i]));
  }
  return visible;
}

}  // namespace gpumem
