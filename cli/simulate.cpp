// The arguments, the run (simulated_run.hpp), and the report.
#include "simulate.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>

#include "assign_or_return.hpp"
#include "cards.hpp"
#include "fail.hpp"
#include "gpumem/policy.hpp"
#include "options.hpp"
#include "output_file.hpp"
#include "print_error.hpp"
#include "run.hpp"
#include "shared_cards.hpp"
#include "simulate_doctor.hpp"
#include "simulated_run.hpp"
#include "simulated_text.hpp"
#include "text.hpp"
#include "units.hpp"

namespace gpumem::cli {
namespace {

constexpr int failed = 1;
constexpr int bad_input = 2;
constexpr int most_cards = simcuda::report_cards;

status read_bytes(const std::string& text, const char* option, std::uint64_t& amount) {
  if (text == "0") return amount = 0, status{};
  ASSIGN_OR_RETURN(amount, parse_bytes(text, option));
  return {};
}

/// Preloads the policy's library into the program, with the settings that `run` would give it.
status serve_by_policy(const simulate_options& options, simulated_setup& setup) {
  if (options.policy.empty() && options.limit.empty()) return {};
  settings check;
  if (!options.policy.empty()) {
    if (status ok = check.set("policy", options.policy); !ok) return {errc::bad_setting, "--" + ok.message()};
    if (const auto known = find_policy(check.policy); !known) return known.why();
    setup.variables["GPUMEM_POLICY"] = options.policy;
  }
  if (!options.limit.empty()) {
    if (status ok = check.set("limit", options.limit); !ok) return {errc::bad_setting, "--" + ok.message()};
    setup.variables["GPUMEM_LIMIT"] = options.limit;
  }
  ASSIGN_OR_RETURN(setup.preload, find_preload());
  return {};
}

result<simulated_setup> setup_of(const simulate_options& options) {
  simulated_setup setup;
  if (status ok = choose_card(options.card, setup.card, setup.card_bytes); !ok) return ok;
  if (options.cards < 1 || options.cards > most_cards) {
    return status{errc::bad_setting, fmt::format("--cards {}: expected from 1 to {}", options.cards, most_cards)};
  }
  setup.cards = options.cards;
  if (!options.shared.empty() && !simcuda::shared_cards::valid_name(options.shared)) {
    return status{errc::bad_setting,
                  fmt::format("--shared {}: expected 1 to 64 letters, digits, _ and -", printable(options.shared))};
  }
  setup.shared = options.shared;
  if (status ok = read_bytes(options.context, "--context", setup.context_bytes); !ok) return ok;
  if (status ok = check_context(setup, options.context); !ok) return ok;
  if (status ok = read_bytes(options.modules, "--modules", setup.module_bytes); !ok) return ok;
  if (status ok = read_bytes(options.libraries, "--libraries", setup.library_bytes); !ok) return ok;
  if (status ok = check_cudnn_workspace(options.cudnn_workspace); !ok) return ok;
  setup.variables["SIMCUDA_CUDNN_WORKSPACE"] = options.cudnn_workspace;
  setup.variables["SIMCUDA_VALUES"] = fmt::format("{}", options.values);
  if (status ok = read_time(options.settle, "--settle", setup.settle_s); !ok) return ok;
  if (status ok = serve_by_policy(options, setup); !ok) return ok;
  setup.one_rank = options.one_rank;
  setup.strict = options.strict;
  setup.referee = options.referee;
  setup.output_to_stderr = bench::output_file{"--json", options.json}.is_standard_output();
  setup.command = options.command;
  return setup;
}

/// Checks every output file before the program runs, so that a run of hours does not lose its result.
status check_files(const simulate_options& options) {
  if (!options.trace.empty()) {
    if (status ok = bench::check_output_file(options.trace, "--trace", true); !ok) return ok;
  }
  if (!options.report.empty()) {
    if (status ok = bench::check_output_file(options.report, "--report"); !ok) return ok;
  }
  return bench::output_file{"--json", options.json}.check();
}

}  // namespace

status check_cudnn_workspace(const std::string& how) {
  if (how == "0" || how == "converted") return {};
  return {errc::bad_setting, fmt::format("--cudnn-workspace {}: expected 0 or converted", printable(how))};
}

void add_cudnn_workspace_option(CLI::App& app, std::string& workspace) {
  app.add_option("--cudnn-workspace", workspace,
                 "converted: 16-bit forward convolutions with channels first keep copies in theirs (default 0)")
      ->type_name("0|converted");
}

void add_settle_option(CLI::App& app, std::string& settle) {
  app.add_option("--settle", settle,
                 "end a program that reads values and takes no more memory for that long (default 10m; 0: never)")
      ->type_name("TIME");
}

status choose_card(const std::string& card, std::string& key, std::uint64_t& bytes) {
  if (const simcuda::card_profile* const known = simcuda::find_card(card); known != nullptr) {
    key = std::string{known->key};
    bytes = 0;
    return {};
  }
  const result<std::uint64_t> size = parse_bytes(card, "--card");
  if (!size || *size < (std::uint64_t{64} << 20)) {
    return {
        errc::bad_setting,
        fmt::format("--card {}: expected a card's name (--card list prints them) or its memory from 64MiB on (24GiB)",
                    printable(card))};
  }
  key = std::string{simcuda::default_card().key};
  bytes = *size;
  return {};
}

void add_simulate_command(CLI::App& app, simulate_options& options) {
  CLI::App* const simulate =
      app.add_subcommand("simulate", "runs a program on simulated cards: peak, and where it runs out");
  simulate->footer(
      "Kernels do nothing; values are those of PyTorch's small operations (--values). Allocations are real.\n"
      "The command and its arguments follow --: gpumem simulate [OPTIONS] -- COMMAND...\n"
      "Example: gpumem simulate --card a100-80gb --trace run.csv.gz -- python train.py");
  simulate->add_option("--card", options.card, "a name of --card list, or memory: 24GiB (default h100)")
      ->type_name("NAME|BYTES");
  simulate->add_option("--cards", options.cards, "how many of it")->type_name("N");
  simulate->add_option("--shared", options.shared, "share the cards with all runs of the same name")->type_name("NAME");
  simulate->add_flag("--one-rank", options.one_rank, "take NCCL's other ranks to send what this one process sends");
  simulate->add_option("--policy", options.policy, "serve device memory by gpumem under this policy")->type_name("P");
  simulate->add_option("--limit", options.limit, "its limit: 4GiB, 30%")->type_name("L");
  simulate->add_option("--context", options.context, "memory of a context on the card (default 450MiB)")
      ->type_name("SIZE");
  simulate->add_option("--modules", options.modules, "memory of each loaded module (default 0)")->type_name("SIZE");
  simulate->add_option("--libraries", options.libraries, "memory of each handle of cuBLAS, cuDNN, NCCL (default 0)")
      ->type_name("SIZE");
  add_cudnn_workspace_option(*simulate, options.cudnn_workspace);
  simulate->add_option("--trace", options.trace, "record every allocation in this file, for advise and gpumem_bench")
      ->type_name("F");
  simulate->add_option("--report", options.report, "a page with memory over time")->type_name("F.html");
  simulate
      ->add_option("--json", options.json,
                   "the result as JSON (-: on standard output, and the program's own on standard error)")
      ->type_name("FILE");
  add_values_option(*simulate, options.values);
  add_settle_option(*simulate, options.settle);
  simulate->add_flag("--referee", options.referee,
                     "report memory that is reused while a stream may still use it, with the line");
  simulate->add_flag("--strict", options.strict, "abort at the first use that a card leaves undefined (else: counted)");
  simulate->add_flag("--quiet", options.quiet, "no summary");
  simulate->add_flag("--doctor", options.doctor,
                     "say what a run of COMMAND's Python (python3) needs and lacks, and what to type");
}

int simulate(const simulate_options& options) {
  if (options.card == "list") {
    fmt::print("{}", card_table());
    return 0;
  }
  if (options.doctor) return diagnose(options.command);
  if (options.command.empty()) {
    return fail(bad_input, "simulate: no command; expected gpumem simulate [OPTIONS] -- COMMAND...");
  }
  result<simulated_setup> setup = setup_of(options);
  if (!setup) return fail(setup.code() == errc::bad_setting ? bad_input : failed, setup.why().message());
  if (status ok = check_files(options); !ok) return fail(bad_input, ok.message());
  recorded_trace trace{options};
  if (status ok = trace.prepare(*setup); !ok) return fail(failed, ok.message());
  result<simulated_outcome> ran = run_simulated(*setup);
  if (!ran) return fail(failed, ran.why().message());
  const std::vector<std::string> of_trace = trace.collect(*ran);
  nlohmann::ordered_json figures = figures_of(*ran, *setup);
  for (const std::string& warning : of_trace) figures["warnings"].push_back(warning);
  if (!options.quiet) print_error("{}", visible(summary_of(figures)));
  int broken = 0;
  if (!options.json.empty()) {
    const std::string text = figures.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
    if (status ok = bench::output_file{"--json", options.json}.write(text); !ok) broken = fail(failed, ok.message());
  }
  if (status ok = trace.finish(); !ok) broken = fail(failed, ok.message());
  return ran->exit_status != 0 ? ran->exit_status : broken;
}

}  // namespace gpumem::cli
