/// A report as one HTML file that loads nothing: style, chart library, data and script in one text.
#pragma once

#include <string>
#include <string_view>

#include "gpumem/status.hpp"

namespace gpumem::bench {

/// Whether the build found the chart library; the error says what to install.
status page_available();

/// `data_json` is the input of page.js: `title`, `subtitle`, `made_by`, and `rows` or `claims` or both. Requires
/// `page_available`.
std::string make_page(std::string_view data_json);

/// The same for a sweep's summary (sweep/summary.hpp), which sweep.js reads as `summary`.
std::string make_sweep_page(std::string_view data_json);

}  // namespace gpumem::bench
