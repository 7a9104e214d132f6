/// The simulated CUDA driver's interface for tests.
///
/// The driver's functions (cuMemAlloc and so on, with the signatures of cuda.h) run over one `sim_device` for each GPU.
/// A process has one driver state, configured here or, before its first driver call, by SIMCUDA_* variables
/// (README.md). All functions may be called from any thread; call `configure` only while no other thread calls.
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
                                    << 20;  ///< of cuMemAlloc; below 2 MiB, small requests do not share segments
  std::uint64_t context_bytes = 0;          ///< memory of a primary context
  std::uint64_t library_bytes = 0;          ///< memory of each runtime library (a fat binary)
  std::uint64_t module_bytes = 0;           ///< memory of each module
  int driver_version = 13000;
  std::uint32_t queue_depth = 1024;  ///< entries of a stream's queue; a call waits while the queue is full
  bool abort_on_undefined = true;    ///< false: count undefined uses instead (`undefined_uses`)
  bool host_memory = false;          ///< backs device memory with host memory, so that programs can read and write it
  bool integrated = false;           ///< the devices share the host's memory
  int compute_mode = 0;              ///< CUcomputemode
  bool mig = false;                  ///< the devices are MIG slices
  bool exportable = true;            ///< false: refuses pages for other processes, as some containers do
  bool referee = true;
  bool lazy_values = false;  ///< with host memory: large copies and fills move nothing, and the host reads zeros
  std::string_view name = "simulated GPU behind a double of the driver";
  const card_profile* profile = &default_card();  ///< properties that programs see, except the memory
  std::vector<int> cards{};  ///< by ordinal: card numbers, which determine the UUIDs; empty: ordinals
};

/// Creates a fresh driver state; all earlier handles and addresses become invalid.
void configure(const world_config& config);

/// Returns the device of an ordinal; a reset of its context creates a new one.
sim_device& device(int ordinal);

/// Makes the n-th call of the function from now on return `error`, once. `function` is a base name (cuMemAlloc), or "*"
/// for any.
void fail(std::string_view function, unsigned nth, CUresult error);
/// While paused, calls neither fail by plan nor count, so that a test can make calls of its own.
void pause_failures(bool paused);
/// Whether planned failures remain.
bool failure_planned();
/// As `fail`; later calls in the same context fail too, as after an illegal access by a kernel.
void break_at(std::string_view function, unsigned nth, CUresult error);
/// Returns the uses that the documentation leaves undefined, with their counts: "cuStreamGetId: a stream that is
/// destroyed". Empty if such uses abort.
std::vector<std::pair<std::string, std::uint64_t>> undefined_uses();
/// Counts the primary contexts created on the device: each release of the last reference allows one more.
std::uint64_t contexts_made(int ordinal);
/// Counts the host's waits for events created without CU_EVENT_BLOCKING_SYNC.
std::uint64_t spinning_waits();
/// Runs the destructors of user objects without references now; otherwise they run some driver calls later.
void finish_destructors();
/// Counts the calls of the function.
std::uint64_t calls(std::string_view function);
/// Counts the calls of all functions.
std::uint64_t all_calls();

/// Returns a CUstream's handle on its sim_device.
stream_ref stream_of(CUstream handle);
/// Enqueues work of `lag_ns` that uses the bytes.
void use(CUstream handle, std::uint64_t lag_ns, std::uint64_t address, std::uint64_t bytes);

}  // namespace gpumem::simcuda
