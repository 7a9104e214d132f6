// The context of a GPU and its memory calls. cuda_open.cpp opens a GPU; cuda_fences.cpp makes the stream and fence
// calls.
#include "cuda_device.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "cuda_entered.hpp"
#include "gpumem/settings.hpp"
#include "nvml.hpp"
#include "process_life.hpp"

namespace gpumem {
namespace {

std::uint64_t next_number() {
  static std::atomic<std::uint64_t> latest{0};
  return ++latest;
}

/// Describes a range for the message of a failed call.
auto range_text(address begin, std::uint64_t bytes) {
  return [begin, bytes] { return fmt::format("of {} at {:#x}", format_bytes(bytes), begin); };
}

}  // namespace

result<std::unique_ptr<device>> open_cuda_device(const cuda_config& config) {
  const cuda_driver* driver = config.driver;
  if (driver == nullptr) {
    const result<const cuda_driver*> found = load_cuda_driver();
    if (!found) return found.why();
    driver = *found;
  }
  return cuda_device::open(*driver, config);
}

status add_cuda_peer(device& target, int ordinal) {
  auto* const gpu = dynamic_cast<cuda_device*>(&target);
  if (gpu == nullptr) return {errc::invalid_argument, "not a device that open_cuda_device made"};
  return gpu->add_peer(ordinal);
}

cuda_device::cuda_device(const cuda_driver& driver, CUdevice handle, device_info info)
    : driver_{driver}, handle_{handle}, info_{std::move(info)}, number_{next_number()} {
  remember(this);
}

cuda_device::~cuda_device() {
  forget(this);
  if (context_ == nullptr || condition() != device_condition::usable || process_exiting()) return;
  {
    const entered scope{*this};
    if (scope.ok()) {
      for (CUevent e : events_) driver_.event_destroy(e);
    }
  }
  driver_.primary_ctx_release(handle_);
}

// Checks the primary context's id: a changed id means that the program reset the device.
status cuda_device::context(CUcontext* target) {
  switch (condition()) {
    case device_condition::usable:
      break;
    case device_condition::forked:
      return {errc::device_error,
              fmt::format("device {} cannot be used in a process that was forked after CUDA was: use it in the parent, "
                          "or start the child with exec or spawn",
                          info_.ordinal)};
    case device_condition::reset:
      return {errc::device_error,
              fmt::format("device {} was reset (cudaDeviceReset), and all memory on it is gone: open "
                          "a new allocator",
                          info_.ordinal)};
  }
  const auto of_device = [this] { return fmt::format("of device {}", info_.ordinal); };
  CUcontext known = context_.load(std::memory_order_acquire);
  if (known == nullptr) {
    const mutex_lock lock{context_mutex_};
    known = context_.load(std::memory_order_acquire);
    if (known == nullptr) {
      if (status ok = checked(driver_, driver_.primary_ctx_retain, of_device, &known, handle_); !ok) return ok;
      if (status ok = checked(driver_, driver_.ctx_get_id, of_device, known, &context_id_); !ok) {
        driver_.primary_ctx_release(handle_);
        return ok;
      }
      context_.store(known, std::memory_order_release);
    }
  }
  unsigned long long id = 0;
  const CUresult asked = driver_.ctx_get_id(known, &id);
  if (asked == CUDA_SUCCESS && id == context_id_) {
    *target = known;
    return {};
  }
  if (asked == CUDA_SUCCESS || asked == CUDA_ERROR_CONTEXT_IS_DESTROYED || asked == CUDA_ERROR_INVALID_CONTEXT) {
    set_condition(device_condition::reset);
    return context(target);
  }
  return driver_status(driver_, driver_.ctx_get_id.name, asked, of_device());
}

// --- memory -----------------------------------------------------------------------------------------------------

result<address> cuda_device::do_alloc(std::uint64_t bytes) {
  CUdeviceptr begin = 0;
  const auto doing = [&] { return fmt::format("of {} on device {}", format_bytes(bytes), info_.ordinal); };
  if (status done = in_context(driver_.mem_alloc, doing, &begin, bytes); !done) return done;
  return address{begin};
}

status cuda_device::do_free(address segment) {
  const auto doing = [&] { return fmt::format("of {:#x} on device {}", segment, info_.ordinal); };
  return in_context(driver_.mem_free, doing, segment);
}

result<address> cuda_device::do_alloc_host(std::uint64_t bytes) {
  void* pointer = nullptr;
  const auto doing = [&] { return fmt::format("of {} of pinned host memory", format_bytes(bytes)); };
  if (status done = in_context(driver_.mem_host_alloc, doing, &pointer, bytes, unsigned{CU_MEMHOSTALLOC_PORTABLE});
      !done) {
    return done;
  }
  return static_cast<address>(reinterpret_cast<std::uintptr_t>(pointer));
}

status cuda_device::do_free_host(address segment) {
  const auto doing = [&] { return fmt::format("of {:#x}", segment); };
  return in_context(driver_.mem_free_host, doing, reinterpret_cast<void*>(static_cast<std::uintptr_t>(segment)));
}

result<address> cuda_device::do_reserve(std::uint64_t bytes) {
  CUdeviceptr begin = 0;
  const auto doing = [&] { return fmt::format("of {} of addresses", format_bytes(bytes)); };
  if (status done = in_context(driver_.mem_address_reserve, doing, &begin, bytes, info_.page_bytes, 0U, 0U); !done) {
    return done;
  }
  return address{begin};
}

status cuda_device::do_release_range(address range, std::uint64_t bytes) {
  return in_context(driver_.mem_address_free, range_text(range, bytes), range, bytes);
}

result<page_run> cuda_device::do_create(std::uint64_t bytes) {
  const entered scope{*this};
  if (!scope.ok()) return scope.why();
  CUmemGenericAllocationHandle pages = 0;
  const bool known_plain = plain_pages_.load(std::memory_order_relaxed);
  CUresult done = CUDA_ERROR_NOT_SUPPORTED;
  if (!known_plain) done = driver_.mem_create(&pages, bytes, &pages_, 0);
  if (done == CUDA_ERROR_NOT_SUPPORTED || done == CUDA_ERROR_INVALID_VALUE || done == CUDA_ERROR_NOT_PERMITTED) {
    // A container or a virtual GPU may refuse exportable pages despite its attributes. Uses plain pages from now on.
    CUmemAllocationProp plain = pages_;
    plain.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
    plain.allocFlags = {};
    done = driver_.mem_create(&pages, bytes, &plain, 0);
    if (done == CUDA_SUCCESS && !known_plain) plain_pages_.store(true, std::memory_order_relaxed);
  }
  if (done == CUDA_SUCCESS) return page_run{pages};
  return driver_status(driver_, driver_.mem_create.name, done,
                       fmt::format("of {} on device {}", format_bytes(bytes), info_.ordinal));
}

status cuda_device::do_destroy(page_run pages) {
  return in_context(
      driver_.mem_release, [] { return std::string_view{}; }, pages.id);
}

status cuda_device::do_map(address begin, std::uint64_t bytes, page_run pages) {
  return in_context(driver_.mem_map, range_text(begin, bytes), begin, bytes, 0U, pages.id, 0U);
}

status cuda_device::do_set_access(address begin, std::uint64_t bytes) {
  const entered scope{*this};
  if (!scope.ok()) return scope.why();
  // Holds the lock throughout, so that a peer added concurrently gets access to every range.
  const mutex_lock lock{access_mutex_};
  status done =
      checked(driver_, driver_.mem_set_access, range_text(begin, bytes), begin, bytes, access_.data(), access_.size());
  if (done) accessible_[begin] = bytes;
  return done;
}

status cuda_device::do_unmap(address begin, std::uint64_t bytes) {
  if (status done = in_context(driver_.mem_unmap, range_text(begin, bytes), begin, bytes); !done) return done;
  const mutex_lock lock{access_mutex_};
  forget_accessible(begin, begin + bytes);
  return {};
}

// Removes `[begin, end)` from the accessible ranges; keeps the remaining parts of ranges that cross its ends.
void cuda_device::forget_accessible(address begin, address end) {
  auto entry = accessible_.lower_bound(begin);
  if (entry != accessible_.begin()) {
    const auto before = std::prev(entry);
    const address before_end = before->first + before->second;
    if (before_end > begin) {
      before->second = begin - before->first;
      if (before_end > end) accessible_[end] = before_end - end;
    }
  }
  while (entry != accessible_.end() && entry->first < end) {
    const address entry_end = entry->first + entry->second;
    entry = accessible_.erase(entry);
    if (entry_end > end) accessible_[end] = entry_end - end;
  }
}

status cuda_device::add_peer(int ordinal) {
  const mutex_lock lock{access_mutex_};
  if (access_.empty()) return {};  // the device cannot map pages
  for (const CUmemAccessDesc& known : access_) {
    if (known.location.id == ordinal) return {};
  }
  const CUmemAccessDesc peer{.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal},
                             .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  access_.push_back(peer);
  if (accessible_.empty()) return {};
  const entered scope{*this};
  if (!scope.ok()) {
    access_.pop_back();
    return scope.why();
  }
  for (const auto& [at, bytes] : accessible_) {
    const auto doing = [&, range = range_text(at, bytes)] { return fmt::format("{} for device {}", range(), ordinal); };
    if (status ok = checked(driver_, driver_.mem_set_access, doing, at, bytes, &peer, 1); !ok) {
      access_.pop_back();  // so that the caller can try again
      return ok;
    }
  }
  return {};
}

// Before the context exists, asks NVML if available: a context would take several hundred MB of a card that the program
// may never use.
result<memory_info> cuda_device::do_memory() {
  if (context_.load(std::memory_order_acquire) == nullptr && condition() == device_condition::usable &&
      !info_.simulated) {
    if (const result<memory_info> seen = nvml_memory(info_.uuid)) {
      return memory_info{.free_bytes = std::min(seen->free_bytes, info_.total_bytes), .total_bytes = info_.total_bytes};
    }
  }
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  const auto doing = [this] { return fmt::format("of device {}", info_.ordinal); };
  if (status ok = in_context(driver_.mem_get_info, doing, &free_bytes, &total_bytes); !ok) return ok;
  return memory_info{.free_bytes = free_bytes, .total_bytes = total_bytes};
}

}  // namespace gpumem
