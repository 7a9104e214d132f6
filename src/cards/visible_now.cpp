#include "visible_now.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <optional>

#include "card_claims.hpp"
#include "card_usage.hpp"
#include "child_answer.hpp"
#include "gpumem/cuda_device.hpp"
#include "gpumem/gpu_usage.hpp"
#include "log.hpp"
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
    const result<std::unique_ptr<device>> opened = open_cuda_device({.ordinal = i, .driver = nullptr});
    if (!opened) return "";
    lines += fmt::format("{} {}\n", (*opened)->info().uuid, (*opened)->info().name);
  }
  return lines + ".\n";
}

/// Asks the driver in a child process. Empty if no driver answers.
std::optional<std::vector<card_state>> ask_driver() {
  const std::string answer = child_answer(tell_devices);
  std::vector<card_state> states;
  for (std::size_t line_begin = 0; line_begin < answer.size();) {
    const std::size_t end = answer.find('\n', line_begin);
    const std::string line = answer.substr(line_begin, end - line_begin);
    if (line == ".") return states;
    card_state& state = states.emplace_back();
    state.uuid = line.substr(0, line.find(' '));
    state.name = line.substr(std::min(line.find(' ') + 1, line.size()));
    line_begin = end == std::string::npos ? answer.size() : end + 1;
  }
  return std::nullopt;
}

bool has_room(const settings& options, const card_state& card) {
  if (!names_room(options)) return card.idle() && card.claims == 0 && !card.left_beside_waiters;
  const std::uint64_t wanted = options.limit.resolve(card.total_bytes, card.free_bytes);
  return wanted <= card.left_beside_waiters.value_or(wanted) && card.known && card.memory_known &&
         card.free_bytes >= card.promised_bytes && card.free_bytes - card.promised_bytes >= wanted;
}

status no_room(const std::vector<card_state>& cards) {
  std::string text;
  for (const card_state& c : cards) {
    const std::string free = c.known && c.memory_known ? format_bytes(c.free_bytes) : "an unknown amount";
    text += fmt::format("{}{} has {} free and {} processes", text.empty() ? "" : ", ", c.uuid, free, c.processes);
    if (c.left_beside_waiters)
      text += fmt::format("; earlier ones wait and leave {}", format_bytes(*c.left_beside_waiters));
    if (c.claims == 0) continue;
    text += fmt::format("; {} other program{} given it", c.claims, c.claims == 1 ? " was" : "s were");
    if (c.promised_bytes != 0) text += fmt::format(", with {} of what is free", format_bytes(c.promised_bytes));
  }
  return {errc::out_of_memory, text};
}

/// Returns the bytes of the card that the limit allows, or the whole card if the program waited for an idle one.
std::uint64_t claimed_bytes(const settings& options, const card_state& card, bool waited_for_an_idle_one) {
  if (waited_for_an_idle_one) return card.total_bytes;
  return options.limit ? options.limit.resolve(card.total_bytes, card.free_bytes) : 0;
}

card_claim claim_on(const card_state& card, std::uint64_t bytes, std::uint64_t since_ns) {
  return {.uuid = std::string{bare_uuid(card.uuid)},
          .bytes = bytes,
          .since_ns = since_ns,
          .seen_ns = since_ns,
          .pid = ::getpid(),
          .pid_space = own_pid_space()};
}

/// Takes or renews the program's place in the queue for each card that can ever have the room.
status queue_up(waiting_program& wait, const claim_table& table, const settings& options,
                const std::vector<card_state>& cards) {
  std::vector<card_claim> rows;
  for (const card_state& card : cards) {
    const std::uint64_t bytes =
        names_room(options) ? options.limit.resolve(card.total_bytes, card.free_bytes) : card.total_bytes;
    if (!card.known || !card.memory_known || bytes > card.total_bytes) continue;
    rows.push_back(claim_on(card, bytes, wait.since_ns));
    rows.back().waiting = true;
    rows.back().seen_ns = boot_time_ns();
  }
  return table.replace(wait.claims, rows);
}

/// Warns once that programs of other containers are invisible.
void warn_of_isolation(const settings& options, const std::vector<card_claim>& claims) {
  static std::atomic<bool> said{false};
  const std::string line = isolation_warning(options.shared_folder, claims);
  if (!line.empty() && !said.exchange(true)) log_line(line);
}

