// Shows an interactive screen on a terminal (top_screen.hpp), and one table after another in a pipe. For Prometheus
// prints a single look.
#include "top.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <thread>

#include "device_figures.hpp"
#include "fail.hpp"
#include "look.hpp"
#include "output_file.hpp"
#include "prometheus_text.hpp"
#include "served_figures.hpp"
#include "top_screen.hpp"

namespace gpumem::cli {
namespace {

std::string as_json(const look& shown) {
  return look_as_json(shown).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string as_text(const look& shown) {
  return (shown.problem.empty() ? device_table(shown.devices) : shown.problem + "\n") + "\n" +
         served_table(shown.served, shown.devices);
}

/// Writes one look as metrics to standard output, or to a file, which it replaces atomically.
int show_metrics(const std::string& output) {
  const look shown = look_now();
  const result<std::string> text = prometheus_text(look_as_json(shown));
  if (!text) return fail(1, "top: " + text.why().message());
  if (output.empty()) {
    fmt::print("{}", *text);
  } else if (const status written = bench::replace_file(output, "--output", *text); !written) {
    return fail(2, "top: " + written.message());
  }
  return shown.problem.empty() ? 0 : 1;
}

}  // namespace

int show_top(const top_options& options) {
  if (options.prometheus) return show_metrics(options.output);
  if (!options.once && !options.json && screen_is_possible()) return run_screen(look_now, options.interval_s);
  for (;;) {
    const look shown = look_now();
    fmt::print("{}", options.json ? as_json(shown) : as_text(shown));
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) return 1;
    if (options.once) return shown.problem.empty() ? 0 : 1;
    if (!options.json) fmt::print("\n");
    std::this_thread::sleep_for(std::chrono::duration<double>{options.interval_s});
  }
}

}  // namespace gpumem::cli
