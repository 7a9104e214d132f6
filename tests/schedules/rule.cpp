#include "rule.hpp"

#include <array>
#include <cstdlib>

namespace gpumem::schedules {

std::string_view to_string(rule name) noexcept {
  constexpr std::array<std::string_view, static_cast<std::size_t>(rule::count_)> names{
      "ends", "hazards", "refusals", "growth", "deadline", "no_wait", "captures", "answers", "conservation", "peak"};
  return names[static_cast<std::size_t>(name)];
}

bool ignores(rule name) noexcept {
  static const std::string listed = [] {
    const char* const text = std::getenv("SCHEDULE_IGNORES");
    return std::string{text != nullptr ? text : ""};
  }();
  return listed.find(to_string(name)) != std::string::npos;
}

}  // namespace gpumem::schedules
