/// CLI11 splits the command line. The values are parsed here, so that all error messages have one form.
#include "options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <thread>

#include "assign_or_return.hpp"
#include "bits.hpp"
#include "generate.hpp"
#include "gpumem/cuda_device.hpp"
#include "gpumem/settings.hpp"
#include "merge.hpp"
#include "pages.hpp"
#include "peer.hpp"
#include "session.hpp"
#include "text.hpp"

namespace gpumem::bench {
namespace {

constexpr double longest_lag_ns = 1e12;
constexpr unsigned longest_peer_s = 86'400;
constexpr unsigned most_jobs = 1024;
constexpr unsigned most_threads = 64;

/// The unparsed values of options.
struct option_texts {
  std::string device = "sim";
  std::string lag = "1ms";
  std::string shared_use = "0%";
  std::string seed = "1";
  std::string jobs;
  std::string peer_limit = "600";
  std::vector<std::string> threads;
  std::string pages;
};

status refused(std::string_view option, std::string_view value, std::string_view expected) {
  return {errc::bad_setting, fmt::format("{} {}: expected {}", option, printable(value), expected)};
}

status read_values(const option_texts& texts, options& options) {
  if (status device = parse_device(texts.device, options.setup); !device) return device;
  if (options.setup.cuda && options.subcommand == command::fit) {
    return {errc::unsupported, "fit varies the capacity, which is fixed on a GPU; expected --device sim"};
  }
  for (const std::string& each : options.baselines) {
    const bool peer = peers::is_peer(options.peers, each);
    if (!peer && each != "cub" && each != "cuda_malloc" && each != "cuda_malloc_async") {
      return refused("--baseline", each,
                     "cub, cuda_malloc, cuda_malloc_async, torch, torch_expandable, tensorflow, rmm "
                     "or a file in --peers");
    }
    if (options.subcommand == command::fit && !peer) {
      return refused("--baseline", each, "a peer (torch, tensorflow, ...) with fit, which varies a pool's capacity");
    }
    if (peer && options.subcommand != command::compare && options.subcommand != command::fit) {
      return refused("--baseline", each, "cub, cuda_malloc or cuda_malloc_async; peers run under compare and fit only");
    }
  }
  const auto peer_limit = whole_number<unsigned>(texts.peer_limit);
  if (!peer_limit || *peer_limit == 0 || *peer_limit > longest_peer_s) {
    return refused("--peer-limit", texts.peer_limit, fmt::format("whole seconds from 1 to {}", longest_peer_s));
  }
  options.setup.peer_limit = std::chrono::seconds{*peer_limit};
  ASSIGN_OR_RETURN(options.setup.lag_ns, parse_lag(texts.lag));
  ASSIGN_OR_RETURN(options.setup.shared_use, parse_share(texts.shared_use));
  const auto seed = whole_number<std::uint64_t>(texts.seed);
  if (!seed) return refused("--seed", texts.seed, "a whole number from 0 to 2^64 - 1");
  options.setup.seed = *seed;
  options.jobs = std::max(1U, std::thread::hardware_concurrency());
  if (!texts.jobs.empty()) {
    const auto jobs = whole_number<unsigned>(texts.jobs);
    if (!jobs || *jobs == 0 || *jobs > most_jobs) {
      return refused("--jobs", texts.jobs, fmt::format("a whole number from 1 to {}", most_jobs));
    }
    options.jobs = *jobs;
  }
  for (const std::string& each : texts.threads) {
    const auto threads = whole_number<unsigned>(each);
    if (!threads || *threads == 0 || *threads > most_threads) {
      return refused("--threads", each, fmt::format("a whole number from 1 to {}", most_threads));
    }
    options.threads.push_back(*threads);
  }
  if (options.subcommand == command::latency && (!options.csv_path.empty() || !options.workloads.empty())) {
    return {errc::bad_setting, "latency does not support --workload and --csv; expected --json"};
  }
  if (options.subcommand == command::costs && (!options.csv_path.empty() || !options.traces.empty() ||
                                               !options.workloads.empty() || !options.policies.empty())) {
    return {errc::bad_setting,
            "costs does not support --trace, --workload, --policy and --csv; expected --device or --json"};
  }
  if (!options.html_path.empty() && options.subcommand != command::compare && options.subcommand != command::claims) {
    return {errc::bad_setting, "--html is supported by compare and claims only"};
  }
  if (!options.note_path.empty() && (options.html_path.empty() || options.subcommand != command::compare)) {
    return {errc::bad_setting, "--note is supported by compare with --html only"};
  }
  const bool inputs =
      !options.traces.empty() || !options.workloads.empty() || !options.policies.empty() || !options.baselines.empty();
  const bool sized = texts.device != "sim" && !options.setup.cuda;
  if (options.subcommand == command::claims &&
      (inputs || sized || !options.csv_path.empty() || !options.limit.empty() || options.setup.shared_use != 0)) {
    return {errc::bad_setting,
            "claims has its own traces, policies and simulated devices; expected --only, --device cuda[:N], --seed, "
            "--lag, --json or --html"};
  }
  for (const auto& [option, path] : {std::pair<std::string_view, const std::string&>{"--json", options.json_path},
                                     {"--csv", options.csv_path},
                                     {"--html", options.html_path}}) {
    if (path.starts_with("--"))
      return refused(option, path, "a file");  // the user forgot the file name, so the next option was taken for it
  }
  if (options.over_time && options.subcommand != command::compare)
    return {errc::bad_setting, "--over-time is supported by compare only"};
  if ((options.json_path == "-") + (options.csv_path == "-") + (options.html_path == "-") > 1) {
    return {errc::bad_setting, "only one of --json -, --csv - and --html - can write to standard output"};
  }
  return {};
}

/// An option that may be repeated, with one value each time.
void add_list(CLI::App& app, const char* type, const std::string& name, std::vector<std::string>& values,
              const std::string& description) {
  app.add_option(name, values, description)->allow_extra_args(false)->type_name(type);
}
/// An option whose default --help shows.
void add_shown(CLI::App& app, const char* type, const std::string& name, std::string& value,
               const std::string& description) {
  app.add_option(name, value, description)->type_name(type)->capture_default_str();
}

void add_options(CLI::App& app, option_texts& texts, options& options) {
  add_list(app, "F", "--trace", options.traces,
           "RMM CSV log, plain or gzip; a folder means every .csv and .csv.gz in it");
  add_list(app, "W", "--workload", options.workloads,
           "a trace made from the seed: random, training, epochs, serving, robson, pipeline or tenants, with "
           "options such as training,ops=200000,peak=4GiB");
  add_list(app, "P", "--policy", options.policies,
           "a row: a policy and its settings, such as growth,limit=4GiB or multi_pool,pools=2GiB+2GiB; "
           "tenants=2 replays the trace twice, half a trace out of step, in one pool");
  app.add_option("--limit", options.limit, "limit for rows without one: 4GiB, 30%, 80%free")->type_name("L");
  add_shown(app, "D", "--device", texts.device, "sim[:BYTES] (sim is 80 GiB) or cuda[:N]");
  add_list(app, "B", "--baseline", options.baselines,
           "a row for another allocator: cub (caching every size, and with its defaults), cuda_malloc or "
           "cuda_malloc_async, simulated if the device is; with compare and fit also torch, torch_expandable, "
           "tensorflow and rmm if scripts/peers has built them. latency without --baseline and --policy adds cub");
  options.peers = GPUMEM_BENCH_PEERS_FOLDER;
  app.add_option("--peers", options.peers,
                 "folder in which scripts/peers has built the adapters for other packages' allocators")
      ->type_name("FOLDER");
  app.add_option("--peer-limit", texts.peer_limit, "seconds that a peer may take for one trace (600)")->type_name("S");
  app.add_option("--json", options.json_path, "write the figures here as JSON; - is standard output")
      ->type_name("FILE");
  app.add_option("--csv", options.csv_path, "write the figures as CSV")->type_name("FILE");
  app.add_option("--html", options.html_path, "write one page that needs no network: charts, maps, tables")
      ->type_name("FILE");
  app.add_option("--note", options.note_path, "compare: a text file that the page of --html shows above its figures")
      ->type_name("FILE");
  app.add_flag("--over-time", options.over_time, "compare: add memory and fragmentation over time to the JSON");
  add_shown(app, "N", "--seed", texts.seed, "chooses the blocks of --shared-use; the same seed gives the same figures");
  add_shown(app, "TIME", "--lag", texts.lag, "how long after the host the device's work ends: 1ms, 250us, 0");
  add_shown(app, "PERCENT", "--shared-use", texts.shared_use,
            "share of the blocks that a second stream uses as well: 10%");
  app.add_option("-j,--jobs", texts.jobs, "replays at once (by default as many as there are cores)")->type_name("N");
  app.add_flag("--quiet", options.quiet, "no progress bar");
  app.add_option("--pages", texts.pages)
      ->group("");  // for the build: writes man pages and completions into this folder
}

/// A subcommand that accepts the options of the main program, too.
CLI::App* add_command(CLI::App& app, const std::string& name, const std::string& description,
                      const std::string& example) {
  CLI::App* const made = app.add_subcommand(name, description)->fallthrough();
  made->footer("Example: " + example);
  return made;
}

/// Appends the main program's options if the subcommand accepts them.
std::string help_of(const CLI::App& app) {
  std::string text = app.help();
  for (const CLI::App* const each : app.get_subcommands()) {
    if (each->get_fallthrough()) text += CLI::Formatter{}.make_groups(&app, CLI::AppFormatMode::Normal);
  }
  return text;
}

/// Commands with parsers of their own, declared here only for --help and the pages.
struct other_commands {
  sweep::sweep_arguments sweep_with;
  sweep::merge_options merge_with;
  generate_options generate_with;
  CLI::App* sweep;
  CLI::App* merge;
  CLI::App* generate;

