// Tells GPU devices that their process is a forked child or is exiting. The driver works in neither case.
//
// A fork handler marks every open device. An exit handler stops destructors from calling the driver; it runs before the
// destructors of objects that existed when the first device was opened.
#pragma once

namespace gpumem {

class cuda_device;

/// Called by the device's constructor and destructor. Any thread.
void remember(cuda_device* device);
void forget(cuda_device* device);

[[nodiscard]] bool process_exiting() noexcept;

}  // namespace gpumem
