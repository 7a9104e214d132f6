/// Parses and prints GPUMEM_DEVICES. Does not check whether the named GPUs exist.
#include <fmt/format.h>

#include <algorithm>

#include "gpumem/settings.hpp"
#include "text.hpp"

namespace gpumem {
namespace {

constexpr std::string_view expected_cards =
    "ordinals or UUIDs with ',' between them (0,2 or GPU-8932f937), auto, auto:N, all, or nothing for none";
constexpr unsigned most_cards = 1024;

/// An ordinal without leading zeros, or a UUID (at least one letter or digit after its prefix).
bool names_a_card(std::string_view name) {
  if (const auto ordinal = whole_number<unsigned>(name)) return *ordinal < 10'000 && std::to_string(*ordinal) == name;
  return name.size() > 4 && (name.starts_with("GPU-") || name.starts_with("MIG-")) && is_alphanumeric(name, "-/");
}

}  // namespace

result<device_choice> parse_devices(std::string_view text, std::string_view setting) {
  const auto refused = [&](std::string_view why) {
    return status{errc::bad_setting, fmt::format("{}={}: expected {}", setting, printable(text), why)};
  };
  const std::string_view whole = trimmed(text);
  device_choice choice;
  if (whole.empty() || whole == "none") {
    choice.how = device_choice::kind::none;
    return choice;
  }
  if (whole == "all") return choice;
  if (whole == "auto" || whole.starts_with("auto:")) {
    choice.how = device_choice::kind::automatic;
    if (whole != "auto") choice.count = whole_number<unsigned>(whole.substr(5)).value_or(0);
    if (choice.count >= 1 && choice.count <= most_cards) return choice;
    return refused(fmt::format("auto:N with N from 1 to {}", most_cards));
  }
  choice.how = device_choice::kind::named;
  for (std::size_t begin = 0; begin <= whole.size();) {
    const std::size_t end = std::min(whole.find(',', begin), whole.size());
    const std::string_view name = trimmed(whole.substr(begin, end - begin));
    if (!names_a_card(name)) return refused(expected_cards);
    if (std::find(choice.names.begin(), choice.names.end(), name) != choice.names.end()) {
      return refused(fmt::format("each GPU once, not {} twice", name));
    }
    choice.names.emplace_back(name);
    begin = end + 1;
  }
  return choice;
}

std::string device_choice::to_string() const {
  if (how == kind::named) return fmt::format("{}", fmt::join(names, ","));
  if (how == kind::automatic) return count == 1 ? "auto" : fmt::format("auto:{}", count);
  return how == kind::none ? "none" : "";
}

}  // namespace gpumem
