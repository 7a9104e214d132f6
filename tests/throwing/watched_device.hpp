/// A simulated device whose n-th call a test makes throw. Its own host memory never runs out.
#pragma once

#include <cstdint>
#include <functional>
#include <new>
#include <utility>

#include "gpumem/sim_device.hpp"
#include "host_memory.hpp"

namespace gpumem::throwing {

class watched_device final : public device {
 public:
  explicit watched_device(sim_device& to) : to_{to} {}
  [[nodiscard]] const device_info& info() const noexcept override { return to_.info(); }
  /// The n-th call from now on throws std::bad_alloc before the device sees it, once; 0: none does.
  void throw_at(std::uint64_t n) noexcept {
    left_ = n;
    thrown_ = false;
  }
  [[nodiscard]] bool thrown() const noexcept { return thrown_; }

 private:
  template <typename Call>
  auto pass(const Call& call) {
    const host_memory::unwatched its_own;
    if (left_ != 0 && --left_ == 0) {
      thrown_ = true;
      throw std::bad_alloc{};
    }
    return call();
  }
  result<address> do_alloc(std::uint64_t bytes) override {
    return pass([&] { return to_.alloc(bytes); });
  }
  status do_free(address segment) override {
    return pass([&] { return to_.free(segment); });
  }
  result<address> do_alloc_host(std::uint64_t bytes) override {
    return pass([&] { return to_.alloc_host(bytes); });
  }
  status do_free_host(address segment) override {
    return pass([&] { return to_.free_host(segment); });
  }
  result<address> do_reserve(std::uint64_t bytes) override {
    return pass([&] { return to_.reserve(bytes); });
  }
  status do_release_range(address range, std::uint64_t bytes) override {
    return pass([&] { return to_.release_range(range, bytes); });
  }
  result<page_run> do_create(std::uint64_t bytes) override {
    return pass([&] { return to_.create(bytes); });
  }
  status do_destroy(page_run pages) override {
    return pass([&] { return to_.destroy(pages); });
  }
  status do_map(address at, std::uint64_t bytes, page_run pages) override {
    return pass([&] { return to_.map(at, bytes, pages); });
  }
  status do_set_access(address at, std::uint64_t bytes) override {
    return pass([&] { return to_.set_access(at, bytes); });
  }
  status do_unmap(address at, std::uint64_t bytes) override {
    const host_memory::unwatched
        its_own;  // must not throw: the addresses of a failed unmap would be lost (paging_test)
    return to_.unmap(at, bytes);
  }
  result<memory_info> do_memory() override {
    return pass([&] { return to_.memory(); });
  }
  result<fence> do_record(stream_ref on) override {
    return pass([&] { return to_.record(on); });
  }
  result<fence> do_record_context() override {
    return pass([&] { return to_.record_context(); });
  }
  result<bool> do_query(fence f) override {
    return pass([&] { return to_.query(f); });
  }
  status do_wait_host(fence f) override {
    return pass([&] { return to_.wait_host(f); });
  }
  status do_wait_stream(stream_ref waiter, fence f) override {
    return pass([&] { return to_.wait_stream(waiter, f); });
  }
  void do_drop(fence f) noexcept override {
    const host_memory::unwatched its_own;
    to_.drop(f);
  }
  result<std::uint64_t> do_stream_id(stream_ref of) override {
    return pass([&] { return to_.stream_id(of); });
  }
  result<std::uint64_t> do_capture_id(stream_ref of) override {
    return pass([&] { return to_.capture_id(of); });
  }
  status do_watch_graph(stream_ref capturing, std::function<void()> gone) override {
    return pass([&] { return to_.watch_graph(capturing, std::move(gone)); });
  }
  status do_synchronize() override {
    return pass([&] { return to_.synchronize(); });
  }

  sim_device& to_;
  std::uint64_t left_ = 0;
  bool thrown_ = false;
};

}  // namespace gpumem::throwing
