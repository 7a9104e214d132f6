// On a terminal an interactive screen (top_screen.hpp); in a pipe one table after another.
#include "top.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <ctime>
#include <thread>

#include "device_figures.hpp"
#include "served_figures.hpp"
#include "text.hpp"
#include "top_screen.hpp"

namespace gpumem::cli {
namespace {

look look_now() {
  look out;
  out.devices = nlohmann::json::array();
  if (const status told = device_figures(out.devices); !told) out.problem = printable(told.message(), 8192);
  out.served = served_figures();
  return out;
}

std::string as_json(const look& l) {
  const nlohmann::json all{{"schema", 1},
                           {"time_s", std::time(nullptr)},
                           {"devices", l.devices},
                           {"problem", l.problem},
                           {"served", l.served}};
  return all.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string as_text(const look& l) {
  return (l.problem.empty() ? device_table(l.devices) : l.problem + "\n") + "\n" + served_table(l.served, l.devices);
}

}  // namespace

int show_top(const top_options& with) {
  if (!with.once && !with.json && screen_is_possible()) return run_screen(look_now, with.interval_s);
  for (;;) {
    const look now = look_now();
    fmt::print("{}", with.json ? as_json(now) : as_text(now));
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) return 1;
    if (with.once) return now.problem.empty() ? 0 : 1;
    if (!with.json) fmt::print("\n");
    std::this_thread::sleep_for(std::chrono::duration<double>{with.interval_s});
  }
}

}  // namespace gpumem::cli
