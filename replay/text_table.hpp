/// Tables as text.
#pragma once

#include <string>
#include <vector>

namespace gpumem::bench {

/// A line per row, without its end: columns as wide as their widest cell, two spaces apart, right-aligned unless the
/// heading in the first row begins with '<'.
std::vector<std::string> table_lines(const std::vector<std::vector<std::string>>& rows);

}  // namespace gpumem::bench
