/// The files of this folder and the chart library, as they were at build time.
#pragma once

#include <string_view>

namespace gpumem::bench::parts {

extern const std::string_view style;
extern const std::string_view body;
extern const std::string_view script;
extern const std::string_view sweep_body;
extern const std::string_view sweep_script;
extern const std::string_view charts;  ///< dygraphs, minified
extern const std::string_view charts_style;
extern const std::string_view charts_licence;

}  // namespace gpumem::bench::parts
