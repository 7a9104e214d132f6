// CLI11 parses the options. Arguments after `--` belong to the command and are not parsed. Help, manual pages and
// completions come from the same app.
#include "options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <limits>
#include <span>

#include "pages.hpp"
#include "text.hpp"

namespace gpumem::cli {
namespace {

constexpr double shortest_interval_s = 0.1;
constexpr double longest_interval_s = 3600;
constexpr double longest_wait_s = 366 * 86400.0;

std::string first_line(std::string_view text) { return std::string{text.substr(0, text.find('\n'))}; }

constexpr const char* limit_each_option = "--limit-each";

/// One option of `run` and its setting.
struct setting_option {
  const char* option;
  const char* setting;
  const char* value;
  const char* help;
};
constexpr setting_option setting_options[] = {
    {"--policy", "policy", "P", "growth, caching, grab_all, hard_cap, ... (GPUMEM_POLICY)"},
    {"--limit", "limit", "L", "4GiB, 30% or 80%free of each card, for all processes of the command (GPUMEM_LIMIT)"},
    {limit_each_option, "limit", "L", "the same for each process of the command, not for all together"},
    {"--devices", "devices", "D", "0,2, UUIDs, auto[:N], or an empty string for none (GPUMEM_DEVICES)"},
    {"--pools", "pools", "SPEC", "2GiB,2GiB or train:8GiB,eval:30% (GPUMEM_POOLS)"},
    {"--trace", "trace", "F", "record every allocation here (GPUMEM_TRACE)"},
    {"--group", "group", "NAME", "share a budget with other processes of this name (GPUMEM_GROUP)"},
    {"--group-limit", "group_limit", "L", "the group's budget on each card (GPUMEM_GROUP_LIMIT)"},
};

status read_interval(const std::string& text, double& seconds) {
  const std::optional<double> value = decimal_number(text);
  if (!value || *value < shortest_interval_s || *value > longest_interval_s) {
    return {errc::bad_setting, fmt::format("--interval {}: expected seconds from {} to {}", printable(text),
                                           shortest_interval_s, longest_interval_s)};
  }
  seconds = *value;
  return {};
}

/// Like `read_time`; an option without a value means no limit.
status read_wait(const std::string& text, std::optional<double>& wait_s) {
  wait_s = std::numeric_limits<double>::infinity();
  return text.empty() ? status{} : read_time(text, "--wait", *wait_s);
}

/// Declares every subcommand with its options, and holds the texts to interpret after the parse.
struct command_line {
  CLI::App app{"Gives programs GPUs and limits, and shows who uses them.", "gpumem"};
  std::vector<std::string> settings = std::vector<std::string>(std::size(setting_options));
  std::vector<std::string> wait;
  std::string interval = "1";
  std::string pages;
  CLI::App* run = nullptr;
  CLI::App* top = nullptr;
  CLI::Option* wait_option = nullptr;

  explicit command_line(options& options) {
    app.set_version_flag("--version", GPUMEM_VERSION_TEXT);
    app.footer(
        "Exit status: 0; 1 if a requirement is missing; 2 for a usage error.\n"
        "Example: gpumem run --devices auto --limit 8GiB -- ./train");
    app.add_option("--pages", pages)->group("");  // for the build: writes man pages and completions into this folder
    add_run();
    add_looks(options);
    add_plan_command(app, options.plan);
    add_advise_command(app, options.advise);
    add_simulate_command(app, options.simulate);
    add_predict_command(app, options.predict);
    add_fit_command(app, options.fit);
    add_convert_command(app, options.convert);
    add_why_command(app, options.why);
    add_dump_command(app, options.dump);
    app.require_subcommand(0, 1);
  }

 private:
  void add_run() {
    run = app.add_subcommand("run", "runs a program with its device memory served by gpumem");
    run->footer(
        "The command and its arguments follow --: gpumem run [OPTIONS] -- COMMAND...\n"
        "gpumem returns its exit status. Sizes: G and GiB are powers of 1024, GB is a power of 1000.\n"
        "Example: gpumem run --devices auto --limit 30% -- python train.py\n"
        "Example: gpumem run --wait 2h --limit 20GiB -- ./train");
    for (std::size_t i = 0; i < settings.size(); ++i) {
      run->add_option(setting_options[i].option, settings[i], setting_options[i].help)
          ->type_name(setting_options[i].value)
          ->allow_extra_args(false);
    }
    wait_option = run->add_option("--wait", wait,
                                  "wait for a card with room for --limit, or an unused one: 30s, 10m, 2h "
                                  "[default: no limit]; implies --devices auto unless cards are named")
                      ->type_name("[TIME]")
                      ->expected(0, 1);
  }

