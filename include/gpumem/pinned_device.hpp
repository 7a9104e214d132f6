/// Pinned host memory of a GPU, as a device: an allocator opened over it serves staging buffers.
///
/// All policies, limits and stream rules apply to this memory. Use of a block by the host counts as work on a separate
/// stream, `host_stream()`. All functions may be called from any thread.
#pragma once

#include <cstdint>
#include <memory>

#include "gpumem/device.hpp"
#include "gpumem/export.h"

namespace GPUMEM_API gpumem {

class pinned_device final : public device {
 public:
  /// Over `gpu`, which must outlive it. Takes at most `capacity_bytes` at a time, by default (0) half of the host's
  /// memory, and only on demand.
  explicit pinned_device(device& gpu, std::uint64_t capacity_bytes = 0);
  ~pinned_device() override;

  /// The stream for memory that the host reads and writes. It never has work in flight, so a block that it frees is
  /// free at once. When it must wait for other streams (`record_use`), the host waits.
  static stream_ref host_stream() noexcept;

  [[nodiscard]] const device_info& info() const noexcept override;

 private:
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
  status do_wait_stream(stream_ref waiter, fence fence) override;
  void do_drop(fence fence) noexcept override;
  result<std::uint64_t> do_stream_id(stream_ref stream) override;
  result<std::uint64_t> do_capture_id(stream_ref stream) override;
  status do_watch_graph(stream_ref capturing, std::function<void()> gone) override;
  status do_synchronize() override;

  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace gpumem
