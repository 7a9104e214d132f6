/// The devices of the conformance suites. To add one, derive from `test_device` and add a row in a `device_kinds()`;
/// leave the functions for unsupported features (virtual time, faults, a referee) as they are here.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gpumem/device.hpp"
#include "gpumem/sim_device.hpp"

namespace gpumem::conformance {

inline constexpr std::uint64_t device_bytes = std::uint64_t{1} << 30;

class test_device {
 public:
  test_device() = default;
  test_device(const test_device&) = delete;
  test_device& operator=(const test_device&) = delete;
  virtual ~test_device() = default;

  virtual device& edge() = 0;
  virtual stream_ref create_stream() = 0;
  virtual void destroy_stream(stream_ref s) = 0;
  /// Enqueues work on `s` of about `lag_ns` that touches the bytes.
  virtual void use(stream_ref s, std::uint64_t lag_ns, void* p, std::uint64_t bytes) = 0;
  virtual status begin_capture(stream_ref s) = 0;
  /// Fails if a call has invalidated the capture.
  virtual status end_capture(stream_ref s) = 0;

  virtual void handed_out(void* /*p*/, std::uint64_t /*bytes*/, stream_ref /*to*/) {}
  virtual void given_back(void* /*p*/) {}
  [[nodiscard]] virtual std::vector<std::string> hazards() const { return {}; }
  /// For tests of time, faults and other processes; null for a real device.
  virtual sim_device* simulated() { return nullptr; }
};

struct device_kind {
  std::string name;
  std::function<std::unique_ptr<test_device>()> make;
};

/// The devices of this program: devices_here.cpp defines those that run anywhere, devices_gpu.cpp the real one.
std::vector<device_kind> device_kinds();

}  // namespace gpumem::conformance
