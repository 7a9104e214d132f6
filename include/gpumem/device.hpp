/// The interface to a GPU: every operation that gpumem needs of a device.
///
/// Implementations: `sim_device` (virtual clock, referee, fault injection; runs anywhere), the CUDA driver's device
/// (cuda_device.hpp), and `pinned_device` for the pinned host memory of either. The public functions count each call
/// and then make one virtual call. All may be called from any thread. Sizes are bytes, times nanoseconds, addresses
/// device virtual addresses.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "gpumem/export.h"
#include "gpumem/status.hpp"

namespace GPUMEM_API gpumem {

using address = std::uint64_t;

/// A stream handle of the program (a `cudaStream_t`, a `CUstream`). Null is the legacy default stream.
struct stream_ref {
  void* handle = nullptr;
  friend bool operator==(stream_ref, stream_ref) = default;
};

/// A point in the work of a stream or of the whole context. Zero is no fence.
struct fence {
  std::uint64_t id = 0;
  explicit operator bool() const noexcept { return id != 0; }
  friend bool operator==(fence, fence) = default;
};

/// Mappable physical memory: the one or more pages of one `create`. Zero is none.
struct page_run {
  std::uint64_t id = 0;
  explicit operator bool() const noexcept { return id != 0; }
  friend bool operator==(page_run, page_run) = default;
};

struct device_info {
  int ordinal = 0;
  std::string name;
  std::string uuid;
  std::uint64_t total_bytes = 0;
  std::uint64_t granularity_bytes = 0;  ///< a plain segment occupies a multiple of this
  std::uint64_t page_bytes = 0;         ///< a mapped page; 0 if the device cannot map pages
  int compute_major = 0;
  int compute_minor = 0;
  bool simulated = false;
  bool reports_captures = false;  ///< `capture_id` works; otherwise the program must call capture_begin and capture_end
  bool integrated = false;        ///< its memory is the host's
  bool exclusive = false;         ///< the compute mode allows a context to one process only, or to none
};

/// Whether a device is usable, known without a driver call.
enum class device_condition : std::uint8_t {
  usable,
  forked,  ///< this process was forked from the process that used the device; the driver works only there
  reset,   ///< the program reset the device: its memory is gone
};

struct memory_info {
  std::uint64_t free_bytes = 0;
  std::uint64_t total_bytes = 0;
};

/// Every kind of device call; indexes `call_counts`.
enum class device_call : std::uint8_t {
  alloc,       ///< a plain segment
  free,        ///< returns a plain segment
  alloc_host,  ///< pinned host memory
  free_host,
  reserve,  ///< an address range
  release_range,
  create,  ///< physical pages
  destroy,
  map,
  set_access,
  unmap,
  memory,          ///< asks how much is free
  record,          ///< a fence on one stream
  record_context,  ///< a fence behind all work enqueued so far
  query,
  wait_host,    ///< the host waits for a fence
  wait_stream,  ///< a stream waits for a fence, the host does not
  stream_id,
  capture_id,   ///< asks whether a stream captures
  watch_graph,  ///< requests a notification when a captured graph is destroyed
  synchronize,  ///< the host waits for everything
  count_
};
inline constexpr std::size_t device_call_kinds = static_cast<std::size_t>(device_call::count_);
std::string_view to_string(device_call call) noexcept;

using call_counts = std::array<std::uint64_t, device_call_kinds>;

class device {
 public:
  device() = default;
  device(const device&) = delete;
  device& operator=(const device&) = delete;
  virtual ~device() = default;

  /// Fixed for the device's life; no driver call.
  [[nodiscard]] virtual const device_info& info() const noexcept = 0;
  /// `forked` and `reset` are permanent: every further call fails.
  [[nodiscard]] device_condition condition() const noexcept { return condition_.load(std::memory_order_relaxed); }

  /// A plain segment. `bytes` is a multiple of the granularity; the address is a multiple of 512 at least.
  result<address> alloc(std::uint64_t bytes) {
    return call(device_call::alloc, [&] { return do_alloc(bytes); });
  }
  /// May wait for work in flight on the device.
  status free(address segment) {
    return call(device_call::free, [&] { return do_free(segment); });
  }
  result<address> alloc_host(std::uint64_t bytes) {
    return call(device_call::alloc_host, [&] { return do_alloc_host(bytes); });
  }
  status free_host(address segment) {
    return call(device_call::free_host, [&] { return do_free_host(segment); });
  }

