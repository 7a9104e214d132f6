// The simulated driver: streams, events and launches.
#include <algorithm>
#include <chrono>

#include "driver_state.hpp"
#include "run_recorder.hpp"
#include "values.hpp"

using namespace gpumem::simcuda;  // NOLINT: the driver's functions are global

namespace {

constexpr std::uint64_t kernel_ns = 20'000;

/// Checks that the event exists and is not destroyed.
CUresult check_event(CUevent event) {
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (!event->alive) return undefined_use("an event that is destroyed");
  return event->context->broken.load(std::memory_order_relaxed);
}

/// Makes the stream wait for an event of a capture, and join that capture.
CUresult join_capture(CUstream_st& stream, const CUevent_st& event) {
  CUstream_st& origin = *event.capturing;
  if (origin.graph == nullptr || origin.capture != event.capture)
    return CUDA_ERROR_CAPTURED_EVENT;  // that capture is over
  if (invalidated(origin)) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (stream.graph != nullptr && stream.capture != origin.capture) return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  if (stream.graph == nullptr) {
    if (stream.legacy) {
      invalidate(origin);
      return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    if (const gpumem::status begun = stream.context->device->sim->begin_capture(stream.sim); !begun)
      return error_of(begun);
    stream.graph = origin.graph;
    stream.capture = origin.capture;
    stream.mode = origin.mode;
    stream.began_by = origin.began_by;
    stream.joined_capture = true;
    stream.awaited = false;
  }
  origin.awaited = true;
  return CUDA_SUCCESS;
}

/// "The thread is still prohibited from API calls which necessarily conflict with stream capture, for example,
/// attempting cuEventQuery on an event that was last recorded inside a capture sequence."
CUresult captured_event(CUevent_st& event) {
  if (event.capturing->graph != nullptr && event.capturing->capture == event.capture) invalidate(*event.capturing);
  return CUDA_ERROR_CAPTURED_EVENT;
}

/// Requires that the thread may wait (`unsafe_call`). sim_device refuses every wait while one of its streams captures;
/// the driver refuses only waits on that stream, which `query` does.
CUresult wait_for(gpu& device, gpumem::fence fence) {
  const auto& all = the_driver_state().streams;
  if (std::none_of(all.begin(), all.end(), [](const auto& stream) { return stream->graph != nullptr; })) {
    return error_of(device.sim->wait_host(fence));
  }
  SIMCUDA_ASSIGN(done, device.sim->done_ns(fence));
  device.sim->advance_to(done);
  const auto seen = device.sim->query(fence);
  return seen ? CUDA_SUCCESS : error_of(seen.why());
}

/// Advances the virtual clock, or polled work would never finish. After 32 polls in a row without new work, device time
/// passes as fast as the host's.
void pass_time_while_polling(gpu& device) {
  constexpr unsigned polls_of_a_wait = 32;
  thread_local struct {
    std::uint64_t submitted = 0;
    unsigned row = 0;
    std::chrono::steady_clock::time_point latest;
  } polls;
  const auto current_time = std::chrono::steady_clock::now();
  if (polls.submitted != submitted_by_thread) polls.row = 0;
  if (polls.row++ >= polls_of_a_wait) {
    device.sim->advance_by(static_cast<std::uint64_t>(std::chrono::nanoseconds{current_time - polls.latest}.count()));
  }
  polls.submitted = submitted_by_thread;
  polls.latest = current_time;
}

void forget_fence(CUevent_st& event) {
  if (event.fence && event.context->alive) event.context->device->sim->drop(event.fence);
  event.fence = {};
  event.captured = false;
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuStreamCreateWithPriority(CUstream* ph_stream, unsigned int flags, int priority) {
  SIMCUDA_ENTER("cuStreamCreateWithPriority");
  SIMCUDA_FIND_CURRENT(device);
  CUcontext const context = current_context();
  if ((flags & ~static_cast<unsigned>(CU_STREAM_NON_BLOCKING)) != 0) return CUDA_ERROR_INVALID_VALUE;
  *ph_stream = new_stream(context, flags);
  (*ph_stream)->flags = flags;
  (*ph_stream)->priority = priority;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamCreate(CUstream* ph_stream, unsigned int flags) {
  SIMCUDA_ENTER("cuStreamCreate");
  return cuStreamCreateWithPriority(ph_stream, flags, 0);
}

CUresult CUDAAPI cuStreamDestroy_v2(CUstream handle) {
  SIMCUDA_ENTER("cuStreamDestroy");
  SIMCUDA_FIND_STREAM(s, device, handle);
  if (s->legacy) return CUDA_ERROR_INVALID_HANDLE;
  if (const gpumem::status gone = device->sim->destroy_stream(s->sim); !gone) return error_of(gone);
  s->context = nullptr;
  the_driver_state().spare_streams.push_back(s);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamGetId(CUstream handle, unsigned long long* id) {
  SIMCUDA_ENTER("cuStreamGetId");
  SIMCUDA_FIND_STREAM(s, device, handle);
  if (const CUresult e = refuse_while_capturing(*s); e != CUDA_SUCCESS) return e;
  if (const auto asked = device->sim->stream_id(s->sim); !asked) return error_of(asked.why());
  *id = s->id;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamGetCtx(CUstream handle, CUcontext* context) {
  SIMCUDA_ENTER("cuStreamGetCtx");
  SIMCUDA_FIND_STREAM(s, device, handle);
  *context = s->context;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamSynchronize(CUstream handle) {
  SIMCUDA_ENTER("cuStreamSynchronize");
  SIMCUDA_FIND_STREAM(s, device, handle);
  if (const CUresult e = ready_for_work(*s); e != CUDA_SUCCESS) return e;
  if (const CUresult e = unsafe_call(); e != CUDA_SUCCESS) return e;
  SIMCUDA_ASSIGN(f, device->sim->record(s->sim));
  const CUresult done = wait_for(*device, f);
  device->sim->drop(f);
  return done;
}

CUresult CUDAAPI cuStreamQuery(CUstream handle) {
  SIMCUDA_ENTER("cuStreamQuery");
  SIMCUDA_FIND_STREAM(s, device, handle);
  if (const CUresult e = ready_for_work(*s); e != CUDA_SUCCESS) return e;
  SIMCUDA_ASSIGN(f, device->sim->record(s->sim));
  const auto done = device->sim->query(f);
  device->sim->drop(f);
  if (!done) return error_of(done.why());
  return *done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

// --- events ---------------------------------------------------------------------------------------------------------

CUresult CUDAAPI cuEventCreate(CUevent* ph_event, unsigned int flags) {
  SIMCUDA_ENTER("cuEventCreate");
  SIMCUDA_FIND_CURRENT(device);
  CUcontext const context = current_context();
  driver_state& w = the_driver_state();
  if (w.spare_events.empty()) {
    w.events.push_back(std::make_unique<CUevent_st>());
    w.spare_events.push_back(w.events.back().get());
  }
  *ph_event = w.spare_events.back();
  w.spare_events.pop_back();
  **ph_event = CUevent_st{};
  (*ph_event)->context = context;
  (*ph_event)->blocking_sync = (flags & CU_EVENT_BLOCKING_SYNC) != 0;
  (*ph_event)->timed = (flags & CU_EVENT_DISABLE_TIMING) == 0;
  (*ph_event)->interprocess = (flags & CU_EVENT_INTERPROCESS) != 0;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventDestroy_v2(CUevent h_event) {
  SIMCUDA_ENTER("cuEventDestroy");
  if (const CUresult bad = check_event(h_event); bad != CUDA_SUCCESS) return bad;
  forget_fence(*h_event);
  h_event->alive = false;
  the_driver_state().spare_events.push_back(h_event);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventRecord(CUevent h_event, CUstream handle) {
  SIMCUDA_ENTER("cuEventRecord");
  if (const CUresult bad = check_event(h_event); bad != CUDA_SUCCESS) return bad;
  SIMCUDA_FIND_STREAM(s, device, handle);
  if (s->context != h_event->context) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult bad = ready_for_work(*s); bad != CUDA_SUCCESS) return bad;
  if (s->graph != nullptr) {
    forget_fence(*h_event);
    h_event->captured = true;
    h_event->capturing = s;
    h_event->capture = s->capture;
    return CUDA_SUCCESS;
  }
  SIMCUDA_ASSIGN(f, device->sim->record(s->sim));
  forget_fence(*h_event);
  h_event->fence = f;
  if (h_event->timed) h_event->recorded_ns = h_event->context->device->sim->now_ns();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxRecordEvent(CUcontext context, CUevent h_event) {
  SIMCUDA_ENTER("cuCtxRecordEvent");
  if (const CUresult bad = check_event(h_event); bad != CUDA_SUCCESS) return bad;
  if (context == nullptr || context != h_event->context) return CUDA_ERROR_INVALID_HANDLE;
  if (!context->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (const CUresult bad = context->broken.load(); bad != CUDA_SUCCESS) return bad;
  // Holds in every capture mode of the thread: "The API will return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED if the
  // specified context hCtx has a stream in the capture mode. In such a case, the call will invalidate all the
  // conflicting captures."
  gpumem::sim_device& sim = *context->device->sim;
  SIMCUDA_ASSIGN(f, context->number == 0 ? sim.record_context() : sim.record_in_context(context->number));
  forget_fence(*h_event);
  h_event->fence = f;
  if (h_event->timed) h_event->recorded_ns = h_event->context->device->sim->now_ns();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventQuery(CUevent h_event) {
  SIMCUDA_ENTER("cuEventQuery");
  if (const CUresult bad = check_event(h_event); bad != CUDA_SUCCESS) return bad;
  if (const CUresult bad = unsafe_call(); bad != CUDA_SUCCESS) return bad;
  if (h_event->captured) return captured_event(*h_event);
  if (!h_event->fence) return CUDA_SUCCESS;
  SIMCUDA_ASSIGN(done, h_event->context->device->sim->query(h_event->fence));
  if (!done) pass_time_while_polling(*h_event->context->device);
  return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult CUDAAPI cuEventSynchronize(CUevent h_event) {
  SIMCUDA_ENTER("cuEventSynchronize");
  if (const CUresult bad = check_event(h_event); bad != CUDA_SUCCESS) return bad;
  if (const CUresult bad = unsafe_call(); bad != CUDA_SUCCESS) return bad;
  if (h_event->captured) return captured_event(*h_event);
  if (!h_event->fence) return CUDA_SUCCESS;
  if (!h_event->blocking_sync) ++the_driver_state().spinning_waits;
  return wait_for(*h_event->context->device, h_event->fence);
}

CUresult CUDAAPI cuStreamWaitEvent(CUstream handle, CUevent h_event, unsigned int /*flags*/) {
  SIMCUDA_ENTER("cuStreamWaitEvent");
  if (const CUresult bad = check_event(h_event); bad != CUDA_SUCCESS) return bad;
  SIMCUDA_FIND_STREAM(s, device, handle);
  if (h_event->captured) return join_capture(*s, *h_event);
  if (const CUresult bad = ready_for_work(*s); bad != CUDA_SUCCESS) return bad;
  if (!h_event->fence) return CUDA_SUCCESS;
  if (s->graph != nullptr) {  // "a dependency would have been created which crosses the capture sequence boundary"
    invalidate(*s);
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  if (h_event->context->device != device)
    return wait_for(*h_event->context->device, h_event->fence);  // devices have separate clocks
  return error_of(device->sim->wait_stream(s->sim, h_event->fence));
}

CUresult CUDAAPI cuEventElapsedTime_v2(float* ms, CUevent begin, CUevent end) {
  SIMCUDA_ENTER("cuEventElapsedTime");
  std::uint64_t passed_ns[2] = {};
  const CUevent both[] = {begin, end};
  for (std::size_t i = 0; i < 2; ++i) {
    if (const CUresult bad = check_event(both[i]); bad != CUDA_SUCCESS) return bad;
    const CUevent_st& e = *both[i];
    if (e.captured) return CUDA_ERROR_CAPTURED_EVENT;
    if (!e.timed || !e.fence) return CUDA_ERROR_INVALID_HANDLE;
    SIMCUDA_ASSIGN(done, e.context->device->sim->done_ns(e.fence));
    if (done > e.context->device->sim->now_ns()) return CUDA_ERROR_NOT_READY;
    passed_ns[i] = std::max(done, e.recorded_ns);  // an idle stream reaches the event when it is recorded
  }
  *ms = static_cast<float>(static_cast<std::int64_t>(passed_ns[1] - passed_ns[0])) * 1e-6F;
  return CUDA_SUCCESS;
}

// --- launches -------------------------------------------------------------------------------------------------------

/// Runs no kernel; the stream is busy for a fixed time.
CUresult CUDAAPI cuLaunchKernel(CUfunction function, unsigned int, unsigned int, unsigned int, unsigned int,
                                unsigned int, unsigned int, unsigned int, CUstream handle, void** /*arguments*/,
                                void** /*extra*/) {
  SIMCUDA_ENTER("cuLaunchKernel");
  SIMCUDA_FIND_STREAM(s, device, handle);
  note_kernel();
  ++front.kernels;
  if (const CUresult e = ready_for_work(*s); e != CUDA_SUCCESS) return e;
  device->sim->enqueue(s->sim, kernel_ns);
  if (s->graph != nullptr) {
    s->graph->uses.push_back({.lag_ns = kernel_ns, .is_kernel = true});
  } else if (values_computed()) {
    kernel_writes(kernel_name(function));
  }
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLaunchHostFunc(CUstream handle, CUhostFn function, void* data) {
  {
    SIMCUDA_ENTER("cuLaunchHostFunc");
    SIMCUDA_FIND_STREAM(s, device, handle);
    if (const CUresult e = ready_for_work(*s); e != CUDA_SUCCESS) return e;
    device->sim->enqueue(s->sim, 0);
    if (s->graph != nullptr) {
      s->graph->uses.push_back({0, 0, 0, [function, data] { function(data); }});
      return CUDA_SUCCESS;
    }
  }
  function(data);  // run immediately: host functions here never wait for a device
  return CUDA_SUCCESS;
}

}  // extern "C"
