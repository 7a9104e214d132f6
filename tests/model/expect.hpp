/// The failure of a check.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <utility>

namespace gpumem::model {

struct disagreement {
  std::string what;
};

template <typename... Args>
void expect(bool holds, fmt::format_string<Args...> what, Args&&... args) {
  if (!holds) throw disagreement{fmt::format(what, std::forward<Args>(args)...)};
}

/// A device address as the pointer that the program holds.
inline void* pointer(std::uint64_t at) { return reinterpret_cast<void*>(at); }  // NOLINT

}  // namespace gpumem::model
