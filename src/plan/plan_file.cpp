/// One pass over the lines, after the checksum at the end has been verified.
#include "plan_file.hpp"

#include <fmt/format.h>

#include <cstring>
#include <iterator>

#include "text.hpp"
#include "whole_file.hpp"

namespace gpumem::plan {
namespace {

constexpr std::string_view first_line = "gpumem plan 1";
constexpr std::string_view checksum_word = "checksum ";
constexpr std::uint64_t most_bytes = std::uint64_t{1} << 62;

std::uint64_t checksum(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325U;  // FNV-1a
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return hash;
}

status damaged(const std::string& why) { return {errc::corrupt, "damaged plan: " + why}; }

/// Reads words of a text. The checksum is verified before, so a missing word is the writer's error.
class reader {
 public:
  explicit reader(std::string_view text) : rest_{text} {}

  std::string_view word() {
    const std::size_t end = std::min(rest_.find_first_of(" \n"), rest_.size());
    const std::string_view found = rest_.substr(0, end);
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    return found;
  }
  bool number(std::uint64_t& value, int base = 10) {
    const auto read = whole_number<std::uint64_t>(word(), base);
    value = read.value_or(0);
    return read.has_value();
  }
  bool field(std::string_view name, std::uint64_t& value, int base = 10) {
    return word() == name && number(value, base);
  }
  [[nodiscard]] bool empty() const { return rest_.empty(); }
  [[nodiscard]] std::size_t left() const { return rest_.size(); }

 private:
  std::string_view rest_;
};

result<step_plan> parse_body(std::string_view body) {
  reader fields{body};
  std::uint64_t granule = 0;
  std::uint64_t print = 0;
  std::uint64_t repeat_from = 0;
  std::uint64_t count = 0;
  step_plan made;
  if (!fields.field("granule", granule)) return damaged("no granule");
  if (granule != granule_bytes) {
    return status{errc::unsupported,
                  fmt::format("a plan for a granule of {} bytes, expected {}", granule, granule_bytes)};
  }
  if (!fields.field("fingerprint", print, 16) || !fields.field("repeat_from", repeat_from) ||
      !fields.field("height", made.height_bytes) || !fields.field("peak", made.peak_bytes) ||
      !fields.field("lower_bound", made.lower_bound_bytes) || !fields.field("allocations", count)) {
    return damaged("a line of its head is missing");
  }
  if (count == 0 || count > fields.left() || repeat_from >= count) {
    return damaged(fmt::format("{} allocations that repeat from {}", count, repeat_from));
  }
  made.repeat_from = static_cast<std::uint32_t>(repeat_from);
  for (std::uint64_t i = 0; i < count; ++i) {
    planned_allocation each;
    std::uint64_t stream = 0;
    if (!fields.number(each.bytes) || !fields.number(each.offset) || !fields.number(stream) || stream > UINT16_MAX ||
        each.bytes == 0 || each.bytes % granule_bytes != 0 || each.offset % granule_bytes != 0 ||
        each.bytes > most_bytes || each.offset > made.height_bytes || each.bytes > made.height_bytes - each.offset) {
      return damaged(fmt::format("allocation {} of {} is no place within {} bytes", i, count, made.height_bytes));
    }
    each.stream = static_cast<std::uint16_t>(stream);
    made.allocations.push_back(each);
  }
  if (!fields.empty()) return damaged("more lines than allocations");
  if (print != fingerprint(made.allocations, made.repeat_from)) {
    return damaged("its fingerprint is not that of its allocations");
  }
  return made;
}

}  // namespace

std::string plan_text(const step_plan& made) {
  std::string text = fmt::format(
      "{}\ngranule {}\nfingerprint {:016x}\nrepeat_from {}\nheight {}\npeak {}\nlower_bound {}\nallocations {}\n",
      first_line, granule_bytes, fingerprint(made.allocations, made.repeat_from), made.repeat_from, made.height_bytes,
      made.peak_bytes, made.lower_bound_bytes, made.allocations.size());
  for (const planned_allocation& each : made.allocations) {
    fmt::format_to(std::back_inserter(text), "{} {} {}\n", each.bytes, each.offset, each.stream);
  }
  const std::uint64_t sum = checksum(text);
  return text + fmt::format("{}{:016x}\n", checksum_word, sum);
}

result<step_plan> parse_plan(std::string_view text) {
  const std::string_view line = text.substr(0, text.find('\n'));
  if (line != first_line) {
    if (line.starts_with("gpumem plan ")) {
      return status{errc::unsupported, fmt::format("'{}', expected '{}'", printable(line), first_line)};
    }
    return status{errc::corrupt,
                  fmt::format("not a plan: begins with '{}', expected '{}'", printable(line, 40), first_line)};
  }
  const std::size_t checksum_begin = text.rfind(checksum_word);
  std::uint64_t stated = 0;
  if (checksum_begin == std::string_view::npos || text[checksum_begin - 1] != '\n')
    return damaged("it ends before its checksum");
  reader last{text.substr(checksum_begin + checksum_word.size())};
  if (!last.number(stated, 16) || !last.empty()) return damaged("its checksum is not a number");
  if (stated != checksum(text.substr(0, checksum_begin)))
    return damaged("its checksum does not match what stands before it");
  return parse_body(text.substr(line.size() + 1, checksum_begin - line.size() - 1));
}

result<step_plan> read_plan(const std::string& path) {
  const result<std::string> text = read_file(path);
  if (!text) {
    return status{text.code(),
                  fmt::format("{}: {}; expected a plan of `gpumem plan` or planned:renew", path, text.why().message())};
  }
  result<step_plan> made = parse_plan(*text);
  if (!made) return status{made.code(), fmt::format("{}: {}", path, made.why().message())};
  return made;
}

status write_plan(const std::string& path, const step_plan& made) {
  const int error = write_and_rename(path, plan_text(made));
  return error == 0 ? status{} : status{errc::invalid_argument, fmt::format("{}: {}", path, std::strerror(error))};
}

status is_plan_of(const step_plan& made, const std::vector<recorded_op>& recorded) {
  const result<step> found = step_of(recorded);
  if (!found) return found.why();
  const std::uint64_t expected = fingerprint(found->allocations, found->repeat_from);
  const std::uint64_t print = fingerprint(made.allocations, made.repeat_from);
  if (print == expected) return {};
  return {errc::invalid_argument,
          fmt::format("a plan of another trace: its fingerprint is {:016x}, the trace's {:016x}", print, expected)};
}

}  // namespace gpumem::plan
