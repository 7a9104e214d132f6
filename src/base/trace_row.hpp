/// Rows of a trace in RMM's CSV format, as text.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <type_traits>

#include "gpumem/statistics.hpp"

namespace gpumem {

inline constexpr std::string_view trace_header = "Thread,Time,Action,Pointer,Size,Stream\n";

/// Appends a row. `pointer`, an address or text, is the value of the pointer column.
template <typename Pointer>
void append_trace_row(fmt::memory_buffer& text, std::uint32_t thread, std::uint64_t time_us, std::string_view action,
                      const Pointer& pointer, std::uint64_t bytes, std::uint32_t stream) {
  constexpr std::string_view form = std::is_integral_v<Pointer> ? "{},{:02}:{:02}:{:02}:{:06},{},{:#x},{},{}\n"
                                                                : "{},{:02}:{:02}:{:02}:{:06},{},{},{},{}\n";
  const std::uint64_t time_s = time_us / 1'000'000;
  fmt::format_to(std::back_inserter(text), form, thread, time_s / 3600, time_s / 60 % 60, time_s % 60,
                 time_us % 1'000'000, action, pointer, bytes, stream);
}

/// Readers of traces accept no larger sizes, so a larger refused request is recorded with this size.
inline constexpr std::uint64_t most_recorded_bytes = std::uint64_t{1} << 48;

/// The most memory that the pool could have had at a refusal: its own, and the rest of its limit or of the card.
[[nodiscard]] std::uint64_t reachable_bytes(const oom_report& report) noexcept;

/// The pointer column of a refused request: `growth@3221225472`, or `(nil)` if the policy's name has a comma or
/// newline.
[[nodiscard]] std::string refusing_pool(std::string_view policy, std::uint64_t within_bytes);

}  // namespace gpumem
