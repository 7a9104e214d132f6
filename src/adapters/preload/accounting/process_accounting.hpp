// The accounts of all devices, and the receipts of the memory that was counted on them.
//
// Under GPUMEM_LIMIT_SCOPE=process every counted call is charged; under GPUMEM_IPC=1 with a limit, only the allocations
// that replace cudaMalloc. Otherwise these functions do nothing.
#pragma once

#include <shared_mutex>

#include "call_size.hpp"
#include "process_budget.hpp"
#include "process_settings.hpp"

namespace gpumem::preload {

struct served_context;

/// Returns the device memory that the process holds: NVML's figure for the process; else the growth of NVML's used
/// memory since before the process made a context; else all used memory on the current device, which may include other
/// processes', less the memory of the job's other members.
std::uint64_t process_bytes(const device_info& info, group_ledger* group) noexcept;

/// Whether the process stays within its limit with `bytes` more, by NVML's figure for the process. The figure includes
/// code that is loaded at a first launch, which no call reports. True if NVML has no figure.
bool fits_process_limit(const device_info& info, std::uint64_t limit_bytes, std::uint64_t bytes) noexcept;

/// The result of `charge_for`. `granted`: charged, or no charge needed; else it would exceed the limit.
struct charge {
  bool granted = true;
  int ordinal = -1;  ///< of the account; -1: none
  std::uint64_t bytes = 0;
};
/// Charges a call. `dedicated`: the call replaces a cudaMalloc with a driver allocation of its own.
charge charge_for(const call_size& size, bool dedicated) noexcept;
/// Records a charge for its later refund. `with_context`: the memory is freed when the current context ends.
void keep_receipt(const charge& charged, receipt_kind kind, std::uint64_t given, bool with_context) noexcept;
/// Call after the context ended: refunds the memory that was freed with it.
void context_ended(CUcontext context) noexcept;

/// Runs `free`, the driver's function for an address or a handle that may have been counted. Takes the receipt first:
/// after the free, the driver may give another thread the same address.
template <typename Free>
CUresult freed(charge_table& where, std::uint64_t key, Free&& free) noexcept;
charge_table& address_receipts() noexcept;
charge_table& handle_receipts() noexcept;
page_receipts& all_pages() noexcept;
/// Returns the bytes of a charge to its account. Does nothing if the ordinal is -1.
void refund(const charge_table::entry& charged) noexcept;
/// Call after a reset of the device: drops its receipts, because its memory and its account are gone.
void device_was_reset(int ordinal) noexcept;
/// Refunds the graph memory that the driver has trimmed; `bytes`: the memory that the device's graphs hold now.
void graphs_hold(int ordinal, std::uint64_t bytes) noexcept;

template <typename Free>
CUresult freed(charge_table& where, std::uint64_t key, Free&& free) noexcept {
  const charge_table::entry paid = where.take(key);
  const CUresult e = free();
  if (e == CUDA_SUCCESS) {
    refund(paid);
  } else if (paid.ordinal >= 0) {
    where.keep(key, paid.ordinal, paid.bytes, paid.context);
  }
  return e;
}

/// A sample of used memory on one device; two samples show how much a measured call took. `known` is false if neither
/// NVML nor the driver has a figure.
struct used_memory {
  bool known = false;
  bool of_process = false;  ///< used by this process, by NVML; else by all processes on the device
  int ordinal = -1;
  std::uint64_t bytes = 0;  ///< excludes gpumem's segments and counted calls
};
/// Counted calls hold this shared, measured calls exclusively, so that a measurement contains no counted memory.
std::shared_mutex& counting() noexcept;
used_memory measure_before() noexcept;
void measure_after(const used_memory& before) noexcept;

}  // namespace gpumem::preload
