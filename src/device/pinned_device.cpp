#include "gpumem/pinned_device.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <unordered_map>
#include <utility>

#include "checked_mutex.hpp"

namespace gpumem {
namespace {

/// The address of this object is the handle of the host's stream, which no other stream can have.
constexpr char host_stream_is_here = 0;
/// A fence on the host's stream is always done, because the host's work is synchronous.
constexpr fence nothing_to_wait_for{UINT64_MAX};
constexpr std::uint64_t host_stream_id = UINT64_MAX;

std::uint64_t half_of_host_memory(std::uint64_t granularity) {
  const long pages = sysconf(_SC_PHYS_PAGES);
  const long page = sysconf(_SC_PAGESIZE);
  const std::uint64_t half = static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page) / 2;
  return half / granularity * granularity;
}

status no_pages() { return {errc::unsupported, "pinned host memory cannot be mapped page by page"}; }

}  // namespace

struct pinned_device::state {
  explicit state(device& target) : gpu{target} {}

  device& gpu;
  device_info info;
  checked_mutex mutex;  // guards the following; never held across a device call
  std::unordered_map<address, std::uint64_t> segments GPUMEM_GUARDED_BY(mutex);
  std::uint64_t taken_bytes GPUMEM_GUARDED_BY(mutex) = 0;
};

pinned_device::pinned_device(device& gpu, std::uint64_t capacity_bytes) : state_{std::make_unique<state>(gpu)} {
  device_info& info = state_->info;
  info = gpu.info();
  info.name = "pinned host memory of " + gpu.info().name;
  info.total_bytes = capacity_bytes != 0 ? capacity_bytes : half_of_host_memory(info.granularity_bytes);
  info.page_bytes = 0;
}

pinned_device::~pinned_device() = default;

stream_ref pinned_device::host_stream() noexcept {
  return {const_cast<char*>(&host_stream_is_here)};  // only compared, never dereferenced
}

const device_info& pinned_device::info() const noexcept { return state_->info; }

result<address> pinned_device::do_alloc(std::uint64_t bytes) {
  state& s = *state_;
  {
    const mutex_lock lock{s.mutex};
    if (bytes > s.info.total_bytes - s.taken_bytes) {
      return status{errc::out_of_memory, fmt::format("{} bytes of pinned host memory asked, {} of {} are taken", bytes,
                                                     s.taken_bytes, s.info.total_bytes)};
    }
    s.taken_bytes += bytes;
  }
  result<address> got = s.gpu.alloc_host(bytes);
  set_condition(s.gpu.condition());
  const mutex_lock lock{s.mutex};
  if (got) {
    s.segments.emplace(*got, bytes);
  } else {
    s.taken_bytes -= bytes;
  }
  return got;
}

status pinned_device::do_free(address segment) {
  state& s = *state_;
  std::uint64_t bytes = 0;
  {
    const mutex_lock lock{s.mutex};
    const auto found = s.segments.find(segment);
    if (found == s.segments.end()) {
      return {errc::unknown_pointer, fmt::format("{:#x} is not pinned host memory of this device", segment)};
    }
    bytes = found->second;
    s.segments.erase(found);  // before the free, after which the driver may reuse the address
  }
  status freed = s.gpu.free_host(segment);
  set_condition(s.gpu.condition());
  const mutex_lock lock{s.mutex};
  if (freed) {
    s.taken_bytes -= bytes;
  } else {
    s.segments.emplace(segment, bytes);
  }
  return freed;
}

result<address> pinned_device::do_alloc_host(std::uint64_t bytes) { return do_alloc(bytes); }
status pinned_device::do_free_host(address segment) { return do_free(segment); }

result<address> pinned_device::do_reserve(std::uint64_t /*bytes*/) { return no_pages(); }
status pinned_device::do_release_range(address /*range*/, std::uint64_t /*bytes*/) { return no_pages(); }
result<page_run> pinned_device::do_create(std::uint64_t /*bytes*/) { return no_pages(); }
status pinned_device::do_destroy(page_run /*pages*/) { return no_pages(); }
status pinned_device::do_map(address /*begin*/, std::uint64_t /*bytes*/, page_run /*pages*/) { return no_pages(); }
status pinned_device::do_set_access(address /*begin*/, std::uint64_t /*bytes*/) { return no_pages(); }
status pinned_device::do_unmap(address /*begin*/, std::uint64_t /*bytes*/) { return no_pages(); }

result<memory_info> pinned_device::do_memory() {
  const mutex_lock lock{state_->mutex};
  return memory_info{.free_bytes = state_->info.total_bytes - state_->taken_bytes,
                     .total_bytes = state_->info.total_bytes};
}

result<fence> pinned_device::do_record(stream_ref stream) {
  if (stream == host_stream()) return nothing_to_wait_for;
  return state_->gpu.record(stream);
}
result<fence> pinned_device::do_record_context() { return state_->gpu.record_context(); }

result<bool> pinned_device::do_query(fence fence) {
  if (fence == nothing_to_wait_for) return true;
  return state_->gpu.query(fence);
}
status pinned_device::do_wait_host(fence fence) {
  if (fence == nothing_to_wait_for) return {};
  return state_->gpu.wait_host(fence);
}
status pinned_device::do_wait_stream(stream_ref waiter, fence fence) {
  if (waiter == host_stream()) return do_wait_host(fence);
  if (fence == nothing_to_wait_for) return {};
  return state_->gpu.wait_stream(waiter, fence);
}
void pinned_device::do_drop(fence fence) noexcept {
  if (fence != nothing_to_wait_for) state_->gpu.drop(fence);
}

result<std::uint64_t> pinned_device::do_stream_id(stream_ref stream) {
  if (stream == host_stream()) return host_stream_id;
  return state_->gpu.stream_id(stream);
}
result<std::uint64_t> pinned_device::do_capture_id(stream_ref stream) {
  if (stream == host_stream()) return std::uint64_t{0};
  return state_->gpu.capture_id(stream);
}
status pinned_device::do_watch_graph(stream_ref capturing, std::function<void()> gone) {
  return state_->gpu.watch_graph(capturing, std::move(gone));
}
status pinned_device::do_synchronize() { return state_->gpu.synchronize(); }

}  // namespace gpumem
