/// The memory events of a replay, from which the HTML report is drawn afterwards.
///
/// The replay logs blocks, and `logged_device` logs the device's memory. One thread.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "gpumem/device.hpp"

namespace gpumem::bench {

enum class memory_change : std::uint8_t {
  taken,       ///< one plain segment, taken from the device
  mapped,      ///< pages; adjacent mappings form one piece
  given_back,  ///< plain or mapped, returned to the device
  allocated,   ///< a block, rounded up to 512
  freed,
};

struct memory_event {
  std::uint64_t op = 0;  ///< the operation that caused the event, from 0
  address begin = 0;
  std::uint64_t bytes = 0;
  std::uint64_t requested_bytes = 0;  ///< blocks only
  memory_change change = memory_change::taken;
};

struct memory_log {
  std::vector<memory_event> events;
  std::uint64_t op = 0;  ///< the current operation, kept here by the replay

  void add(memory_change change, address begin, std::uint64_t bytes, std::uint64_t requested_bytes = 0) {
    events.push_back({op, begin, bytes, requested_bytes, change});
  }
};

/// Forwards every call to another device, and logs the memory taken and returned.
class logged_device final : public device {
 public:
  /// Both arguments must outlive this.
  logged_device(device& target, memory_log& log) : target_{target}, log_{log} {}
  [[nodiscard]] const device_info& info() const noexcept override { return target_.info(); }

 private:
  result<address> do_alloc(std::uint64_t bytes) override;
  status do_free(address segment) override;
  result<address> do_alloc_host(std::uint64_t bytes) override { return target_.alloc_host(bytes); }
  status do_free_host(address segment) override { return target_.free_host(segment); }
  result<address> do_reserve(std::uint64_t bytes) override { return target_.reserve(bytes); }
  status do_release_range(address range, std::uint64_t bytes) override { return target_.release_range(range, bytes); }
  result<page_run> do_create(std::uint64_t bytes) override { return target_.create(bytes); }
  status do_destroy(page_run pages) override { return target_.destroy(pages); }
  status do_map(address begin, std::uint64_t bytes, page_run pages) override;
  status do_set_access(address begin, std::uint64_t bytes) override { return target_.set_access(begin, bytes); }
  status do_unmap(address begin, std::uint64_t bytes) override;
  result<memory_info> do_memory() override { return target_.memory(); }
  result<fence> do_record(stream_ref stream) override { return target_.record(stream); }
  result<fence> do_record_context() override { return target_.record_context(); }
  result<bool> do_query(fence event) override { return target_.query(event); }
  status do_wait_host(fence event) override { return target_.wait_host(event); }
  status do_wait_stream(stream_ref waiter, fence event) override { return target_.wait_stream(waiter, event); }
  void do_drop(fence event) noexcept override { target_.drop(event); }
  result<std::uint64_t> do_stream_id(stream_ref stream) override { return target_.stream_id(stream); }
  result<std::uint64_t> do_capture_id(stream_ref stream) override { return target_.capture_id(stream); }
  status do_watch_graph(stream_ref capturing, std::function<void()> ended) override {
    return target_.watch_graph(capturing, std::move(ended));
  }
  status do_synchronize() override { return target_.synchronize(); }

  device& target_;
  memory_log& log_;
  std::unordered_map<address, std::uint64_t> segments_;
};

}  // namespace gpumem::bench
