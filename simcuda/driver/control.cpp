#include "control.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "gpumem/gpumem.h"
#include "python_line.hpp"
#include "run_record.hpp"
#include "run_recorder.hpp"
#include "shared_cards_lock.hpp"
#include "value_marks.hpp"
#include "values.hpp"

using namespace gpumem::simcuda;  // NOLINT: these functions are global

namespace {

std::uint64_t granularity_bytes = world_config{}.granularity_bytes;

/// Returns the device that holds the address; device 0 if none does.
gpumem::sim_device& device_of(std::uint64_t address) {
  gpu* const holder = holder_of(address);
  return holder != nullptr ? *holder->sim : device(0);
}

/// Whether the block is from the driver's own pool: cuMemAllocAsync has already reported it to the referee.
bool told_by_driver(std::uint64_t address) {
  const gpu* const holder = holder_of(address);
  return holder != nullptr && holder->pool->owns(address);
}

/// Calls a function of the driver under its lock.
template <typename Function, typename... Arguments>
void locked(Function* function, Arguments... arguments) {
  const std::lock_guard lock{the_driver_state().mutex};
  function(arguments...);
}

/// Whether the address is on a card and the host can access it.
bool has_values(std::uint64_t address) {
  return the_driver_state().config.host_memory && holder_of(address) != nullptr;
}

}  // namespace

