#include "card_placement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <tuple>

#include "text.hpp"

namespace gpumem {
namespace {

std::string free_text(const card_state& card) {
  return card.memory_known ? format_bytes(card.free_bytes) + " free" : "free memory not known";
}

std::string state_text(const card_state& card) {
  if (!card.known) return "its use is not known";
  return fmt::format("{} processes, {} % busy, {}", card.processes, card.busy_percent, free_text(card));
}

class chooser {
 public:
  explicit chooser(std::span<const card_state> visible) : visible_{visible} {}

  [[nodiscard]] bool taken(std::size_t card) const {
    return std::find(chosen.cards.begin(), chosen.cards.end(), card) != chosen.cards.end();
  }
  void take(std::size_t card, std::string note, std::optional<unsigned> place = std::nullopt) {
    chosen.cards.push_back(card);
    chosen.places.push_back(place);
    chosen.notes.push_back(fmt::format("device {} is {} ({}): {}", chosen.cards.size() - 1, visible_[card].uuid,
                                       visible_[card].name, note));
  }

  /// Takes the best remaining card; false if none is left. A card in use without a lease counts as having another
  /// program.
  bool take_best() {
    const auto rank = [&](std::size_t index) {
      const card_state& card = visible_[index];
      return std::tuple{std::uint64_t{card.next_place} + (card.idle() ? 0U : 1U), ~card.free_bytes, index};
    };
    std::optional<std::size_t> best;
    for (std::size_t i = 0; i < visible_.size(); ++i) {
      if (!taken(i) && (!best || rank(i) < rank(*best))) best = i;
    }
    if (!best) return false;
    const card_state& card = visible_[*best];
    take(*best, fmt::format("auto: {}, {} other programs hold a lease", state_text(card), card.next_place),
         card.next_place);
    return true;
  }

  placement chosen;

 private:
  std::span<const card_state> visible_;
};

/// The card for one name, or the error.
struct looked_up {
  std::optional<std::size_t> card;
  std::string wrong;
};

looked_up look_up(std::span<const card_state> visible, const std::string& name) {
  if (const auto ordinal = whole_number<std::size_t>(name)) {
    if (*ordinal < visible.size()) return {*ordinal, ""};
    return {std::nullopt, visible.empty()
                              ? fmt::format("card {} does not exist: no GPU is visible", name)
                              : fmt::format("card {} does not exist; expected 0 to {}", name, visible.size() - 1)};
  }
  looked_up found;
  for (std::size_t i = 0; i < visible.size(); ++i) {
    if (!visible[i].uuid.starts_with(name)) continue;
    if (found.card)
      return {std::nullopt, fmt::format("{} names more than one visible card; expected more of it", name)};
    found.card = i;
  }
  if (!found.card) found.wrong = fmt::format("no visible card is {}; `gpumem devices` lists them", name);
  return found;
}

}  // namespace

result<placement> place_on_cards(const device_choice& asked, std::span<const card_state> visible, bool soft) {
  const auto refused = [&](std::string_view why) {
    return status{errc::bad_setting, fmt::format("GPUMEM_DEVICES={}: {}", asked.to_string(), why)};
  };
  chooser choose{visible};
  switch (asked.how) {
    case device_choice::kind::all:
      for (std::size_t i = 0; i < visible.size(); ++i) choose.take(i, "visible");
      break;
    case device_choice::kind::none:
      choose.chosen.notes.emplace_back("no device: GPUMEM_DEVICES is empty");
      break;
    case device_choice::kind::named: {
      std::vector<std::string> missing;
      for (const std::string& name : asked.names) {
        const looked_up found = look_up(visible, name);
        if (found.card && choose.taken(*found.card))
          return refused(fmt::format("{} is a card named before; expected each once", name));
        if (!found.card && !soft) return refused(found.wrong);
        if (!found.card) missing.push_back(found.wrong);
        if (found.card) choose.take(*found.card, "named " + name);
      }
      for (const std::string& wrong : missing) {  // after all existing cards are placed
        const bool replaced = choose.take_best();
        choose.chosen.warnings.push_back(
            fmt::format("GPUMEM_DEVICES={}: {}: {}", asked.to_string(), wrong,
                        replaced ? fmt::format("{} is used instead", visible[choose.chosen.cards.back()].uuid)
                                 : "nothing instead"));
      }
      break;
    }
    case device_choice::kind::automatic: {
      const bool known = std::any_of(visible.begin(), visible.end(), [](const card_state& card) { return card.known; });
      if (!known && !visible.empty()) {
        const std::string why = "nobody tells what the cards are doing (NVML)";
        if (!soft) return refused(why + "; expected cards by name, or GPUMEM_SOFT_PLACEMENT=1 to go without");
        choose.chosen.warnings.push_back(fmt::format("GPUMEM_DEVICES={}: {}", asked.to_string(), why));
      }
      unsigned got = 0;
      while (got < asked.count && choose.take_best()) ++got;
      if (got == asked.count) break;
      const std::string why = fmt::format("{} visible, {} asked; expected auto or auto:N with N cards that are there",
                                          visible.size(), asked.count);
      if (!soft) return refused(why);
      choose.chosen.warnings.push_back(fmt::format("GPUMEM_DEVICES={}: {}", asked.to_string(), why));
      break;
    }
  }
  return std::move(choose.chosen);
}

}  // namespace gpumem
