// The program `gpumem`. Exit status: 0; 1 if a requirement is missing; 2 for a usage error, with one line that names
// the expected form. `run` passes on the command's own status.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>

#include "devices.hpp"
#include "dump.hpp"
#include "exporter.hpp"
#include "fit.hpp"
#include "job_rank.hpp"
#include "leases.hpp"
#include "options.hpp"
#include "predict.hpp"
#include "print_error.hpp"
#include "run.hpp"
#include "simulate.hpp"
#include "text.hpp"
#include "top.hpp"
#include "why.hpp"

namespace {

using namespace gpumem;

/// Opens standard descriptors that are closed. Otherwise the next opened file would get such a number, and output lines
/// would go into it.
void open_standard_descriptors() {
  int fd = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  while (fd >= 0 && fd <= STDERR_FILENO) fd = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  if (fd >= 0) ::close(fd);
}

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
    switch (options.subcommand) {
      case cli::command::run:
        return cli::run_command(options.run);
      case cli::command::devices:
        return cli::show_devices(options.devices);
      case cli::command::top:
        return cli::show_top(options.top);
      case cli::command::lease:
        return cli::show_leases(options.lease);
      case cli::command::plan:
        return cli::make_plan(options.plan);
      case cli::command::advise:
        return cli::advise(options.advise);
      case cli::command::simulate:
        return cli::simulate(options.simulate);
      case cli::command::predict:
        return cli::predict(options.predict);
      case cli::command::fit:
        return cli::fit(options.fit);
      case cli::command::convert:
        return cli::convert(options.convert);
      case cli::command::dump:
        return cli::dump(options.dump);
      case cli::command::why:
        return cli::why(options.why);
      case cli::command::exporter:
        return cli::run_exporter(options.exporter);
    }
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
