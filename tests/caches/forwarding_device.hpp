/// A device that forwards every call to a simulated device. Before some calls it runs a function of the test.
#pragma once

#include <functional>

#include "gpumem/sim_device.hpp"

namespace gpumem::caches {

class forwarding_device final : public device {
 public:
  explicit forwarding_device(sim_device& to) : to_{to} {}
  /// Runs in `alloc` before the device's call; may replace itself.
  std::function<void()> before_alloc;
  /// The same for `map`, and for `record` and `record_context`.
  std::function<void()> before_map;
  std::function<void()> before_record;
  std::function<void()> before_wait_stream;
  /// Runs after either kind of wait.
  std::function<void()> after_wait;
  /// Puts the device into the state of the driver in a forked child.
  void fork() noexcept { set_condition(device_condition::forked); }

  [[nodiscard]] const device_info& info() const noexcept override { return to_.info(); }

 private:
  result<address> do_alloc(std::uint64_t bytes) override {
    if (const std::function<void()> told = before_alloc) told();
    return to_.alloc(bytes);
  }
  status do_free(address segment) override { return to_.free(segment); }
  result<address> do_alloc_host(std::uint64_t bytes) override { return to_.alloc_host(bytes); }
  status do_free_host(address segment) override { return to_.free_host(segment); }
  result<address> do_reserve(std::uint64_t bytes) override { return to_.reserve(bytes); }
  status do_release_range(address range, std::uint64_t bytes) override { return to_.release_range(range, bytes); }
  result<page_run> do_create(std::uint64_t bytes) override { return to_.create(bytes); }
  status do_destroy(page_run pages) override { return to_.destroy(pages); }
  status do_map(address at, std::uint64_t bytes, page_run pages) override {
    if (const std::function<void()> told = before_map) told();
    return to_.map(at, bytes, pages);
  }
  status do_set_access(address at, std::uint64_t bytes) override { return to_.set_access(at, bytes); }
  status do_unmap(address at, std::uint64_t bytes) override { return to_.unmap(at, bytes); }
  result<memory_info> do_memory() override { return to_.memory(); }
  result<fence> do_record(stream_ref on) override {
    if (const std::function<void()> told = before_record) told();
    return to_.record(on);
  }
  result<fence> do_record_context() override {
    if (const std::function<void()> told = before_record) told();
    return to_.record_context();
  }
  result<bool> do_query(fence f) override { return to_.query(f); }
  status do_wait_host(fence f) override { return waited(to_.wait_host(f)); }
  result<bool> do_wait_any(std::span<const fence> fences, std::uint64_t most_ns,
                           const std::function<bool()>& stop) override {
    result<bool> done = to_.wait_any(fences, most_ns, stop);
    static_cast<void>(waited({}));
    return done;
  }
  [[nodiscard]] std::uint64_t do_clock_ns() const noexcept override { return to_.clock_ns(); }
  status do_wait_stream(stream_ref waiter, fence f) override {
    if (const std::function<void()> told = before_wait_stream) told();
    return waited(to_.wait_stream(waiter, f));
  }
  void do_drop(fence f) noexcept override { to_.drop(f); }
  result<std::uint64_t> do_stream_id(stream_ref of) override { return to_.stream_id(of); }
  status do_synchronize() override { return to_.synchronize(); }
  status waited(status outcome) {
    if (const std::function<void()> told = after_wait) told();
    return outcome;
  }

  sim_device& to_;
};

}  // namespace gpumem::caches
