/// Text helpers for settings and messages. No state.
#pragma once

#include <charconv>
#include <concepts>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace gpumem {

/// `text` without surrounding spaces and tabs.
[[nodiscard]] std::string_view trimmed(std::string_view text) noexcept;

/// `text` with ASCII letters in lower case.
[[nodiscard]] std::string lowered(std::string_view text);

/// Whether each character is an ASCII letter, a digit or one of `extra`.
[[nodiscard]] bool is_alphanumeric(std::string_view text, std::string_view extra) noexcept;

/// The number whose digits are the whole text; empty for any other text, and for a number that is too large.
template <std::integral Number>
[[nodiscard]] std::optional<Number> whole_number(std::string_view text, int base = 10) noexcept {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  const bool whole = error == std::errc{} && end == text.data() + text.size() && text.front() != '-';
  return whole ? std::optional{value} : std::nullopt;
}

/// Removes a number from the beginning of `text`: digits with a fraction, no sign and no exponent (`10`, `2.5`, `.5`).
/// Empty, and `text` unchanged, if it does not begin with one.
[[nodiscard]] std::optional<double> take_decimal(std::string_view& text) noexcept;

/// The number whose digits, with an optional fraction, are the whole text.
[[nodiscard]] std::optional<double> decimal_number(std::string_view text) noexcept;

/// `text` for one line of a message: bytes other than printable ASCII become `\xNN`; a text longer than `most` bytes is
/// cut and ends with `...`.
[[nodiscard]] std::string printable(std::string_view text, std::size_t most = 120);

/// `text` for a terminal: control characters except newlines and tabs become `\xNN`. Keeps UTF-8.
[[nodiscard]] std::string visible(std::string_view text);

/// The candidate closest to a misspelt `name`, or empty if none is close: at most one edit per three letters, in
/// optimal string alignment distance (insert, delete, replace, swap neighbours). Ignores case.
[[nodiscard]] std::string_view closest_name(std::string_view name, std::span<const std::string_view> candidates);

}  // namespace gpumem
