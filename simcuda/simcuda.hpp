/// The double of the CUDA driver: its world, as tests see it.
///
/// The driver's own functions (cuMemAlloc and so on, with the headers' own signatures) run over one `sim_device` for
/// each GPU of the world. A process has one world, configured here or, before its first driver call, by SIMCUDA_*
/// variables (see README.md). All functions may be called from any thread; `configure` only while no other thread
/// calls.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cards.hpp"
#include "gpumem/sim_device.hpp"

namespace gpumem::simcuda {

struct world_config {
  int devices = 1;
  std::uint64_t bytes = std::uint64_t{80} << 30;  ///< of each device
  std::uint64_t granularity_bytes = std::uint64_t{2}
                                    << 20;  ///< of cuMemAlloc; below 2 MiB small requests share nothing
  std::uint64_t context_bytes = 0;          ///< memory of a primary context
  std::uint64_t library_bytes = 0;          ///< memory of each library of the runtime (a fat binary)
  std::uint64_t module_bytes = 0;           ///< memory of each module
  int driver_version = 13000;
  std::uint32_t queue_depth = 1024;  ///< entries of a stream's queue; a call that finds it full waits
  bool abort_on_undefined = true;    ///< false: such uses are counted (`undefined_uses`)
  bool host_memory = false;          ///< programs can read and write what they allocate
  bool integrated = false;           ///< the devices share the host's memory
  int compute_mode = 0;              ///< CUcomputemode
  bool mig = false;                  ///< the devices are slices of cards
  bool exportable = true;            ///< false: pages for other processes are refused, as in some containers
  bool referee = true;
  bool lazy_values = false;  ///< with host memory: large copies and fills move nothing, and the host reads zeros
  std::string_view name = "simulated GPU behind a double of the driver";
  const card_profile* profile = &default_card();  ///< properties that programs see, except the memory
  std::vector<int> cards{};  ///< by ordinal: the card, which its UUID names; empty: the ordinal itself
};

/// Creates a fresh world; handles and addresses of the previous one are invalid.
void configure(const world_config& config);

/// The device of an ordinal; a reset of its context creates a new one.
sim_device& device(int ordinal);

/// The n-th call of the function from now on (a base name: cuMemAlloc; "*": of any) returns `error`, once.
void fail(std::string_view function, unsigned nth, CUresult error);
/// While paused, calls neither fail by plan nor count, for a test's own calls.
void pause_failures(bool paused);
/// False once all planned failures have happened.
bool failure_planned();
/// As `fail`, and the call's context returns the error from then on, as after an illegal access by a kernel.
void break_at(std::string_view function, unsigned nth, CUresult error);
/// Uses that the documentation leaves undefined, each with its count: "cuStreamGetId: a stream that is destroyed".
/// Empty if such a use aborts.
std::vector<std::pair<std::string, std::uint64_t>> undefined_uses();
/// Primary contexts created on the device so far: one more after each release of the last reference.
std::uint64_t contexts_made(int ordinal);
/// Waits of the host for events created without CU_EVENT_BLOCKING_SYNC, so far.
std::uint64_t spinning_waits();
/// Runs the destructors of user objects without references now; otherwise they run some driver calls later.
void finish_destructors();
/// Calls of the function so far.
std::uint64_t calls(std::string_view function);
/// Calls of all functions so far.
std::uint64_t all_calls();

/// The handle of a CUstream on its sim_device.
stream_ref stream_of(CUstream handle);
/// Work of `lag_ns` on a stream that touches the bytes.
void use(CUstream handle, std::uint64_t lag_ns, std::uint64_t address, std::uint64_t bytes);

}  // namespace gpumem::simcuda
