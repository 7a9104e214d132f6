/// Text helpers for settings and messages. No state.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace gpumem {

/// `text` without surrounding spaces and tabs.
[[nodiscard]] std::string_view trimmed(std::string_view text) noexcept;

/// `text` with ASCII letters in lower case.
[[nodiscard]] std::string lowered(std::string_view text);

/// `text` for one line of a message: bytes other than printable ASCII become `\xNN`, and after `most` bytes follows
/// `...`.
[[nodiscard]] std::string printable(std::string_view text, std::size_t most = 120);

/// The candidate closest to a misspelt `name`, or empty if none is close: at most one edit per three letters, in
/// optimal string alignment distance (insert, delete, replace, swap neighbours). Ignores case.
[[nodiscard]] std::string_view closest_name(std::string_view name, std::span<const std::string_view> candidates);

}  // namespace gpumem