  explicit other_commands(CLI::App& app)
      : sweep{app.add_subcommand("sweep", "run a manifest's traces, policies, devices and seeds")},
        merge{app.add_subcommand("merge", "merge a sweep's folder into one file")},
        generate{app.add_subcommand("generate", "generate traces from a seed")} {
    sweep::add_sweep_options(*sweep, sweep_with);
    sweep::add_merge_options(*merge, merge_with);
    add_generate_options(*generate, generate_with);
  }
  [[nodiscard]] bool parsed() const { return sweep->parsed() || merge->parsed() || generate->parsed(); }
};

/// The first line of CLI11's message.
std::string first_line(std::string_view text) { return std::string{text.substr(0, text.find('\n'))}; }

}  // namespace

namespace {

status find_gpu(std::string_view text, replay_setup& setup) {
  int ordinal = 0;
  if (text != "cuda") {
    const auto named = whole_number<int>(text.substr(5));
    if (!named || *named < 0) return refused("--device", text, "cuda or cuda:N, N from 0");
    ordinal = *named;
  }
  const auto opened = open_cuda_device({.ordinal = ordinal});
  if (!opened) {
    return {opened.code(), fmt::format("--device {}: {}", printable(text), opened.why().message())};
  }
  const device_info& info = (*opened)->info();
  setup.device.name = info.name;
  setup.device.capacity_bytes = info.total_bytes;
  setup.device.granularity_bytes = info.granularity_bytes;
  setup.device.page_bytes = info.page_bytes;
  setup.device.compute_major = info.compute_major;
  setup.device.compute_minor = info.compute_minor;
  setup.cuda = cuda_target{info};
  return {};
}

}  // namespace

status parse_device(std::string_view text, replay_setup& setup) {
  constexpr std::string_view expected = "sim, sim:BYTES from 2MiB to 64TiB, cuda or cuda:N";
  if (text == "cuda" || text.starts_with("cuda:")) return find_gpu(text, setup);
  setup.device = {};
  if (text == "sim") return {};
  if (!text.starts_with("sim:")) return refused("--device", text, expected);
  ASSIGN_OR_RETURN(const auto bytes, parse_bytes(text.substr(4), "--device sim"));
  if (bytes < setup.device.granularity_bytes || bytes > 64 * tib) return refused("--device", text, expected);
  setup.device.capacity_bytes = round_down(bytes, setup.device.granularity_bytes);
  return {};
}

result<std::uint64_t> parse_lag(std::string_view text) {
  constexpr std::string_view expected = "a time such as 1ms, 250us or 0, at most 1000s";
  std::string_view unit = text;
  const auto value = take_decimal(unit);
  if (!value) return refused("--lag", text, expected);
  double ns = *value;
  if (unit == "us") {
    ns *= 1e3;
  } else if (unit == "ms") {
    ns *= 1e6;
  } else if (unit == "s") {
    ns *= 1e9;
  } else if (unit != "ns" && !(unit.empty() && ns == 0)) {
    return refused("--lag", text, expected);
  }
  if (ns > longest_lag_ns) return refused("--lag", text, expected);
  return static_cast<std::uint64_t>(std::llround(ns));
}

result<double> parse_share(std::string_view text) {
  std::string_view unit = text;
  const auto value = take_decimal(unit);
  if (!value || (!unit.empty() && unit != "%") || *value > 100) {
    return refused("--shared-use", text, "a share from 0% to 100%");
  }
  return *value / 100;
}

result<std::optional<std::string>> parse_command_line(int argc, const char* const* argv, options& options) {
  option_texts texts;
  CLI::App app{"Replays recorded allocation traces under every policy and shows what each one costs.", "gpumem_bench"};
  app.set_version_flag("--version", GPUMEM_VERSION_TEXT);
  add_options(app, texts, options);
  app.footer(
      "Example: gpumem_bench compare --trace run.csv.gz --policy growth --policy caching,limit=4GiB --html "
      "report.html");
  add_command(app, "compare", "every policy on every trace (the default)",
              "gpumem_bench compare --trace run.csv.gz --policy growth --policy caching,limit=4GiB --baseline cub");
  CLI::App* const fit = add_command(app, "fit", "the smallest capacity at which each policy runs each trace",
                                    "gpumem_bench fit --trace run.csv.gz");
  CLI::App* const costs =
      add_command(app, "costs", "the cost of each device call, by size", "gpumem_bench costs --device cuda:0");
  CLI::App* const latency =
      add_command(app, "latency", "the cost of a cached allocate and free, and the machine's floor",
                  "gpumem_bench latency --case pair --threads 1 --baseline cub");
  add_list(*latency, "N", "--threads", texts.threads,
           "number of threads, each with its own stream: 1 to 64; may be repeated");
  add_list(*latency, "C", "--case", options.cases,
           "only cases whose names begin with this: pair, live_1e4, replay; may be repeated");
  CLI::App* const claims = add_command(app, "claims", "statements about memory policies: experiment, figure, verdict",
                                       "gpumem_bench claims --html claims.html");
  add_list(*claims, "ID", "--only", options.only, "a claim by its id; may be repeated");
  claims
      ->add_option("--with", options.frameworks, "measure a framework itself as well: tensorflow, jax; may be repeated")
      ->allow_extra_args(false)
      ->check(CLI::IsMember({"tensorflow", "jax"}))
      ->type_name("F");
  claims->add_option("--python", options.python, "Python interpreter of the framework (default python3)")
      ->type_name("FILE");
  const other_commands tools{app};
  app.require_subcommand(0, 1);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return std::optional{help_of(app)};
  } catch (const CLI::CallForVersion&) {
    return std::optional<std::string>{"gpumem_bench " GPUMEM_VERSION_TEXT "\n"};
  } catch (const CLI::Error& wrong) {
    return status{errc::bad_setting, fmt::format("{} (--help lists the options)", first_line(wrong.what()))};
  }
  if (tools.parsed()) {
    return status{errc::bad_setting,
                  "expected sweep, merge or generate as the first argument, followed by its options"};
  }
  if (!texts.pages.empty()) {
    if (status written = write_pages(app, GPUMEM_VERSION_TEXT, texts.pages); !written) return written;
    return std::optional<std::string>{""};
  }
  if (fit->parsed()) options.subcommand = command::fit;
  if (costs->parsed()) options.subcommand = command::costs;
  if (latency->parsed()) options.subcommand = command::latency;
  if (claims->parsed()) options.subcommand = command::claims;
  if (status read = read_values(texts, options); !read) return read;
  return std::optional<std::string>{};
}

}  // namespace gpumem::bench
