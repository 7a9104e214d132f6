#include "with_framework.hpp"

#include <fmt/format.h>

#include <chrono>
#include <filesystem>

#include "child.hpp"
#include "process_files.hpp"
#include "text.hpp"

namespace gpumem::bench {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::minutes longest{90};

/// The installed file if it exists, else the one of the build.
std::string first_of(const fs::path& installed, const fs::path& built) {
  std::error_code none;
  return fs::exists(installed, none) ? installed.string() : fs::exists(built, none) ? built.string() : "";
}

/// The verdict over all rows. Rows whose `agrees` is null do not count: they do not show the framework's own behaviour.
verdict verdict_of_rows(const figures_json& rows) {
  std::size_t agreeing = 0;
  std::size_t count = 0;
  for (const figures_json& row : rows) {
    if (!row.at("agrees").is_boolean()) continue;
    ++count;
    agreeing += row["agrees"].get<bool>() ? 1U : 0U;
  }
  return verdict_of(agreeing, count);
}

std::string command_of(const std::string& id, const std::string& framework, const options& options) {
  return fmt::format("gpumem_bench claims --only {} --with {} --python {}", id, framework, options.python);
}

}  // namespace

result<std::vector<framework_findings>> measure_with(const std::string& framework, const options& options) {
  const fs::path own_path = own_program().parent_path();
  const std::string script = first_of(own_path.parent_path() / "share/gpumem/framework_claims.py",
                                      GPUMEM_BENCH_SOURCE_CLAIMS "/framework_claims.py");
  const std::string gpumem = first_of(own_path / "gpumem", GPUMEM_BENCH_PROGRAM_FOLDER "/gpumem");
  const auto refused = [&](const std::string& why) {
    return status{errc::unsupported, fmt::format("--with {}: {}", framework, why)};
  };
  if (gpumem.empty())
    return refused(fmt::format("no program gpumem in {}, which simulates the cards", own_path.string()));
  if (script.empty()) return refused("framework_claims.py is not in share/gpumem");
  std::vector<std::string> words{options.python, script, framework, gpumem, std::to_string(options.jobs)};
  words.insert(words.end(), options.only.begin(), options.only.end());
  const auto ran = sweep::run_child("/usr/bin/env", words, "", longest);
  if (!ran) return ran.why();
  if (ran->timed_out) return refused(fmt::format("not done within {} minutes", longest.count()));
  const figures_json answer = figures_json::parse(ran->output, nullptr, false);
  if (ran->exit_status != 0 || !answer.is_object()) {
    const std::string why = ran->err.substr(0, ran->err.find_last_not_of('\n') + 1);
    return refused(why.empty() ? fmt::format("{} ended with status {}", options.python, ran->exit_status)
                               : printable(why.substr(why.rfind('\n') + 1), 2000));
  }
  std::vector<framework_findings> found;
  for (const figures_json& each : answer.at("claims")) {
    const std::string id = each.at("id");
    found.push_back({.id = id,
                     .name = fmt::format("{} {}", framework == "jax" ? "JAX" : "TensorFlow",
                                         answer.at("version").get<std::string>()),
                     .experiment = each.at("experiment"),
                     .command = command_of(id, framework, options),
                     .found = {.figures = each.at("figures"),
                               .measured = each.at("measured"),
                               .outcome = verdict_of_rows(each.at("figures"))}});
  }
  return found;
}

figures_json json_of(const framework_findings& finding) {
  return {{"framework", finding.name},
          {"verdict", to_string(finding.found.outcome)},
          {"measured", finding.found.measured},
          {"experiment", finding.experiment},
          {"device", "simulated"},
          {"command", finding.command},
          {"figures", finding.found.figures}};
}

}  // namespace gpumem::bench
