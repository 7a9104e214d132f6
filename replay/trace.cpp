/// Reads traces row by row, so that the file is never in memory as a whole.
///
/// Accepts beyond the plain form: CR LF, pointers with or without 0x, `(nil)`, streams in decimal or hexadecimal, a
/// point before the microseconds, and a clock that passes midnight.
#include "trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>

#include "binary_trace.hpp"
#include "bits.hpp"
#include "byte_source.hpp"
#include "gpumem/allocator.hpp"
#include "log.hpp"
#include "pickle.hpp"
#include "reader_limits.hpp"
#include "snapshot.hpp"
#include "text.hpp"

namespace gpumem::bench {
namespace {

constexpr std::string_view refused_action = "allocate failure";
constexpr std::string_view header = "Thread,Time,Action,Pointer,Size,Stream";
constexpr std::size_t longest_line = 1024;
constexpr std::uint64_t largest_block = std::uint64_t{1} << 48;
constexpr std::uint64_t largest_live = std::uint64_t{1} << 56;
constexpr std::uint64_t hour_ns = std::uint64_t{3600} * 1'000'000'000;
constexpr std::uint64_t day_ns = 24 * hour_ns;
constexpr std::uint64_t most_hours = 10'000;
constexpr std::size_t most_streams = 65536;
constexpr std::size_t longest_path = 4096;

enum field : std::size_t { thread_field, time_field, action_field, pointer_field, size_field, stream_field, fields };
using row = std::array<std::string_view, fields>;

std::string quoted(std::string_view text) { return fmt::format("'{}'", printable(text, 48)); }

status bad(std::string reason) { return {errc::corrupt, std::move(reason)}; }

std::optional<std::uint64_t> parse_number(std::string_view text, int base = 10) {
  std::uint64_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (text.empty() || code != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

bool strip_hex_prefix(std::string_view& text) {
  if (!text.starts_with("0x") && !text.starts_with("0X")) return false;
  text.remove_prefix(2);
  return true;
}

std::optional<std::uint64_t> parse_pointer(std::string_view text) {
  if (text == "(nil)") return 0;
  strip_hex_prefix(text);
  return parse_number(text, 16);
}

/// Parses a stream. Without a prefix, it is decimal if all digits are decimal, else hexadecimal.
std::optional<std::uint64_t> parse_stream(std::string_view text) {
  if (text == "(nil)") return 0;
  if (strip_hex_prefix(text)) return parse_number(text, 16);
  const auto decimal = parse_number(text);
  return decimal ? decimal : parse_number(text, 16);
}

/// `HH:MM:SS:microseconds`; hours may exceed 24.
std::optional<std::uint64_t> parse_time_ns(std::string_view text) {
  std::array<std::uint64_t, 4> parts{};
  constexpr std::array<std::uint64_t, 4> limits{most_hours, 60, 60, 1'000'000};
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::size_t end = i == 3 ? text.size() : text.find_first_of(i == 2 ? ":." : ":");
    if (end == std::string_view::npos || end > 6) return std::nullopt;
    const auto value = parse_number(text.substr(0, end));
    if (!value || *value >= limits[i]) return std::nullopt;
    parts[i] = *value;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return ((parts[0] * 60 + parts[1]) * 60 + parts[2]) * 1'000'000'000 + parts[3] * 1000;
}

status parse_size(std::string_view text, std::uint64_t& bytes) {
  const bool digits = !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
  if (!digits) {
    const bool negative = text.size() > 1 && text.front() == '-';
    return bad(fmt::format("size {} is {}, expected bytes", quoted(text), negative ? "negative" : "not a number"));
  }
  const auto value = parse_number(text);  // digits only, but out of range
  if (!value || *value >> 63 != 0) return bad(fmt::format("size {} is 2^63 bytes or more", quoted(text)));
  if (*value > largest_block) return bad(fmt::format("size {} is larger than any device (2^48 bytes)", quoted(text)));
  bytes = *value;
  return {};
}

/// Builds a trace from lines.
class trace_builder {
 public:
  explicit trace_builder(trace& target) : target_{target} {}

  status add_line(std::string_view line);
  status finish() const;
  [[nodiscard]] std::size_t rows() const noexcept { return rows_; }

 private:
  struct live_block {
    std::uint64_t bytes;
    std::uint32_t slot;
  };
  status add_row(const row& fields_of);
  status add_refused(const row& fields_of, std::uint64_t clock_ns);
  status add_op(op_kind kind, std::uint64_t pointer, trace_op op);
  status stream_index(std::uint64_t stream, std::uint16_t& index);
  status since_start(std::uint64_t clock_ns, std::uint64_t& time_ns);

  trace& target_;
  bool header_seen_ = false;
  bool blank_seen_ = false;
  std::size_t rows_ = 0;
  map_of_numbers<live_block> live_;
  map_of_numbers<std::uint16_t> stream_numbers_;
  std::vector<std::uint32_t> free_slots_;
  std::optional<std::uint64_t> first_clock_ns_;
  std::uint64_t last_clock_ns_ = 0;
  std::uint64_t days_ns_ = 0;
  std::uint64_t live_bytes_ = 0;
};

status trace_builder::add_line(std::string_view line) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  if (!header_seen_) {
    if (line != header) return bad(fmt::format("wrong header {}, expected {}", quoted(line), quoted(header)));
    header_seen_ = true;
    return {};
  }
  if (line.empty()) {
    blank_seen_ = true;
    return {};
  }
  if (blank_seen_) return bad("a row after an empty line");
  row fields_of;
  std::size_t count = 0;
  for (std::string_view rest = line;;) {
    const std::size_t comma = rest.find(',');
    if (count < fields) fields_of[count] = rest.substr(0, comma);
    ++count;
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  if (count > fields) return bad(fmt::format("stray fields: {} of them, expected 6", count));
  if (count < fields) return bad(fmt::format("cut short: {} of 6 fields", count));
  ++rows_;
  return add_row(fields_of);
}

status trace_builder::add_row(const row& fields_of) {
  if (!parse_number(fields_of[thread_field])) {
    return bad(fmt::format("thread {} is not a number", quoted(fields_of[thread_field])));
  }
  const auto clock_ns = parse_time_ns(fields_of[time_field]);
  if (!clock_ns) {
    return bad(fmt::format("time {}, expected HH:MM:SS:microseconds", quoted(fields_of[time_field])));
  }
  const std::string_view action = fields_of[action_field];
  if (action == refused_action) return add_refused(fields_of, *clock_ns);
  if (action != "allocate" && action != "free") {
    return bad(fmt::format("action {}, expected allocate or free", quoted(action)));
  }
  const auto pointer = parse_pointer(fields_of[pointer_field]);
  if (!pointer) {
    return bad(fmt::format("pointer {} is not a hexadecimal number", quoted(fields_of[pointer_field])));
  }
  trace_op op;
  if (status parsed = parse_size(fields_of[size_field], op.bytes); !parsed) return parsed;
  const auto stream = parse_stream(fields_of[stream_field]);
  if (!stream) {
    return bad(fmt::format("stream {} is not a number", quoted(fields_of[stream_field])));
  }
  if (op.bytes == 0) {
    ++target_.skipped_rows;
    return {};
  }
  if (status found = stream_index(*stream, op.stream); !found) return found;
  if (status timed = since_start(*clock_ns, op.time_ns); !timed) return timed;
  return add_op(action == "free" ? op_kind::free : op_kind::allocate, *pointer, op);
}

/// gpumem writes POLICY@BYTES instead of the pointer: the policy that refused, and its memory limit.
status trace_builder::add_refused(const row& fields_of, std::uint64_t clock_ns) {
  refused_request refused;
  refused.before_op = target_.ops.size();
  if (status parsed = parse_size(fields_of[size_field], refused.bytes); !parsed) return parsed;
  const auto stream = parse_stream(fields_of[stream_field]);
  if (!stream) return bad(fmt::format("stream {} is not a number", quoted(fields_of[stream_field])));
  if (refused.bytes == 0) {
    ++target_.skipped_rows;
    return {};
  }
  const std::string_view refuser = fields_of[pointer_field];
  if (const std::size_t within = refuser.rfind('@'); within != std::string_view::npos) {
    const auto bytes = parse_number(refuser.substr(within + 1));
    if (!bytes) return bad(fmt::format("refused by {}, expected POLICY@BYTES", quoted(refuser)));
    target_.refusing_policy = refuser.substr(0, within);
    target_.refused_within_bytes = std::max(target_.refused_within_bytes, *bytes);
  }
  if (status found = stream_index(*stream, refused.stream); !found) return found;
  if (status timed = since_start(clock_ns, refused.time_ns); !timed) return timed;
  target_.refused.push_back(refused);
  return {};
}

status trace_builder::add_op(op_kind kind, std::uint64_t pointer, trace_op op) {
  op.kind = kind;
  const auto found = live_.find(pointer);
  if (kind == op_kind::free) {
    if (found == live_.end()) return bad(fmt::format("free of {:#x}, which is not live", pointer));
    if (found->second.bytes != op.bytes) {
      return bad(fmt::format("free of {:#x} with size {}, allocated with {}", pointer, op.bytes, found->second.bytes));
    }
    op.slot = found->second.slot;
    free_slots_.push_back(op.slot);
    live_.erase(found);
    live_bytes_ -= round_up(op.bytes, block_granularity);
  } else {
    if (pointer == 0) return bad(fmt::format("allocate of {} bytes at a null pointer", op.bytes));
    if (found != live_.end()) return bad(fmt::format("allocate of {:#x}, which is live", pointer));
    live_bytes_ += round_up(op.bytes, block_granularity);
    if (live_bytes_ > largest_live) return bad("more than 2^56 bytes are live");
    if (free_slots_.empty()) {
      op.slot = target_.slots++;
    } else {
      op.slot = free_slots_.back();
      free_slots_.pop_back();
    }
    live_.emplace(pointer, live_block{op.bytes, op.slot});
    target_.peak_live_bytes = std::max(target_.peak_live_bytes, live_bytes_);
  }
  target_.ops.push_back(op);
  return {};
}

status trace_builder::stream_index(std::uint64_t stream, std::uint16_t& index) {
  const auto [found, added] = stream_numbers_.try_emplace(stream, static_cast<std::uint16_t>(target_.streams.size()));
  index = found->second;
  if (!added) return {};
  if (target_.streams.size() == most_streams) return bad("more than 65536 streams");
  target_.streams.push_back(stream);
  return {};
}

/// Converts a time of day. A time that falls by more than half a day has passed midnight; a smaller fall means that
/// threads were logged out of order.
status trace_builder::since_start(std::uint64_t clock_ns, std::uint64_t& time_ns) {
  if (!first_clock_ns_) first_clock_ns_ = last_clock_ns_ = clock_ns;
  const bool time_of_day = clock_ns < day_ns;
  clock_ns += days_ns_;
  if (time_of_day && last_clock_ns_ > clock_ns && last_clock_ns_ - clock_ns > day_ns / 2) {
    clock_ns += day_ns;
    days_ns_ += day_ns;
  }
  last_clock_ns_ = std::max(last_clock_ns_, clock_ns);
  time_ns = last_clock_ns_ - *first_clock_ns_;
  if (time_ns > most_hours * hour_ns) return bad(fmt::format("the trace lasts longer than {} hours", most_hours));
  return {};
}

status trace_builder::finish() const {
  if (!header_seen_) return bad("the file is empty");
  if (target_.ops.empty()) return bad("no operations after the header");
  return {};
}

std::string name_of(const std::string& path) {
  std::string name = std::filesystem::path{path}.filename().string();
  for (const std::string_view ending : {".gz", ".csv", ".pickle", ".gmtrace"}) {
    if (name.size() > ending.size() && name.ends_with(ending)) name.resize(name.size() - ending.size());
  }
  return name;
}

/// Whether the last row is cut within its fields, as by a killed program.
bool is_cut(std::string_view last_line) {
  return std::count(last_line.begin(), last_line.end(), ',') < static_cast<std::ptrdiff_t>(fields - 1) ||
         last_line.ends_with(',');
}

/// Describes the missing end of a file. `of_row` is the beginning of a cut row; empty if the last row is whole.
std::string what_is_cut(const trace_builder& read, std::string_view of_row, std::string_view why) {
  return fmt::format("{}; read to row {}, the last whole one{}", why, read.rows(),
                     of_row.empty() ? "" : "; 1 row behind it is cut and lost");
}

/// Splits the contents of `source` into lines; `line` is the number of the current one, from 1. If the file is cut,
/// `cut` says where.
status read_lines(byte_source& source, trace_builder& builder, std::uint64_t& line, std::string& cut) {
  std::vector<char> buffer(std::size_t{1} << 17);
  std::size_t kept = 0;  // bytes of an unfinished line at the front of the buffer
  line = 1;
  for (;;) {
    const auto got = source.read(std::span{buffer}.subspan(kept));
    if (!got && !source.ends_early()) return got.why();
    if (!got) {
      cut = what_is_cut(builder, {buffer.data(), kept}, got.why().message());
      return {};
    }
    std::string_view rest{buffer.data(), kept + *got};
    for (std::size_t end = rest.find('\n'); end != std::string_view::npos; end = rest.find('\n')) {
      if (status added = builder.add_line(rest.substr(0, end)); !added) return added;
      ++line;
      rest.remove_prefix(end + 1);
    }
    if (*got == 0) {
      if (!is_cut(rest) || line == 1) return rest.empty() ? status{} : builder.add_line(rest);
      if (!rest.empty()) cut = what_is_cut(builder, rest, "cut short: the last line does not end");
      return {};
    }
    if (rest.size() > longest_line) return bad(fmt::format("a line of more than {} characters", longest_line));
    kept = rest.size();
    std::copy(rest.begin(), rest.end(), buffer.begin());
  }
}

/// FILE:N is device N of a snapshot, unless a file has that name.
std::pair<std::string, int> file_and_device(const std::string& path) {
  const std::size_t colon = path.rfind(':');
  std::error_code ignored;
  if (colon == std::string::npos || std::filesystem::exists(path, ignored)) return {path, -1};
  const auto device = parse_number(std::string_view{path}.substr(colon + 1));
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
  trace_builder builder{loaded};
  std::uint64_t line = 0;
  status read = read_lines(**source, builder, line, loaded.cut);
  if (read.ok()) read = builder.finish();
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
