// The state of the simulated driver: devices, contexts, streams, events, graphs, planned failures.
//
// One lock guards all of it, taken by `entered` at the begin of each driver function; sim_device has its own. Querying
// the current context needs no lock, because it is per thread. Handles are pointers to the records below, which are
// never freed. A new stream reuses the record of a destroyed one, as in real drivers; contexts, events and graphs keep
// theirs until the next `configure`, so that a stale handle is an error and not a crash.
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "async_pool.hpp"
#include "gpumem/sim_device.hpp"
#include "graph_memory.hpp"
#include "shared_cards.hpp"
#include "simcuda.hpp"
#include "small_blocks.hpp"

namespace gpumem::simcuda {

/// Mapped pages, and the devices that may access them.
struct mapped_range {
  static constexpr int host = -1;  ///< in `reachable_from`, beside the devices' ordinals

  std::size_t bytes = 0;
  std::set<int> reachable_from{};
  CUmemGenericAllocationHandle handle = 0;  ///< the pages
  bool on_host = false;                     ///< the pages are the host's memory
};

struct gpu {
  int ordinal = 0;
  int card = 0;
  std::uint64_t hazards_noted = 0;  ///< of `sim`'s hazards, those in the report
  std::unique_ptr<sim_device> sim;
  std::unique_ptr<small_blocks> small;
  std::unique_ptr<async_pool> pool;
  CUcontext primary = nullptr;  ///< null: never retained, or reset
  unsigned retained = 0;
  std::uint64_t contexts_made = 0;                 ///< primary contexts created so far
  std::uint32_t next_context = 1;                  ///< number of the next non-primary context on `sim`
  std::map<CUdeviceptr, CUcontext> in_context;     ///< allocations of non-primary contexts
  std::map<CUdeviceptr, mapped_range> mapped;      ///< of cuMemMap
  std::map<CUdeviceptr, std::size_t> allocations;  ///< of cuMemAlloc and similar
  std::map<CUdeviceptr, std::size_t> pinned;       ///< of cuMemHostAlloc
  std::map<CUdeviceptr, std::size_t> registered;   ///< the program's memory, by cuMemHostRegister
  std::map<CUdeviceptr, graph_block> of_graphs{};  ///< memory of allocation nodes; also in `allocations`
  graph_memory graph_highs{};                      ///< high-water marks since the program reset them
  std::set<CUdeviceptr> managed;                   ///< those of `allocations` made by cuMemAllocManaged
  std::set<CUdeviceptr> beyond;                    ///< those of `managed` on the host, because the card was full
  std::map<CUdeviceptr, std::size_t> ranges;       ///< of cuMemAddressReserve
  std::map<std::uint64_t, std::size_t> run_bytes;  ///< by allocation handle
  std::map<std::uint64_t, page_run> runs;          ///< by allocation handle
  /// Those of `runs` that are the host's memory.
  std::map<std::uint64_t, CUmemLocation> host_runs{};
  std::set<std::uint64_t> exportable{};            ///< those of `runs` that may be shared with other processes
  std::map<std::uint64_t, std::size_t> imports{};  ///< by handle: pages that count for another process
  std::uint64_t imported_bytes = 0;                ///< of `imports`, while a handle or a mapping holds them
};

enum class graph_node : std::uint8_t { work, allocate, free };

/// One action of a graph's launch: work, or a node that allocates or frees these bytes.
struct captured_use {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;  ///< 0: no memory
  std::uint64_t lag_ns = 0;
  std::function<void()> action{};  ///< the work's effect on the host
  graph_node node = graph_node::work;
  bool is_kernel = false;
};

}  // namespace gpumem::simcuda

struct CUctx_st {
  gpumem::simcuda::gpu* device = nullptr;
  unsigned long long id = 0;
  std::atomic<bool> alive = true;
  std::uint32_t number = 0;                     ///< of the context on its sim_device; 0: the primary one
  gpumem::stream_ref legacy;                    ///< its default stream
  std::atomic<CUresult> broken = CUDA_SUCCESS;  ///< every further call returns this error
  std::set<CUcontext> peers;                    ///< contexts whose memory it may access (cuCtxEnablePeerAccess)
};

struct CUstream_st {
  CUctx_st* context = nullptr;  ///< null: destroyed
  gpumem::stream_ref sim;
  unsigned long long id = 0;
  unsigned int flags = 0;
  int priority = 0;
  bool legacy = false;      ///< is its context's default stream
  CUgraph graph = nullptr;  ///< non-null while it captures
  std::uint64_t capture = 0;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;  ///< of that capture
  std::thread::id began_by{};                                ///< the thread that began it
  bool joined_capture = false;                               ///< joined by waiting for an event of the capture
  bool awaited = false;                                      ///< another stream of the capture waits for it
};

