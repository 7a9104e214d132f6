// Accounts of devices on which gpumem serves nothing, or nothing yet: the program uses contexts of its own
// (cuCtxCreate), or has only made the primary one.
//
// Under a limit on the process, or in a group that counts what the driver gives, such an account counts it. When the
// primary context is first allocated in, the device's own account takes over. Any thread.
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
  std::atomic<CUresult> refusal{CUDA_SUCCESS};  ///< what every request is told where the settings cannot be used
};

/// The device of the current context; -1: none.
int current_ordinal() noexcept;

/// The account of the current context's device, opened if it was not; null without a context, where nothing is counted,
/// or on a device that is served. `refusal` as of `current_device`.
unserved_device* unserved_current(CUresult* refusal) noexcept;
/// The account of a device if there is one that counts.
unserved_device* unserved_account(int ordinal) noexcept;

/// A context was made. A job counts it from here on, and not from its first allocation.
void note_context(CUcontext made) noexcept;

/// The device is served from now on.
void now_served(served_context& device) noexcept;
/// The device was reset: what its account counted is gone.
void forget_unserved(int ordinal) noexcept;

}  // namespace gpumem::preload
