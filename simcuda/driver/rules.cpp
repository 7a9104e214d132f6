// Uses that a card does not allow, and uses that it leaves undefined.
//
// The sentences in quotation marks are those of the driver's documentation that each rule models.
#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "keep_report.hpp"
#include "world.hpp"

namespace gpumem::simcuda {

// "Passing an invalid handle will result in undefined behavior." (cuStreamGetId, cuStreamGetCtx)
CUresult undefined_use(const char* what) {
  world& w = the_world();
  const std::string text = std::string{front.calls != nullptr ? front.calls : "a call"} + ": " + what;
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
  world& w = the_world();
  const std::lock_guard lock{w.mutex};
  return {w.undefined.begin(), w.undefined.end()};
}

std::uint64_t spinning_waits() {
  world& w = the_world();
  const std::lock_guard lock{w.mutex};
  return w.spinning_waits;
}

// --- captures -------------------------------------------------------------------------------------------------------

bool invalidated(const CUstream_st& s) {
  if (s.graph == nullptr) return false;
  const auto& all = the_world().streams;
  return std::any_of(all.begin(), all.end(), [&s](const auto& other) {
    return other->context != nullptr && other->graph != nullptr && other->capture == s.capture &&
           other->context->on->sim->capture_invalidated(other->sim);
  });
}

void invalidate(CUstream_st& of_capture) {
  of_capture.context->on->sim->invalidate_capture(of_capture.sim, front.calls != nullptr ? front.calls : "a call");
}

// "If the local thread has an ongoing capture sequence that was not initiated with CU_STREAM_CAPTURE_MODE_RELAXED
// [...], or if any other thread has a concurrent capture sequence initiated with CU_STREAM_CAPTURE_MODE_GLOBAL, this
// thread is prohibited from potentially unsafe API calls." Under THREAD_LOCAL "concurrent capture sequences in other
// threads are ignored"; under RELAXED "the local thread is not prohibited".
CUresult unsafe_call() {
  const CUstreamCaptureMode mine = this_thread().mode;
  if (mine == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  bool refused = false;
  for (const auto& s : the_world().streams) {
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
  const auto& all = the_world().streams;
  return legacy.legacy && std::any_of(all.begin(), all.end(), [&](const auto& s) {
           return s->context == legacy.context && s->graph != nullptr && (s->flags & CU_STREAM_NON_BLOCKING) == 0;
         });
}

// "This error indicates a disallowed implicit dependency on a current capture sequence from cudaStreamLegacy."
CUresult ready_for_work(CUstream_st& s) {
  ++submitted_by_thread;
  if (s.graph != nullptr && invalidated(s)) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (!implicit_capture(s)) return CUDA_SUCCESS;
  for (const auto& other : the_world().streams) {
    if (other->context == s.context && other->graph != nullptr && (other->flags & CU_STREAM_NON_BLOCKING) == 0) {
      invalidate(*other);
    }
  }
  return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

// --- memory of other devices ----------------------------------------------------------------------------------------

// cuMemSetAccess: "Given the virtual address range via ptr and size, and the locations in the array given by desc and
// count, set the access flags for the target locations": who is not named has none, whatever cuCtxEnablePeerAccess did.
CUresult reach(CUcontext from, std::uint64_t at, bool by_kernel) {
  const gpu* const holder = holder_of(at);
  if (holder == nullptr) return CUDA_SUCCESS;  // not allocated on any device; the referee checks it
  // A copy may go by way of the host; a kernel needs the other device's memory in its own address space.
  bool may = holder == from->on || !by_kernel || from->peers.count(holder->primary) != 0;
  if (const auto found = holder->mapped.upper_bound(at); found != holder->mapped.begin()) {
    const auto& [begin, pages] = *std::prev(found);
    if (at - begin < pages.bytes) may = pages.reachable_from.count(from->on->ordinal) != 0;
  }
  if (may) return CUDA_SUCCESS;
  // "This leaves the process in an inconsistent state and any further CUDA work will return the same error."
  from->broken = CUDA_ERROR_ILLEGAL_ADDRESS;
  return CUDA_ERROR_ILLEGAL_ADDRESS;
}

// --- user objects ---------------------------------------------------------------------------------------------------

std::atomic<bool> any_destructor = false;

namespace {

// Number of further driver calls, by this thread or by another, before the destructors run.
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

/// Runs destructors on another thread and waits for it, with a limit because a destructor may wait for this thread.
void run_on_another_thread(std::vector<CUuserObject> objects) {
  auto of = std::make_shared<outcome>();
  std::thread{[objects = std::move(objects), of] {
    for (CUuserObject o : objects) {
      o->destroy(o->data);
      delete o;
    }
    const std::lock_guard lock{of->mutex};
    of->done = true;
    of->changed.notify_all();
  }}.detach();
  std::unique_lock lock{of->mutex};
  of->changed.wait_for(lock, std::chrono::milliseconds{200}, [&of] { return of->done; });
}

std::vector<CUuserObject> take_dying(bool now) {
  world& w = the_world();
  const std::lock_guard lock{w.mutex};
  dying_objects& d = dying();
  if (!now && d.calls_left != 0 && --d.calls_left != 0) return {};
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
  world& w = the_world();
  const std::lock_guard lock{w.mutex};
  return w.gpus.at(static_cast<std::size_t>(ordinal))->contexts_made;
}

// "Destroys and cleans up all resources associated with the context. It is the caller's responsibility to ensure that
// the context or its resources are not accessed or passed in subsequent API calls and doing so will result in undefined
// behavior."
void destroy_context(CUcontext c) {
  world& w = the_world();
  gpu& g = *c->on;
  c->alive = false;
  for (const auto& s : w.streams) {
    if (s->context != c) continue;
    if (s->graph != nullptr) static_cast<void>(g.sim->end_capture(s->sim));
    s->graph = nullptr;
    s->context = nullptr;
    w.spare_streams.push_back(s.get());
  }
  for (const auto& e : w.events) {
    if (e->context == c && e->alive) e->alive = false;
  }
  if (g.primary == c) {
    g.primary = nullptr;
    g.retained = 0;
    remake(g);
    return;
  }
  for (auto it = g.in_context.begin(); it != g.in_context.end();) {
    if (it->second != c) {
      ++it;
      continue;
    }
    static_cast<void>(release(g, it->first));
    it = g.in_context.erase(it);
  }
}

}  // namespace gpumem::simcuda
