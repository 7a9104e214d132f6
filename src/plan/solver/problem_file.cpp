/// Numbers must be digits only, so a minus sign or a fraction is an error.
#include "problem_file.hpp"

#include <fmt/format.h>

#include <array>
#include <vector>

#include "assign_or_return.hpp"
#include "text.hpp"
#include "whole_file.hpp"

namespace gpumem::plan {
namespace {

constexpr std::array<std::string_view, 4> columns{"id", "lower", "upper", "size"};

std::vector<std::string_view> fields_of(std::string_view line) {
  std::vector<std::string_view> fields;
  for (;;) {
    const std::size_t comma = line.find(',');
    fields.push_back(trimmed(line.substr(0, comma)));
    if (comma == std::string_view::npos) return fields;
    line.remove_prefix(comma + 1);
  }
}

status bad_line(std::size_t line, const std::string& why) {
  return {errc::corrupt, fmt::format("line {}: {}", line, why)};
}

result<std::array<std::size_t, 4>> header(std::string_view line) {
  const std::vector<std::string_view> fields = fields_of(line);
  std::array<std::size_t, 4> place{};
  for (std::size_t c = 0; c < columns.size(); ++c) {
    std::size_t field = 0;
    while (field < fields.size() && lowered(fields[field]) != columns[c]) ++field;
    if (field == fields.size()) {
      return bad_line(1, fmt::format("'{}', expected a header with id,lower,upper,size", printable(line)));
    }
    place[c] = field;
  }
  return place;
}

}  // namespace

result<problem> parse_problem(std::string_view text) {
  problem buffers;
  std::array<std::size_t, 4> place{};
  bool begun = false;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = trimmed(text.substr(0, end > 0 && text[end - 1] == '\r' ? end - 1 : end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!begun) {
      ASSIGN_OR_RETURN(place, header(line));
      begun = true;
      continue;
    }
    if (line.empty()) continue;
    const std::vector<std::string_view> fields = fields_of(line);
    std::array<std::uint64_t, 4> value{};
    for (std::size_t c = 0; c < columns.size(); ++c) {
      if (place[c] >= fields.size()) return bad_line(number, fmt::format("no {}", columns[c]));
      const std::string_view field = fields[place[c]];
      const auto read = whole_number<std::uint64_t>(field);
      if (!read) {
        return bad_line(number,
                        fmt::format("{} '{}', expected a whole number from 0 to 2^64-1", columns[c], printable(field)));
      }
      value[c] = *read;
    }
    buffers.push_back({.id = value[0], .lower = value[1], .upper = value[2], .size = value[3]});
  }
  if (!begun) return bad_line(1, "empty, expected a header with id,lower,upper,size");
  return buffers;
}

result<problem> read_problem(const std::string& path) {
  const result<std::string> text = read_file(path);
  result<problem> buffers = text ? parse_problem(*text) : text.why();
  status why = buffers ? check(*buffers) : buffers.why();
  if (!why) return status{why.code(), fmt::format("{}: {}", path, why.message())};
  return buffers;
}

}  // namespace gpumem::plan
