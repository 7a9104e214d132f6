/// Small things about text that settings and messages share. No state.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace gpumem {

/// Without the spaces and tabs around it.
[[nodiscard]] std::string_view trimmed(std::string_view text) noexcept;

/// ASCII letters made small.
[[nodiscard]] std::string lowered(std::string_view text);

/// Fit for one line of a message: whatever is not printable ASCII becomes `\xNN`, and at most `most` bytes of
/// `text` are shown, then `...`.
[[nodiscard]] std::string printable(std::string_view text, std::size_t most = 120);

/// The candidate that `name` is most likely a misspelling of, or nothing where none is close. Letters left out,
/// added, exchanged or swapped with their neighbour count one each (optimal string alignment distance); one in
/// three letters may be wrong. Case does not count.
[[nodiscard]] std::string_view closest_name(std::string_view name, std::span<const std::string_view> candidates);

}  // namespace gpumem
