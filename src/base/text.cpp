/// Trimming, printable text for messages, and the closest known name.
#include "text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace gpumem {
namespace {

/// A longer name is no misspelling, and its distance would take long to compute.
constexpr std::size_t longest_misspelling = 64;

std::size_t alignment_distance(std::string_view lhs, std::string_view rhs) {
  const std::size_t width = rhs.size() + 1;
  std::vector<std::size_t> cells((lhs.size() + 1) * width);
  const auto cell = [&](std::size_t row, std::size_t column) -> std::size_t& { return cells[row * width + column]; };
  for (std::size_t i = 0; i <= lhs.size(); ++i) cell(i, 0) = i;
  for (std::size_t j = 0; j <= rhs.size(); ++j) cell(0, j) = j;
  for (std::size_t i = 1; i <= lhs.size(); ++i) {
    for (std::size_t j = 1; j <= rhs.size(); ++j) {
      const std::size_t exchanged = cell(i - 1, j - 1) + (lhs[i - 1] == rhs[j - 1] ? 0U : 1U);
      cell(i, j) = std::min({cell(i - 1, j) + 1, cell(i, j - 1) + 1, exchanged});
      if (i > 1 && j > 1 && lhs[i - 1] == rhs[j - 2] && lhs[i - 2] == rhs[j - 1]) {
        cell(i, j) = std::min(cell(i, j), cell(i - 2, j - 2) + 1);
      }
    }
  }
  return cell(lhs.size(), rhs.size());
}

}  // namespace

std::string_view trimmed(std::string_view text) noexcept {
  constexpr std::string_view blanks = " \t";
  const std::size_t first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

std::string lowered(std::string_view text) {
  std::string small{text};
  for (char& c : small) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return small;
}

bool is_alphanumeric(std::string_view text, std::string_view extra) noexcept {
  return std::ranges::all_of(text, [extra](char character) {
    return (character >= '0' && character <= '9') || (character >= 'A' && character <= 'Z') ||
           (character >= 'a' && character <= 'z') || extra.find(character) != extra.npos;
  });
}

std::optional<double> take_decimal(std::string_view& text) noexcept {
  if (text.empty() || text.front() == '-') return std::nullopt;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  if (error != std::errc{} || !std::isfinite(value)) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

std::optional<double> decimal_number(std::string_view text) noexcept {
  const std::optional<double> value = take_decimal(text);
  return text.empty() ? value : std::nullopt;
}

std::string printable(std::string_view text, std::size_t most) {
  std::string shown;
  for (const char c : text.substr(0, most)) {
    if (c >= 0x20 && c < 0x7f) {
      shown.push_back(c);
    } else {
      shown += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  if (text.size() > most) shown += "...";
  return shown;
}

std::string visible(std::string_view text) {
  std::string shown;
  shown.reserve(text.size());
  const auto escape = [&shown](char character) {
    shown += fmt::format("\\x{:02x}", static_cast<unsigned char>(character));
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0U;
    if ((byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7f) {
      escape(text[i]);
    } else if (byte == 0xc2 && next >= 0x80 && next < 0xa0) {  // U+0080 to U+009F, controls too
      escape(text[i]);
      escape(text[++i]);
    } else {
      shown.push_back(text[i]);
    }
  }
  return shown;
}

std::string_view closest_name(std::string_view name, std::span<const std::string_view> candidates) {
  if (name.size() > longest_misspelling) return {};
  const std::string wanted = lowered(name);
  std::string_view closest;
  std::size_t least = wanted.size() / 3 + 1;
  for (const std::string_view candidate : candidates) {
    const std::size_t distance = alignment_distance(wanted, lowered(candidate));
    if (distance < least) {
      least = distance;
      closest = candidate;
    }
  }
  return closest;
}

}  // namespace gpumem
