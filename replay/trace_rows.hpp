/// Rows of RMM's CSV log as the operations of a trace.
///
/// Accepts beyond the plain form: CR LF, pointers with or without 0x, `(nil)`, streams in decimal or hexadecimal, a
/// point before the microseconds, and a clock that passes midnight.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "reader_limits.hpp"
#include "trace.hpp"

namespace gpumem::bench {

/// The number of fields of a row.
inline constexpr std::size_t row_fields = 6;

/// Reads the lines of a recording, one by one, into a trace.
class trace_parser {
 public:
  explicit trace_parser(trace& target) : target_{target} {}

  status add_line(std::string_view line);
  status finish() const;
  [[nodiscard]] std::size_t rows() const noexcept { return rows_; }

 private:
  using row = std::array<std::string_view, row_fields>;
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

}  // namespace gpumem::bench
