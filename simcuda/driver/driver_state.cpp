#include "driver_state.hpp"

#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "gpumem/settings.hpp"
#include "run_recorder.hpp"

namespace gpumem::simcuda {
namespace {

int number(const char* variable, int otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoi(text);
}

std::uint64_t size(const char* variable, std::uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  const auto bytes = text != nullptr ? parse_bytes(text, variable) : result<std::uint64_t>{otherwise};
  return bytes ? *bytes : otherwise;
}

/// Finds a card by its ordinal or its whole UUID, as in CUDA_VISIBLE_DEVICES; -1: not among `cards`.
int named_card(const std::string& name, int cards) {
  const std::string zeros = "GPU-00000000-0000-0000-0000-0000000000";
  char* end = nullptr;
  long ordinal = -1;
  if (name.starts_with(zeros)) {
    ordinal = std::strtol(name.c_str() + zeros.size(), &end, 16);
  } else if (!name.empty()) {
    ordinal = std::strtol(name.c_str(), &end, 10);
  }
  return end != nullptr && *end == '\0' && ordinal >= 0 && ordinal < cards ? static_cast<int>(ordinal) : -1;
}

/// Applies CUDA_VISIBLE_DEVICES in its plain forms; the list ends at the first entry that names no card.
void obey_visible_devices(world_config& config) {
  const char* const text = std::getenv("CUDA_VISIBLE_DEVICES");
  if (text == nullptr) return;
  std::istringstream list{text};
  for (std::string name; std::getline(list, name, ',');) {
    const int card = named_card(name, config.devices);
    if (card < 0) break;
    config.cards.push_back(card);
  }
  config.devices = static_cast<int>(config.cards.size());
}

/// Reads the configuration from SIMCUDA_* for processes that cannot call `configure`; see README.md.
world_config from_environment() {
  world_config c;
  if (const char* const card = std::getenv("SIMCUDA_CARD"); card != nullptr && find_card(card) != nullptr) {
    c.profile = find_card(card);
    c.bytes = c.profile->bytes();
    c.name = c.profile->name;
  }
  c.devices = number("SIMCUDA_DEVICES", c.devices);
  c.driver_version = number("SIMCUDA_DRIVER_VERSION", c.driver_version);
  const char* const memory = std::getenv("SIMCUDA_HOST_MEMORY");
  c.lazy_values = memory != nullptr && std::strcmp(memory, "lazy") == 0;
  c.host_memory = c.lazy_values || number("SIMCUDA_HOST_MEMORY", 1) != 0;
  c.integrated = number("SIMCUDA_INTEGRATED", 0) != 0;
  c.compute_mode = number("SIMCUDA_COMPUTE_MODE", 0);
  c.referee = number("SIMCUDA_REFEREE", 1) != 0;
  c.bytes = size("SIMCUDA_BYTES", c.bytes);
  c.context_bytes = size("SIMCUDA_CONTEXT_BYTES", c.context_bytes);
  c.library_bytes = size("SIMCUDA_LIBRARY_BYTES", c.library_bytes);
  c.module_bytes = size("SIMCUDA_MODULE_BYTES", c.module_bytes);
  c.queue_depth = static_cast<std::uint32_t>(number("SIMCUDA_QUEUE_DEPTH", static_cast<int>(c.queue_depth)));
  const char* const strict = std::getenv("SIMCUDA_STRICT");
  c.abort_on_undefined = strict == nullptr || std::strcmp(strict, "report") != 0;
  obey_visible_devices(c);
  return c;
}

/// Reads planned failures: SIMCUDA_FAIL=cuMemAlloc:3:2,cuEventQuery:1:999,cuLaunchKernel:5:700:sticky
void plan_failures(driver_state& state) {
  const char* const text = std::getenv("SIMCUDA_FAIL");
  if (text == nullptr) return;
  std::istringstream list{text};
  for (std::string entry; std::getline(list, entry, ',');) {
    std::istringstream parts{entry};
    std::string function;
    std::string nth;
    std::string code;
    std::getline(parts, function, ':');
    std::getline(parts, nth, ':');
    std::string kind;
    std::getline(parts, code, ':');
    std::getline(parts, kind, ':');
    state.failures.push_back({function, static_cast<unsigned>(std::atoi(nth.c_str())),
                              static_cast<CUresult>(std::atoi(code.c_str())), kind == "sticky"});
    state.any_failure = true;
  }
}

void make_gpu(gpu& device, const world_config& config) {
  device.pool.reset();
  device.small.reset();
  device.hazards_noted = 0;
  // All devices share one address space, as with unified addressing.
  constexpr std::uint64_t address_space_bytes = std::uint64_t{1} << 43;
  const address first_address =
      sim_config{}.first_address + static_cast<std::uint64_t>(device.ordinal) * address_space_bytes;
  if (device.sim != nullptr) the_driver_state().reset_devices.push_back(std::move(device.sim));
  device.sim = std::make_unique<sim_device>(
      sim_config{.ordinal = device.ordinal,
                 .name = config.mig ? "simulated GPU MIG 1g.10gb" : std::string{config.name},
                 .capacity_bytes = config.bytes,
                 .granularity_bytes = config.granularity_bytes,
                 .compute_major = config.profile->compute_major,
                 .compute_minor = config.profile->compute_minor,
                 .first_address = first_address,
                 .address_space_bytes = address_space_bytes,
                 .host_memory = config.host_memory,
                 .host_range_capacities = 64,
                 .queue_depth = config.queue_depth,
                 .referee = config.referee});
  device.small = std::make_unique<small_blocks>(*device.sim);
  device.pool = std::make_unique<async_pool>(*device.sim);
  device.allocations.clear();
  device.of_graphs.clear();
  device.pinned.clear();
  device.registered.clear();
  device.ranges.clear();
  device.managed.clear();
  device.beyond.clear();
  device.runs.clear();
  device.run_bytes.clear();
  device.host_runs.clear();
  device.exportable.clear();
  device.imports.clear();
  device.imported_bytes = 0;
  device.mapped.clear();
  device.in_context.clear();
}

void reset(driver_state& state, const world_config& config) {
  state.config = config;
  state.initialised = false;
  state.forked = false;
  state.failures.clear();
  state.any_failure = false;
  forget_calls(state);
  ++state.generation;
  // Keep records that a handle may point to, so that stale handles are refused and do not crash.
  for (const auto& c : state.contexts) c->alive = false;
  for (const auto& s : state.streams) s->context = nullptr;
  for (const auto& e : state.events) e->alive = false;
  state.undefined.clear();
  state.opened.clear();
  state.spinning_waits = 0;
  state.spare_streams.clear();
  state.spare_events.clear();
  state.gpus.clear();
  for (int i = 0; i < config.devices; ++i) {
    state.gpus.push_back(std::make_unique<gpu>());
    state.gpus.back()->ordinal = i;
    state.gpus.back()->card = config.cards.empty() ? i : config.cards[static_cast<std::size_t>(i)];
    make_gpu(*state.gpus.back(), config);
  }
}

}  // namespace

std::atomic<driver_state*> made_driver_state;
thread_local constinit fast_tls front{};

driver_state& make_driver_state() {
  // Never destroyed: programs call the driver from their own static destructors.
  static auto* const only = [] {
    auto* const w = new driver_state;
    reset(*w, from_environment());
    plan_failures(*w);
    made_driver_state.store(w, std::memory_order_release);
    return w;
  }();
  return *only;
}

void configure(const world_config& config) {
  driver_state& w = the_driver_state();
  const std::lock_guard lock{w.mutex};
  reset(w, config);
  plan_failures(w);  // the environment's failures apply to every configuration
}

// A driver that was initialised before a fork does not work in the child, nor in its children. Holds the locks across
// the fork, so that the child does not inherit them locked by a thread that does not exist there.
void refuse_forked_children() {
  static const int registered = ::pthread_atfork(
      [] {
        the_driver_state().mutex.lock();
        the_driver_state().functions_mutex.lock();
      },
      [] {
        the_driver_state().functions_mutex.unlock();
        the_driver_state().mutex.unlock();
      },
      [] {
        driver_state& w = the_driver_state();
        w.forked = w.forked || w.initialised;
        w.initialised = false;
        ++w.generation;
        w.functions_mutex.unlock();
        w.mutex.unlock();
      });
  static_cast<void>(registered);
}

void publish_held() {
  const driver_state& w = the_driver_state();
  if (w.forked) return;  // the memory is the parent's, which publishes it
  for (const auto& g : w.gpus) w.shared->publish(g->card, own_bytes(*g));
}

void remake(gpu& device) { make_gpu(device, the_driver_state().config); }

sim_device& device(int ordinal) {
  driver_state& w = the_driver_state();
  const std::lock_guard lock{w.mutex};
  return *w.gpus.at(static_cast<std::size_t>(ordinal))->sim;
}

thread_state& this_thread() {
  thread_local thread_state state;
  const std::uint64_t generation = the_driver_state().generation.load(std::memory_order_relaxed);
  if (state.generation != generation) {
    state = {};
    state.generation = generation;
    front.generation = generation;
    front.current = nullptr;
  }
  return state;
}

void note_current() {
  const thread_state& me = this_thread();
  front.current = me.contexts.empty() ? nullptr : me.contexts.back();
}

CUresult error_of(const status& status, CUresult otherwise) {
  switch (status.code()) {
    case errc::ok:
      return CUDA_SUCCESS;
    case errc::out_of_memory:
      return CUDA_ERROR_OUT_OF_MEMORY;
    case errc::invalid_argument:
      return CUDA_ERROR_INVALID_VALUE;
    case errc::unsupported:
      return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    default:
      return otherwise;
  }
}

namespace {

using blocks = std::map<CUdeviceptr, std::size_t>;
bool holds(const blocks& those, CUdeviceptr address) {
  auto found = those.upper_bound(address);
  if (found == those.begin()) return false;
  --found;
  return address - found->first < found->second;
}

}  // namespace

gpu* owner_of(CUdeviceptr address) {
  for (const auto& g : the_driver_state().gpus) {
    if (holds(g->allocations, address)) return g.get();
  }
  return nullptr;
}

gpu* holder_of(CUdeviceptr address) {
  for (const auto& g : the_driver_state().gpus) {
    if (holds(g->allocations, address) || holds(g->ranges, address)) return g.get();
  }
  return nullptr;
}

CUstream new_stream(CUcontext context, unsigned int flags) {
  driver_state& w = the_driver_state();
  if (w.spare_streams.empty()) {
    w.streams.push_back(std::make_unique<CUstream_st>());
    w.spare_streams.push_back(w.streams.back().get());
  }
  CUstream s = w.spare_streams.back();
  w.spare_streams.pop_back();
  *s = CUstream_st{};
  s->context = context;
  s->flags = flags;
  s->sim = context->device->sim->create_stream(
      {.blocking = (flags & CU_STREAM_NON_BLOCKING) == 0, .context = context->number});
  s->id = w.next_id++;
  return s;
}

// Each thread has its own record of the legacy stream, backed by the device's default stream.
CUresult find_stream(CUstream handle, CUstream_st** stream, gpu** device) {
  if (handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
    CUcontext context = nullptr;
    if (const CUresult e = current(device, &context); e != CUDA_SUCCESS) return e;
    if (handle == CU_STREAM_PER_THREAD || (handle == nullptr && this_thread().null_is_per_thread)) {
      CUstream& mine = this_thread().default_streams[context];
      if (mine == nullptr) mine = new_stream(context, CU_STREAM_DEFAULT);
      *stream = mine;
      return CUDA_SUCCESS;
    }
    thread_local CUstream_st legacy;
    legacy = CUstream_st{};
    legacy.context = context;
    legacy.legacy = true;
    legacy.sim = context->legacy;
    *stream = &legacy;
    return CUDA_SUCCESS;
  }
  if (handle != front.last_found) {
    const auto& all = the_driver_state().streams;
    if (std::none_of(all.begin(), all.end(), [handle](const auto& candidate) { return candidate.get() == handle; })) {
      return undefined_use("a handle that was never a stream's");
    }
    front.last_found = handle;
  }
  if (handle->context == nullptr) return undefined_use("a stream that is destroyed");
  if (!handle->context->alive) return undefined_use("a stream whose context is destroyed");
  if (const CUresult e = handle->context->broken.load(std::memory_order_relaxed); e != CUDA_SUCCESS) return e;
  *stream = handle;
  *device = handle->context->device;
  return CUDA_SUCCESS;
}

stream_ref stream_of(CUstream handle) {
  driver_state& w = the_driver_state();
  const std::lock_guard lock{w.mutex};
  front.calls = "simcuda::stream_of";
  if (handle == nullptr || handle == CU_STREAM_LEGACY) {
    const CUcontext context = current_context();
    return context != nullptr ? context->legacy : stream_ref{};
  }
  // Passes an unknown handle on unchanged; the sim_device refuses it.
  const auto known = std::find_if(w.streams.begin(), w.streams.end(),
                                  [handle](const auto& candidate) { return candidate.get() == handle; });
  if (handle != CU_STREAM_PER_THREAD && (known == w.streams.end() || handle->context == nullptr)) return {handle};
  CUstream_st* s = nullptr;
  gpu* device = nullptr;
  return find_stream(handle, &s, &device) == CUDA_SUCCESS ? s->sim : stream_ref{handle};
}

void use(CUstream handle, std::uint64_t lag_ns, std::uint64_t address, std::uint64_t bytes) {
  driver_state& w = the_driver_state();
  const std::lock_guard lock{w.mutex};
  CUstream_st* s = nullptr;
  gpu* device = nullptr;
  front.calls = "a kernel launch";
  if (find_stream(handle, &s, &device) != CUDA_SUCCESS || ready_for_work(*s) != CUDA_SUCCESS) return;
  if (reach_in_graphs(*s, address) != CUDA_SUCCESS) return;
  if (s->context->device != holder_of(address) && reach(s->context, address, true) != CUDA_SUCCESS) return;
  device->sim->enqueue_use(s->sim, lag_ns, address, bytes);
  note_use();
  if (s->graph != nullptr) s->graph->uses.push_back({address, bytes, lag_ns});
}

}  // namespace gpumem::simcuda
