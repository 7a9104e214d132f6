#include "text_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace gpumem::bench {

std::vector<std::string> table_lines(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const std::string& heading : rows.front()) widths.push_back(heading.size() - (heading.starts_with('<') ? 1 : 0));
  for (std::size_t r = 1; r < rows.size(); ++r) {
    for (std::size_t i = 0; i < rows[r].size(); ++i) widths[i] = std::max(widths[i], rows[r][i].size());
  }
  std::vector<std::string> lines;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const bool left = rows.front()[i].starts_with('<');
      const std::string_view cell = std::string_view{row[i]}.substr(left && &row == &rows.front() ? 1 : 0);
      line += left ? fmt::format("{:<{}}  ", cell, widths[i]) : fmt::format("{:>{}}  ", cell, widths[i]);
    }
    lines.push_back(line.substr(0, line.find_last_not_of(' ') + 1));
  }
  return lines;
}

}  // namespace gpumem::bench
