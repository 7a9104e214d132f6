// If a policy serves the program, gpumem's library records the allocations; otherwise PyTorch records those of its own
// allocator. gpumem_bench replays the trace and writes the page.
#include <fmt/format.h>

#include <filesystem>

#include "bench_page.hpp"
#include "process_traces.hpp"
#include "simulated_text.hpp"

namespace gpumem::cli {
namespace {

namespace fs = std::filesystem;

status make_page_of(const std::string& trace, const std::string& policy, const std::string& page) {
  const status made = make_bench_page(trace, {policy}, "", page);
  return made ? status{} : status{made.code(), fmt::format("--report {}: {}", page, made.message())};
}

}  // namespace

status recorded_trace::prepare(simulated_setup& setup) {
  if (options_.trace.empty() && options_.report.empty()) return {};
  path_ = options_.trace;
  if (path_.empty()) {
    temporary_.emplace("gpumem-simulate-");
    if (temporary_->path().empty()) return {errc::unsupported, "--report: cannot create a folder in TMPDIR"};
    path_ = temporary_->path() + "/trace.csv";
  }
  std::error_code error;
  path_ = fs::absolute(path_, error).string();
  fs::remove(path_, error);
  if (setup.preload.empty()) {
    setup.history = path_;
  } else {
    setup.variables["GPUMEM_TRACE"] = path_;
  }
  return {};
}

std::vector<std::string> recorded_trace::collect(simulated_outcome& outcome) {
  std::vector<std::string> warnings;
  if (path_.empty()) return warnings;
  if (!options_.policy.empty() || !options_.limit.empty()) {
    failed_ = check_one_recorded(outcome);
    std::error_code error;
    if (failed_.ok() && !fs::exists(path_, error)) {
      failed_ = {errc::unsupported, "no trace was recorded: the program took no device memory by gpumem"};
    }
    return warnings;
  }
  if (take_trace(outcome, path_, !temporary_, warnings) != nullptr) return warnings;
  std::string why = why_no_trace(outcome);
  if (why.empty()) {
    why =
        "the program does not use PyTorch; --policy makes gpumem serve and record it (or PyTorch's process was killed "
        "or left by os._exit, before its record was written)";
  }
  failed_ = {errc::unsupported, "no trace was recorded: " + why};
  return warnings;
}

status recorded_trace::finish() const {
  if (path_.empty() || !failed_.ok()) return failed_;
  if (options_.report.empty()) return {};
  return make_page_of(path_, options_.policy.empty() ? "caching" : options_.policy, options_.report);
}

}  // namespace gpumem::cli
