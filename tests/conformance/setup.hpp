/// The setups in which every allocator is tested, and the fixture that tests are written against.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "bits.hpp"
#include "gpumem/allocator.hpp"
#include "test_device.hpp"

namespace gpumem::conformance {

/// One setup: device x policy x limit x pools; for some suites also x reuse x stream ids.
struct setup {
  device_kind kind;
  std::string policy;
  std::string limit;  ///< empty: none
  std::string pools;  ///< empty: one
  stream_reuse reuse = stream_reuse::device;
  stream_id_mode stream_ids = stream_id_mode::query;
  bool thread_cache = true;

  [[nodiscard]] settings to_settings() const;
  friend std::ostream& operator<<(std::ostream& out, const setup& s);
};

/// Every policy in the registry x {no limit, bytes, share of the device, share of the free memory} x {one pool, two}.
/// The limit in bytes is also tested without thread caches.
std::vector<setup> every_setup();
/// Every policy, with a limit of 512 MiB, x every way of reuse x every kind of stream ids x with and without thread
/// caches.
std::vector<setup> every_stream_setup();
/// For the names of parameterised tests.
std::string name_of(const ::testing::TestParamInfo<setup>& info);

/// A program with one allocator on one device, which reports its actions to the referee.
class program : public ::testing::TestWithParam<setup> {
 protected:
  /// Opens the allocator with the parameter's settings.
  void SetUp() override;
  /// Checks every pool, and that the referee found no hazard.
  void TearDown() override;

  void open(const settings& with);
  /// Allocates or fails the test.
  void* take(std::size_t bytes, stream_ref s = {}, int pool = 0, std::size_t alignment = block_granularity);
  /// Null if the allocator refuses; stores the report.
  void* try_take(std::size_t bytes, stream_ref s = {}, int pool = 0, oom_report* report = nullptr);
  void give(void* p, const free_args& stated = {});
  /// Allocates blocks of the size until one is refused.
  std::vector<void*> fill(std::size_t bytes, stream_ref s = {}, int pool = 0);
  void give_all(std::vector<void*>& blocks);

  [[nodiscard]] statistics stats(int pool = 0) const { return *allocator_->stats(pool); }
  [[nodiscard]] int pools() const { return static_cast<int>(allocator_->devices().size()); }
  /// The device calls by which the policy's memory is taken and returned.
  [[nodiscard]] static device_call taking_call() {
    return GetParam().policy == "expandable" ? device_call::create : device_call::alloc;
  }
  [[nodiscard]] static device_call returning_call() {
    return GetParam().policy == "expandable" ? device_call::unmap : device_call::free;
  }
  sim_device& sim() { return *device_->simulated(); }
  [[nodiscard]] bool is_simulated() { return device_->simulated() != nullptr; }

  std::unique_ptr<test_device> device_;
  std::unique_ptr<allocator> allocator_;
};

/// The reason for a skip on a device that is not simulated.
inline constexpr const char* needs_simulation = "needs the simulated device: virtual time, faults or other processes";

}  // namespace gpumem::conformance
