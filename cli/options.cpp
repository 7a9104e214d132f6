// CLI11 takes the words apart. What stands behind `--` is the command's and is not looked at.
#include "options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>

#include "text.hpp"

namespace gpumem::cli {
namespace {

constexpr double shortest_interval_s = 0.1;
constexpr double longest_interval_s = 3600;

std::string first_line(std::string_view text) { return std::string{text.substr(0, text.find('\n'))}; }

/// One option of `run` and the setting that it stands for.
struct setting_option {
  const char* option;
  const char* setting;
  const char* value;
  const char* help;
};
constexpr setting_option setting_options[] = {
    {"--policy", "policy", "P", "growth, caching, grab_all, hard_cap, ... (GPUMEM_POLICY)"},
    {"--limit", "limit", "L", "4GiB, 30% or 80%free of each card (GPUMEM_LIMIT)"},
    {"--devices", "devices", "D", "0,2 or UUIDs or auto[:N] or nothing for none (GPUMEM_DEVICES)"},
    {"--pools", "pools", "SPEC", "2GiB,2GiB or train:8GiB,eval:30% (GPUMEM_POOLS)"},
    {"--trace", "trace", "F", "record every allocation here (GPUMEM_TRACE)"},
    {"--group", "group", "NAME", "share a budget with other processes of this name (GPUMEM_GROUP)"},
    {"--group-limit", "group_limit", "L", "the group's budget on each card (GPUMEM_GROUP_LIMIT)"},
};

status read_interval(const std::string& text, double& into) {
  double value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  if (code != std::errc{} || end != text.data() + text.size() || !std::isfinite(value) || value < shortest_interval_s ||
      value > longest_interval_s) {
    return {errc::bad_setting, fmt::format("--interval {}: expected seconds from {} to {}", printable(text),
                                           shortest_interval_s, longest_interval_s)};
  }
  into = value;
  return {};
}

}  // namespace

result<std::optional<std::string>> parse_command_line(int argc, const char* const* argv, options& into) {
  int own = 1;  // words up to `--`
  while (own < argc && std::string_view{argv[own]} != "--") ++own;

  CLI::App app{"Which GPU a program gets, how much of it, and who uses what.", "gpumem"};
  app.set_version_flag("--version", GPUMEM_VERSION_TEXT);
  CLI::App* const run = app.add_subcommand("run", "runs a program with its device memory served by gpumem");
  run->footer("The command and its own words follow behind --: gpumem run [OPTIONS] -- COMMAND...");
  std::vector<std::string> values(std::size(setting_options));
  for (std::size_t i = 0; i < values.size(); ++i) {
    run->add_option(setting_options[i].option, values[i], setting_options[i].help)
        ->type_name(setting_options[i].value)
        ->allow_extra_args(false);
  }
  CLI::App* const devices = app.add_subcommand("devices", "every GPU of the machine and who uses it");
  devices->add_flag("--json", into.devices.json, "as JSON");
  CLI::App* const top = app.add_subcommand("top", "the same, live, with what the processes served by gpumem hold");
  std::string interval = "1";
  top->add_option("--interval", interval, "seconds from one look to the next")->type_name("S");
  top->add_flag("--once", into.top.once, "one look");
  top->add_flag("--json", into.top.json, "as JSON, one line a look");
  const CLI::App* const plan = add_plan_command(app, into.plan);
  const CLI::App* const advise = add_advise_command(app, into.advise);
  app.require_subcommand(0, 1);
  try {
    app.parse(own, argv);
  } catch (const CLI::CallForHelp&) {
    return std::optional{app.help()};
  } catch (const CLI::CallForVersion&) {
    return std::optional<std::string>{"gpumem " GPUMEM_VERSION_TEXT "\n"};
  } catch (const CLI::Error& wrong) {
    return status{errc::bad_setting, fmt::format("{} (--help lists what there is)", first_line(wrong.what()))};
  }
  if (app.get_subcommands().empty()) {
    return status{errc::bad_setting, "no command; expected run, devices, top, plan or advise (--help says more)"};
  }
  const bool has_command = own < argc;
  if (!run->parsed()) {
    if (has_command) return status{errc::bad_setting, "--: expected only with run"};
    if (plan->parsed() || advise->parsed()) {
      into.what = plan->parsed() ? command::plan : command::advise;
      return std::optional<std::string>{};
    }
    into.what = top->parsed() ? command::top : command::devices;
    if (status read = read_interval(interval, into.top.interval_s); !read) return read;
    return std::optional<std::string>{};
  }
  into.what = command::run;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (run->count(setting_options[i].option) > 0)
      into.run.settings.emplace_back(setting_options[i].setting, values[i]);
  }
  for (int i = own + 1; i < argc; ++i) into.run.command.emplace_back(argv[i]);
  if (into.run.command.empty()) {
    return status{errc::bad_setting, "run: no command; expected gpumem run [OPTIONS] -- COMMAND..."};
  }
  return std::optional<std::string>{};
}

}  // namespace gpumem::cli