struct CUevent_st {
  CUctx_st* context = nullptr;
  gpumem::fence fence;
  std::uint64_t recorded_ns = 0;
  bool timed = true;
  bool blocking_sync = false;
  bool captured = false;
  bool interprocess = false;
  CUstream capturing = nullptr;  ///< the stream whose capture recorded it
  std::uint64_t capture = 0;     ///< the number of that capture
  bool alive = true;
};

struct CUuserObject_st {
  void* data = nullptr;
  CUhostFn destroy = nullptr;
  unsigned references = 0;
};

struct CUgraph_st {
  std::vector<CUuserObject> objects;
  std::vector<gpumem::simcuda::captured_use> uses;
  bool alive = true;
};
struct CUgraphExec_st {
  CUgraph graph = nullptr;
  bool frees_on_launch = false;  ///< CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH
  std::vector<CUuserObject> objects;
  std::vector<gpumem::simcuda::captured_use> uses;
  bool alive = true;
};

namespace gpumem::simcuda {

struct planned_failure {
  std::string function;
  unsigned calls_left;
  CUresult error;
  bool sticky = false;  ///< the context also returns it from then on
};

/// A driver function by its base name. One record per name, never freed, so that each call site looks it up once.
struct function_record {
  std::string name;
  std::atomic<std::uint64_t> calls = 0;  ///< written under `driver_state::mutex`
};

/// Functions that take no lock. Each thread counts its own calls of them.
enum class own_call : std::uint8_t { get_current, get_device };
inline constexpr std::array<std::string_view, 2> own_call_names{"cuCtxGetCurrent", "cuCtxGetDevice"};
using own_counts = std::array<std::atomic<std::uint64_t>, own_call_names.size()>;

/// Hot per-thread state in static TLS (trivially constructible; dlopened libraries get only a few bytes there).
struct fast_tls {
  std::uint64_t generation;  ///< as `thread_state::generation`
  CUcontext current;         ///< the last of `thread_state::contexts`; null: none
  own_counts* own_calls;     ///< null: none yet
  CUstream last_found;       ///< result of the last `find_stream`; records are never freed
  const char* calls;         ///< name of the current driver function
  std::uint64_t kernels;     ///< kernels that the thread has launched
};
extern thread_local constinit fast_tls front __attribute__((tls_model("initial-exec")));

/// A recursive mutex for short sections: costs half of std::recursive_mutex when uncontended; waiters yield.
class recursive_spinlock {
 public:
  void lock() {
    if (owner_.load(std::memory_order_relaxed) != &front) {
      for (fast_tls* nobody = nullptr; !owner_.compare_exchange_weak(nobody, &front, std::memory_order_acquire);) {
        nobody = nullptr;
        std::this_thread::yield();
      }
    }
    ++depth_;
  }
  /// Whether the calling thread holds it.
  [[nodiscard]] bool held() const { return owner_.load(std::memory_order_relaxed) == &front; }
  void unlock() {
    if (--depth_ == 0) owner_.store(nullptr, std::memory_order_release);
  }

