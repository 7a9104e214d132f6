/// One unit, in its own process: reads a request from standard input, writes its row and its times.
#pragma once

#include <string>
#include <string_view>

namespace gpumem::bench::sweep {

/// Runs `gpumem_bench unit`: prints two lines, the row and the times. Exit status 0, even if the row reports a damaged
/// trace; 2 for an invalid request. If process `parent` ends, this process ends, too; empty: none.
int serve_unit(const std::string& parent);

/// The row and the times of a request: the work of a unit, without the process around it.
struct unit_rows {
  std::string row;
  std::string times;
};
unit_rows run_unit(std::string_view request);

/// A row with an error instead of figures. `kind`: `trace`, `policy`, `defect`, `crash`, `timeout`.
std::string error_row(std::string_view head, std::string_view kind, std::string_view text);
/// Whether a row has an error instead of figures.
bool is_error_row(std::string_view row) noexcept;

}  // namespace gpumem::bench::sweep
