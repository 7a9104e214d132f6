#include "values_text.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>

#include "simulated_run.hpp"

namespace gpumem::cli {

void add_values_option(CLI::App& app, int& elements) {
  constexpr int most = 9'999'999;
  app.add_option("--values", elements,
                 fmt::format("compute PyTorch's operations on tensors of up to so many elements (default {}; 0: none)",
                             default_values))
      ->type_name("N")
      ->check(CLI::Range(0, most));
}

std::string untrue_values_warning(const simulated_outcome& ran) {
  constexpr std::size_t most_places = 5;
  std::uint64_t times = 0;
  std::vector<std::string> places;
  for (const simulated_process& each : ran.processes) {
    times += each.record.untrue_values_read;
    for (const simcuda::read_record& read : each.record.read) {
      if (read.times != 0 && places.size() < most_places) places.emplace_back(read.place);
    }
  }
  if (times == 0) return {};
  return fmt::format(
      "the host read values of the card {} times that nothing had computed, and got zeros or what it had written{}: "
      "sizes that depend on values (nonzero, unique, sampling, routing) and loops that wait for a value differ from "
      "those on a card",
      times, places.empty() ? "" : fmt::format(" ({})", fmt::join(places, "; ")));
}

std::vector<std::string> values_warnings(const simulated_outcome& ran) {
  std::vector<std::string> warnings;
  if (std::string untrue = untrue_values_warning(ran); !untrue.empty()) warnings.push_back(std::move(untrue));
  if (warnings.empty()) return warnings;
  for (const simulated_process& each : ran.processes) {
    if (each.torch.is_object() && each.torch.contains("values") && each.torch["values"].contains("error")) {
      warnings.push_back("PyTorch's small operations were not computed: " +
                         each.torch["values"]["error"].get<std::string>());
    }
    if (each.record.unknown_kernels != 0) {
      const char* const name = each.record.unknown_kernel;
      warnings.push_back(fmt::format(
          "{} kernels were launched that no operation of PyTorch's own describes; they may have written "
          "anywhere, so what was computed before them counts as untrue. The first was {}",
          each.record.unknown_kernels, std::string{name, ::strnlen(name, sizeof each.record.unknown_kernel)}));
    }
    if (each.record.clamped_indices != 0) {
      warnings.push_back(
          fmt::format("{} untrue indices were changed to what their operations accept", each.record.clamped_indices));
    }
  }
  return warnings;
}

}  // namespace gpumem::cli
