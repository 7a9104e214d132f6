// The program `gpumem`. Exit status: 0; 1 if a requirement is missing; 2 for a usage error, with one line that names
// the expected form. `run` and `simulate` pass on the command's own status.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string_view>
#include <utility>

#include "devices.hpp"
#include "job_rank.hpp"
#include "leases.hpp"
#include "options.hpp"
#include "print_error.hpp"
#include "run.hpp"
#include "text.hpp"
#include "top.hpp"

namespace {

using namespace gpumem;

/// Opens standard descriptors that are closed. Otherwise the next opened file would get such a number, and output lines
/// would go into it.
void open_standard_descriptors() {
  int fd = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  while (fd >= 0 && fd <= STDERR_FILENO) fd = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  if (fd >= 0) ::close(fd);
}

constexpr std::pair<std::string_view, int (*)(const cli::options&)> commands[] = {
    {"run", [](const cli::options& options) { return cli::run_command(options.run); }},
    {"devices", [](const cli::options& options) { return cli::show_devices(options.devices); }},
    {"top", [](const cli::options& options) { return cli::show_top(options.top); }},
    {"lease", [](const cli::options& options) { return cli::show_leases(options.lease); }},
    {"plan", [](const cli::options& options) { return cli::make_plan(options.plan); }},
    {"advise", [](const cli::options& options) { return cli::advise(options.advise); }},
    {"simulate", [](const cli::options& options) { return cli::simulate(options.simulate); }},
    {"predict", [](const cli::options& options) { return cli::predict(options.predict); }},
    {"fit", [](const cli::options& options) { return cli::fit(options.fit); }},
    {"convert", [](const cli::options& options) { return cli::convert(options.convert); }},
    {"dump", [](const cli::options& options) { return cli::dump(options.dump); }},
    {"why", [](const cli::options& options) { return cli::why(options.why); }},
    {"exporter", [](const cli::options& options) { return cli::run_exporter(options.exporter); }},
};

int run(int argc, char** argv) {
  try {
    cli::options options;
    const auto text = cli::parse_command_line(argc, argv, options);
    if (!text) {
      print_error("gpumem: {}{}\n", rank_prefix(), printable(text.why().message(), 8192));
      return 2;
    }
    if (*text) {
      fmt::print("{}", **text);
      return 0;
    }
    for (const auto& [name, perform] : commands) {
      if (name == options.subcommand) return perform(options);
    }
    print_error("gpumem: the subcommand '{}' is missing from the program's table\n", options.subcommand);
  } catch (const std::exception& e) {
    print_error("gpumem: {}{}\n", rank_prefix(), printable(e.what(), 8192));
  }
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  open_standard_descriptors();
  const int status = run(argc, argv);
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
  print_error("gpumem: {}the output cannot be written: {}\n", rank_prefix(), std::strerror(errno));
  return status != 0 ? status : 1;
}
