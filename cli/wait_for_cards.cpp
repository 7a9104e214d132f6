#include "wait_for_cards.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "log.hpp"

namespace gpumem::cli {
namespace {

using clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds between_looks{500};

std::string wanted(const settings& config) {
  const std::size_t count = std::max<std::size_t>(config.devices.names.size(), config.devices.count);
  const std::string cards = count == 1 ? "a card" : fmt::format("{} cards", count);
  return names_room(config) ? fmt::format("{} with {} free", cards, config.limit.to_string())
                            : cards + " that nobody uses";
}

}  // namespace

result<chosen_cards> wait_for_cards(const settings& config, double longest_s) {
  const clock::time_point begun = clock::now();
  bool said = false;
  waiting_program own_place;
  for (;;) {
    result<chosen_cards> chosen = choose_cards(config, visible_by::driver, &own_place);
    if (chosen.ok() || chosen.code() != errc::out_of_memory) return chosen;
    const std::chrono::duration<double> waited = clock::now() - begun;
    if (waited.count() >= longest_s) {
      return status{errc::unsupported, fmt::format("--wait: after {:.0f} s there is not {}: {}", waited.count(),
                                                   wanted(config), chosen.why().message())};
    }
    if (!said) log_line(fmt::format("waiting for {}: {}", wanted(config), chosen.why().message()));
    said = true;
    const std::chrono::duration<double> left{longest_s - waited.count()};
    std::this_thread::sleep_for(std::min<std::chrono::duration<double>>(between_looks, left));
  }
}

}  // namespace gpumem::cli
