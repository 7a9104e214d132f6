// The state behind the double's driver functions: devices, contexts, streams, events, graphs, planned failures.
//
// One lock for all of it, taken by `entered` at the begin of each driver function; the sim_device has its own. What
// programs ask all the time, which context is current, needs none: it is the thread's own. Handles are pointers to the
// records below, which are never freed. A stream's record is reused by the next stream, as drivers do; contexts, events
// and graphs keep theirs until the world is configured anew, so that a stale handle is an error and not a crash.
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
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

/// Mapped pages, and the devices that may reach them.
struct mapped_range {
  std::size_t bytes = 0;
  std::set<int> reachable_from{};
  CUmemGenericAllocationHandle handle = 0;  ///< the pages
};

struct gpu {
  int ordinal = 0;
  int card = 0;
  std::uint64_t hazards_noted = 0;  ///< of `sim`, in the report
  std::unique_ptr<sim_device> sim;
  std::unique_ptr<small_blocks> small;
  std::unique_ptr<async_pool> pool;
  CUcontext primary = nullptr;  ///< null: never retained, or reset
  unsigned retained = 0;
  std::uint64_t contexts_made = 0;                 ///< primary ones, so far
  std::uint32_t next_context = 1;                  ///< number of the next further context on `sim`
  std::map<CUdeviceptr, CUcontext> in_context;     ///< allocations of further contexts
  std::map<CUdeviceptr, mapped_range> mapped;      ///< of cuMemMap
  std::map<CUdeviceptr, std::size_t> allocations;  ///< of cuMemAlloc and its kin
  std::map<CUdeviceptr, std::size_t> pinned;       ///< of cuMemHostAlloc
  std::map<CUdeviceptr, std::size_t> registered;   ///< the program's own, by cuMemHostRegister
  std::map<CUdeviceptr, graph_block> of_graphs{};  ///< memory of allocation nodes; in `allocations`, too
  graph_memory graph_highs{};                      ///< the most of it, since the program set it back
  std::set<CUdeviceptr> managed;                   ///< those of `allocations` that cuMemAllocManaged made
  std::set<CUdeviceptr> beyond;                    ///< those of `managed` that lie on the host: the card is full
  std::map<CUdeviceptr, std::size_t> ranges;       ///< of cuMemAddressReserve
  std::map<std::uint64_t, std::size_t> run_bytes;  ///< by allocation handle
  std::map<std::uint64_t, page_run> runs;          ///< by allocation handle
  std::set<std::uint64_t> exportable{};            ///< those of `runs` that may be shared with other processes
  std::map<std::uint64_t, std::size_t> imports{};  ///< by handle: pages that count for another process
  std::uint64_t imported_bytes = 0;                ///< of these, as long as a handle or a mapping holds them
};

enum class graph_node : std::uint8_t { work, allocate, free };

/// What a graph does at each launch: a piece of work, or a node that allocates or frees these bytes.
struct captured_use {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;  ///< 0: it touches none
  std::uint64_t lag_ns = 0;
  std::function<void()> action{};  ///< what it does on the host
  graph_node node = graph_node::work;
  bool is_kernel = false;
};

}  // namespace gpumem::simcuda

struct CUctx_st {
  gpumem::simcuda::gpu* device = nullptr;
  unsigned long long id = 0;
  std::atomic<bool> alive = true;
  std::uint32_t number = 0;                     ///< of the context on its sim_device; 0: the primary one
  gpumem::stream_ref legacy;                    ///< what stands for its default stream
  std::atomic<CUresult> broken = CUDA_SUCCESS;  ///< the error that every further call returns
  std::set<CUcontext> peers;                    ///< whose memory it reaches (cuCtxEnablePeerAccess)
};

struct CUstream_st {
  CUctx_st* context = nullptr;  ///< null: destroyed
  gpumem::stream_ref sim;
  unsigned long long id = 0;
  unsigned int flags = 0;
  int priority = 0;
  bool legacy = false;      ///< the default stream of its context
  CUgraph graph = nullptr;  ///< while it captures
  std::uint64_t capture = 0;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;  ///< of that capture
  std::thread::id began_by{};                                ///< the thread that began it
  bool joined_capture = false;                               ///< by waiting for an event of the capture
  bool awaited = false;                                      ///< and another stream of the capture waits for it
};

struct CUevent_st {
  CUctx_st* context = nullptr;
  gpumem::fence fence;
  std::uint64_t recorded_ns = 0;
  bool timed = true;
  bool blocking_sync = false;
  bool captured = false;
  bool interprocess = false;
  CUstream capturing = nullptr;  ///< where it was captured
  std::uint64_t capture = 0;     ///< and in which capture
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
  bool sticky = false;  ///< the context returns it from then on
};

