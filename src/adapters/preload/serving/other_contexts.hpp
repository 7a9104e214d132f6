// Accounts of devices on which gpumem serves nothing, or nothing yet: the program uses contexts of its own
// (cuCtxCreate), or has created the primary context but not allocated in it.
//
// The account counts memory from the driver under a limit on the process, or in a group that counts such memory. When
// the program first allocates in the primary context, the device's own account takes over. Any thread.
#pragma once

#include "device_registry.hpp"

namespace gpumem::preload {

struct unserved_device {
  int ordinal = 0;
  std::unique_ptr<device> cuda_device;
  std::uint64_t limit_bytes = 0;
  bool whole_process = false;
  std::shared_ptr<group_ledger> group;
  process_budget account;
  std::atomic<CUresult> refusal{CUDA_SUCCESS};  ///< the result of every request if the settings cannot be used
};

/// Returns the device of the current context; -1: none.
int current_ordinal() noexcept;

/// Returns the account of the current context's device and opens it at first use. Null without a context, where nothing
/// is counted, or on a device that gpumem serves. `refusal` as in `current_device`.
unserved_device* unserved_current(CUresult* refusal) noexcept;
/// Returns the account of a device; null if there is none or it does not count.
unserved_device* unserved_account(int ordinal) noexcept;

/// Notes a new context, so that a job counts it from here on and not from its first allocation.
void note_context(CUcontext made) noexcept;

/// Moves the account's counts to the device's own account, when gpumem starts to serve the device.
void now_served(served_context& device) noexcept;
/// Closes the account after a reset of the device, and returns its bytes to the group.
void forget_unserved(int ordinal) noexcept;

}  // namespace gpumem::preload