 private:
  std::atomic<fast_tls*> owner_ = nullptr;  ///< the holding thread's `front`
  unsigned depth_ = 0;
};

struct driver_state {
  recursive_spinlock mutex;
  world_config config;
  std::atomic<bool> initialised = false;
  bool forked = false;  ///< forked from a process that had initialised the driver
  unsigned long long next_id = 1;
  std::uint64_t next_handle = 1;
  std::vector<std::unique_ptr<gpu>> gpus;
  std::unique_ptr<shared_cards> shared;       ///< null: not shared with other processes
  std::map<CUdeviceptr, std::size_t> opened;  ///< opened by cuIpcOpenMemHandle
  std::vector<std::unique_ptr<CUctx_st>> contexts;
  std::vector<std::unique_ptr<CUstream_st>> streams;
  std::vector<CUstream> spare_streams;
  std::vector<std::unique_ptr<CUevent_st>> events;
  std::vector<CUevent> spare_events;
  std::vector<std::unique_ptr<CUgraph_st>> graphs;
  std::vector<std::unique_ptr<CUgraphExec_st>> execs;
  std::mutex functions_mutex;                                     ///< guards `functions` and `own_calls`; taken last
  std::map<std::string, function_record, std::less<>> functions;  ///< those called so far
  std::vector<std::unique_ptr<own_counts>> own_calls;             ///< one for each thread, never freed
  std::vector<planned_failure> failures;
  std::vector<std::unique_ptr<sim_device>> reset_devices;  ///< tests may still hold them
  std::uint64_t spinning_waits = 0;
  std::map<std::string, std::uint64_t> undefined;  ///< undefined uses by description
  std::atomic<bool> any_failure = false;           ///< whether `failures` is non-empty
  bool failures_paused = false;                    ///< planned failures neither happen nor count calls
  std::atomic<std::uint64_t> generation = 0;       ///< a change invalidates thread-local state
};
extern std::atomic<driver_state*> made_driver_state;
driver_state& make_driver_state();
inline driver_state& the_driver_state() {
  driver_state* const w = made_driver_state.load(std::memory_order_acquire);
  return w != nullptr ? *w : make_driver_state();
}
/// Call at cuInit: later children of fork cannot use CUDA, and their calls return CUDA_ERROR_NOT_INITIALIZED.
void refuse_forked_children();
/// Recreates a device after a reset, without its former contents.
void remake(gpu& device);
CUstream new_stream(CUcontext context, unsigned int flags);

/// Calls of this thread that enqueue work.
inline thread_local std::uint64_t submitted_by_thread = 0;

/// State of the calling thread.
struct thread_state {
  std::uint64_t generation = 0;
  std::vector<CUcontext> contexts;  ///< the stack; the last is current
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  bool null_is_per_thread = false;  ///< while a per-thread variant runs (driver_per_thread.cpp)
  std::map<CUcontext, CUstream> default_streams;
};
thread_state& this_thread();

/// Returns the calling thread's current context; null: none.
inline CUcontext current_context() {
  if (front.generation != the_driver_state().generation.load(std::memory_order_relaxed)) this_thread();
  return front.current;
}
/// Call after a change of `thread_state::contexts`.
void note_current();
void count_from_now_on();

function_record& record_of(std::string_view function);
/// Resets all counts to 0.
void forget_calls(driver_state& state);
/// Counts the call against the function's planned failures and returns the first that is due.
CUresult due_failure(std::string_view function);
/// Returns the error that the call must return, by plan or before cuInit.
inline CUresult refusal_of(std::string_view function, bool needs_init) {
  const driver_state& w = the_driver_state();
  if (w.any_failure.load(std::memory_order_relaxed)) {
    if (const CUresult planned = due_failure(function); planned != CUDA_SUCCESS) return planned;
  }
  return needs_init && !w.initialised ? CUDA_ERROR_NOT_INITIALIZED : CUDA_SUCCESS;
}
inline void add_one(std::atomic<std::uint64_t>& counter) {
  counter.store(counter.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}
/// Enters a function that reads only the calling thread's state: counts it, without the lock.
inline CUresult enter_unlocked(own_call call) {
  if (front.own_calls == nullptr) count_from_now_on();
  const auto index = static_cast<std::size_t>(call);
  add_one((*front.own_calls)[index]);
  return refusal_of(own_call_names[index], true);
}

/// Runs the due destructors of user objects; see rules.cpp.
void run_due_destructors();
extern std::atomic<bool> any_destructor;

void note_hazards(bool place);

/// Publishes this process's memory to the processes that share the cards.
void publish_held();

/// The scope of one driver function: takes the lock, counts the call, and returns its planned failure.
class entered {
 public:
  explicit entered(function_record& function, bool needs_init = true) : lock_{before(the_driver_state().mutex)} {
    front.calls = function.name.c_str();
    add_one(function.calls);
    refused_ = refusal_of(function.name, needs_init);
  }
  ~entered() {
    if (the_driver_state().shared != nullptr) publish_held();
    if (the_driver_state().config.referee) note_hazards(true);
  }
  entered& operator=(entered&&) = delete;
  [[nodiscard]] CUresult refused() const noexcept { return refused_; }

 private:
  static recursive_spinlock& before(recursive_spinlock& lock) {
    if (any_destructor.load(std::memory_order_relaxed) && !lock.held()) run_due_destructors();
    return lock;
  }
  std::unique_lock<recursive_spinlock> lock_;
  CUresult refused_ = CUDA_SUCCESS;
};

CUresult error_of(const status& status, CUresult otherwise = CUDA_ERROR_UNKNOWN);
/// Returns the current context's device, or the error if there is none.
inline CUresult current(gpu** device, CUcontext* context = nullptr) {
  CUcontext c = current_context();
  if (c == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (!c->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (const CUresult e = c->broken.load(std::memory_order_relaxed); e != CUDA_SUCCESS) return e;
  *device = c->device;
  if (context != nullptr) *context = c;
  return CUDA_SUCCESS;
}
/// The card of an ordinal; null if there is none.
inline gpu* device_of(CUdevice device) {
  const driver_state& w = the_driver_state();
  return device >= 0 && static_cast<std::size_t>(device) < w.gpus.size()
             ? w.gpus[static_cast<std::size_t>(device)].get()
             : nullptr;
}
/// The card that holds a handle of cuMemCreate; null if none does.
inline gpu* owner_of_run(CUmemGenericAllocationHandle handle) {
  for (const auto& g : the_driver_state().gpus) {
    if (g->runs.count(handle) != 0) return g.get();
  }
  return nullptr;
}
inline std::uint64_t number_of(const void* ptr) {
  return static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(ptr));
}
inline void* pointer(CUdeviceptr address) { return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)); }
/// Returns the device on which the address was allocated, whatever context is current; null: none.
gpu* owner_of(CUdeviceptr address);
/// As `owner_of`, but also finds reserved ranges.
gpu* holder_of(CUdeviceptr address);
/// Returns the physical memory that counts for this process.
inline std::uint64_t own_bytes(const gpu& device) { return device.sim->used_bytes() - device.imported_bytes; }
/// Call after a release of an imported handle or mapping: forgets pages of another process that are no longer held
/// here.
void forget_import(gpu& device, CUmemGenericAllocationHandle handle);
/// Frees an allocation of cuMemAlloc and similar.
CUresult release(gpu& device, CUdeviceptr address);
/// Finds the record of a program's stream handle, including the default streams.
CUresult find_stream(CUstream handle, CUstream_st** stream, gpu** device);

// --- restrictions of a card (rules.cpp) -----------------------------------------------------------------------------

/// Handles a use that the documentation leaves undefined: aborts and names the call, or counts it and returns
/// `CUDA_ERROR_INVALID_HANDLE` (`world_config::abort_on_undefined`).
CUresult undefined_use(const char* description);
/// Refuses a potentially unsafe call that the thread's mode and the open captures prohibit, and invalidates these
/// captures.
CUresult unsafe_call();
/// Returns an error if the stream cannot take work: its capture is invalid, or it is the legacy stream and a blocking
/// stream of its context captures.
CUresult ready_for_work(CUstream_st& stream);
/// For questions that a driver refuses about a stream that captures. It invalidates the capture then (seen on an H100,
/// driver 580.159: bench/results/h100).
CUresult refuse_while_capturing(CUstream_st& stream);
/// Whether a blocking stream of the legacy stream's context captures.
bool implicit_capture(const CUstream_st& legacy);
void invalidate(CUstream_st& capturing);
bool invalidated(const CUstream_st& stream);
/// Returns an error if the context's work may not use the bytes; the context then stays broken.
CUresult reach(CUcontext context, std::uint64_t address, bool by_kernel);
/// Drops references. Destructors of objects without references run later, on another thread.
void release_objects(std::vector<CUuserObject>& objects);
/// Destroys a context and everything in it. The primary context is reset.
void destroy_context(CUcontext context);

}  // namespace gpumem::simcuda

