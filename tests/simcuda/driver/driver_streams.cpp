// The double's functions about streams, events, captures, graphs and launches.
#include <algorithm>

#include "world.hpp"

using namespace gpumem::simcuda;  // NOLINT: the driver's functions are global

namespace {

constexpr std::uint64_t kernel_ns = 20'000;

/// The event, if it is one of this world that lives.
CUresult check_event(CUevent e) {
  if (e == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return e->alive ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

void forget_fence(CUevent_st& e) {
  if (e.fence && e.context->alive) e.context->on->sim->drop(e.fence);
  e.fence = {};
  e.captured = false;
}

void run_uses(gpu& on, gpumem::stream_ref s, const std::vector<captured_use>& uses) {
  for (const captured_use& u : uses) on.sim->enqueue_use(s, u.lag_ns, u.at, u.bytes);
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuStreamCreateWithPriority(CUstream* out, unsigned int flags, int priority) {
  SIMCUDA_ENTER("cuStreamCreateWithPriority");
  gpu* on = nullptr;
  CUcontext context = nullptr;
  if (const CUresult e = current(&on, &context); e != CUDA_SUCCESS) return e;
  if ((flags & ~static_cast<unsigned>(CU_STREAM_NON_BLOCKING)) != 0) return CUDA_ERROR_INVALID_VALUE;
  *out = new_stream(context);
  (*out)->flags = flags;
  (*out)->priority = priority;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamCreate(CUstream* out, unsigned int flags) {
  SIMCUDA_ENTER("cuStreamCreate");
  return cuStreamCreateWithPriority(out, flags, 0);
}

CUresult CUDAAPI cuStreamDestroy_v2(CUstream handle) {
  SIMCUDA_ENTER("cuStreamDestroy");
  CUstream_st* s = nullptr;
  gpu* on = nullptr;
  if (const CUresult e = find_stream(handle, &s, &on); e != CUDA_SUCCESS) return e;
  if (s->sim.handle == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (const gpumem::status gone = on->sim->destroy_stream(s->sim); !gone) return error_of(gone);
  s->context = nullptr;
  the_world().spare_streams.push_back(s);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamGetId(CUstream handle, unsigned long long* id) {
  SIMCUDA_ENTER("cuStreamGetId");
  CUstream_st* s = nullptr;
  gpu* on = nullptr;
  if (const CUresult e = find_stream(handle, &s, &on); e != CUDA_SUCCESS) return e;
  if (const auto asked = on->sim->stream_id(s->sim); !asked) return error_of(asked.why());
  *id = s->id;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamGetCtx(CUstream handle, CUcontext* context) {
  SIMCUDA_ENTER("cuStreamGetCtx");
  CUstream_st* s = nullptr;
  gpu* on = nullptr;
  if (const CUresult e = find_stream(handle, &s, &on); e != CUDA_SUCCESS) return e;
  *context = s->context;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamSynchronize(CUstream handle) {
  SIMCUDA_ENTER("cuStreamSynchronize");
  CUstream_st* s = nullptr;
  gpu* on = nullptr;
  if (const CUresult e = find_stream(handle, &s, &on); e != CUDA_SUCCESS) return e;
  const auto f = on->sim->record(s->sim);
  if (!f) return error_of(f.why());
  const CUresult done = error_of(on->sim->wait_host(*f));
  on->sim->drop(*f);
  return done;
}

CUresult CUDAAPI cuStreamQuery(CUstream handle) {
  SIMCUDA_ENTER("cuStreamQuery");
  CUstream_st* s = nullptr;
  gpu* on = nullptr;
  if (const CUresult e = find_stream(handle, &s, &on); e != CUDA_SUCCESS) return e;
  const auto f = on->sim->record(s->sim);
  if (!f) return error_of(f.why());
  const auto done = on->sim->query(*f);
  on->sim->drop(*f);
  if (!done) return error_of(done.why());
  return *done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

// --- events ---------------------------------------------------------------------------------------------------------

CUresult CUDAAPI cuEventCreate(CUevent* out, unsigned int /*flags*/) {
  SIMCUDA_ENTER("cuEventCreate");
  gpu* on = nullptr;
  CUcontext context = nullptr;
  if (const CUresult e = current(&on, &context); e != CUDA_SUCCESS) return e;
  world& w = the_world();
  if (w.spare_events.empty()) {
    w.events.push_back(std::make_unique<CUevent_st>());
    w.spare_events.push_back(w.events.back().get());
  }
  *out = w.spare_events.back();
  w.spare_events.pop_back();
  **out = CUevent_st{};
  (*out)->context = context;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventDestroy_v2(CUevent e) {
  SIMCUDA_ENTER("cuEventDestroy");
  if (const CUresult bad = check_event(e); bad != CUDA_SUCCESS) return bad;
  forget_fence(*e);
  e->alive = false;
  the_world().spare_events.push_back(e);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventRecord(CUevent e, CUstream handle) {
  SIMCUDA_ENTER("cuEventRecord");
  if (const CUresult bad = check_event(e); bad != CUDA_SUCCESS) return bad;
  CUstream_st* s = nullptr;
  gpu* on = nullptr;
  if (const CUresult bad = find_stream(handle, &s, &on); bad != CUDA_SUCCESS) return bad;
  if (s->context != e->context) return CUDA_ERROR_INVALID_HANDLE;
  if (s->graph != nullptr) {
    forget_fence(*e);
    e->captured = true;
    return CUDA_SUCCESS;
  }
  const auto f = on->sim->record(s->sim);
  if (!f) return error_of(f.why());
  forget_fence(*e);
  e->fence = *f;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxRecordEvent(CUcontext context, CUevent e) {
  SIMCUDA_ENTER("cuCtxRecordEvent");
  if (const CUresult bad = check_event(e); bad != CUDA_SUCCESS) return bad;
  if (context == nullptr || context != e->context) return CUDA_ERROR_INVALID_HANDLE;
  if (!context->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  const auto f = context->on->sim->record_context();
  if (!f) return error_of(f.why());
  forget_fence(*e);
  e->fence = *f;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventQuery(CUevent e) {
  SIMCUDA_ENTER("cuEventQuery");
  if (const CUresult bad = check_event(e); bad != CUDA_SUCCESS) return bad;
  if (const CUresult bad = unsafe_call(); bad != CUDA_SUCCESS) return bad;
  if (e->captured) return CUDA_ERROR_CAPTURED_EVENT;
  if (!e->fence) return CUDA_SUCCESS;
  const auto done = e->context->on->sim->query(e->fence);
  if (!done) return error_of(done.why());
  return *done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult CUDAAPI cuEventSynchronize(CUevent e) {
  SIMCUDA_ENTER("cuEventSynchronize");
  if (const CUresult bad = check_event(e); bad != CUDA_SUCCESS) return bad;
  if (const CUresult bad = unsafe_call(); bad != CUDA_SUCCESS) return bad;
  if (e->captured) return CUDA_ERROR_CAPTURED_EVENT;
  if (!e->fence) return CUDA_SUCCESS;
  return error_of(e->context->on->sim->wait_host(e->fence));
}

CUresult CUDAAPI cuStreamWaitEvent(CUstream handle, CUevent e, unsigned int /*flags*/) {
  SIMCUDA_ENTER("cuStreamWaitEvent");
  if (const CUresult bad = check_event(e); bad != CUDA_SUCCESS) return bad;
  CUstream_st* s = nullptr;
  gpu* on = nullptr;
  if (const CUresult bad = find_stream(handle, &s, &on); bad != CUDA_SUCCESS) return bad;
  if (e->captured) return s->graph != nullptr ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  if (!e->fence) return CUDA_SUCCESS;
  if (e->context->on != on) return error_of(e->context->on->sim->wait_host(e->fence));  // clocks are not shared
  return error_of(on->sim->wait_stream(s->sim, e->fence));
}

CUresult CUDAAPI cuEventElapsedTime_v2(float* ms, CUevent begin, CUevent end) {
  SIMCUDA_ENTER("cuEventElapsedTime");
  if (const CUresult bad = check_event(begin); bad != CUDA_SUCCESS) return bad;
  if (const CUresult bad = check_event(end); bad != CUDA_SUCCESS) return bad;
  *ms = 0;  // the sim_device does not tell when a fence was passed
  return CUDA_SUCCESS;
}

// --- captures and graphs --------------------------------------------------------------------------------------------

CUresult CUDAAPI cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  SIMCUDA_ENTER("cuThreadExchangeStreamCaptureMode");
  std::swap(*mode, this_thread().mode);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode) {
  SIMCUDA_ENTER("cuStreamBeginCapture");
  CUstream_st* s = nullptr;
  gpu* on = nullptr;
  if (const CUresult e = find_stream(handle, &s, &on); e != CUDA_SUCCESS) return e;
  if (s->sim.handle == nullptr) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (const gpumem::status begun = on->sim->begin_capture(s->sim); !begun) return error_of(begun);
  world& w = the_world();
  w.graphs.push_back(std::make_unique<CUgraph_st>());
  s->graph = w.graphs.back().get();
  s->capture = w.next_id++;
  s->global_capture = mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamEndCapture(CUstream handle, CUgraph* graph) {
  CUresult done = CUDA_SUCCESS;
  {
    SIMCUDA_ENTER("cuStreamEndCapture");
    *graph = nullptr;
    CUstream_st* s = nullptr;
    gpu* on = nullptr;
    if (const CUresult e = find_stream(handle, &s, &on); e != CUDA_SUCCESS) return e;
    if (s->graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
    CUgraph made = s->graph;
    s->graph = nullptr;
    s->capture = 0;
    if (on->sim->end_capture(s->sim)) {
      *graph = made;
    } else {
      made->alive = false;
      release_objects(made->objects);
      done = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
  }
  run_destructors();
  return done;
}

CUresult CUDAAPI cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  SIMCUDA_ENTER("cuStreamIsCapturing");
  CUstream_st* s = nullptr;
  gpu* on = nullptr;
  if (const CUresult e = find_stream(handle, &s, &on); e != CUDA_SUCCESS) return e;
  *status = s->graph != nullptr ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamGetCaptureInfo_v2(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id,
                                           CUgraph* graph, const CUgraphNode** dependencies, std::size_t* count) {
  SIMCUDA_ENTER("cuStreamGetCaptureInfo");
  CUstream_st* s = nullptr;
  gpu* on = nullptr;
  if (const CUresult e = find_stream(handle, &s, &on); e != CUDA_SUCCESS) return e;
  *status = s->graph != nullptr ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  if (id != nullptr) *id = s->capture;
  if (graph != nullptr) *graph = s->graph;
  if (dependencies != nullptr) *dependencies = nullptr;
  if (count != nullptr) *count = 0;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuUserObjectCreate(CUuserObject* out, void* data, CUhostFn destroy, unsigned int references,
                                    unsigned int flags) {
  SIMCUDA_ENTER("cuUserObjectCreate");
  if (flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC || references == 0) return CUDA_ERROR_INVALID_VALUE;
  *out = new CUuserObject_st{data, destroy, references};
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuUserObjectRelease(CUuserObject object, unsigned int count) {
  {
    SIMCUDA_ENTER("cuUserObjectRelease");
    std::vector<CUuserObject> references(count, object);
    release_objects(references);
  }
  run_destructors();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count, unsigned int flags) {
  SIMCUDA_ENTER("cuGraphRetainUserObject");
  if (graph == nullptr || !graph->alive) return CUDA_ERROR_INVALID_VALUE;
  if (flags != CU_GRAPH_USER_OBJECT_MOVE) object->references += count;
  graph->objects.insert(graph->objects.end(), count, object);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphDestroy(CUgraph graph) {
  {
    SIMCUDA_ENTER("cuGraphDestroy");
    if (graph == nullptr || !graph->alive) return CUDA_ERROR_INVALID_VALUE;
    graph->alive = false;
    release_objects(graph->objects);
  }
  run_destructors();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphInstantiateWithFlags(CUgraphExec* out, CUgraph graph, unsigned long long /*flags*/) {
  SIMCUDA_ENTER("cuGraphInstantiate");
  if (graph == nullptr || !graph->alive) return CUDA_ERROR_INVALID_VALUE;
  world& w = the_world();
  w.execs.push_back(std::make_unique<CUgraphExec_st>());
  *out = w.execs.back().get();
  (*out)->objects = graph->objects;
  (*out)->uses = graph->uses;
  for (CUuserObject o : (*out)->objects) ++o->references;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphLaunch(CUgraphExec exec, CUstream handle) {
  SIMCUDA_ENTER("cuGraphLaunch");
  if (exec == nullptr || !exec->alive) return CUDA_ERROR_INVALID_VALUE;
  CUstream_st* s = nullptr;
  gpu* on = nullptr;
  if (const CUresult e = find_stream(handle, &s, &on); e != CUDA_SUCCESS) return e;
  run_uses(*on, s->sim, exec->uses);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec exec) {
  {
    SIMCUDA_ENTER("cuGraphExecDestroy");
    if (exec == nullptr || !exec->alive) return CUDA_ERROR_INVALID_VALUE;
    exec->alive = false;
    release_objects(exec->objects);
  }
  run_destructors();
  return CUDA_SUCCESS;
}

// --- launches -------------------------------------------------------------------------------------------------------

/// No kernel runs here: its stream is busy for a while, and that is all.
CUresult CUDAAPI cuLaunchKernel(CUfunction /*f*/, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
                                unsigned int, unsigned int, CUstream handle, void** /*arguments*/, void** /*extra*/) {
  SIMCUDA_ENTER("cuLaunchKernel");
  CUstream_st* s = nullptr;
  gpu* on = nullptr;
  if (const CUresult e = find_stream(handle, &s, &on); e != CUDA_SUCCESS) return e;
  on->sim->enqueue(s->sim, kernel_ns);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLaunchHostFunc(CUstream handle, CUhostFn function, void* data) {
  {
    SIMCUDA_ENTER("cuLaunchHostFunc");
    CUstream_st* s = nullptr;
    gpu* on = nullptr;
    if (const CUresult e = find_stream(handle, &s, &on); e != CUDA_SUCCESS) return e;
    on->sim->enqueue(s->sim, 0);
  }
  function(data);  // at once: the host's work here never waits for a device
  return CUDA_SUCCESS;
}

}  // extern "C"
