// The names of the device calls, for messages, statistics and the cost table.
#include "gpumem/device.hpp"

namespace gpumem {

std::string_view to_string(device_call call) noexcept {
  constexpr std::array<std::string_view, device_call_kinds> names{
      "alloc",   "free",      "alloc_host",  "free_host", "reserve",    "release_range", "create",
      "destroy", "map",       "set_access",  "unmap",     "memory",     "record",        "record_context",
      "query",   "wait_host", "wait_stream", "stream_id", "capture_id", "watch_graph",   "synchronize"};
  const auto index = static_cast<std::size_t>(call);
  return index < names.size() ? names[index] : "unknown call";
}

}  // namespace gpumem
