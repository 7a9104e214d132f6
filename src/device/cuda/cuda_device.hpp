// One GPU through the driver's table: its primary context, memory, pages, fences and streams.
//
// The first call that needs the context retains it. Each call that needs it makes it current for the duration of the
// call, and relaxes the thread's capture mode, so that the driver allows gpumem's calls during a capture. Fences are
// pooled events without timing. A driver before 12.5 has no event on a whole context, so the device then uses deferred
// fences, which are done once the host has synchronized with the context (cuda_fences.cpp). The locks for the context,
// the events and the access list are held only for driver calls that cannot block, except the call that creates the
// context.
#pragma once

#include <atomic>
#include <map>
#include <vector>

#include "checked_mutex.hpp"
#include "cuda_driver.hpp"
#include "gpumem/device.hpp"

namespace gpumem {

class cuda_device final : public device {
 public:
  /// Reads the device's properties from the driver; retains nothing.
  static result<std::unique_ptr<device>> open(const cuda_driver& driver, const cuda_config& config);
  cuda_device(const cuda_driver& driver, CUdevice handle, device_info info);
  ~cuda_device() override;

  [[nodiscard]] const device_info& info() const noexcept override { return info_; }

  status add_peer(int ordinal);

  /// Called by the fork handler in a child: makes every further call fail.
  void forked() noexcept { set_condition(device_condition::forked); }

 private:
  class entered;  // the scope of a driver call

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
  result<bool> do_query(fence fence) override;
  status do_wait_host(fence fence) override;
  result<bool> do_wait_any(std::span<const fence> fences, std::uint64_t most_ns,
                           const std::function<bool()>& stop) override;
  status do_wait_stream(stream_ref waiter, fence fence) override;
  void do_drop(fence fence) noexcept override;
  result<std::uint64_t> do_foreign_context(stream_ref stream) override;
  result<fence> do_record_foreign(std::uint64_t context) override;
  result<bool> do_blocking_stream_captures() override;
  void do_enter() noexcept override;
  void do_leave() noexcept override;
  result<std::uint64_t> do_stream_id(stream_ref stream) override;
  result<std::uint64_t> do_capture_id(stream_ref stream) override;
  status do_watch_graph(stream_ref capturing, std::function<void()> gone) override;
  status do_synchronize() override;

  status read_page_properties();
  [[nodiscard]] int attribute(CUdevice_attribute kind) const;
  [[nodiscard]] bool deferred_done(fence fence) const noexcept;
  status context(CUcontext* target);
  result<CUevent> take_event();
  result<CUevent> make_event();
  void keep_event(CUevent event) noexcept;
  void forget_accessible(address begin, address end) GPUMEM_REQUIRES(access_mutex_);
  /// As `checked`, with the primary context current.
  template <typename Function, typename Describe, typename... Arguments>
  status in_context(const Function& call, const Describe& doing, Arguments... arguments);

  const cuda_driver& driver_;
  const CUdevice handle_;
  device_info info_;
  CUmemAllocationProp pages_{};

  checked_mutex access_mutex_;
  std::vector<CUmemAccessDesc> access_ GPUMEM_GUARDED_BY(access_mutex_);  // for mapped pages: this device and its peers
  std::map<address, std::uint64_t> accessible_ GPUMEM_GUARDED_BY(access_mutex_);  // ranges that have this access

  checked_mutex context_mutex_;
  std::atomic<CUcontext> context_{nullptr};
  unsigned long long context_id_ = 0;

  const std::uint64_t number_;            // unique to this object
  std::atomic<bool> plain_pages_{false};  // the driver refused exportable pages

  checked_mutex events_mutex_;
  std::vector<CUevent> events_ GPUMEM_GUARDED_BY(events_mutex_);  // spare events
  std::vector<CUevent> foreign_events_
      GPUMEM_GUARDED_BY(events_mutex_);  // events of other contexts, which this context cannot reuse
  std::size_t events_made_ GPUMEM_GUARDED_BY(events_mutex_) = 0;  // events created for events_, spare or in use

  std::atomic<std::uint64_t> deferred_{0};      // the number of the last deferred fence
  std::atomic<std::uint64_t> synchronized_{0};  // the last deferred fence that a synchronization covers
};

}  // namespace gpumem
