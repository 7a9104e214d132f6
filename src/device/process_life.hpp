// What a GPU device must know of its process: that it is a fork of the one that used the driver, or is about to end.
//
// The driver works in neither. A fork handler marks every device that is open; an exit handler, which runs before the
// destructors of objects that existed when the first device was opened, keeps destructors from calling the driver.
#pragma once

namespace gpumem {

class cuda_device;

/// From the device's constructor and destructor. Any thread.
void remember(cuda_device* device);
void forget(cuda_device* device);

[[nodiscard]] bool process_exiting() noexcept;

}  // namespace gpumem
