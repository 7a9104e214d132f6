/// The size of a test from the environment.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace gpumem {

inline std::uint64_t environment_number(const char* variable, std::uint64_t usual) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? usual : std::strtoull(text, nullptr, 10);
}

}  // namespace gpumem
