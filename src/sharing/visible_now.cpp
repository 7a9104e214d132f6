#include "visible_now.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <thread>

#include "card_usage.hpp"
#include "child_answer.hpp"
#include "gpumem/cuda_device.hpp"
#include "gpumem/gpu_usage.hpp"
#include "log.hpp"
#include "room_claims.hpp"
#include "unmeasured_cards.hpp"

namespace gpumem {
namespace {

std::optional<std::string> variable(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? std::optional<std::string>{value} : std::nullopt;
}

/// The child's output: one line `UUID name` per device, and `.` at the end of a complete answer.
std::string tell_devices() {
  const result<int> count = cuda_device_count();
  if (!count) return "";
  std::string lines;
  for (int i = 0; i < *count; ++i) {
    const result<std::unique_ptr<device>> one = open_cuda_device({.ordinal = i, .driver = nullptr});
    if (!one) return "";
    lines += fmt::format("{} {}\n", (*one)->info().uuid, (*one)->info().name);
  }
  return lines + ".\n";
}

/// Asks the driver in a child process. Empty if no driver answers.
std::optional<std::vector<card_state>> ask_driver() {
  const std::string answer = child_answer(tell_devices);
  std::vector<card_state> out;
  for (std::size_t at = 0; at < answer.size();) {
    const std::size_t end = answer.find('\n', at);
    const std::string line = answer.substr(at, end - at);
    if (line == ".") return out;
    card_state& one = out.emplace_back();
    one.uuid = line.substr(0, line.find(' '));
    one.name = line.substr(std::min(line.find(' ') + 1, line.size()));
    at = end == std::string::npos ? answer.size() : end + 1;
  }
  return std::nullopt;
}

bool has_room(const settings& with, const card_state& card) {
  if (!names_room(with)) return card.idle() && card.claims == 0;
  const std::uint64_t wanted = with.limit.resolve(card.total_bytes, card.free_bytes);
  return card.known && card.memory_known && card.free_bytes >= card.promised_bytes &&
         card.free_bytes - card.promised_bytes >= wanted;
}

status no_room(const std::vector<card_state>& cards) {
  std::string text;
  for (const card_state& c : cards) {
    const std::string free = c.known && c.memory_known ? format_bytes(c.free_bytes) : "an unknown amount";
    text += fmt::format("{}{} has {} free and {} processes", text.empty() ? "" : ", ", c.uuid, free, c.processes);
    if (c.claims == 0) continue;
    text += fmt::format("; {} other program{} given it", c.claims, c.claims == 1 ? " was" : "s were");
    if (c.promised_bytes != 0) text += fmt::format(", with {} of what is free", format_bytes(c.promised_bytes));
  }
  return {errc::out_of_memory, text};
}

/// Locks the reading and creation of claims. Empty if another program keeps the lock, which it holds for milliseconds
/// unless it is stopped; an error if sockets are unavailable.
result<card_lease> choose_alone() {
  constexpr int most_tries = 400;
  constexpr std::chrono::milliseconds between_tries{5};
  result<card_lease> lock = card_lease::choosing();
  for (int i = 0; i < most_tries && lock && !lock->held(); ++i) {
    std::this_thread::sleep_for(between_tries);
    lock = card_lease::choosing();
  }
  return lock;
}

/// What the limit allows of the card; all of it where a card that nobody uses was waited for.
std::uint64_t claimed_bytes(const settings& with, const card_state& card, bool waited_for_an_idle_one) {
  if (waited_for_an_idle_one) return card.total_bytes;
  return with.limit ? with.limit.resolve(card.total_bytes, card.free_bytes) : 0;
}

/// The instance's name that CUDA_VISIBLE_DEVICES takes, where CUDA calls it by a card's.
std::string name_for_the_list(const std::vector<gpu_usage>& usage, const std::string& uuid) {
  for (const gpu_usage& card : usage) {
    for (const gpu_instance& i : card.instances) {
      if (uuid.size() > 4 && i.uuid.ends_with(uuid.substr(4))) return i.uuid;
    }
  }
  return uuid;
}

}  // namespace

result<visible_now> cards_visible_now(visible_by source, const settings& options) {
  const result<std::vector<gpu_usage>> told = gpu_usage_now();
  std::vector<gpu_usage> usage = told ? *told : std::vector<gpu_usage>{};
  if (source == visible_by::driver)
    measure_cards(usage, options.shared_folder);  // the other is asked in a user's program
  const auto describe = [&](const std::string& uuid, const std::string& name) {
    card_state state = state_of(usage, uuid, options.idle_bytes);
    state.uuid = uuid;
    if (!state.known) state.name = name;
    return state;
  };

  std::vector<card> cards = cards_of(usage);
  order_cards(cards, variable("CUDA_DEVICE_ORDER"));
  const visibility by_rule = visible_cards(cards, variable("CUDA_VISIBLE_DEVICES"));
  visible_now out;
  out.hidden = by_rule.hidden;
  out.usage = usage;
  if (const auto driver = source == visible_by::driver ? ask_driver() : std::nullopt) {
    for (const card_state& one : *driver) {
      out.cards.push_back(describe(name_for_the_list(usage, one.uuid), one.name));
      std::erase_if(out.hidden, [&](const std::string& line) { return line.starts_with(out.cards.back().uuid); });
    }
    return out;
  }
  if (!told) return told.why();
  for (const visible_card& one : by_rule.cards) out.cards.push_back(describe(one.uuid, cards[one.card].name));
  return out;
}

bool names_room(const settings& with) noexcept {
  return with.limit.unit == byte_limit::kind::bytes || with.limit.unit == byte_limit::kind::of_total;
}

result<chosen_cards> choose_cards(const settings& with, visible_by whose, bool must_have_room) {
  if (with.devices.how == device_choice::kind::none) return chosen_cards{};
  result<visible_now> visible = cards_visible_now(whose, with);
  if (!visible) {
    if (!with.soft_placement) return visible.why();
    log_line(visible.why().message());
    visible = visible_now{};
  }
  std::vector<card_state>& cards = visible->cards;
  // The claims are read after NVML: a program that ends in between leaves the card looking fuller, not emptier.
  const result<card_lease> alone = choose_alone();
  if (must_have_room && alone && !alone->held()) {
    return status{errc::out_of_memory, "another program is choosing a card and does not come to an end"};
  }
  count_claims(cards, claims_now(), visible->usage);
  if (must_have_room && with.devices.how == device_choice::kind::automatic) {
    const std::size_t all = cards.size();
    const auto full =
        std::stable_partition(cards.begin(), cards.end(), [&](const auto& c) { return has_room(with, c); });
    const std::vector<card_state> without_room{full, cards.end()};
    cards.erase(full, cards.end());
    if (cards.size() < with.devices.count && all >= with.devices.count) return no_room(without_room);
  }
  result<placement> placed = place_on_cards(with.devices, cards, with.soft_placement);
  if (!placed) return placed.why();
  for (const std::size_t i : placed->cards) {
    if (must_have_room && !has_room(with, cards[i])) return no_room({cards[i]});
  }
  for (const std::size_t i : placed->cards) {
    const std::uint64_t bytes = claimed_bytes(with, cards[i], must_have_room && !names_room(with));
    if (result<card_lease> claim = card_lease::claim(cards[i].uuid, bytes, ::getpid())) {
      placed->leases.push_back(*std::move(claim));
    } else if (placed->warnings.empty()) {
      placed->warnings.push_back(claim.why().message());
    }
  }
  for (const std::string& line : placed->warnings) log_line(line);
  if (with.verbose) {
    for (const std::string& line : placed->notes) log_line(line);
    for (const std::string& line : visible->hidden) log_line("not visible: " + line);
  }
  chosen_cards out;
  for (const std::size_t i : placed->cards) {
    out.list += (out.list.empty() ? "" : ",") + cards[i].uuid;
  }
  out.leases = std::move(placed->leases);
  if (with.verbose) log_line(fmt::format("CUDA_VISIBLE_DEVICES={}", out.list));
  return out;
}

}  // namespace gpumem
