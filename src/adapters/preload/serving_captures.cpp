// Captures, from where they begin to where they end: meanwhile gpumem waits for nothing, and what is allocated on a
// stream that captures is the driver's business.
#include <algorithm>
#include <vector>

#include "checked_mutex.hpp"
#include "serving.hpp"

namespace gpumem::preload {
namespace {

checked_mutex captures_mutex;
std::atomic<int> captures_open{0};

std::vector<CUstream>& captures() {
  static auto* const only = new std::vector<CUstream>;
  return *only;
}

}  // namespace

bool capturing_somewhere() noexcept { return captures_open.load(std::memory_order_acquire) > 0; }

// A device whose streams these are not refuses, or has an empty capture: neither does harm.
void capture_begins(CUstream s) noexcept {
  captures_open.fetch_add(1, std::memory_order_acq_rel);
  {
    const mutex_lock lock{captures_mutex};
    captures().push_back(s);
  }
  for_each_device([s](served_device& d) { static_cast<void>(d.memory->capture_begin({s})); });
}

void capture_is_over(CUstream s) noexcept {
  {
    const mutex_lock lock{captures_mutex};
    const auto at = std::find(captures().begin(), captures().end(), s);
    if (at == captures().end()) return;
    captures().erase(at);
  }
  // Nothing was allocated for the graph: that was passed on.
  for_each_device([s](served_device& d) {
    if (const result<graph_ref> empty = d.memory->capture_end({s})) static_cast<void>(d.memory->graph_release(*empty));
  });
  captures_open.fetch_sub(1, std::memory_order_acq_rel);
}

void tell_of_captures(served_device& d) noexcept {
  const mutex_lock lock{captures_mutex};
  for (const CUstream s : captures()) static_cast<void>(d.memory->capture_begin({s}));
}

}  // namespace gpumem::preload
