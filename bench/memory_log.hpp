/// The memory events of a replay; the page is drawn from them afterwards.
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
  std::uint64_t op = 0;  ///< the operation that caused it, from 0
  address at = 0;
  std::uint64_t bytes = 0;
  std::uint64_t requested_bytes = 0;  ///< blocks only
  memory_change what = memory_change::taken;
};

struct memory_log {
  std::vector<memory_event> events;
  std::uint64_t op = 0;  ///< the current operation, kept here by the replay

  void add(memory_change what, address at, std::uint64_t bytes, std::uint64_t requested_bytes = 0) {
    events.push_back({op, at, bytes, requested_bytes, what});
  }
};

/// Forwards everything to another device and logs what it takes and returns.
class logged_device final : public device {
 public:
  /// Owns neither argument.
  logged_device(device& under, memory_log& log) : under_{under}, log_{log} {}
  [[nodiscard]] const device_info& info() const noexcept override { return under_.info(); }

 private:
  result<address> do_alloc(std::uint64_t bytes) override;
  status do_free(address segment) override;
  result<address> do_alloc_host(std::uint64_t bytes) override { return under_.alloc_host(bytes); }
  status do_free_host(address segment) override { return under_.free_host(segment); }
  result<address> do_reserve(std::uint64_t bytes) override { return under_.reserve(bytes); }
  status do_release_range(address range, std::uint64_t bytes) override { return under_.release_range(range, bytes); }
  result<page_run> do_create(std::uint64_t bytes) override { return under_.create(bytes); }
  status do_destroy(page_run pages) override { return under_.destroy(pages); }
  status do_map(address at, std::uint64_t bytes, page_run pages) override;
  status do_set_access(address at, std::uint64_t bytes) override { return under_.set_access(at, bytes); }
  status do_unmap(address at, std::uint64_t bytes) override;
  result<memory_info> do_memory() override { return under_.memory(); }
  result<fence> do_record(stream_ref on) override { return under_.record(on); }
  result<fence> do_record_context() override { return under_.record_context(); }
  result<bool> do_query(fence f) override { return under_.query(f); }
  status do_wait_host(fence f) override { return under_.wait_host(f); }
  status do_wait_stream(stream_ref waiter, fence f) override { return under_.wait_stream(waiter, f); }
  void do_drop(fence f) noexcept override { under_.drop(f); }
  result<std::uint64_t> do_stream_id(stream_ref of) override { return under_.stream_id(of); }
  result<std::uint64_t> do_capture_id(stream_ref of) override { return under_.capture_id(of); }
  status do_watch_graph(stream_ref capturing, std::function<void()> gone) override {
    return under_.watch_graph(capturing, std::move(gone));
  }
  status do_synchronize() override { return under_.synchronize(); }

  device& under_;
  memory_log& log_;
  std::unordered_map<address, std::uint64_t> segments_;
};

}  // namespace gpumem::bench
