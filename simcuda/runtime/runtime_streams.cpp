// The simulated runtime: streams, events, captures, graphs and the objects that graphs hold.
#include "runtime.hpp"

using namespace gpumem::simcudart;  // NOLINT: the runtime's functions are global

namespace {

struct callback {
  cudaStreamCallback_t function;
  void* data;
  cudaStream_t stream;
};

void run_callback(void* data) {
  auto* const c = static_cast<callback*>(data);
  c->function(c->stream, cudaSuccess, c->data);
  delete c;
}

CUresult add_callback(const driver_table& table, cudaStream_t stream, cudaStreamCallback_t function, void* data) {
  auto* const c = new callback{function, data, stream};
  const CUresult e = table.cuLaunchHostFunc(stream, run_callback, c);
  if (e != CUDA_SUCCESS) delete c;
  return e;
}

CUresult capture_info(const driver_table& table, cudaStream_t stream, cudaStreamCaptureStatus* status,
                      unsigned long long* id, cudaGraph_t* graph, const cudaGraphNode_t** dependencies,
                      const cudaGraphEdgeData** edges, std::size_t* count) {
  CUstreamCaptureStatus capture_status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t capture = 0;
  if (edges != nullptr) *edges = nullptr;
  const CUresult e = table.cuStreamGetCaptureInfo(stream, &capture_status, &capture, graph, dependencies, count);
  *status = static_cast<cudaStreamCaptureStatus>(capture_status);
  if (id != nullptr) *id = capture;
  return e;
}

}  // namespace

extern "C" {

// --- streams and events ---------------------------------------------------------------------------------------------

FORWARD(cudaStreamCreateWithPriority, (cudaStream_t * stream, unsigned int flags, int priority),
        cuStreamCreateWithPriority(stream, flags, priority))
cudaError_t CUDARTAPI cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t CUDARTAPI cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
FORWARD(cudaStreamDestroy, (cudaStream_t stream), cuStreamDestroy(stream))

FORWARD(cudaEventCreateWithFlags, (cudaEvent_t * event, unsigned int flags), cuEventCreate(event, flags))
cudaError_t CUDARTAPI cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
FORWARD(cudaEventDestroy, (cudaEvent_t event), cuEventDestroy(event))
FORWARD(cudaEventQuery, (cudaEvent_t event), cuEventQuery(event))
FORWARD(cudaEventSynchronize, (cudaEvent_t event), cuEventSynchronize(event))
FORWARD(cudaEventElapsedTime, (float* ms, cudaEvent_t begin, cudaEvent_t end), cuEventElapsedTime(ms, begin, end))

// --- captures and graphs --------------------------------------------------------------------------------------------

cudaError_t CUDARTAPI cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return call_without_context([&] {
    auto exchanged = static_cast<CUstreamCaptureMode>(*mode);
    const CUresult e = driver().cuThreadExchangeStreamCaptureMode(&exchanged);
    *mode = static_cast<cudaStreamCaptureMode>(exchanged);
    return e;
  });
}
FORWARD_WITHOUT_CONTEXT(cudaUserObjectCreate,
                        (cudaUserObject_t * object, void* data, cudaHostFn_t destroy, unsigned int references,
                         unsigned int flags),
                        cuUserObjectCreate(object, data, destroy, references, flags))
FORWARD_WITHOUT_CONTEXT(cudaUserObjectRelease, (cudaUserObject_t object, unsigned int count),
                        cuUserObjectRelease(object, count))
FORWARD_WITHOUT_CONTEXT(cudaGraphRetainUserObject,
                        (cudaGraph_t graph, cudaUserObject_t object, unsigned int count, unsigned int flags),
                        cuGraphRetainUserObject(graph, object, count, flags))
FORWARD_WITHOUT_CONTEXT(cudaGraphDestroy, (cudaGraph_t graph), cuGraphDestroy(graph))
FORWARD(cudaGraphInstantiateWithFlags, (cudaGraphExec_t * exec, cudaGraph_t graph, unsigned long long flags),
        cuGraphInstantiateWithFlags(exec, graph, flags))
