/// The double of the CUDA driver: its world, from the test's side.
///
/// The driver's own functions (cuMemAlloc and so on, with the headers' own signatures) run over `sim_device`: one for
/// each GPU of the world. A process has one world, configured here or, before its first driver call, by SIMCUDA_*
/// variables (see README.md). All functions may be called from any thread, `configure` while nobody else does.
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
  std::uint64_t context_bytes = 0;          ///< what a primary context takes
  std::uint64_t library_bytes = 0;          ///< what each library of the runtime (a fat binary) takes
  std::uint64_t module_bytes = 0;           ///< what each module takes
  int driver_version = 13000;
  std::uint32_t queue_depth = 1024;  ///< entries of a stream's queue; a call that finds it full waits
  bool abort_on_undefined = true;    ///< else such uses are counted: `undefined_uses`
  bool host_memory = false;          ///< programs can read and write what they allocate
  bool mig = false;                  ///< the devices are slices of cards
  bool exportable = true;  ///< else pages that shall be shared with other processes are refused, as in some containers
  bool referee = true;
  bool lazy_values = false;  ///< with host memory: large copies and fills move nothing, and the host reads zeros
  std::string_view name = "simulated GPU behind a double of the driver";
  const card_profile* profile = &default_card();  ///< what programs see of each, but for its memory
  std::vector<int> cards{};  ///< behind each ordinal, which its UUID tells; empty: the ordinal itself
};

/// A fresh world; handles and addresses of the former one are dead.
void configure(const world_config& config);

/// The device behind an ordinal; a reset of its context makes a new one.
sim_device& device(int ordinal);

/// The n-th call of the function (a base name: cuMemAlloc; "*": of any) from now on returns `error`, once.
void fail(std::string_view function, unsigned nth, CUresult error);
/// Meanwhile no call fails by plan, or counts: the program's own calls between those of what is tested.
void pause_failures(bool yes);
/// False once all that were planned have happened.
bool failure_planned();
/// The same, and the context of the call returns it for good, as after a kernel that touched what it must not.
void break_at(std::string_view function, unsigned nth, CUresult error);
/// What the program did though the documentation leaves it undefined, each with how often: "cuStreamGetId: a stream
/// that is destroyed". Empty where that aborts.
std::vector<std::pair<std::string, std::uint64_t>> undefined_uses();
/// Primary contexts that were made on the device so far: one more for each time that the last reference was released.
std::uint64_t contexts_made(int ordinal);
/// Waits of the host for an event that was made without CU_EVENT_BLOCKING_SYNC, so far.
std::uint64_t spinning_waits();
/// Runs the destructors of user objects without references now; else they run some driver calls later.
void finish_destructors();
/// Calls of the function so far.
std::uint64_t calls(std::string_view function);
/// The same of all functions together.
std::uint64_t all_calls();

/// What stands for a CUstream on its sim_device.
stream_ref stream_of(CUstream s);
/// Work of `lag_ns` on a stream that touches the bytes.
void use(CUstream s, std::uint64_t lag_ns, std::uint64_t at, std::uint64_t bytes);

}  // namespace gpumem::simcuda
