/// Where exceptions end: inside gpumem a function may throw `thrown_status`, or std::bad_alloc where the host is short
/// of memory, and its state is then as it was. At every edge to a program both become a status.
#pragma once

#include <vector>

#include "gpumem/status.hpp"

namespace gpumem {

/// Carries a status out of a function that cannot return one.
struct thrown_status {
  status why;
};

/// Runs `call`, which returns a status or a result.
template <typename Call>
auto without_exceptions(const Call& call) noexcept -> decltype(call()) {
  try {
    return call();
  } catch (...) {
    return status::of_current_exception();
  }
}

/// Room for one element more, so that the next push_back takes no memory. Grows as push_back does.
template <typename T>
void make_room(std::vector<T>& in) {
  if (in.size() == in.capacity()) in.reserve(in.empty() ? 1 : 2 * in.size());
}

}  // namespace gpumem
