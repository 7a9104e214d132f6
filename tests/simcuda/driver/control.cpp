#include "control.h"

#include <algorithm>

#include "world.hpp"

using namespace gpumem::simcuda;  // NOLINT: these functions are global

extern "C" {

void simcuda_configure(int devices, std::uint64_t bytes, int host_memory, int referee) {
  // A program initialises its driver once; the new world is the same driver.
  const bool initialised = the_world().initialised;
  configure({.devices = devices,
             .bytes = bytes,
             .driver_version = the_world().config.driver_version,
             .host_memory = host_memory != 0,
             .referee = referee != 0});
  the_world().initialised = initialised;
}

void simcuda_use(void* stream, std::uint64_t lag_ns, std::uint64_t at, std::uint64_t bytes) {
  use(static_cast<CUstream>(stream), lag_ns, at, bytes);
}

void simcuda_handed_out(std::uint64_t at, std::uint64_t bytes, void* stream) {
  device(0).handed_out(at, bytes, stream_of(static_cast<CUstream>(stream)));
}

void simcuda_given_back(std::uint64_t at) { device(0).given_back(at); }
void simcuda_advance_by(std::uint64_t ns) { device(0).advance_by(ns); }
void simcuda_advance_to(std::uint64_t ns) { device(0).advance_to(ns); }
std::uint64_t simcuda_used_bytes() { return device(0).used_bytes(); }
std::uint64_t simcuda_peak_used_bytes() { return device(0).peak_used_bytes(); }
std::uint64_t simcuda_hazards() { return device(0).hazard_count(); }
std::uint64_t simcuda_in_calls_ns() { return device(0).in_calls_ns(); }

void simcuda_device_calls(std::uint64_t* counts, int kinds) {
  const gpumem::call_counts all = device(0).calls();
  std::copy_n(all.begin(), std::min<std::size_t>(all.size(), static_cast<std::size_t>(kinds)), counts);
}

}  // extern "C"
