/// Parses and prints GPUMEM_DEVICES. Does not check whether the named GPUs exist.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "gpumem/settings.hpp"
#include "text.hpp"

namespace gpumem {
namespace {

constexpr std::string_view expected =
    "ordinals or UUIDs with ',' between them (0,2 or GPU-8932f937), auto, auto:N, all, or nothing for none";
constexpr unsigned most_cards = 1024;

bool all_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

/// An ordinal without leading zeros, or a UUID (at least one letter or digit after its prefix).
bool names_a_card(std::string_view name) {
  if (all_digits(name)) return name.size() <= 4 && (name == "0" || name.front() != '0');
  const bool uuid = name.size() > 4 && (name.starts_with("GPU-") || name.starts_with("MIG-"));
  constexpr std::string_view letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-/";
  return uuid && name.find_first_not_of(letters) == std::string_view::npos;
}

}  // namespace

result<device_choice> parse_devices(std::string_view text, std::string_view what) {
  const auto refused = [&](std::string_view why) {
    return status{errc::bad_setting, fmt::format("{}={}: expected {}", what, printable(text), why)};
  };
  const std::string_view whole = trimmed(text);
  device_choice out;
  if (whole.empty() || whole == "none") {
    out.how = device_choice::kind::none;
    return out;
  }
  if (whole == "all") return out;
  if (whole == "auto" || whole.starts_with("auto:")) {
    out.how = device_choice::kind::automatic;
    if (whole == "auto") return out;
    const std::string_view number = whole.substr(5);
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), out.count);
    const bool read = error == std::errc{} && end == number.data() + number.size() && all_digits(number);
    if (!read || out.count == 0 || out.count > most_cards) {
      return refused(fmt::format("auto:N with N from 1 to {}", most_cards));
    }
    return out;
  }
  out.how = device_choice::kind::named;
  for (std::size_t at = 0; at <= whole.size();) {
    const std::size_t end = std::min(whole.find(',', at), whole.size());
    const std::string_view name = trimmed(whole.substr(at, end - at));
    if (!names_a_card(name)) return refused(expected);
    if (std::find(out.names.begin(), out.names.end(), name) != out.names.end()) {
      return refused(fmt::format("each GPU once, not {} twice", name));
    }
    out.names.emplace_back(name);
    at = end + 1;
  }
  return out;
}

std::string device_choice::to_string() const {
  switch (how) {
    case kind::all:
      return "";
    case kind::none:
      return "none";
    case kind::automatic:
      return count == 1 ? "auto" : fmt::format("auto:{}", count);
    case kind::named:
      return fmt::format("{}", fmt::join(names, ","));
  }
  return "";
}

}  // namespace gpumem
