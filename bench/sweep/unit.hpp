/// One unit, in a process of its own: reads a request on standard input, writes its row and its times.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

namespace gpumem::bench::sweep {

/// `gpumem_bench unit`: two lines on standard output, the row and the times. Exit status 0, also where the row says
/// that the trace is damaged; 2 where the request is none. `parent`: the process that it ends with; empty: nobody.
int serve_unit(const std::string& parent);

/// The row and the times of a request; what a unit is, without the process around it.
struct unit_rows {
  std::string row;
  std::string times;
};
unit_rows run_unit(std::string_view request);

/// A row that says why there are no figures. `kind`: `trace`, `policy`, `defect`, `crash`, `timeout`.
std::string error_row(std::string_view head, std::string_view kind, std::string_view text);
/// Whether a row is one of those.
bool is_error_row(std::string_view row) noexcept;

}  // namespace gpumem::bench::sweep
