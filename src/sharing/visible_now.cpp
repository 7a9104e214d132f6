#include "visible_now.hpp"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <iterator>
#include <optional>

#include "card_usage.hpp"
#include "gpumem/cuda_device.hpp"
#include "gpumem/gpu_usage.hpp"
#include "log.hpp"

namespace gpumem {
namespace {

std::optional<std::string> variable(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? std::optional<std::string>{value} : std::nullopt;
}

/// What the child writes: `UUID name`, a line a device, and `.` at the end of a whole answer.
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

/// In a child, so that neither the driver's descriptors nor its threads are the command's. None: no driver that
/// answers.
std::optional<std::vector<card_state>> ask_driver() {
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) return std::nullopt;
  const pid_t child = ::fork();
  if (child == 0) {
    const std::string text = tell_devices();
    for (std::size_t at = 0; at < text.size();) {
      const ssize_t written = ::write(ends[1], text.data() + at, text.size() - at);
      if (written <= 0) break;
      at += static_cast<std::size_t>(written);
    }
    std::_Exit(0);
  }
  ::close(ends[1]);
  std::string answer;
  std::array<char, 4096> part{};
  for (ssize_t got = 0; child > 0 && (got = ::read(ends[0], part.data(), part.size())) > 0;) {
    answer.append(part.data(), static_cast<std::size_t>(got));
  }
  ::close(ends[0]);
  if (child > 0) ::waitpid(child, nullptr, 0);
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

status no_room(const std::vector<card_state>& cards) {
  std::string text;
  for (const card_state& c : cards) {
    text += fmt::format("{}{} has {} free and {} processes", text.empty() ? "" : ", ", c.uuid,
                        format_bytes(c.free_bytes), c.processes);
  }
  return {errc::out_of_memory, text};
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

result<visible_now> cards_visible_now(visible_by whose) {
  const result<std::vector<gpu_usage>> told = gpu_usage_now();
  const std::vector<gpu_usage> usage = told ? *told : std::vector<gpu_usage>{};
  const auto describe = [&](const std::string& uuid, const std::string& name) {
    card_state state = state_of(usage, uuid);
    state.uuid = uuid;
    if (!state.known) state.name = name;
    return state;
  };

  std::vector<card> cards = cards_of(usage);
  order_cards(cards, variable("CUDA_DEVICE_ORDER"));
  const visibility by_rule = visible_cards(cards, variable("CUDA_VISIBLE_DEVICES"));
  visible_now out;
  out.hidden = by_rule.hidden;
  if (const auto driver = whose == visible_by::driver ? ask_driver() : std::nullopt) {
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

result<chosen_cards> choose_cards(const settings& with, visible_by whose,
                                  const std::function<bool(const card_state&)>& has_room) {
  if (with.devices.how == device_choice::kind::none) return chosen_cards{};
  result<visible_now> visible = cards_visible_now(whose);
  if (!visible) {
    if (!with.soft_placement) return visible.why();
    log_line(visible.why().message());
    visible = visible_now{};
  }
  std::vector<card_state> full;
  if (has_room && with.devices.how == device_choice::kind::automatic) {
    const std::size_t all = visible->cards.size();
    std::vector<card_state>& cards = visible->cards;
    std::copy_if(cards.begin(), cards.end(), std::back_inserter(full), [&](const auto& c) { return !has_room(c); });
    std::erase_if(cards, [&](const auto& c) { return !has_room(c); });
    if (cards.size() < with.devices.count && all >= with.devices.count) return no_room(full);
  }
  result<placement> placed = place_on_cards(with.devices, visible->cards, with.soft_placement);
  if (!placed) return placed.why();
  for (const std::size_t i : placed->cards) {
    if (has_room && !has_room(visible->cards[i])) return no_room({visible->cards[i]});
  }
  for (const std::string& line : placed->warnings) log_line(line);
  if (with.verbose) {
    for (const std::string& line : placed->notes) log_line(line);
    for (const std::string& line : visible->hidden) log_line("not visible: " + line);
  }
  chosen_cards out;
  for (const std::size_t i : placed->cards) {
    out.list += (out.list.empty() ? "" : ",") + visible->cards[i].uuid;
  }
  out.leases = std::move(placed->leases);
  if (with.verbose) log_line(fmt::format("CUDA_VISIBLE_DEVICES={}", out.list));
  return out;
}

}  // namespace gpumem