extern "C" {

void simcuda_set_granularity(std::uint64_t bytes) { granularity_bytes = bytes; }

void simcuda_configure(int devices, std::uint64_t bytes, int host_memory, int referee) {
  // Keep the driver initialised: a program calls cuInit only once.
  const bool initialised = the_driver_state().initialised;
  configure({.devices = devices,
             .bytes = bytes,
             .granularity_bytes = granularity_bytes,
             .driver_version = the_driver_state().config.driver_version,
             .queue_depth = the_driver_state().config.queue_depth,
             .abort_on_undefined = the_driver_state().config.abort_on_undefined,
             .host_memory = host_memory != 0,
             .referee = referee != 0});
  the_driver_state().initialised = initialised;
}

void simcuda_use(void* stream, std::uint64_t lag_ns, std::uint64_t address, std::uint64_t bytes) {
  const std::lock_guard lock{the_driver_state().mutex};
  use(static_cast<CUstream>(stream), lag_ns, address, bytes);
  note_hazards(false);
}

void simcuda_handed_out(std::uint64_t address, std::uint64_t bytes, void* stream) {
  const std::lock_guard lock{the_driver_state().mutex};
  if (told_by_driver(address)) return;
  const gpumem::stream_ref receiver = stream_of(static_cast<CUstream>(stream));
  device_of(address).handed_out(address, bytes, receiver);
  front.calls = "an allocator";
  note_hazards(false);
}

// The referee checks that earlier uses of the block are ordered before work of the stream, or, if any stream may use
// the block at once, before the host's next call. simcuda_handed_out may hand out parts of the block again.
void gpumem_served_callback(const char* function, std::uint64_t block, std::uint64_t bytes, void* stream,
                            int any_stream) {
  static char no_stream = 0;  // never used, so earlier work must be done as the host knows it
  const std::lock_guard lock{the_driver_state().mutex};
  const gpumem::stream_ref receiver =
      any_stream != 0 ? gpumem::stream_ref{&no_stream} : stream_of(static_cast<CUstream>(stream));
  gpumem::sim_device& card = device_of(block);
  card.handed_out(block, bytes, receiver);
  card.given_back(block);  // the program's allocator may hand out parts of it
  front.calls = function;
  note_hazards(true);
}

void simcuda_note_unseen(const char* why) { locked(gpumem::simcuda::note_unseen, why); }

void simcuda_given_back(std::uint64_t address) {
  const std::lock_guard lock{the_driver_state().mutex};
  if (!told_by_driver(address)) device_of(address).given_back(address);
}
void simcuda_advance_by(std::uint64_t ns) { device(0).advance_by(ns); }
void simcuda_advance_to(std::uint64_t ns) { device(0).advance_to(ns); }
std::uint64_t simcuda_used_bytes() { return the_driver_state().gpus.empty() ? 0 : device(0).used_bytes(); }
std::uint64_t simcuda_peak_used_bytes() { return device(0).peak_used_bytes(); }
void simcuda_fail(const char* function, unsigned nth, int error) { fail(function, nth, static_cast<CUresult>(error)); }
void simcuda_pause_failures(int paused) { pause_failures(paused != 0); }
int simcuda_failure_planned() { return failure_planned() ? 1 : 0; }
std::uint64_t simcuda_hazards() {
  const driver_state& w = the_driver_state();
  const std::lock_guard lock{the_driver_state().mutex};
  std::uint64_t all = 0;
  for (const auto& g : w.gpus) all += g->sim->hazard_count();
  return all;
}
void simcuda_place_hazards(const char* place) { locked(gpumem::simcuda::place_hazards, place); }
const char* simcuda_hazard_place(std::uint64_t index) {
  const std::lock_guard lock{the_driver_state().mutex};
  const hazard_record* const found = noted_hazard(index);
  return found == nullptr ? nullptr : found->place;
}
std::uint64_t simcuda_kernels() { return front.kernels; }
void simcuda_watch_python(int signal, int file) { watch_python(signal, file); }
std::uint64_t simcuda_in_calls_ns() { return device(0).in_calls_ns(); }

int simcuda_card_memory(int card, std::uint64_t* total, std::uint64_t* used) {
  driver_state& w = the_driver_state();
  const std::lock_guard lock{w.mutex};
  for (const auto& g : w.gpus) {
    if (g->card != card) continue;
    *total = w.config.bytes;
    *used = own_bytes(*g);
    if (w.shared != nullptr) *used = std::min(w.config.bytes, *used + w.shared->held_by_others(card));
    return 0;
  }
  return 1;
}

int simcuda_charge_library(std::uint64_t* address, std::uint64_t bytes) {
  driver_state& w = the_driver_state();
  const std::lock_guard lock{w.mutex};
  SIMCUDA_FIND_CURRENT(device);
  const shared_cards_lock turn{*device};
  SIMCUDA_ASSIGN(got, device->sim->alloc((bytes + 0x1f'ffff) / 0x20'0000 * 0x20'0000));
  note_charge(*device, charge::library, bytes);
  *address = got;
  return CUDA_SUCCESS;
}

int simcuda_discharge_library(std::uint64_t address) {
  driver_state& w = the_driver_state();
  const std::lock_guard lock{w.mutex};
  for (const auto& g : w.gpus) {
    if (!g->sim->free(address)) continue;
    if (w.shared != nullptr) publish_held();
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

int simcuda_captures(void* stream) {
  const std::lock_guard lock{the_driver_state().mutex};
  CUstream_st* found = nullptr;
  gpu* device = nullptr;
  return find_stream(static_cast<CUstream>(stream), &found, &device) == CUDA_SUCCESS && found->graph != nullptr ? 1 : 0;
}

int simcuda_keeps_values(std::uint64_t bytes) {
  const world_config& config = the_driver_state().config;
  return config.host_memory && (!config.lazy_values || bytes <= kept_value_bytes()) ? 1 : 0;
}

int simcuda_load_values(void* result, std::uint64_t address, std::uint64_t bytes) {
  const std::lock_guard lock{the_driver_state().mutex};
  std::memset(result, 0, bytes);
  if (!has_values(address)) return 0;
  the_value_marks().write_zeros(address, bytes);
  std::memcpy(result, reinterpret_cast<const void*>(address), bytes);
  return the_value_marks().all_computed(address, bytes) ? 1 : 0;
}

void simcuda_store_values(std::uint64_t address, const void* values, std::uint64_t bytes, int is_true) {
  const std::lock_guard lock{the_driver_state().mutex};
  if (!has_values(address)) return;
  if (values != nullptr) std::memcpy(reinterpret_cast<void*>(address), values, bytes);
  if (values_computed()) {
    the_value_marks().set(address, bytes, {.computed = is_true != 0, .zero_due = values == nullptr});
  }
}

void simcuda_note_rank(int rank, int ranks) { locked(gpumem::simcuda::note_rank, rank, ranks); }

void simcuda_note_lost_rank() { locked(gpumem::simcuda::note_lost_rank); }

// The run's report lists gpumem's refusals with those of the card.
void gpumem_refusal_callback(const gpumem_refusal* refusal) {
  const driver_state& w = the_driver_state();
  const std::lock_guard lock{the_driver_state().mutex};
  const int device = refusal->physical_device;
  if (device < 0 || static_cast<std::size_t>(device) >= w.gpus.size()) return;
  const std::string why = std::string{"gpumem: "} + refusal->text;
  note_refused(*w.gpus[static_cast<std::size_t>(device)], refusal->function, refusal->requested_bytes, why.c_str());
}

void simcuda_note_unsupported(const char* function) { locked(gpumem::simcuda::note_unsupported, function); }

std::uint64_t simcuda_calls(const char* function) {
  return function == nullptr ? gpumem::simcuda::all_calls() : gpumem::simcuda::calls(function);
}

// A function that no header declares yet: layers in front of the driver must forward it.
int cuSimulatedNewerFunction();
int cuSimulatedNewerFunction() { return 42; }

void simcuda_device_calls(std::uint64_t* counts, int kinds) {
  const gpumem::call_counts all = device(0).calls();
  std::copy_n(all.begin(), std::min<std::size_t>(all.size(), static_cast<std::size_t>(kinds)), counts);
}

}  // extern "C"
