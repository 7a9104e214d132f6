/// A simulated GPU: memory that is only counted, streams on a virtual clock, and a referee.
///
/// Its addresses have no memory behind them, unless `sim_config::host_memory` is set. Time is virtual: each call
/// advances the host's clock by its cost in the cost table, work on a stream completes at its own virtual time, and a
/// wait advances the host's clock to that time. The same calls give the same times, addresses and answers on every
/// machine.
///
/// The referee works like a race detector. It knows the last use of every byte on each stream, and reports a block that
/// is handed to a stream not ordered after all of these uses (by stream order, by a fence that the stream waits for, or
/// by a fence that the host saw complete). All functions may be called from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gpumem/device.hpp"
#include "gpumem/export.h"

namespace GPUMEM_API gpumem {

/// The host's cost of a device call, in virtual nanoseconds: `fixed + per_page * pages`.
struct call_cost {
  std::uint64_t fixed_ns = 0;
  std::uint64_t per_page_ns = 0;  ///< for each 2 MiB after the first
};

/// One cost per kind of call; `sim_cost_source` names the source of each default.
using cost_table = std::array<call_cost, device_call_kinds>;
const cost_table& sim_default_costs() noexcept;
/// The source of a default cost, for the documentation and its test.
std::string_view sim_cost_source(device_call call) noexcept;

struct sim_config {
  int ordinal = 0;
  std::string name = "simulated GPU";
  std::uint64_t capacity_bytes = std::uint64_t{80} << 30;
  std::uint64_t granularity_bytes = std::uint64_t{2} << 20;
  std::uint64_t page_bytes = std::uint64_t{2} << 20;  ///< 0: the device cannot map pages
  int compute_major = 9;
  int compute_minor = 0;
  std::uint64_t foreign_bytes = 0;           ///< held by other processes
  address first_address = 0x2000'0000'0000;  ///< must differ if several devices share a process's addresses
  std::uint64_t address_space_bytes = std::uint64_t{1} << 47;
  cost_table costs = sim_default_costs();
  /// Puts real host memory behind the addresses, at addresses that the kernel chooses, so that a program may read and
  /// write its blocks. Untouched memory costs nothing.
  bool host_memory = false;
  std::uint32_t host_range_capacities = 6;  ///< with `host_memory`: address space, in multiples of the capacity
  /// Entries of each stream's queue; a call that finds it full waits for the oldest entry. 0: unlimited.
  std::uint32_t queue_depth = 0;
  bool referee = true;  ///< if false, records no uses, and `hazards` stays empty
};

/// The kind of a stream.
struct sim_stream {
  bool blocking = false;      ///< ordered with the legacy stream of its context, in both directions
  bool legacy = false;        ///< the default stream of a further context
  std::uint32_t context = 0;  ///< 0 is the primary one, whose default stream always exists
};

enum class hazard_kind : std::uint8_t {
  early_reuse,     ///< handed out while another stream may still use it
  overlap,         ///< handed out twice at once
  use_after_free,  ///< freed to the driver or unmapped while a stream may still use it, or used without memory
};
std::string_view to_string(hazard_kind kind) noexcept;

struct hazard {
  hazard_kind kind = hazard_kind::early_reuse;
  address at = 0;
  std::uint64_t bytes = 0;
  stream_ref user;      ///< the stream whose work may still touch the bytes
  stream_ref receiver;  ///< the stream that got them
  std::uint64_t at_ns = 0;
  [[nodiscard]] std::string to_string() const;
};

class sim_device final : public device {
 public:
  explicit sim_device(sim_config config = {});
  ~sim_device() override;

  [[nodiscard]] const device_info& info() const noexcept override;

