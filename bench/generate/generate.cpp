#include "generate.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <system_error>
#include <thread>

#include "assign_or_return.hpp"
#include "binary_trace.hpp"
#include "inputs.hpp"
#include "network.hpp"
#include "output_file.hpp"
#include "parallel.hpp"
#include "patterns.hpp"
#include "print_error.hpp"
#include "progress.hpp"
#include "refused.hpp"
#include "text.hpp"
#include "variation.hpp"
#include "workload.hpp"

namespace gpumem::bench {
namespace {

constexpr std::uint64_t most_traces = 10'000'000;

/// Requests with growing caches, as in bench/workloads/serving.cpp.
trace serve(std::uint64_t ops, random_numbers& random) {
  workload_shape shape;
  shape.ops = ops;
  shape.peak_bytes = (std::uint64_t{1} + random.below(64)) << 28;
  shape.seed = random.next();
  trace made = serving_workload(shape);
  made.name = fmt::format("serving-p{}MiB", shape.peak_bytes >> 20);
  return made;
}

result<std::vector<trace>> load_recordings(const std::vector<std::string>& sources) {
  std::vector<std::string> paths;
  for (const std::string& each : sources.empty() ? std::vector{bundled_traces_folder()} : sources) {
    std::error_code ignored;
    if (!std::filesystem::is_directory(each, ignored)) {
      paths.push_back(each);
      continue;
    }
    ASSIGN_OR_RETURN(const auto inside, traces_in(each));
    paths.insert(paths.end(), inside.begin(), inside.end());
  }
  std::vector<trace> recordings;
  for (const std::string& path : paths) {
    ASSIGN_OR_RETURN(auto t, load_trace(path));
    recordings.push_back(std::move(t));
  }
  return recordings;
}

/// Inserts the number after the kind, which is the part before the first `-`, so that names sort by kind.
std::string numbered(const std::string& name, std::uint64_t number) {
  const std::size_t dash = name.find('-');
  return fmt::format("{}-{:05}{}", name.substr(0, dash), number, dash == std::string::npos ? "" : name.substr(dash));
}

}  // namespace

trace generate_trace(std::uint64_t seed, std::uint64_t number, std::uint64_t ops,
                     const std::vector<trace>& recordings) {
  random_numbers random{seed * 0x9e3779b97f4a7c15 + number};
  const std::uint64_t kind = random.below(8);
  trace made;
  if (kind < 5) {
    const network_shape shape = draw_network(random);
    made = train(shape, ops, random);
  } else if (kind < 7 && !recordings.empty()) {
    made = vary(recordings[random.below(recordings.size())], ops, random);
    made.name = "recorded-" + made.name;
  } else {
    made = serve(ops, random);
  }
  made.name = numbered(made.name, number);
  return made;
}

trace generate_pattern(std::uint64_t seed, std::uint64_t number, std::uint64_t ops) {
  random_numbers random{seed * 0x9e3779b97f4a7c15 + number};
  trace made = draw_pattern(ops, random);
  made.name = numbered(made.name, number);
  return made;
}

trace generate_refused(std::uint64_t seed, std::uint64_t number, std::uint64_t ops) {
  random_numbers random{seed * 0x9e3779b97f4a7c15 + number};
  trace made = draw_refused(ops, random);
  made.name = numbered(made.name, number);
  return made;
}

status generate(const generate_options& options) {
  ASSIGN_OR_RETURN(const auto recordings,
                   options.patterns || options.refused ? std::vector<trace>{} : load_recordings(options.recordings));
  std::error_code why;
  std::filesystem::create_directories(options.folder, why);
  if (why)
    return {errc::bad_setting, fmt::format("{}: cannot be made: {}", printable(options.folder, 4096), why.message())};
  progress bar{options.count, options.quiet};
  return run_parallel(options.count, options.jobs, [&](std::size_t index) -> status {
    const std::uint64_t number = index + 1;
    const trace made = options.refused    ? generate_refused(options.seed, number, options.ops)
                       : options.patterns ? generate_pattern(options.seed, number, options.ops)
                                          : generate_trace(options.seed, number, options.ops, recordings);
    if (status written = write_trace(fmt::format("{}/{}{}", options.folder, made.name, options.ending), made);
        !written) {
      return written;
    }
    bar.step(made.name);
    return {};
  });
}

void add_generate_options(CLI::App& app, generate_options& options) {
  app.footer("Example: gpumem_bench generate -o traces --count 200 --seed 7");
  app.add_option("-o,--output", options.folder, "they go here")->type_name("FOLDER")->required();
  app.add_option("--count", options.count, "how many (1000)")
      ->type_name("N")
      ->check(CLI::Range(std::uint64_t{1}, most_traces));
  app.add_option("--seed", options.seed, "the same seed gives the same traces (1)")->type_name("N");
  app.add_option("--ops", options.ops, "operations of each, about (4000)")
      ->type_name("N")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{100'000'000}));
  app.add_option("--from", options.recordings, "recordings to vary: files and folders (the bundled traces)")
      ->type_name("F");
  app.add_flag(
      "--patterns", options.patterns,
      "programs whose sizes change: scratch blocks, large tensors among small ones, replaced layers, adapters, "
      "image sizes");
  app.add_flag("--refused", options.refused,
               "programs with many blocks on twelve streams, whose last request is refused: for gpumem why")
      ->excludes("--patterns");
  app.add_option("--format", options.ending, "gmtrace or csv.gz")
      ->check(CLI::IsMember({"gmtrace", "csv.gz", ".gmtrace"}));
  app.add_option("-j,--jobs", options.jobs, "at once (as many as there are cores)")->check(CLI::Range(1U, 1024U));
  app.add_flag("--quiet", options.quiet, "no progress bar");
}

int generate_main(std::vector<std::string> arguments) {
  generate_options options;
  options.jobs = std::max(1U, std::thread::hardware_concurrency());
  CLI::App app{"Traces from a seed: steps of networks of many shapes, variations of recorded programs, serving.",
               "gpumem_bench generate"};
  add_generate_options(app, options);
  std::reverse(arguments.begin(), arguments.end());
  status made;
  try {
    app.parse(arguments);
    if (!options.ending.starts_with('.')) options.ending.insert(0, ".");
    made = generate(options);
  } catch (const CLI::CallForHelp&) {
    return print_out(app.help()).ok() ? 0 : 2;
  } catch (const CLI::Error& wrong) {
    const std::string text = wrong.what();
    made = {errc::bad_setting,
            fmt::format("{} (generate --help lists what there is)", text.substr(0, text.find('\n')))};
  }
  if (!made.ok()) print_error("gpumem_bench: {}\n", printable(made.message(), 8192));
  return made.ok() ? 0 : 2;
}

}  // namespace gpumem::bench