  /// Reserves an address range without memory; `bytes` is a multiple of the page.
  result<address> reserve(std::uint64_t bytes) {
    return call(device_call::reserve, [&] { return do_reserve(bytes); });
  }
  status release_range(address range, std::uint64_t bytes) {
    return call(device_call::release_range, [&] { return do_release_range(range, bytes); });
  }
  /// Creates `bytes` of physical memory, a multiple of the page, not yet mapped.
  result<page_run> create(std::uint64_t bytes) {
    return call(device_call::create, [&] { return do_create(bytes); });
  }
  /// Returns the memory to the device once it is unmapped.
  status destroy(page_run pages) {
    return call(device_call::destroy, [&] { return do_destroy(pages); });
  }
  /// Maps all of `pages` at `begin`; inaccessible until `set_access`.
  status map(address begin, std::uint64_t bytes, page_run pages) {
    return call(device_call::map, [&] { return do_map(begin, bytes, pages); });
  }
  status set_access(address begin, std::uint64_t bytes) {
    return call(device_call::set_access, [&] { return do_set_access(begin, bytes); });
  }
  /// Requires that no work in flight touches the range: unlike `free`, it does not wait.
  status unmap(address begin, std::uint64_t bytes) {
    return call(device_call::unmap, [&] { return do_unmap(begin, bytes); });
  }

  result<memory_info> memory() {
    return call(device_call::memory, [&] { return do_memory(); });
  }

  /// A fence behind all work enqueued on `stream` so far. Refused (`unsupported`) while `stream` captures.
  result<fence> record(stream_ref stream) {
    return call(device_call::record, [&] { return do_record(stream); });
  }
  /// A fence behind all work enqueued on any stream so far. Refused while any stream captures.
  result<fence> record_context() {
    return call(device_call::record_context, [&] { return do_record_context(); });
  }
  /// True once all work before the fence is done. After an error, treat the work as unfinished.
  result<bool> query(fence fence) {
    return call(device_call::query, [&] { return do_query(fence); });
  }
  status wait_host(fence fence) {
    return call(device_call::wait_host, [&] { return do_wait_host(fence); });
  }
  /// Waits on the host until one of `fences` is done, and returns true. Returns false after `most_ns` of `clock_ns`
  /// (UINT64_MAX: no limit), or once `stop` returns true; it calls `stop` between polls of the fences. Counts as one
  /// `wait_host`. A device that does not override `do_wait_any` waits for the first fence, without a limit.
  result<bool> wait_any(std::span<const fence> fences, std::uint64_t most_ns, const std::function<bool()>& stop) {
    return call(device_call::wait_host, [&] { return do_wait_any(fences, most_ns, stop); });
  }
  /// Nanoseconds of the clock that limits `wait_any`: the host's steady clock, or the virtual one of a simulated
  /// device.
  [[nodiscard]] std::uint64_t clock_ns() const noexcept { return do_clock_ns(); }
  status wait_stream(stream_ref waiter, fence fence) {
    return call(device_call::wait_stream, [&] { return do_wait_stream(waiter, fence); });
  }
  /// The context of a created stream if it is foreign: another device's context, or a further context of this device.
  /// Otherwise 0. Requires that the stream exists.
  result<std::uint64_t> foreign_context(stream_ref stream) noexcept try {
    return do_foreign_context(stream);
  } catch (...) {
    return status::of_current_exception();
  }
  /// A fence behind all work enqueued so far on any stream of that context. `unsupported` if the device cannot.
  result<fence> record_foreign(std::uint64_t context) noexcept try { return do_record_foreign(context); } catch (...) {
    return status::of_current_exception();
  }
  /// True while any blocking stream of the device's own context captures. Invalidates no capture and needs no stream
  /// handle. `unsupported` if the device cannot tell.
  result<bool> blocking_stream_captures() noexcept try { return do_blocking_stream_captures(); } catch (...) {
    return status::of_current_exception();
  }
  /// Returns the fence to the device's pool; never fails and makes no driver call that can block.
  void drop(fence fence) noexcept { do_drop(fence); }

  /// An id that no later stream repeats, even one with the same handle. Requires that a created stream is part of no
  /// capture, which the question would invalidate.
  result<std::uint64_t> stream_id(stream_ref stream) {
    return call(device_call::stream_id, [&] { return do_stream_id(stream); });
  }
  /// The id of the capture that a stream is part of, which no later capture repeats; 0 if it captures nothing, or if
  /// `info().reports_captures` is false.
  result<std::uint64_t> capture_id(stream_ref stream) {
    return call(device_call::capture_id, [&] { return do_capture_id(stream); });
  }
  /// Calls `gone` once, from a driver thread, when the graph that the stream captures into and everything instantiated
  /// from it are destroyed. `gone` must not call the device. `unsupported` if the stream is not capturing, or if the
  /// device has no graphs.
  status watch_graph(stream_ref capturing, std::function<void()> gone) {
    return call(device_call::watch_graph, [&] { return do_watch_graph(capturing, std::move(gone)); });
  }
  status synchronize() {
    return call(device_call::synchronize, [&] { return do_synchronize(); });
  }

