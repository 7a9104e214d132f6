/// Converts exceptions to statuses. A function inside gpumem may throw `thrown_status`, or std::bad_alloc if the host
/// has no memory, and then leaves its state unchanged. Every public function converts both to a status.
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

/// Reserves room for one more element, so that the next push_back takes no memory. Grows as push_back does.
template <typename T>
void make_room(std::vector<T>& elements) {
  if (elements.size() == elements.capacity()) elements.reserve(elements.empty() ? 1 : 2 * elements.size());
}

}  // namespace gpumem