/// A driver function by its base name: one for each name, for good, so that a call finds its own once.
struct function_record {
  std::string name;
  std::atomic<std::uint64_t> calls = 0;  ///< written under the world's lock
};

/// The functions that take no lock. Each thread counts its own calls of them.
enum class own_call : std::uint8_t { get_current, get_device };
inline constexpr std::array<std::string_view, 2> own_call_names{"cuCtxGetCurrent", "cuCtxGetDevice"};
using own_counts = std::array<std::atomic<std::uint64_t>, own_call_names.size()>;

/// The calling thread's, as plain values that need no constructor: what it is asked all the time. In the space for such
/// that every thread has from its begin, where a dlopened library can have a few bytes.
struct fast_tls {
  std::uint64_t generation;  ///< as `thread_state::generation`
  CUcontext current;         ///< the last of `thread_state::contexts`; null: none
  own_counts* own_calls;     ///< null: none yet
  CUstream last_found;       ///< by `find_stream`; a record for good
  const char* calls;         ///< the driver function that the thread is in
  std::uint64_t kernels;     ///< that the thread has launched
};
extern thread_local constinit fast_tls front __attribute__((tls_model("initial-exec")));

/// A recursive mutex for short sections: half of std::recursive_mutex's time where nobody waits, and who waits, yields.
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
  /// By the calling thread.
  [[nodiscard]] bool held() const { return owner_.load(std::memory_order_relaxed) == &front; }
  void unlock() {
    if (--depth_ == 0) owner_.store(nullptr, std::memory_order_release);
  }

 private:
  std::atomic<fast_tls*> owner_ = nullptr;  ///< of the thread that holds it
  unsigned depth_ = 0;
};

struct driver_state {
  recursive_spinlock mutex;
  world_config config;
  std::atomic<bool> initialised = false;
  bool forked = false;  ///< this process is the child of one that had initialised the driver
  unsigned long long next_id = 1;
  std::uint64_t next_handle = 1;
  std::vector<std::unique_ptr<gpu>> gpus;
  std::unique_ptr<shared_cards> shared;       ///< with other processes; null: nothing is
  std::map<CUdeviceptr, std::size_t> opened;  ///< by cuIpcOpenMemHandle
  std::vector<std::unique_ptr<CUctx_st>> contexts;
  std::vector<std::unique_ptr<CUstream_st>> streams;
  std::vector<CUstream> spare_streams;
  std::vector<std::unique_ptr<CUevent_st>> events;
  std::vector<CUevent> spare_events;
  std::vector<std::unique_ptr<CUgraph_st>> graphs;
  std::vector<std::unique_ptr<CUgraphExec_st>> execs;
  std::mutex functions_mutex;                                     ///< guards the next two; taken last
  std::map<std::string, function_record, std::less<>> functions;  ///< those called so far
  std::vector<std::unique_ptr<own_counts>> own_calls;             ///< of each thread that ever was
  std::vector<planned_failure> failures;
  std::vector<std::unique_ptr<sim_device>> reset_devices;  ///< which tests may still hold
  std::uint64_t spinning_waits = 0;
  std::map<std::string, std::uint64_t> undefined;  ///< uses that a card does not define, by what they were
  std::atomic<bool> any_failure = false;           ///< `failures` has one
  bool failures_paused = false;                    ///< no call fails, or counts against one
  std::atomic<std::uint64_t> generation = 0;       ///< of the world: thread-local state of an older one is void
};
extern std::atomic<driver_state*> made_driver_state;
driver_state& make_driver_state();
inline driver_state& the_driver_state() {
  driver_state* const w = made_driver_state.load(std::memory_order_acquire);
  return w != nullptr ? *w : make_driver_state();
}
/// At cuInit: from now on a child of fork cannot use CUDA, and its calls get CUDA_ERROR_NOT_INITIALIZED.
void refuse_forked_children();
/// A device that was reset: everything on it is gone.
void remake(gpu& device);
CUstream new_stream(CUcontext context, unsigned int flags);

/// Calls of this thread that give a stream work.
inline thread_local std::uint64_t submitted_by_thread = 0;

/// Of the calling thread.
struct thread_state {
  std::uint64_t generation = 0;
  std::vector<CUcontext> contexts;  ///< the stack; the last is current
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  bool null_is_per_thread = false;  ///< while a per-thread variant runs (driver_per_thread.cpp)
  std::map<CUcontext, CUstream> default_streams;
};
thread_state& this_thread();