/// Opens a driver function: `SIMCUDA_ENTER("cuMemAlloc")`.
#define SIMCUDA_ENTER(name) SIMCUDA_ENTER_WITH(name, true)
/// Opens a driver function that may be called before cuInit.
#define SIMCUDA_ENTER_EARLY(name) SIMCUDA_ENTER_WITH(name, false)
#define SIMCUDA_ENTER_WITH(name, needs_init)                                                \
  static gpumem::simcuda::function_record& record_here_ = gpumem::simcuda::record_of(name); \
  const gpumem::simcuda::entered here_{record_here_, needs_init};                           \
  if (here_.refused() != CUDA_SUCCESS) return here_.refused()
/// Defines a driver function that does nothing and succeeds.
#define SIMCUDA_SUCCEEDS(symbol, name, parameters) \
  CUresult CUDAAPI symbol parameters {             \
    SIMCUDA_ENTER(name);                           \
    return CUDA_SUCCESS;                           \
  }

// Each of these defines the named variables, or returns the driver's error if there is no such object.
#define SIMCUDA_FIND_STREAM(stream, device, handle)        \
  CUstream_st* stream = nullptr;                           \
  [[maybe_unused]] gpumem::simcuda::gpu* device = nullptr; \
  if (const CUresult e_ = gpumem::simcuda::find_stream(handle, &stream, &device); e_ != CUDA_SUCCESS) return e_
#define SIMCUDA_FIND_CURRENT(device)                       \
  [[maybe_unused]] gpumem::simcuda::gpu* device = nullptr; \
  if (const CUresult e_ = gpumem::simcuda::current(&device); e_ != CUDA_SUCCESS) return e_
#define SIMCUDA_FIND_DEVICE(found, ordinal)                                \
  gpumem::simcuda::gpu* const found = gpumem::simcuda::device_of(ordinal); \
  if (found == nullptr) return CUDA_ERROR_INVALID_DEVICE
/// Declares a constant with the value of a result of sim_device, or returns the driver's error.
#define SIMCUDA_ASSIGN(name, ...)                                              \
  const auto name##_result_ = __VA_ARGS__;                                     \
  if (!name##_result_) return gpumem::simcuda::error_of(name##_result_.why()); \
  const auto name = *name##_result_