  // --- streams -------------------------------------------------------------------------------------------
  /// Creates a stream. Handles are reused after `destroy_stream`, as drivers do; ids never are.
  stream_ref create_stream(sim_stream kind = {});
  status destroy_stream(stream_ref stream);
  /// While a stream captures, `record`, `wait_host`, `query` of its fences and `synchronize` fail and invalidate the
  /// capture, as in the driver.
  status begin_capture(stream_ref stream);
  /// Ends the capture; fails if a call has invalidated it.
  status end_capture(stream_ref stream);
  /// Invalidates the capture, as a forbidden call would. `cause` names that call in the message of `end_capture`.
  void invalidate_capture(stream_ref stream, std::string_view cause);
  [[nodiscard]] bool capture_invalidated(stream_ref stream) const;
  [[deprecated("use invalidate_capture")]] void spoil_capture(stream_ref stream, std::string_view cause) {
    invalidate_capture(stream, cause);
  }
  [[nodiscard, deprecated("use capture_invalidated")]] bool capture_spoilt(stream_ref stream) const {
    return capture_invalidated(stream);
  }

  // --- further contexts ----------------------------------------------------------------------------------
  /// `record_context` and `synchronize` for one context; those two act on the primary context and the whole device.
  result<fence> record_in_context(std::uint32_t context);
  status synchronize_context(std::uint32_t context);

  // --- virtual time and work -----------------------------------------------------------------------------
  [[nodiscard]] std::uint64_t now_ns() const noexcept;  ///< the host's clock
  void advance_to(std::uint64_t ns) noexcept;           ///< never backwards
  void advance_by(std::uint64_t ns) noexcept;
  [[nodiscard]] std::uint64_t in_calls_ns() const noexcept;  ///< host time spent in device calls, waits included
  /// Enqueues work on `target_stream` that is done `lag_ns` after the host's current time, and not before earlier work
  /// of `target_stream`.
  void enqueue(stream_ref target_stream, std::uint64_t lag_ns);
  /// The same for work that uses these bytes; the referee remembers the use.
  void enqueue_use(stream_ref target_stream, std::uint64_t lag_ns, address begin, std::uint64_t bytes);
  /// The past or future time on the host's clock at which all work before the fence is done. Not a device call.
  [[nodiscard]] result<std::uint64_t> done_ns(fence fence) const;

  // --- the referee ---------------------------------------------------------------------------------------
  /// States that the allocator gave `[begin, begin + bytes)` to `receiver`. Checks for hazards and records a use by
  /// `receiver`.
  void handed_out(address begin, std::uint64_t bytes, stream_ref receiver);
  /// States that the program freed the block. Its uses may still be in flight.
  void given_back(address begin);
  [[nodiscard]] std::uint64_t hazard_count() const noexcept;
  /// The first 100 hazards.
  [[nodiscard]] std::vector<hazard> hazards() const;

  // --- memory of the host --------------------------------------------------------------------------------
  /// Creates pages of the host's memory, to map like those of `create`. They take none of the device's memory.
  result<page_run> create_host_pages(std::uint64_t bytes);

  // --- faults and neighbours -----------------------------------------------------------------------------
  /// Makes one call of the kind fail with `code`: the `ordinal`-th from now on (1 is the next).
  void fail_nth(device_call call, std::uint64_t ordinal, errc code = errc::device_error);
  /// Sets the memory that other processes hold. If it is more than the free memory, nothing is free.
  void set_foreign_bytes(std::uint64_t bytes) noexcept;
  [[nodiscard]] std::uint64_t used_bytes() const noexcept;  ///< physical memory of this process
  [[nodiscard]] std::uint64_t peak_used_bytes() const noexcept;
  [[nodiscard]] std::uint64_t live_mappings() const noexcept;
  /// Counts of pages mapped for the first time since their creation, and of pages mapped again elsewhere.
  [[nodiscard]] std::uint64_t mapped_pages() const noexcept;
  [[nodiscard]] std::uint64_t remapped_pages() const noexcept;

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
  result<bool> do_wait_any(std::span<const fence> fences, std::uint64_t most_ns,
                           const std::function<bool()>& stop) override;
  [[nodiscard]] std::uint64_t do_clock_ns() const noexcept override;
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
