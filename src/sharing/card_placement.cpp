#include "card_placement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <tuple>

namespace gpumem {
namespace {

constexpr unsigned most_on_a_card = 128;  // leases; more are not counted

/// A place on a card, and the number of programs already there.
struct seat {
  std::size_t card;
  unsigned place;
  unsigned company;
};

/// Orders candidates best first. A card in use without a lease counts as having another program.
std::vector<seat> seats(std::span<const card_state> visible) {
  std::vector<seat> all;
  for (std::size_t i = 0; i < visible.size(); ++i) {
    for (unsigned place = 0; place < most_on_a_card; ++place) {
      all.push_back({i, place, place + (visible[i].idle() ? 0U : 1U)});
    }
  }
  std::stable_sort(all.begin(), all.end(), [&](const seat& a, const seat& b) {
    return std::tuple{a.company, ~visible[a.card].free_bytes, a.card} <
           std::tuple{b.company, ~visible[b.card].free_bytes, b.card};
  });
  return all;
}

std::string free_text(const card_state& c) {
  return c.memory_known ? format_bytes(c.free_bytes) + " free" : "free memory not known";
}

std::string state_text(const card_state& c) {
  if (!c.known) return "its use is not known";
  return fmt::format("{} processes, {} % busy, {}", c.processes, c.busy_percent, free_text(c));
}

class chooser {
 public:
  explicit chooser(std::span<const card_state> visible) : visible_{visible}, seats_{seats(visible)} {}

  [[nodiscard]] bool taken(std::size_t card) const {
    return std::find(out.cards.begin(), out.cards.end(), card) != out.cards.end();
  }
  void take(std::size_t card, std::string note) {
    out.cards.push_back(card);
    out.notes.push_back(
        fmt::format("device {} is {} ({}): {}", out.cards.size() - 1, visible_[card].uuid, visible_[card].name, note));
  }

  /// Takes the best remaining card, with a lease if possible; false if none is left.
  bool take_best() {
    const seat* best = nullptr;
    card_lease lease;
    for (const seat& s : seats_) {
      if (taken(s.card)) continue;
      if (!try_seat(s, lease)) continue;
      best = &s;
      break;
    }
    if (best == nullptr) return false;
    // An exclusive place may have become free since the last try.
    for (const seat& s : seats_) {
      if (s.company != 0 || best->company == 0) break;
      card_lease better;
      if (taken(s.card) || !try_seat(s, better)) continue;
      lease = std::move(better);
      best = &s;
      break;
    }
    take(best->card,
         fmt::format("auto: {}, {} other programs hold a lease", state_text(visible_[best->card]), best->place));
    if (lease.held()) out.leases.push_back(std::move(lease));
    return true;
  }

  placement out;

 private:
  /// If leases are impossible, takes places without them, and says so once.
  bool try_seat(const seat& s, card_lease& into) {
    result<card_lease> got = card_lease::take(visible_[s.card].uuid, s.place);
    if (!got) {
      if (out.warnings.empty() || out.warnings.back() != got.why().message()) {
        out.warnings.push_back(got.why().message());
      }
      return true;
    }
    if (!got->held()) return false;
    into = *std::move(got);
    return true;
  }

  std::span<const card_state> visible_;
  std::vector<seat> seats_;
};

/// The card for one name, or the error.
struct looked_up {
  std::optional<std::size_t> card;
  std::string wrong;
};

looked_up look_up(std::span<const card_state> visible, const std::string& name) {
  std::size_t ordinal = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), ordinal);
  if (error == std::errc{} && end == name.data() + name.size()) {
    if (ordinal < visible.size()) return {ordinal, ""};
    return {std::nullopt, visible.empty()
                              ? fmt::format("card {} does not exist: no GPU is visible", name)
                              : fmt::format("card {} does not exist; expected 0 to {}", name, visible.size() - 1)};
  }
  looked_up out;
  for (std::size_t i = 0; i < visible.size(); ++i) {
    if (!visible[i].uuid.starts_with(name)) continue;
    if (out.card) return {std::nullopt, fmt::format("{} names more than one visible card; expected more of it", name)};
    out.card = i;
  }
  if (!out.card) out.wrong = fmt::format("no visible card is {}; `gpumem devices` lists them", name);
  return out;
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
      choose.out.notes.emplace_back("no device: GPUMEM_DEVICES is empty");
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
        choose.out.warnings.push_back(fmt::format(
            "GPUMEM_DEVICES={}: {}: {}", asked.to_string(), wrong,
            replaced ? fmt::format("{} is used instead", visible[choose.out.cards.back()].uuid) : "nothing instead"));
      }
      break;
    }
    case device_choice::kind::automatic: {
      const bool known = std::any_of(visible.begin(), visible.end(), [](const card_state& c) { return c.known; });
      if (!known && !visible.empty()) {
        const std::string why = "nobody tells what the cards are doing (NVML)";
        if (!soft) return refused(why + "; expected cards by name, or GPUMEM_SOFT_PLACEMENT=1 to go without");
        choose.out.warnings.push_back(fmt::format("GPUMEM_DEVICES={}: {}", asked.to_string(), why));
      }
      unsigned got = 0;
      while (got < asked.count && choose.take_best()) ++got;
      if (got == asked.count) break;
      const std::string why = fmt::format("{} visible, {} asked; expected auto or auto:N with N cards that are there",
                                          visible.size(), asked.count);
      if (!soft) return refused(why);
      choose.out.warnings.push_back(fmt::format("GPUMEM_DEVICES={}: {}", asked.to_string(), why));
      break;
    }
  }
  return std::move(choose.out);
}

}  // namespace gpumem
