/// The double of the CUDA driver: its world, from the test's side.
///
/// The driver's own functions (cuMemAlloc and so on, with the headers' own signatures) run over `sim_device`: one for
/// each GPU of the world. A process has one world, configured here or, before its first driver call, by SIMCUDA_*
/// variables (see README.md). All functions may be called from any thread, `configure` while nobody else does.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "gpumem/sim_device.hpp"

namespace gpumem::simcuda {

struct world_config {
  int devices = 1;
  std::uint64_t bytes = std::uint64_t{80} << 30;  ///< of each device
  std::uint64_t context_bytes = 0;                ///< what a primary context takes
  std::uint64_t module_bytes = 0;                 ///< what each module takes
  int driver_version = 13000;
  bool host_memory = false;  ///< programs can read and write what they allocate
  bool referee = true;
  std::vector<int> cards{};  ///< behind each ordinal, which its UUID tells; empty: the ordinal itself
};

/// A fresh world; handles and addresses of the former one are dead.
void configure(const world_config& config);

/// The device behind an ordinal; a reset of its context makes a new one.
sim_device& device(int ordinal);

/// The n-th call of the function (a base name: cuMemAlloc) from now on returns `error`, once.
void fail(std::string_view function, unsigned nth, CUresult error);
/// Calls of the function so far.
std::uint64_t calls(std::string_view function);

/// What stands for a CUstream on its sim_device.
stream_ref stream_of(CUstream s);
/// Work of `lag_ns` on a stream that touches the bytes.
void use(CUstream s, std::uint64_t lag_ns, std::uint64_t at, std::uint64_t bytes);

}  // namespace gpumem::simcuda