  void add_looks(options& options) {
    CLI::App* const devices =
        app.add_subcommand("devices", "every GPU of the machine and its users; creates no context");
    devices->add_flag("--json", options.devices.json, "as JSON");
    devices->footer(
        "Without NVML (NVIDIA's driver) it says so, with --json as {\"problem\":...}, and the status is 1.\n"
        "Example: gpumem devices --json");
    top = app.add_subcommand("top", "every GPU, live, with the memory of each process that gpumem serves");
    top->add_option("--interval", interval, "seconds between updates, 0.1 to 3600")
        ->type_name("S")
        ->capture_default_str();
    top->add_flag("--once", options.top.once, "one look, as text");
    top->add_flag("--json", options.top.json, "as JSON, one line a look");
    top->add_flag("--prometheus", options.top.prometheus, "one look, as metrics in Prometheus's text format");
    top->add_option("-o,--output", options.top.output, "with --prometheus: replace this file, for node_exporter")
        ->type_name("FILE");
    top->footer(
        "Keys: q quit, s sort, / filter, up and down select; of the selected process that gpumem serves t trims the\n"
        "memory, and d dumps the latest events to gpumem-PID.csv (gpumem dump).\n"
        "Example: gpumem top --interval 0.5\n"
        "Example: gpumem top --prometheus --output /var/lib/prometheus/node-exporter/gpumem.prom");
    CLI::App* const exporter = app.add_subcommand("exporter", "the figures of top, for Prometheus over HTTP");
    exporter->add_option("--listen", options.exporter.listen, "serve http://ADDRESS:PORT/metrics; port 0: any free one")
        ->type_name("ADDRESS:PORT")
        ->capture_default_str();
    exporter->footer(
        "Each scrape is one look. Ends at SIGINT or SIGTERM. Without authentication: keep the address local.\n"
        "Example: gpumem exporter --listen 127.0.0.1:9843");
    CLI::App* const lease =
        app.add_subcommand("lease", "leases on cards, held by programs started with --devices auto");
    lease->add_flag("--json", options.lease.json, "as JSON");
    lease->add_option("--end", options.lease.end, "end the process that holds a lease (SIGTERM)")->type_name("PID");
    lease->footer(
        "A lease ends with the last process that holds it; child processes hold it too.\n"
        "Example: gpumem lease --end 4711");
  }
};

constexpr std::string_view commands =
    "run, devices, top, exporter, lease, plan, advise, why, dump, convert, simulate, predict or fit";

status check_top(const command_line& line, const top_options& chosen) {
  const auto given = [&](const char* option) { return line.top->count(option) > 0; };
  if (chosen.prometheus && (chosen.json || given("--interval"))) {
    return {errc::bad_setting,
            fmt::format("--prometheus and {}: expected one or the other", chosen.json ? "--json" : "--interval")};
  }
  if (given("--output") && (!chosen.prometheus || chosen.output.empty())) {
    return {errc::bad_setting,
            fmt::format("--output {}: expected a file, with --prometheus", printable(chosen.output))};
  }
  return {};
}

result<std::optional<std::string>> parse_run(const command_line& line, std::span<const char* const> words,
                                             options& options) {
  for (std::size_t i = 0; i < line.settings.size(); ++i) {
    if (line.run->count(setting_options[i].option) > 0) {
      options.run.settings.emplace_back(setting_options[i].setting, line.settings[i]);
    }
  }
  options.run.limit_each = line.run->count(limit_each_option) > 0;
  if (options.run.limit_each && line.run->count("--limit") > 0) {
    return status{errc::bad_setting, "--limit and --limit-each: expected one or the other"};
  }
  if (line.wait_option->count() > 0) {
    if (status read = read_wait(line.wait.empty() ? "" : line.wait.front(), options.run.wait_s); !read) return read;
  }
  for (const char* const word : words) options.run.command.emplace_back(word);
  if (options.run.command.empty()) {
    return status{errc::bad_setting, "run: no command; expected gpumem run [OPTIONS] -- COMMAND..."};
  }
  return std::optional<std::string>{};
}

}  // namespace

status read_time(const std::string& text, const char* option, double& seconds) {
  std::string_view unit = text;
  const std::optional<double> value = take_decimal(unit);
  const double factor = unit.empty() || unit == "s" ? 1 : unit == "m" ? 60 : unit == "h" ? 3600 : 0;
  if (!value || factor == 0 || *value * factor > longest_wait_s) {
    return {errc::bad_setting, fmt::format("{} {}: expected a time such as 30s, 10m or 2h", option, printable(text))};
  }
  seconds = *value * factor;
  return {};
}

result<std::optional<std::string>> parse_command_line(int argc, const char* const* argv, options& options) {
  int own = 1;  // arguments up to `--`
  while (own < argc && std::string_view{argv[own]} != "--") ++own;
  command_line line{options};
  try {
    line.app.parse(own, argv);
  } catch (const CLI::CallForHelp&) {
    return std::optional{line.app.help()};
  } catch (const CLI::CallForVersion&) {
    return std::optional<std::string>{"gpumem " GPUMEM_VERSION_TEXT "\n"};
  } catch (const CLI::Error& wrong) {
    return status{errc::bad_setting, fmt::format("{} (--help lists the options)", first_line(wrong.what()))};
  }
  if (!line.pages.empty()) {
    if (status written = bench::write_pages(line.app, GPUMEM_VERSION_TEXT, line.pages); !written) return written;
    return std::optional<std::string>{""};
  }
  if (line.app.get_subcommands().empty()) {
    return status{errc::bad_setting, fmt::format("no command; expected {} (--help describes them)", commands)};
  }
  options.subcommand = line.app.get_subcommands().front()->get_name();
  if (line.run->parsed()) {
    const auto first_word = static_cast<std::size_t>(own < argc ? own + 1 : argc);
    return parse_run(line, std::span{argv, static_cast<std::size_t>(argc)}.subspan(first_word), options);
  }
  for (const auto& [name, words] :
       {std::pair{"simulate", &options.simulate.command}, std::pair{"predict", &options.predict.command},
        std::pair{"fit", &options.fit.command}}) {
    if (options.subcommand != name) continue;
    for (int i = own + 1; i < argc; ++i) words->emplace_back(argv[i]);
    return std::optional<std::string>{};
  }
  if (own < argc) return status{errc::bad_setting, "--: expected only with run, simulate, predict or fit"};
  if (status fits = check_top(line, options.top); !fits) return fits;
  if (status read = read_interval(line.interval, options.top.interval_s); !read) return read;
  return std::optional<std::string>{};
}

}  // namespace gpumem::cli