/// Returns the MIG instance's UUID that CUDA_VISIBLE_DEVICES accepts, if CUDA reports the instance under a card's UUID.
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
    measure_cards(usage, options.shared_folder);  // it forks, so not under `rule`, which runs in a user's program
  const auto describe = [&](const std::string& uuid, const std::string& name) {
    card_state state = state_of(usage, uuid, options.idle_bytes);
    state.uuid = uuid;
    if (!state.known) state.name = name;
    return state;
  };

  std::vector<card> cards = cards_of(usage);
  order_cards(cards, variable("CUDA_DEVICE_ORDER"));
  const visibility by_rule = visible_cards(cards, variable("CUDA_VISIBLE_DEVICES"));
  visible_now visible;
  visible.hidden = by_rule.hidden;
  visible.usage = usage;
  if (const auto driver = source == visible_by::driver ? ask_driver() : std::nullopt) {
    for (const card_state& one : *driver) {
      visible.cards.push_back(describe(name_for_the_list(usage, one.uuid), one.name));
      std::erase_if(visible.hidden,
                    [&](const std::string& line) { return line.starts_with(visible.cards.back().uuid); });
    }
    return visible;
  }
  if (!told) return told.why();
  for (const visible_card& entry : by_rule.cards) visible.cards.push_back(describe(entry.uuid, cards[entry.card].name));
  return visible;
}

bool names_room(const settings& options) noexcept {
  return options.limit.unit == byte_limit::kind::bytes || options.limit.unit == byte_limit::kind::of_total;
}

namespace {

void log_choice(const settings& options, const placement& placed, const std::vector<std::string>& hidden,
                const std::string& list) {
  for (const std::string& line : placed.warnings) log_line(line);
  if (!options.verbose) return;
  for (const std::string& line : placed.notes) log_line(line);
  for (const std::string& line : hidden) log_line("not visible: " + line);
  log_line(fmt::format("CUDA_VISIBLE_DEVICES={}", list));
}

}  // namespace

result<chosen_cards> choose_cards(const settings& options, visible_by source, waiting_program* wait) {
  const bool automatic = options.devices.how == device_choice::kind::automatic;
  if (options.devices.how == device_choice::kind::none) return chosen_cards{};
  result<visible_now> visible = cards_visible_now(source, options);
  if (!visible) {
    if (!options.soft_placement) return visible.why();
    log_line(visible.why().message());
    visible = visible_now{};
  }
  std::vector<card_state>& cards = visible->cards;
  // Reads the claims after NVML: if a program ends in between, the card looks fuller, not emptier.
  const result<claim_table> table = claim_table::open(options.shared_folder);
  if (!table && table.code() != errc::unsupported && (automatic || wait != nullptr)) return table.why();
  if (!table) log_line(table.why().message());
  chosen_cards choice;
  held_claims& own = wait != nullptr ? wait->claims : choice.claims;
  const std::uint64_t now_ns = boot_time_ns();
  if (table) {
    const std::vector<card_claim> claims = table->others(own);
    if (automatic || wait != nullptr) warn_of_isolation(options, claims);
    count_claims(cards, claims, visible->usage, wait != nullptr ? wait->since_ns : now_ns, now_ns);
  }
  /// Queues the program for the `wanted` cards, and reports the `full` ones.
  const auto refuse = [&](const std::vector<card_state>& full, const std::vector<card_state>& wanted) {
    if (status queued = table ? queue_up(*wait, *table, options, wanted) : status{}; !queued) return queued;
    return no_room(full);
  };
  if (wait != nullptr && automatic) {
    const std::vector<card_state> all = cards;
    const auto full =
        std::stable_partition(cards.begin(), cards.end(), [&](const auto& card) { return has_room(options, card); });
    const std::vector<card_state> without_room{full, cards.end()};
    cards.erase(full, cards.end());
    if (cards.size() < options.devices.count && all.size() >= options.devices.count) return refuse(without_room, all);
  }
  result<placement> placed = place_on_cards(options.devices, cards, options.soft_placement);
  if (!placed) return placed.why();
  std::vector<card_state> chosen;
  for (const std::size_t i : placed->cards) chosen.push_back(cards[i]);
  for (const card_state& card : chosen) {
    if (wait != nullptr && !has_room(options, card)) return refuse({card}, chosen);
  }
  std::vector<card_claim> rows;
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    const std::uint64_t bytes = claimed_bytes(options, chosen[i], wait != nullptr && !names_room(options));
    rows.push_back(claim_on(chosen[i], bytes, now_ns));
    rows.back().place = placed->places[i];
    choice.list += (choice.list.empty() ? "" : ",") + chosen[i].uuid;
  }
  const status claimed = table ? table->replace(own, rows) : status{};
  if (!claimed && (automatic || wait != nullptr)) return claimed;
  if (!claimed) placed->warnings.push_back(claimed.message());
  log_choice(options, *placed, visible->hidden, choice.list);
  if (wait != nullptr) choice.claims = std::move(wait->claims);
  return choice;
}

}  // namespace gpumem
