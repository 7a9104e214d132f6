/// A device that runs a function of the test before or after some calls.
#pragma once

#include <functional>

#include "device_decorator.hpp"
#include "gpumem/sim_device.hpp"

namespace gpumem::caches {

class forwarding_device final : public device_decorator {
 public:
  explicit forwarding_device(device& target) : device_decorator{target} {}
  /// Runs in `alloc` before the device's call; may replace itself.
  std::function<void()> before_alloc;
  /// The same for `map`, and for `record` and `record_context`.
  std::function<void()> before_map;
  std::function<void()> before_record;
  std::function<void()> before_wait_stream;
  /// Runs after either kind of wait.
  std::function<void()> after_wait;
  /// Puts the device into the state of the driver in a forked child.
  void fork() noexcept { set_condition(device_condition::forked); }

 private:
  void before_call(device_call call) override {
    switch (call) {
      case device_call::alloc:
        return run(before_alloc);
      case device_call::map:
        return run(before_map);
      case device_call::record:
      case device_call::record_context:
        return run(before_record);
      case device_call::wait_stream:
        return run(before_wait_stream);
      default:
        return;
    }
  }
  void after_call(device_call call) noexcept override {
    if (call == device_call::wait_host || call == device_call::wait_stream) run(after_wait);
  }
  /// A copy, because the function may replace itself.
  static void run(std::function<void()> told) {
    if (told) told();
  }
};

}  // namespace gpumem::caches
