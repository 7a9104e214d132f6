/// A simulated device whose every call is a point of the scheduler, before and after.
///
/// Its waits take the scheduler's time while other threads go on: a wait of the host for a fence, a free of a segment
/// for all work, a record on a stream whose queue is full. Calls themselves take no time. It also tells which streams
/// capture and when a graph is destroyed, as the driver does and `sim_device` does not.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "gpumem/sim_device.hpp"
#include "scheduler.hpp"

namespace gpumem::schedules {

/// Is notified when a device provides or takes back memory: segments, and runs of mapped pages.
class memory_witness {
 public:
  memory_witness() = default;
  memory_witness(const memory_witness&) = delete;
  memory_witness& operator=(const memory_witness&) = delete;
  virtual ~memory_witness() = default;
  virtual void asks_segment(const device& card, std::uint64_t bytes) = 0;
  virtual void took_segment(const device& card, address begin, std::uint64_t bytes) = 0;
  virtual void returned_segments(const device& card, address begin, std::uint64_t bytes) = 0;
};

class explored_device final : public device {
 public:
  explored_device(sim_config card, bool reports_captures);

  [[nodiscard]] const device_info& info() const noexcept override { return info_; }
  [[nodiscard]] sim_device& simulated() noexcept { return card_; }
  void set_witness(memory_witness* witness) noexcept { witness_ = witness; }

  // --- calls of the program, without points
  void enqueue(stream_ref stream, std::uint64_t lag_ns, address begin, std::uint64_t bytes);
  /// The time at which all work enqueued so far is done.
  [[nodiscard]] std::uint64_t all_done_ns() const noexcept;
  /// Makes records on the stream wait until `until_ns` or later.
  void fill_queue(stream_ref stream, std::uint64_t until_ns) {
    std::uint64_t& full_until = full_until_[stream.handle];
    full_until = std::max(full_until, until_ns);
  }
  [[nodiscard]] bool is_full(stream_ref stream, std::uint64_t now_ns) const {
    const auto until = full_until_.find(stream.handle);
    return until != full_until_.end() && until->second > now_ns;
  }
  void drain_queue(stream_ref stream);
  status begin_capture(stream_ref stream);
  /// Begins a capture that the device reports. No call can invalidate it before `begin_strictly`.
  void begin_unnoticed_capture(stream_ref stream) { captures_[stream.handle] = {++latest_capture_, false}; }
  /// From here on, forbidden calls invalidate the capture. Excepted are calls under way, and calls of operations that
  /// began earlier, because the allocator may have decided on them before it knew of the capture.
  void begin_strictly(stream_ref stream);
  /// The calling thread begins an operation of the program.
  void begin_operation();
  status end_capture(stream_ref stream);
  void destroy_graph(std::uint64_t capture);
  /// The stream's capture; 0 if it captures nothing.
  [[nodiscard]] std::uint64_t capture_of(stream_ref stream) const noexcept;
  stream_ref create_stream();
  status destroy_stream(stream_ref stream);
  /// Sets the devices of the process: each knows the ids of all their streams.
  void set_peers(std::vector<explored_device*> peers) { peers_ = std::move(peers); }
  void fail_nth(device_call call, std::uint64_t count, errc code);

  /// Makes waits for several fences check their fences again. Called after each step of a program.
  void look_again();
  /// The time that the calling thread's calls have waited so far, by kind of call and stream.
  [[nodiscard]] std::uint64_t waited_ns(std::size_t thread) const noexcept {
    return waited_ns_[thread % waited_ns_.size()];
  }
  /// The part of that which no deadline can limit: frees of segments, calls on a full queue.
  [[nodiscard]] std::uint64_t unlimited_ns(std::size_t thread) const noexcept {
    return unlimited_ns_[thread % unlimited_ns_.size()];
  }
  /// Host waits and frees of segments that are under way.
  [[nodiscard]] unsigned waits_under_way() const noexcept { return waits_under_way_; }

 private:
  template <typename Call>
  auto make(const Call& call) -> decltype(call());
  /// The same, once no work is left.
  template <typename Call>
  auto make_when_idle(const Call& call) -> decltype(call());
  void wait_until(std::uint64_t ns);
  void wait_for_queue(stream_ref stream);

  result<address> do_alloc(std::uint64_t bytes) override;
  status do_free(address segment) override;
  result<address> do_alloc_host(std::uint64_t bytes) override;
  status do_free_host(address segment) override;
  result<address> do_reserve(std::uint64_t bytes) override;
  status do_release_range(address range, std::uint64_t bytes) override;
  result<page_run> do_create(std::uint64_t bytes) override;
  status do_destroy(page_run pages) override;
  status do_map(address begin, std::uint64_t bytes, page_run pages) override;
  status do_set_access(address begin, std::uint64_t bytes) override;
  status do_unmap(address begin, std::uint64_t bytes) override;
  result<memory_info> do_memory() override;
  result<fence> do_record(stream_ref stream) override;
  result<fence> do_record_context() override;
  result<bool> do_query(fence awaited) override;
  status do_wait_host(fence awaited) override;
  result<bool> do_wait_any(std::span<const fence> fences, std::uint64_t most_ns,
                           const std::function<bool()>& stop) override;
  [[nodiscard]] std::uint64_t do_clock_ns() const noexcept override;
  status do_wait_stream(stream_ref waiter, fence awaited) override;
  void do_drop(fence awaited) noexcept override;
  result<std::uint64_t> do_stream_id(stream_ref stream) override;
  result<std::uint64_t> do_capture_id(stream_ref stream) override;
  status do_watch_graph(stream_ref capturing, std::function<void()> destroyed) override;
  status do_synchronize() override;

  sim_device card_;
  device_info info_;
  memory_witness* witness_ = nullptr;
  std::vector<explored_device*> peers_;
  std::set<void*> streams_;
  std::map<void*, std::uint64_t> tails_ns_;    // of streams, by handle
  std::map<void*, std::uint64_t> full_until_;  // streams with a full queue
  struct capture_state {
    std::uint64_t id = 0;
    bool is_strict = false;
    bool is_told = false;  // the program announced it to the allocator
    std::uint64_t strict_since = 0;
  };
  void excuse_earlier_operation();
  [[nodiscard]] bool captures_strictly() const noexcept;
  [[nodiscard]] bool captures_as_told() const noexcept;
  std::map<void*, capture_state> captures_;  // by stream
  std::multimap<std::uint64_t, std::function<void()>> watched_graphs_;
  std::uint64_t latest_capture_ = 0;
  std::uint64_t latest_begin_ = 0;  // of an operation, or of a strict capture
  std::array<std::uint64_t, 16> operation_begin_{};
  std::uint64_t latest_work_ns_ = 0;
  std::array<std::uint64_t, 16> waited_ns_{};
  std::array<std::uint64_t, 16> unlimited_ns_{};
  unsigned waits_under_way_ = 0;
  unsigned calls_under_way_ = 0;
};

}  // namespace gpumem::schedules