/// The calling thread's; null: none.
inline CUcontext current_context() {
  if (front.generation != the_driver_state().generation.load(std::memory_order_relaxed)) this_thread();
  return front.current;
}
/// After a change of `thread_state::contexts`.
void note_current();
void count_from_now_on();

function_record& record_of(std::string_view function);
/// All counts are 0 again.
void forget_calls(driver_state& state);
/// Counts the call against every failure planned for the function; the first that falls due.
CUresult due_failure(std::string_view function);
/// What a call is refused with, by plan or before cuInit.
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
/// A function that reads nothing but the calling thread's state: counted, without the lock.
inline CUresult enter_unlocked(own_call call) {
  if (front.own_calls == nullptr) count_from_now_on();
  const auto index = static_cast<std::size_t>(call);
  add_one((*front.own_calls)[index]);
  return refusal_of(own_call_names[index], true);
}

/// Runs the destructors of user objects that are due; see rules.cpp.
void run_due_destructors();
extern std::atomic<bool> any_destructor;

void note_hazards(bool place);

/// Tells the processes that share the cards what this one holds of them.
void publish_held();

/// One driver function: the lock, the count, and the failure that was planned for it.
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
  entered(const entered&) = delete;
  entered& operator=(const entered&) = delete;
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
/// The current context's device, or why there is none.
inline CUresult current(gpu** device, CUcontext* context = nullptr) {
  CUcontext c = current_context();
  if (c == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (!c->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (const CUresult e = c->broken.load(std::memory_order_relaxed); e != CUDA_SUCCESS) return e;
  *device = c->device;
  if (context != nullptr) *context = c;
  return CUDA_SUCCESS;
}
/// The device on which the address was allocated, whatever context is current; null: on none.
gpu* owner_of(CUdeviceptr address);
/// The same, for reserved ranges, too.
gpu* holder_of(CUdeviceptr address);
/// Physical memory that counts for this process.
inline std::uint64_t own_bytes(const gpu& device) { return device.sim->used_bytes() - device.imported_bytes; }
/// After its handle or a mapping of it went: pages of another process that nothing here holds are forgotten.
void forget_import(gpu& device, CUmemGenericAllocationHandle handle);
/// Returns what cuMemAlloc and its kin made.
CUresult release(gpu& device, CUdeviceptr address);
/// A stream handle of the program's, the default ones included.
CUresult find_stream(CUstream handle, CUstream_st** stream, gpu** device);

// --- what a card does not allow (rules.cpp) -------------------------------------------------------------------------

/// The program did what the documentation leaves undefined: aborts and names the call, or counts it and answers
/// `CUDA_ERROR_INVALID_HANDLE` (`world_config::abort_on_undefined`).
CUresult undefined_use(const char* description);
/// Refuses a potentially unsafe call where the thread's mode and the captures under way prohibit it, and invalidates
/// these captures.
CUresult unsafe_call();
/// What work on the stream is refused with: its capture is invalid, or it is the legacy stream and a blocking one of
/// its context captures.
CUresult ready_for_work(CUstream_st& stream);
/// A blocking stream of the legacy stream's context captures.
bool implicit_capture(const CUstream_st& legacy);
void invalidate(CUstream_st& of_capture);
bool invalidated(const CUstream_st& stream);
/// Whether work of the context may touch the bytes; if not, the context is broken from here on.
CUresult reach(CUcontext context, std::uint64_t address, bool by_kernel);
/// Drops references. The destructors of objects without any run later, on a thread of their own.
void release_objects(std::vector<CUuserObject>& objects);
/// Ends a context and all that is on it; the primary one when `context` is its device's.
void destroy_context(CUcontext context);

}  // namespace gpumem::simcuda

/// Opens a driver function: `SIMCUDA_ENTER("cuMemAlloc")`.
#define SIMCUDA_ENTER(name) SIMCUDA_ENTER_WITH(name, true)
/// One that may be called before cuInit.
#define SIMCUDA_ENTER_EARLY(name) SIMCUDA_ENTER_WITH(name, false)
#define SIMCUDA_ENTER_WITH(name, needs_init)                                                \
  static gpumem::simcuda::function_record& record_here_ = gpumem::simcuda::record_of(name); \
  const gpumem::simcuda::entered here_{record_here_, needs_init};                           \
  if (here_.refused() != CUDA_SUCCESS) return here_.refused()
