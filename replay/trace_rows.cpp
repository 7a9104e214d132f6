#include "trace_rows.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "bits.hpp"
#include "gpumem/allocator.hpp"
#include "text.hpp"

namespace gpumem::bench {
namespace {

constexpr std::string_view refused_action = "allocate failure";
constexpr std::string_view header_line = "Thread,Time,Action,Pointer,Size,Stream";
constexpr std::uint64_t hour_ns = std::uint64_t{3600} * 1'000'000'000;
constexpr std::uint64_t day_ns = 24 * hour_ns;
constexpr std::uint64_t most_hours = 10'000;

std::string quoted(std::string_view text) { return fmt::format("'{}'", printable(text, 48)); }

bool strip_hex_prefix(std::string_view& text) {
  if (!text.starts_with("0x") && !text.starts_with("0X")) return false;
  text.remove_prefix(2);
  return true;
}

std::optional<std::uint64_t> parse_pointer(std::string_view text) {
  if (text == "(nil)") return 0;
  strip_hex_prefix(text);
  return whole_number<std::uint64_t>(text, 16);
}

/// Parses a stream. Without a prefix, it is decimal if all digits are decimal, else hexadecimal.
std::optional<std::uint64_t> parse_stream(std::string_view text) {
  if (text == "(nil)") return 0;
  if (strip_hex_prefix(text)) return whole_number<std::uint64_t>(text, 16);
  const auto decimal = whole_number<std::uint64_t>(text);
  return decimal ? decimal : whole_number<std::uint64_t>(text, 16);
}

/// `HH:MM:SS:microseconds`; hours may exceed 24.
std::optional<std::uint64_t> parse_time_ns(std::string_view text) {
  std::array<std::uint64_t, 4> parts{};
  constexpr std::array<std::uint64_t, 4> limits{most_hours, 60, 60, 1'000'000};
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::size_t end = i == 3 ? text.size() : text.find_first_of(i == 2 ? ":." : ":");
    if (end == std::string_view::npos || end > 6) return std::nullopt;
    const auto value = whole_number<std::uint64_t>(text.substr(0, end));
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
    return damaged(fmt::format("size {} is {}, expected bytes", quoted(text), negative ? "negative" : "not a number"));
  }
  const auto value = whole_number<std::uint64_t>(text);  // digits only, but out of range
  if (!value || *value >> 63 != 0) return damaged(fmt::format("size {} is 2^63 bytes or more", quoted(text)));
  if (*value > largest_block)
    return damaged(fmt::format("size {} is larger than any device (2^48 bytes)", quoted(text)));
  bytes = *value;
  return {};
}

enum field : std::size_t { thread_field, time_field, action_field, pointer_field, size_field, stream_field };

}  // namespace

status trace_parser::add_line(std::string_view line) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  if (!header_seen_) {
    if (line != header_line)
      return damaged(fmt::format("wrong header {}, expected {}", quoted(line), quoted(header_line)));
    header_seen_ = true;
    return {};
  }
  if (line.empty()) {
    blank_seen_ = true;
    return {};
  }
  if (blank_seen_) return damaged("a row after an empty line");
  row fields_of;
  std::size_t count = 0;
  for (std::string_view rest = line;;) {
    const std::size_t comma = rest.find(',');
    if (count < row_fields) fields_of[count] = rest.substr(0, comma);
    ++count;
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  if (count > row_fields) return damaged(fmt::format("stray fields: {} of them, expected 6", count));
  if (count < row_fields) return damaged(fmt::format("cut short: {} of 6 fields", count));
  ++rows_;
  return add_row(fields_of);
}

