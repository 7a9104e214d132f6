/// Forwards every call to another device. A derived class overrides the calls that it changes, or sees each of them.
///
/// Not forwarded: `calls_together`, so each call enters the other device alone, and `condition`, which is this
/// device's.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>

#include "gpumem/device.hpp"

namespace gpumem {

class device_decorator : public device {
 private:
  struct call_end {
    device_decorator& decorator;
    device_call call;
    ~call_end() { decorator.after_call(call); }
  };
  template <auto function, typename... values>
  auto forward(device_call call, values&&... arguments) {
    before_call(call);
    const call_end end{*this, call};
    return (target_.*function)(std::forward<values>(arguments)...);
  }

 public:
  /// `target` must outlive this.
  explicit device_decorator(device& target) noexcept : target_{target} {}
  [[nodiscard]] const device_info& info() const noexcept override { return target_.info(); }

 protected:
  /// Run on both sides of each forwarded call. What `before_call` throws is the call's failure; then `after_call` does
  /// not run.
  virtual void before_call(device_call /*call*/) {}
  virtual void after_call(device_call /*call*/) noexcept {}

  result<address> do_alloc(std::uint64_t bytes) override { return forward<&device::alloc>(device_call::alloc, bytes); }
  status do_free(address segment) override { return forward<&device::free>(device_call::free, segment); }
  result<address> do_alloc_host(std::uint64_t bytes) override {
    return forward<&device::alloc_host>(device_call::alloc_host, bytes);
  }
  status do_free_host(address segment) override { return forward<&device::free_host>(device_call::free_host, segment); }
  result<address> do_reserve(std::uint64_t bytes) override {
    return forward<&device::reserve>(device_call::reserve, bytes);
  }
  status do_release_range(address range, std::uint64_t bytes) override {
    return forward<&device::release_range>(device_call::release_range, range, bytes);
  }
  result<page_run> do_create(std::uint64_t bytes) override {
    return forward<&device::create>(device_call::create, bytes);
  }
  status do_destroy(page_run pages) override { return forward<&device::destroy>(device_call::destroy, pages); }
  status do_map(address begin, std::uint64_t bytes, page_run pages) override {
    return forward<&device::map>(device_call::map, begin, bytes, pages);
  }
  status do_set_access(address begin, std::uint64_t bytes) override {
    return forward<&device::set_access>(device_call::set_access, begin, bytes);
  }
  status do_unmap(address begin, std::uint64_t bytes) override {
    return forward<&device::unmap>(device_call::unmap, begin, bytes);
  }
  result<memory_info> do_memory() override { return forward<&device::memory>(device_call::memory); }
  result<fence> do_record(stream_ref stream) override { return forward<&device::record>(device_call::record, stream); }
  result<fence> do_record_context() override { return forward<&device::record_context>(device_call::record_context); }
  result<bool> do_query(fence awaited) override { return forward<&device::query>(device_call::query, awaited); }
  status do_wait_host(fence awaited) override { return forward<&device::wait_host>(device_call::wait_host, awaited); }
  result<bool> do_wait_any(std::span<const fence> fences, std::uint64_t most_ns,
                           const std::function<bool()>& stop) override {
    return forward<&device::wait_any>(device_call::wait_host, fences, most_ns, stop);
  }
  [[nodiscard]] std::uint64_t do_clock_ns() const noexcept override { return target_.clock_ns(); }
  status do_wait_stream(stream_ref waiter, fence awaited) override {
    return forward<&device::wait_stream>(device_call::wait_stream, waiter, awaited);
  }
  void do_drop(fence unused) noexcept override { target_.drop(unused); }
  result<std::uint64_t> do_foreign_context(stream_ref stream) override { return target_.foreign_context(stream); }
  result<fence> do_record_foreign(std::uint64_t context) override { return target_.record_foreign(context); }
  result<bool> do_blocking_stream_captures() override { return target_.blocking_stream_captures(); }
  result<std::uint64_t> do_stream_id(stream_ref stream) override {
    return forward<&device::stream_id>(device_call::stream_id, stream);
  }
  result<std::uint64_t> do_capture_id(stream_ref stream) override {
    return forward<&device::capture_id>(device_call::capture_id, stream);
  }
  status do_watch_graph(stream_ref capturing, std::function<void()> gone) override {
    return forward<&device::watch_graph>(device_call::watch_graph, capturing, std::move(gone));
  }
  status do_synchronize() override { return forward<&device::synchronize>(device_call::synchronize); }

 private:
  device& target_;
};

}  // namespace gpumem
