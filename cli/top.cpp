// On a terminal each look is drawn over the former one, cut to the window; in a pipe one follows the other.
#include "top.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <ctime>
#include <thread>

#include "device_figures.hpp"
#include "served_figures.hpp"
#include "text.hpp"

namespace gpumem::cli {
namespace {

struct look {
  nlohmann::json devices;
  nlohmann::json served;
  std::string problem;  ///< why there are no devices
};

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
  return (l.problem.empty() ? device_table(l.devices) : l.problem + "\n") + "\n" + served_table(l.served);
}

/// The text over what stands on the terminal: each line cut to the window and the rest of its row cleared.
std::string over_the_former(const std::string& text) {
  winsize window{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) != 0 || window.ws_col == 0 || window.ws_row == 0) {
    window.ws_col = 200;
    window.ws_row = 1000;
  }
  std::string out = "\x1b[H";
  std::size_t line = 0;
  for (std::size_t at = 0; at < text.size() && line + 1 < window.ws_row; ++line) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    out += text.substr(at, std::min<std::size_t>(end - at, window.ws_col)) + "\x1b[K\n";
    at = end + 1;
  }
  return out + "\x1b[J";
}

}  // namespace

int show_top(const top_options& with) {
  const bool redraws = !with.once && !with.json && ::isatty(STDOUT_FILENO) != 0;
  if (redraws) fmt::print("\x1b[2J");
  for (;;) {
    const look now = look_now();
    const std::string text = with.json ? as_json(now) : as_text(now);
    fmt::print("{}", redraws ? over_the_former(text) : text);
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) return 1;
    if (with.once) return now.problem.empty() ? 0 : 1;
    if (!redraws && !with.json) fmt::print("\n");
    std::this_thread::sleep_for(std::chrono::duration<double>{with.interval_s});
  }
}

}  // namespace gpumem::cli
