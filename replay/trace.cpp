/// Reads traces row by row, so that the file is never in memory as a whole.
#include "trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "binary_trace.hpp"
#include "bits.hpp"
#include "byte_source.hpp"
#include "gpumem/allocator.hpp"
#include "log.hpp"
#include "pickle.hpp"
#include "snapshot.hpp"
#include "text.hpp"
#include "trace_rows.hpp"

namespace gpumem::bench {
namespace {

constexpr std::size_t longest_line = 1024;
constexpr std::size_t longest_path = 4096;

std::string name_of(const std::string& path) {
  std::string name = std::filesystem::path{path}.filename().string();
  for (const std::string_view ending : {".gz", ".csv", ".pickle", ".gmtrace"}) {
    if (name.size() > ending.size() && name.ends_with(ending)) name.resize(name.size() - ending.size());
  }
  return name;
}

/// Whether the last row is cut within its fields, as by a killed program.
bool is_cut(std::string_view last_line) {
  return std::count(last_line.begin(), last_line.end(), ',') < static_cast<std::ptrdiff_t>(row_fields - 1) ||
         last_line.ends_with(',');
}

/// Describes the missing end of a file. `of_row` is the beginning of a cut row; empty if the last row is whole.
std::string what_is_cut(const trace_parser& read, std::string_view of_row, std::string_view why) {
  return fmt::format("{}; read to row {}, the last whole one{}", why, read.rows(),
                     of_row.empty() ? "" : "; 1 row behind it is cut and lost");
}

/// Splits the contents of `source` into lines; `line` is the number of the current one, from 1. If the file is cut,
/// `cut` says where.
status read_lines(byte_source& source, trace_parser& parser, std::uint64_t& line, std::string& cut) {
  std::vector<char> buffer(std::size_t{1} << 17);
  std::size_t kept = 0;  // bytes of an unfinished line at the front of the buffer
  line = 1;
  for (;;) {
    const auto got = source.read(std::span{buffer}.subspan(kept));
    if (!got && !source.ends_early()) return got.why();
    if (!got) {
      cut = what_is_cut(parser, {buffer.data(), kept}, got.why().message());
      return {};
    }
    std::string_view rest{buffer.data(), kept + *got};
    for (std::size_t end = rest.find('\n'); end != std::string_view::npos; end = rest.find('\n')) {
      if (status added = parser.add_line(rest.substr(0, end)); !added) return added;
      ++line;
      rest.remove_prefix(end + 1);
    }
    if (*got == 0) {
      if (!is_cut(rest) || line == 1) return rest.empty() ? status{} : parser.add_line(rest);
      if (!rest.empty()) cut = what_is_cut(parser, rest, "cut short: the last line does not end");
      return {};
    }
    if (rest.size() > longest_line) return damaged(fmt::format("a line of more than {} characters", longest_line));
    kept = rest.size();
    std::copy(rest.begin(), rest.end(), buffer.begin());
  }
}

/// FILE:N is device N of a snapshot, unless a file has that name.
std::pair<std::string, int> file_and_device(const std::string& path) {
  const std::size_t colon = path.rfind(':');
  std::error_code ignored;
  if (colon == std::string::npos || std::filesystem::exists(path, ignored)) return {path, -1};
  const auto device = whole_number<std::uint64_t>(std::string_view{path}.substr(colon + 1));
  if (!device || *device > 1024) return {path, -1};
  return {path.substr(0, colon), static_cast<int>(*device)};
}

/// Reads a pickle to its end, or to where its compressed form is cut; of other files only the beginning, and nothing of
/// a pipe, which can be read only once.
result<std::string> bytes_of_pickle(const std::string& file) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(file, ignored)) return std::string{};
  auto source = byte_source::open(file);
  if (!source) return source.why();
  std::string bytes;
  std::vector<char> buffer(std::size_t{1} << 17);
  for (;;) {
    const auto got = (*source)->read(buffer);
    if (!got && (*source)->ends_early()) return bytes;
    if (!got) return got.why();
    bytes.append(buffer.data(), *got);
    if (*got == 0 || !begins_as_pickle(bytes) || bytes.size() > pickle_data::most_bytes) return bytes;
  }
}