cudaError_t CUDARTAPI cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags) {
  return cudaGraphInstantiateWithFlags(exec, graph, flags);
}
FORWARD_WITHOUT_CONTEXT(cudaGraphExecDestroy, (cudaGraphExec_t exec), cuGraphExecDestroy(exec))

}  // extern "C"

ON_STREAM(cudaStreamSynchronize, _ptsz, (cudaStream_t stream), { return table.cuStreamSynchronize(stream); })
ON_STREAM(cudaStreamQuery, _ptsz, (cudaStream_t stream), { return table.cuStreamQuery(stream); })
ON_STREAM(cudaStreamWaitEvent, _ptsz, (cudaStream_t stream, cudaEvent_t event, unsigned int flags),
          { return table.cuStreamWaitEvent(stream, event, flags); })
ON_STREAM(cudaStreamGetId, _ptsz, (cudaStream_t stream, unsigned long long* id),
          { return table.cuStreamGetId(stream, id); })
ON_STREAM(cudaStreamGetFlags, _ptsz, (cudaStream_t stream, unsigned int* flags),
          { return table.cuStreamGetFlags(stream, flags); })
ON_STREAM(cudaStreamGetPriority, _ptsz, (cudaStream_t stream, int* priority),
          { return table.cuStreamGetPriority(stream, priority); })
ON_STREAM(cudaEventRecord, _ptsz, (cudaEvent_t event, cudaStream_t stream),
          { return table.cuEventRecord(event, stream); })
ON_STREAM(cudaEventRecordWithFlags, _ptsz, (cudaEvent_t event, cudaStream_t stream, unsigned int flags),
          { return flags == 0 ? table.cuEventRecord(event, stream) : CUDA_ERROR_NOT_SUPPORTED; })
ON_STREAM(cudaStreamAddCallback, _ptsz,
          (cudaStream_t stream, cudaStreamCallback_t function, void* data, unsigned int /*flags*/),
          { return add_callback(table, stream, function, data); })
ON_STREAM(cudaLaunchHostFunc, _ptsz, (cudaStream_t stream, cudaHostFn_t function, void* data),
          { return table.cuLaunchHostFunc(stream, function, data); })
ON_STREAM(cudaStreamBeginCapture, _ptsz, (cudaStream_t stream, cudaStreamCaptureMode mode),
          { return table.cuStreamBeginCapture(stream, static_cast<CUstreamCaptureMode>(mode)); })
ON_STREAM(cudaStreamEndCapture, _ptsz, (cudaStream_t stream, cudaGraph_t* graph),
          { return table.cuStreamEndCapture(stream, graph); })
ON_STREAM(cudaStreamIsCapturing, _ptsz, (cudaStream_t stream, cudaStreamCaptureStatus* status), {
  CUstreamCaptureStatus capture_status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult e = table.cuStreamIsCapturing(stream, &capture_status);
  *status = static_cast<cudaStreamCaptureStatus>(capture_status);
  return e;
})
#if CUDART_VERSION >= 13000
ON_STREAM(cudaStreamGetCaptureInfo, _ptsz,
          (cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t* graph,
           const cudaGraphNode_t** dependencies, const cudaGraphEdgeData** edges, std::size_t* count),
          { return capture_info(table, stream, status, id, graph, dependencies, edges, count); })
#else
ON_STREAM(cudaStreamGetCaptureInfo_v2, _ptsz,
          (cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t* graph,
           const cudaGraphNode_t** dependencies, std::size_t* count),
          { return capture_info(table, stream, status, id, graph, dependencies, nullptr, count); })
ON_STREAM(cudaStreamGetCaptureInfo_v3, _ptsz,
          (cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t* graph,
           const cudaGraphNode_t** dependencies, const cudaGraphEdgeData** edges, std::size_t* count),
          { return capture_info(table, stream, status, id, graph, dependencies, edges, count); })
#endif
ON_STREAM(cudaGraphLaunch, _ptsz, (cudaGraphExec_t exec, cudaStream_t stream),
          { return table.cuGraphLaunch(exec, stream); })
