// The ledgers of all devices, and the receipts of what was counted: what passed_on and the served frees ask.
//
// Under GPUMEM_LIMIT_SCOPE=process every counted call is entered; under GPUMEM_IPC=1 with a limit, the allocations that
// stand for cudaMalloc. Else nothing here does anything.
#pragma once

#include <shared_mutex>

#include "call_size.hpp"
#include "process_budget.hpp"
#include "process_settings.hpp"

namespace gpumem::preload {

struct served_context;

/// The device memory that the process has by now: by NVML's list of processes, else by what NVML saw used before and
/// after, else all that is used, which other processes may be part of; without what the others of its job hold.
/// The last two ask about the current context's device.
std::uint64_t process_bytes(const device_info& info, group_ledger* group) noexcept;

/// Whether the process stays within a limit on all of it with so much more, by NVML's figure for what it has by now:
/// code that is loaded at a first launch is in it, which no call tells of. True where NVML has no figure.
bool fits_process_limit(const device_info& info, std::uint64_t limit_bytes, std::uint64_t bytes) noexcept;

/// A charge that was made, or need not be. False: over the limit.
struct charge {
  bool granted = true;
  int ordinal = -1;  ///< of the account; -1: none
  std::uint64_t bytes = 0;
};
/// `dedicated`: the call stands for a cudaMalloc that gets an allocation of its own.
charge charge_for(const call_size& size, bool dedicated) noexcept;
/// `with_context`: the memory ends with the current context.
void keep_receipt(const charge& charged, kept_as kind, std::uint64_t given, bool with_context) noexcept;
/// The context has ended, and with it what was counted in it.
void context_ended(CUcontext context) noexcept;

/// Runs `free`, the driver's, of an address or a handle that may have been counted. The receipt is taken first: once
/// the driver has it back, another thread may be given the same address.
template <typename Free>
CUresult freed(charge_table& where, std::uint64_t key, Free&& free) noexcept;
charge_table& address_receipts() noexcept;
charge_table& handle_receipts() noexcept;
page_receipts& all_pages() noexcept;
void refund(const charge_table::entry& charged) noexcept;
void device_was_reset(int ordinal) noexcept;
/// The memory that a device's graphs hold now, as the driver tells; less than was counted where it was trimmed.
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

/// Device memory that is used now, of the device that `current` names or a call will be made on; used to see what a
/// measured call took. `known` false: nobody can tell.
struct used_memory {
  bool known = false;
  bool of_process = false;  ///< by this process, as NVML says; else by all that use the device
  int ordinal = -1;
  std::uint64_t bytes = 0;  ///< without what gpumem and the counted calls have
};
/// Held shared by counted calls and alone by measured ones, so that the former are not taken for the latter's.
std::shared_mutex& counting() noexcept;
used_memory measure_before() noexcept;
void measure_after(const used_memory& before) noexcept;

}  // namespace gpumem::preload