void warn_if_cut(const trace& read) {
  if (!read.cut.empty()) log_line(fmt::format("{}: {}", printable(read.path, longest_path), read.cut));
}

}  // namespace

result<trace> load_trace(const std::string& path) {
  const std::string shown = printable(path, longest_path);
  const auto [file, device] = file_and_device(path);
  if (const auto bytes = bytes_of_pickle(file); bytes && begins_as_pickle(*bytes)) {
    auto made = trace_of_snapshot(*bytes, device);
    if (!made) return status{made.code(), fmt::format("{}: {}", shown, made.why().message())};
    made->name = name_of(file);
    made->path = path;
    warn_if_cut(*made);
    return made;
  }
  if (is_binary_trace(path)) {
    auto compact = read_binary_trace(path);
    if (!compact) return status{compact.code(), fmt::format("{}: {}", shown, compact.why().message())};
    compact->name = name_of(path);
    compact->path = path;
    warn_if_cut(*compact);
    return compact;
  }
  auto source = byte_source::open(path);
  if (!source) return status{source.code(), fmt::format("{}: {}", shown, source.why().message())};
  trace loaded;
  loaded.name = name_of(path);
  loaded.path = path;
  trace_parser parser{loaded};
  std::uint64_t line = 0;
  status read = read_lines(**source, parser, line, loaded.cut);
  if (read.ok()) read = parser.finish();
  if (!read.ok()) return status{read.code(), fmt::format("{}:{}: {}", shown, line, read.message())};
  warn_if_cut(loaded);
  return loaded;
}

trace with_refused(const trace& recorded) {
  trace asked = recorded;
  asked.ops.clear();
  asked.refused.clear();
  std::uint64_t live_bytes = 0;
  auto refused = recorded.refused.begin();
  std::size_t next = 0;  // index of the first allocation at or after operation i
  for (std::size_t i = 0; i <= recorded.ops.size(); ++i) {
    next = std::max(next, i);
    while (next < recorded.ops.size() && recorded.ops[next].kind == op_kind::free) ++next;
    for (; refused != recorded.refused.end() && refused->before_op <= i; ++refused) {
      if (next < recorded.ops.size() && recorded.ops[next].bytes == refused->bytes) continue;
      trace_op op{refused->time_ns, refused->bytes, recorded.slots, refused->stream, op_kind::allocate};
      asked.ops.push_back(op);
      op.kind = op_kind::free;
      asked.ops.push_back(op);
      asked.slots = recorded.slots + 1;
      asked.peak_live_bytes = std::max(asked.peak_live_bytes, live_bytes + round_up(op.bytes, block_granularity));
    }
    if (i == recorded.ops.size()) break;
    const trace_op& op = asked.ops.emplace_back(recorded.ops[i]);
    const std::uint64_t bytes = round_up(op.bytes, block_granularity);
    live_bytes = op.kind == op_kind::allocate ? live_bytes + bytes : live_bytes - bytes;
  }
  if (asked.ops.size() == recorded.ops.size()) asked.refusing_policy.clear();
  return asked;
}

result<std::vector<std::string>> traces_in(const std::string& folder) {
  std::vector<std::string> found;
  std::error_code why;
  for (std::filesystem::directory_iterator entry{folder, why}, end; !why && entry != end; entry.increment(why)) {
    const std::string path = entry->path().string();
    if (path.ends_with(".csv") || path.ends_with(".csv.gz") || path.ends_with(".gmtrace")) found.push_back(path);
  }
  if (why) return status{errc::invalid_argument, fmt::format("{}: {}", printable(folder, longest_path), why.message())};
  if (found.empty()) {
    return status{errc::invalid_argument,
                  fmt::format("{}: no file in it ends in .csv, .csv.gz or .gmtrace", printable(folder, longest_path))};
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace gpumem::bench
