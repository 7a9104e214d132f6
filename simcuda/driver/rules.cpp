// Uses that a card does not allow, and uses that the documentation leaves undefined.
//
// Quoted sentences are from the driver's documentation; each rule models one.
#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "driver_state.hpp"
#include "run_recorder.hpp"

namespace gpumem::simcuda {

// "Passing an invalid handle will result in undefined behavior." (cuStreamGetId, cuStreamGetCtx)
CUresult undefined_use(const char* description) {
  driver_state& w = the_driver_state();
  const std::string text = std::string{front.calls != nullptr ? front.calls : "a call"} + ": " + description;
  if (w.config.abort_on_undefined) {
    std::fprintf(stderr, "simcuda: %s: the driver leaves this undefined\n", text.c_str());
    std::abort();
  }
  static const bool told_at_exit = [] {
    return std::atexit([] {
             for (const auto& [of, times] : undefined_uses()) {
               std::fprintf(stderr, "simcuda: undefined on a card: %s (%llu times)\n", of.c_str(),
                            static_cast<unsigned long long>(times));
             }
           }) == 0;
  }();
  static_cast<void>(told_at_exit);
  ++w.undefined[text];
  note_undefined(text);
  return CUDA_ERROR_INVALID_HANDLE;
}

std::vector<std::pair<std::string, std::uint64_t>> undefined_uses() {
  driver_state& w = the_driver_state();
  const std::lock_guard lock{w.mutex};
  return {w.undefined.begin(), w.undefined.end()};
}

std::uint64_t spinning_waits() {
  driver_state& w = the_driver_state();
  const std::lock_guard lock{w.mutex};
  return w.spinning_waits;
}

// --- captures -------------------------------------------------------------------------------------------------------

bool invalidated(const CUstream_st& stream) {
  if (stream.graph == nullptr) return false;
  const auto& all = the_driver_state().streams;
  return std::any_of(all.begin(), all.end(), [&stream](const auto& peer) {
    return peer->context != nullptr && peer->graph != nullptr && peer->capture == stream.capture &&
           peer->context->device->sim->capture_invalidated(peer->sim);
  });
}

void invalidate(CUstream_st& capturing) {
  capturing.context->device->sim->invalidate_capture(capturing.sim, front.calls != nullptr ? front.calls : "a call");
}

// "If the local thread has an ongoing capture sequence that was not initiated with CU_STREAM_CAPTURE_MODE_RELAXED
// [...], or if any other thread has a concurrent capture sequence initiated with CU_STREAM_CAPTURE_MODE_GLOBAL, this
// thread is prohibited from potentially unsafe API calls." Under THREAD_LOCAL "concurrent capture sequences in other
// threads are ignored"; under RELAXED "the local thread is not prohibited".
CUresult unsafe_call() {
  const CUstreamCaptureMode mine = this_thread().mode;
  if (mine == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  bool refused = false;
  for (const auto& s : the_driver_state().streams) {
    if (s->context == nullptr || s->graph == nullptr) continue;
    const bool own = s->began_by == std::this_thread::get_id() && s->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    const bool global = mine == CU_STREAM_CAPTURE_MODE_GLOBAL && s->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!own && !global) continue;
    invalidate(*s);
    refused = true;
  }
  return refused ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

bool implicit_capture(const CUstream_st& legacy) {
  const auto& all = the_driver_state().streams;
  return legacy.legacy && std::any_of(all.begin(), all.end(), [&](const auto& stream) {
           return stream->context == legacy.context && stream->graph != nullptr &&
                  (stream->flags & CU_STREAM_NON_BLOCKING) == 0;
         });
}

// "This error indicates a disallowed implicit dependency on a current capture sequence from cudaStreamLegacy."
CUresult ready_for_work(CUstream_st& stream) {
  ++submitted_by_thread;
  if (stream.graph != nullptr && invalidated(stream)) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (!implicit_capture(stream)) return CUDA_SUCCESS;
  for (const auto& peer : the_driver_state().streams) {
    if (peer->context == stream.context && peer->graph != nullptr && (peer->flags & CU_STREAM_NON_BLOCKING) == 0) {
      invalidate(*peer);
    }
  }
  return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

CUresult refuse_while_capturing(CUstream_st& stream) {
  if (stream.graph == nullptr) return CUDA_SUCCESS;
  if (invalidated(stream)) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  invalidate(stream);
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

// --- memory of other devices ----------------------------------------------------------------------------------------

// cuMemSetAccess: "Given the virtual address range via ptr and size, and the locations in the array given by desc and
// count, set the access flags for the target locations". Other locations have no access, even after
// cuCtxEnablePeerAccess.
CUresult reach(CUcontext context, std::uint64_t address, bool by_kernel) {
  const gpu* const holder = holder_of(address);
  if (holder == nullptr) return CUDA_SUCCESS;  // not allocated on any device; the referee checks it
  // A copy may pass through the host; a kernel needs the other device's memory in its own address space.
  bool may = holder == context->device || !by_kernel || context->peers.count(holder->primary) != 0;
  if (const auto found = holder->mapped.upper_bound(address); found != holder->mapped.begin()) {
    const auto& [begin, pages] = *std::prev(found);
    if (address - begin < pages.bytes) {
      may = pages.reachable_from.count(context->device->ordinal) != 0 ||
            (!by_kernel && pages.reachable_from.count(mapped_range::host) != 0);
    }
  }
  if (may) return CUDA_SUCCESS;
  // "This leaves the process in an inconsistent state and any further CUDA work will return the same error."
  context->broken = CUDA_ERROR_ILLEGAL_ADDRESS;
  return CUDA_ERROR_ILLEGAL_ADDRESS;
}

// --- user objects ---------------------------------------------------------------------------------------------------

std::atomic<bool> any_destructor = false;

namespace {

// Number of driver calls, by any thread, before the destructors run.
constexpr unsigned calls_before_destructors = 3;

struct dying_objects {
  std::vector<CUuserObject> objects;
  unsigned calls_left = 0;
};
dying_objects& dying() {
  static auto* const only = new dying_objects;
  return *only;
}

struct outcome {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
};

/// Runs destructors on another thread and waits for a limited time, because a destructor may wait for this thread.
void run_on_another_thread(std::vector<CUuserObject> objects) {
  auto shared_outcome = std::make_shared<outcome>();
  std::thread{[objects = std::move(objects), shared_outcome] {
    for (CUuserObject o : objects) {
      o->destroy(o->data);
      delete o;
    }
    const std::lock_guard lock{shared_outcome->mutex};
    shared_outcome->done = true;
    shared_outcome->changed.notify_all();
  }}.detach();
  std::unique_lock lock{shared_outcome->mutex};
  shared_outcome->changed.wait_for(lock, std::chrono::milliseconds{200},
                                   [&shared_outcome] { return shared_outcome->done; });
}

std::vector<CUuserObject> take_dying(bool immediately) {
  driver_state& w = the_driver_state();
  const std::lock_guard lock{w.mutex};
  dying_objects& d = dying();
  if (!immediately && d.calls_left != 0 && --d.calls_left != 0) return {};
  any_destructor = false;
  return std::exchange(d.objects, {});
}

}  // namespace

void release_objects(std::vector<CUuserObject>& objects) {
  for (CUuserObject o : objects) {
    if (o->references == 0) static_cast<void>(undefined_use("a user object without references"));
    if (--o->references != 0) continue;
    dying().objects.push_back(o);
    dying().calls_left = calls_before_destructors;
    any_destructor = true;
  }
  objects.clear();
}

void run_due_destructors() {
  if (std::vector<CUuserObject> due = take_dying(false); !due.empty()) run_on_another_thread(std::move(due));
}

void finish_destructors() {
  if (std::vector<CUuserObject> due = take_dying(true); !due.empty()) run_on_another_thread(std::move(due));
}

// --- contexts -------------------------------------------------------------------------------------------------------

std::uint64_t contexts_made(int ordinal) {
  driver_state& w = the_driver_state();
  const std::lock_guard lock{w.mutex};
  return w.gpus.at(static_cast<std::size_t>(ordinal))->contexts_made;
}

// "Destroys and cleans up all resources associated with the context. It is the caller's responsibility to ensure that
// the context or its resources are not accessed or passed in subsequent API calls and doing so will result in undefined
// behavior."
void destroy_context(CUcontext context) {
  driver_state& w = the_driver_state();
  gpu& g = *context->device;
  context->alive = false;
  for (const auto& s : w.streams) {
    if (s->context != context) continue;
    if (s->graph != nullptr) static_cast<void>(g.sim->end_capture(s->sim));
    s->graph = nullptr;
    s->context = nullptr;
    w.spare_streams.push_back(s.get());
  }
  for (const auto& e : w.events) {
    if (e->context == context && e->alive) e->alive = false;
  }
  if (g.primary == context) {
    g.primary = nullptr;
    g.retained = 0;
    remake(g);
    return;
  }
  for (auto allocation = g.in_context.begin(); allocation != g.in_context.end();) {
    if (allocation->second != context) {
      ++allocation;
      continue;
    }
    static_cast<void>(release(g, allocation->first));
    allocation = g.in_context.erase(allocation);
  }
}

}  // namespace gpumem::simcuda
