// The names of the device calls, for messages, statistics and the cost table.
#include "gpumem/device.hpp"

namespace gpumem {

std::string_view to_string(device_call call) noexcept {
  switch (call) {
    case device_call::alloc:
      return "alloc";
    case device_call::free:
      return "free";
    case device_call::alloc_host:
      return "alloc_host";
    case device_call::free_host:
      return "free_host";
    case device_call::reserve:
      return "reserve";
    case device_call::release_range:
      return "release_range";
    case device_call::create:
      return "create";
    case device_call::destroy:
      return "destroy";
    case device_call::map:
      return "map";
    case device_call::set_access:
      return "set_access";
    case device_call::unmap:
      return "unmap";
    case device_call::memory:
      return "memory";
    case device_call::record:
      return "record";
    case device_call::record_context:
      return "record_context";
    case device_call::query:
      return "query";
    case device_call::wait_host:
      return "wait_host";
    case device_call::wait_stream:
      return "wait_stream";
    case device_call::stream_id:
      return "stream_id";
    case device_call::capture_id:
      return "capture_id";
    case device_call::watch_graph:
      return "watch_graph";
    case device_call::synchronize:
      return "synchronize";
    case device_call::count_:
      break;
  }
  return "unknown call";
}

}  // namespace gpumem