  /// Groups several calls of one thread: the device sets up its state for calls (on a GPU the current context and the
  /// thread's capture mode) once, at the first call, and restores it at the end of the scope. One device at a time. The
  /// program's code must not run inside the scope.
  class calls_together {
   public:
    explicit calls_together(device& gpu) noexcept : device_{gpu} { device_.do_enter(); }
    ~calls_together() { device_.do_leave(); }
    calls_together(const calls_together&) = delete;
    calls_together& operator=(const calls_together&) = delete;

   private:
    device& device_;
  };

  /// The number of calls so far, by kind. Exact if no other thread is calling.
  [[nodiscard]] call_counts calls() const noexcept {
    call_counts counts{};
    for (std::size_t i = 0; i < device_call_kinds; ++i) counts[i] = calls_[i].load(std::memory_order_relaxed);
    return counts;
  }

 protected:
  virtual result<address> do_alloc(std::uint64_t bytes) = 0;
  virtual status do_free(address segment) = 0;
  virtual result<address> do_alloc_host(std::uint64_t bytes) = 0;
  virtual status do_free_host(address segment) = 0;
  virtual result<address> do_reserve(std::uint64_t bytes) = 0;
  virtual status do_release_range(address range, std::uint64_t bytes) = 0;
  virtual result<page_run> do_create(std::uint64_t bytes) = 0;
  virtual status do_destroy(page_run pages) = 0;
  virtual status do_map(address begin, std::uint64_t bytes, page_run pages) = 0;
  virtual status do_set_access(address begin, std::uint64_t bytes) = 0;
  virtual status do_unmap(address begin, std::uint64_t bytes) = 0;
  virtual result<memory_info> do_memory() = 0;
  virtual result<fence> do_record(stream_ref stream) = 0;
  virtual result<fence> do_record_context() = 0;
  virtual result<bool> do_query(fence fence) = 0;
  virtual status do_wait_host(fence fence) = 0;
  virtual status do_wait_stream(stream_ref waiter, fence fence) = 0;
  virtual void do_drop(fence fence) noexcept = 0;
  virtual result<std::uint64_t> do_foreign_context(stream_ref /*stream*/) { return std::uint64_t{0}; }
  virtual result<fence> do_record_foreign(std::uint64_t /*context*/) {
    return status{errc::unsupported, "this device knows no other contexts"};
  }
  virtual result<bool> do_blocking_stream_captures() {
    return status{errc::unsupported, "this device does not tell which streams capture"};
  }
  virtual void do_enter() noexcept {}
  virtual void do_leave() noexcept {}
  virtual result<std::uint64_t> do_stream_id(stream_ref stream) = 0;
  virtual result<std::uint64_t> do_capture_id(stream_ref /*stream*/) { return std::uint64_t{0}; }
  virtual status do_watch_graph(stream_ref /*capturing*/, std::function<void()> /*gone*/) {
    return {errc::unsupported, "this device does not tell when a graph is gone"};
  }
  virtual status do_synchronize() = 0;
  virtual result<bool> do_wait_any(std::span<const fence> fences, std::uint64_t /*most_ns*/,
                                   const std::function<bool()>& /*stop*/) {
    status waited = fences.empty() ? status{} : do_wait_host(fences.front());
    return waited ? result<bool>{!fences.empty()} : result<bool>{std::move(waited)};
  }
  [[nodiscard]] virtual std::uint64_t do_clock_ns() const noexcept {
    return static_cast<std::uint64_t>(
        std::chrono::nanoseconds{std::chrono::steady_clock::now().time_since_epoch()}.count());
  }

  void set_condition(device_condition condition) noexcept { condition_.store(condition, std::memory_order_relaxed); }

 private:
  /// Counts the call and makes it. Turns an exception of the device into a status.
  template <typename Make>
  auto call(device_call kind, const Make& make) noexcept -> decltype(make()) {
    calls_[static_cast<std::size_t>(kind)].fetch_add(1, std::memory_order_relaxed);
    try {
      return make();
    } catch (...) {
      return status::of_current_exception();
    }
  }
  // Every allocation and free reads this on every thread, so its cache line holds nothing that changes: the counters
  // are aligned, and so is the whole class.
  std::atomic<device_condition> condition_{device_condition::usable};
  alignas(64) std::array<std::atomic<std::uint64_t>, device_call_kinds> calls_{};
};

}  // namespace gpumem
