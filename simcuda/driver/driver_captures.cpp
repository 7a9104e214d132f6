// The simulated driver: captures and graphs. A graph lists its work in the order of the calls; a launch runs all of it
// on one stream.
#include <algorithm>

#include "driver_state.hpp"
#include "values.hpp"

using namespace gpumem::simcuda;  // NOLINT: the driver's functions are global

namespace {

/// Ends the capture on its first stream and on all streams that joined it. Returns the capture's error.
CUresult end_capture(CUstream_st& origin) {
  CUresult wrong = CUDA_SUCCESS;
  const std::uint64_t capture = origin.capture;
  for (const auto& s : the_driver_state().streams) {
    if (s->context == nullptr || s->graph == nullptr || s->capture != capture) continue;
    s->graph = nullptr;
    s->capture = 0;
    if (s->joined_capture && !s->awaited && wrong == CUDA_SUCCESS) wrong = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    if (!s->context->device->sim->end_capture(s->sim)) wrong = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  }
  return wrong;
}

/// Requires that the caller checked this rule: "If this is called on CU_STREAM_LEGACY (the null stream) while a
/// blocking stream in the same context is capturing, it will return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT".
CUstreamCaptureStatus status_of(const CUstream_st& stream) {
  if (stream.graph == nullptr) return CU_STREAM_CAPTURE_STATUS_NONE;
  return invalidated(stream) ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  SIMCUDA_ENTER("cuThreadExchangeStreamCaptureMode");
  std::swap(*mode, this_thread().mode);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode) {
  SIMCUDA_ENTER("cuStreamBeginCapture");
  SIMCUDA_FIND_STREAM(s, device, handle);
  if (s->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (const gpumem::status begun = device->sim->begin_capture(s->sim); !begun) return error_of(begun);
  driver_state& w = the_driver_state();
  w.graphs.push_back(std::make_unique<CUgraph_st>());
  s->graph = w.graphs.back().get();
  s->capture = w.next_id++;
  s->mode = mode;
  s->began_by = std::this_thread::get_id();
  s->joined_capture = false;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamEndCapture(CUstream handle, CUgraph* graph) {
  CUresult done = CUDA_SUCCESS;
  {
    SIMCUDA_ENTER("cuStreamEndCapture");
    *graph = nullptr;
    SIMCUDA_FIND_STREAM(s, device, handle);
    if (s->graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (s->joined_capture) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    // "A stream capture sequence not initiated with the CU_STREAM_CAPTURE_MODE_RELAXED argument to cuStreamBeginCapture
    // was passed to cuStreamEndCapture in a different thread."
    if (s->mode != CU_STREAM_CAPTURE_MODE_RELAXED && s->began_by != std::this_thread::get_id()) {
      return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    }
    CUgraph made = s->graph;
    done = end_capture(*s);
    if (done == CUDA_SUCCESS) {
      *graph = made;
    } else {
      made->alive = false;
      release_objects(made->objects);
    }
  }
  return done;
}

CUresult CUDAAPI cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  SIMCUDA_ENTER("cuStreamIsCapturing");
  SIMCUDA_FIND_STREAM(s, device, handle);
  if (implicit_capture(*s)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  *status = status_of(*s);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamGetCaptureInfo_v2(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id,
                                           CUgraph* graph, const CUgraphNode** dependencies, std::size_t* count) {
  SIMCUDA_ENTER("cuStreamGetCaptureInfo");
  SIMCUDA_FIND_STREAM(s, device, handle);
  if (implicit_capture(*s)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  *status = status_of(*s);
  if (id != nullptr) *id = s->capture;
  if (graph != nullptr) *graph = s->graph;
  if (dependencies != nullptr) *dependencies = nullptr;
  if (count != nullptr) *count = 0;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuUserObjectCreate(CUuserObject* object_out, void* data, CUhostFn destroy, unsigned int references,
                                    unsigned int flags) {
  SIMCUDA_ENTER("cuUserObjectCreate");
  if (flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC || references == 0) return CUDA_ERROR_INVALID_VALUE;
  *object_out = new CUuserObject_st{data, destroy, references};
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuUserObjectRelease(CUuserObject object, unsigned int count) {
  {
    SIMCUDA_ENTER("cuUserObjectRelease");
    std::vector<CUuserObject> references(count, object);
    release_objects(references);
  }
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count, unsigned int flags) {
  SIMCUDA_ENTER("cuGraphRetainUserObject");
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!graph->alive) return undefined_use("a graph that is destroyed");
  if (flags != CU_GRAPH_USER_OBJECT_MOVE) object->references += count;
  graph->objects.insert(graph->objects.end(), count, object);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphDestroy(CUgraph graph) {
  {
    SIMCUDA_ENTER("cuGraphDestroy");
    if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!graph->alive) return undefined_use("a graph that is destroyed");
    graph->alive = false;
    release_objects(graph->objects);
  }
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphInstantiateWithFlags(CUgraphExec* ph_graph_exec, CUgraph graph, unsigned long long flags) {
  SIMCUDA_ENTER("cuGraphInstantiate");
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!graph->alive) return undefined_use("a graph that is destroyed");
  if (const CUresult e = may_instantiate(graph); e != CUDA_SUCCESS) return e;
  driver_state& w = the_driver_state();
  w.execs.push_back(std::make_unique<CUgraphExec_st>());
  *ph_graph_exec = w.execs.back().get();
  (*ph_graph_exec)->graph = graph;
  (*ph_graph_exec)->frees_on_launch = (flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0;
  (*ph_graph_exec)->objects = graph->objects;
  (*ph_graph_exec)->uses = graph->uses;
  for (CUuserObject o : (*ph_graph_exec)->objects) ++o->references;
  return CUDA_SUCCESS;
}

// Runs actions without the lock, because a host function may wait for another thread of the program.
CUresult CUDAAPI cuGraphLaunch(CUgraphExec exec, CUstream handle) {
  std::vector<captured_use> uses;
  {
    SIMCUDA_ENTER("cuGraphLaunch");
    if (exec == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!exec->alive) return undefined_use("an executable graph that is destroyed");
    SIMCUDA_FIND_STREAM(s, device, handle);
    if (const CUresult e = ready_for_work(*s); e != CUDA_SUCCESS) return e;
    if (const CUresult e = may_launch(*exec); e != CUDA_SUCCESS) return e;
    uses = exec->uses;
    if (std::ranges::any_of(uses, &captured_use::is_kernel)) kernel_writes("of a replayed graph");
    for (const captured_use& u : uses) {
      if (run_node(u)) continue;
      if (u.bytes == 0) {
        device->sim->enqueue(s->sim, u.lag_ns);
      } else {
        device->sim->enqueue_use(s->sim, u.lag_ns, u.address, u.bytes);
      }
    }
  }
  for (const captured_use& u : uses) {
    if (u.action) u.action();
  }
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec exec) {
  {
    SIMCUDA_ENTER("cuGraphExecDestroy");
    if (exec == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!exec->alive) return undefined_use("an executable graph that is destroyed");
    exec->alive = false;
    release_objects(exec->objects);
  }
  return CUDA_SUCCESS;
}

}  // extern "C"
