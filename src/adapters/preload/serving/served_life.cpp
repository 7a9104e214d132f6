// Calls that begin or end streams, captures and contexts, and calls that choose a memory pool.
#include "driver_calls.hpp"
#include "other_contexts.hpp"
#include "process_accounting.hpp"
#include "served.hpp"

namespace gpumem::preload {
namespace {

void stream_ends(CUstream stream) {
  capture_is_over(stream);
  forget_stream(stream);
  for_each_device([stream](served_context& device) { static_cast<void>(device.memory->stream_release({stream})); });
}

/// Tells gpumem before the driver, so that gpumem finishes its calls that a capture forbids.
template <entry E, null_stream N, typename... More>
CUresult begin(CUstream h_stream, More... more) {
  const CUstream stream = h_stream == nullptr && N == null_stream::per_thread ? CU_STREAM_PER_THREAD : h_stream;
  capture_begins(stream);
  const CUresult e = driver_call<E, N>(h_stream, more...);
  if (e != CUDA_SUCCESS) capture_is_over(stream);
  return e;
}

template <null_stream N>
CUresult end(CUstream h_stream, CUgraph* graph) {
  const CUresult e = driver_call<entry::end_capture, N>(h_stream, graph);
  // On the wrong thread the capture goes on; every other result, even an error, ends it.
  if (e != CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD) {
    capture_is_over(h_stream == nullptr && N == null_stream::per_thread ? CU_STREAM_PER_THREAD : h_stream);
  }
  return e;
}

template <entry E>
CUresult destroy(CUcontext context) {
  const CUresult e = driver_call<E>(context);
  if (e == CUDA_SUCCESS && context != nullptr) context_ended(context);
  return e;
}

template <entry E>
CUresult reset(CUdevice device) {
  served_context* const was = forget_device(device);
  forget_stream(nullptr);
  device_was_reset(device);
  forget_unserved(device);
  const CUresult e = driver_call<E>(device);
  if (e == CUDA_SUCCESS && was != nullptr) leave_group(*was);
  return e;
}

}  // namespace

CUresult CUDAAPI stream_destroy(CUstream h_stream) {
  if (h_stream != nullptr) stream_ends(h_stream);
  return driver_call<entry::stream_destroy>(h_stream);
}
CUresult CUDAAPI stream_destroy_2(CUstream h_stream) {
  if (h_stream != nullptr) stream_ends(h_stream);
  return driver_call<entry::stream_destroy_2>(h_stream);
}

FOR_BOTH_NULL_STREAMS(begin_capture, (CUstream h_stream, CUstreamCaptureMode mode),
                      begin<entry::begin_capture, Streams>(h_stream, mode))
FOR_BOTH_NULL_STREAMS(begin_capture_10, (CUstream h_stream), begin<entry::begin_capture_10, Streams>(h_stream))
FOR_BOTH_NULL_STREAMS(begin_capture_to_graph,
                      (CUstream h_stream, CUgraph graph, const CUgraphNode* nodes, const CUgraphEdgeData* edges,
                       std::size_t count, CUstreamCaptureMode mode),
                      begin<entry::begin_capture_to_graph, Streams>(h_stream, graph, nodes, edges, count, mode))
FOR_BOTH_NULL_STREAMS(end_capture, (CUstream h_stream, CUgraph* graph), end<Streams>(h_stream, graph))

CUresult CUDAAPI ctx_destroy(CUcontext context) { return destroy<entry::ctx_destroy>(context); }
CUresult CUDAAPI ctx_destroy_2(CUcontext context) { return destroy<entry::ctx_destroy_2>(context); }

CUresult CUDAAPI primary_ctx_reset(CUdevice device) { return reset<entry::primary_ctx_reset>(device); }
CUresult CUDAAPI primary_ctx_reset_7(CUdevice device) { return reset<entry::primary_ctx_reset_7>(device); }

// The current context's device may now reach the memory of `peer`. A repeated call returns that access is enabled
// already.
CUresult CUDAAPI ctx_enable_peer_access(CUcontext peer, unsigned int flags) {
  const CUresult e = driver_call<entry::ctx_enable_peer_access>(peer, flags);
  CUdevice device{};
  if (e == CUDA_SUCCESS && calls() != nullptr && calls()->ctx_get_device(&device) == CUDA_SUCCESS) {
    peer_may_reach(peer, device);
  }
  return e;
}

// The driver's access flags do not reach gpumem's blocks, so the driver serves the device's default pool from now on.
CUresult CUDAAPI mem_pool_set_access(CUmemoryPool pool, const CUmemAccessDesc* access, std::size_t count) {
  const CUresult e = driver_call<entry::mem_pool_set_access>(pool, access, count);
  if (e != CUDA_SUCCESS || calls() == nullptr) return e;
  CUresult refusal = CUDA_SUCCESS;
  static_cast<void>(current_device(&refusal));  // opens the device if this is its first call
  for_each_device([&](served_context& device) {
    CUmemoryPool usual = nullptr;
    if (calls()->default_pool(&usual, device.handle) == CUDA_SUCCESS && usual == pool) device.own_pool = true;
  });
  return e;
}

namespace {

/// The program chose a device's pool: cudaMallocAsync uses gpumem only while that is the default pool.
template <typename Matches>
void note_chosen_pool(const Matches& matches, CUmemoryPool pool) {
  if (calls() == nullptr) return;
  for_each_device([&](served_context& device) {
    CUmemoryPool usual = nullptr;
    if (matches(device) && calls()->default_pool(&usual, device.handle) == CUDA_SUCCESS)
      device.own_pool = usual != pool;
  });
}

}  // namespace

CUresult CUDAAPI device_set_mem_pool(CUdevice device, CUmemoryPool pool) {
  const CUresult e = driver_call<entry::device_set_mem_pool>(device, pool);
  if (e == CUDA_SUCCESS) note_chosen_pool([&](const served_context& served) { return served.handle == device; }, pool);
  return e;
}

CUresult CUDAAPI mem_set_mem_pool(CUmemLocation* location, CUmemAllocationType type, CUmemoryPool pool) {
  const CUresult e = driver_call<entry::mem_set_mem_pool>(location, type, pool);
  if (e == CUDA_SUCCESS && location->type == CU_MEM_LOCATION_TYPE_DEVICE && type == CU_MEM_ALLOCATION_TYPE_PINNED) {
    note_chosen_pool([&](const served_context& served) { return served.ordinal == location->id; }, pool);
  }
  return e;
}

}  // namespace gpumem::preload