status trace_parser::add_row(const row& fields_of) {
  if (!whole_number<std::uint64_t>(fields_of[thread_field])) {
    return damaged(fmt::format("thread {} is not a number", quoted(fields_of[thread_field])));
  }
  const auto clock_ns = parse_time_ns(fields_of[time_field]);
  if (!clock_ns) {
    return damaged(fmt::format("time {}, expected HH:MM:SS:microseconds", quoted(fields_of[time_field])));
  }
  const std::string_view action = fields_of[action_field];
  if (action == refused_action) return add_refused(fields_of, *clock_ns);
  if (action != "allocate" && action != "free") {
    return damaged(fmt::format("action {}, expected allocate or free", quoted(action)));
  }
  const auto pointer = parse_pointer(fields_of[pointer_field]);
  if (!pointer) {
    return damaged(fmt::format("pointer {} is not a hexadecimal number", quoted(fields_of[pointer_field])));
  }
  trace_op op;
  if (status parsed = parse_size(fields_of[size_field], op.bytes); !parsed) return parsed;
  const auto stream = parse_stream(fields_of[stream_field]);
  if (!stream) {
    return damaged(fmt::format("stream {} is not a number", quoted(fields_of[stream_field])));
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
status trace_parser::add_refused(const row& fields_of, std::uint64_t clock_ns) {
  refused_request refused;
  refused.before_op = target_.ops.size();
  if (status parsed = parse_size(fields_of[size_field], refused.bytes); !parsed) return parsed;
  const auto stream = parse_stream(fields_of[stream_field]);
  if (!stream) return damaged(fmt::format("stream {} is not a number", quoted(fields_of[stream_field])));
  if (refused.bytes == 0) {
    ++target_.skipped_rows;
    return {};
  }
  const std::string_view refuser = fields_of[pointer_field];
  if (const std::size_t within = refuser.rfind('@'); within != std::string_view::npos) {
    const auto bytes = whole_number<std::uint64_t>(refuser.substr(within + 1));
    if (!bytes) return damaged(fmt::format("refused by {}, expected POLICY@BYTES", quoted(refuser)));
    target_.refusing_policy = refuser.substr(0, within);
    target_.refused_within_bytes = std::max(target_.refused_within_bytes, *bytes);
  }
  if (status found = stream_index(*stream, refused.stream); !found) return found;
  if (status timed = since_start(clock_ns, refused.time_ns); !timed) return timed;
  target_.refused.push_back(refused);
  return {};
}

status trace_parser::add_op(op_kind kind, std::uint64_t pointer, trace_op op) {
  op.kind = kind;
  const auto found = live_.find(pointer);
  if (kind == op_kind::free) {
    if (found == live_.end()) return damaged(fmt::format("free of {:#x}, which is not live", pointer));
    if (found->second.bytes != op.bytes) {
      return damaged(
          fmt::format("free of {:#x} with size {}, allocated with {}", pointer, op.bytes, found->second.bytes));
    }
    op.slot = found->second.slot;
    free_slots_.push_back(op.slot);
    live_.erase(found);
    live_bytes_ -= round_up(op.bytes, block_granularity);
  } else {
    if (pointer == 0) return damaged(fmt::format("allocate of {} bytes at a null pointer", op.bytes));
    if (found != live_.end()) return damaged(fmt::format("allocate of {:#x}, which is live", pointer));
    live_bytes_ += round_up(op.bytes, block_granularity);
    if (live_bytes_ > largest_live) return damaged("more than 2^56 bytes are live");
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

status trace_parser::stream_index(std::uint64_t stream, std::uint16_t& index) {
  const auto [found, added] = stream_numbers_.try_emplace(stream, static_cast<std::uint16_t>(target_.streams.size()));
  index = found->second;
  if (!added) return {};
  if (target_.streams.size() == most_streams) return damaged("more than 65536 streams");
  target_.streams.push_back(stream);
  return {};
}

/// Converts a time of day. A time that falls by more than half a day has passed midnight; a smaller fall means that
/// threads were logged out of order.
status trace_parser::since_start(std::uint64_t clock_ns, std::uint64_t& time_ns) {
  if (!first_clock_ns_) first_clock_ns_ = last_clock_ns_ = clock_ns;
  const bool time_of_day = clock_ns < day_ns;
  clock_ns += days_ns_;
  if (time_of_day && last_clock_ns_ > clock_ns && last_clock_ns_ - clock_ns > day_ns / 2) {
    clock_ns += day_ns;
    days_ns_ += day_ns;
  }
  last_clock_ns_ = std::max(last_clock_ns_, clock_ns);
  time_ns = last_clock_ns_ - *first_clock_ns_;
  if (time_ns > most_hours * hour_ns) return damaged(fmt::format("the trace lasts longer than {} hours", most_hours));
  return {};
}

status trace_parser::finish() const {
  if (!header_seen_) return damaged("the file is empty");
  if (target_.ops.empty()) return damaged("no operations after the header");
  return {};
}

}  // namespace gpumem::bench
