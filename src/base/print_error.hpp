// fmt::print for stderr that never fails: a stderr that is closed, full or not read loses the text.
#pragma once

#include <fmt/format.h>

#include <utility>

#include "log.hpp"

namespace gpumem {

template <typename... Values>
void print_error(fmt::format_string<Values...> format, Values&&... values) {
  write_stderr(fmt::format(format, std::forward<Values>(values)...));
}

}  // namespace gpumem
