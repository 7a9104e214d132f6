// Reads from a counted call's arguments how many bytes it takes, on which device, and the result that identifies the
// memory when it is freed.
#pragma once

#include "entry_points.hpp"
#include "gpumem/request.hpp"

namespace gpumem::preload {

/// An ordinal of -1 means the device of the current context.
struct call_size {
  std::uint64_t bytes = 0;
  int ordinal = -1;
};

/// The kind of key under which the receipt of a counted call is stored.
enum class receipt_kind : std::uint8_t { address, handle, pages, graph };

template <entry E>
inline constexpr receipt_kind receipt_kind_of =
    E == entry::mem_create ? receipt_kind::pages
    : E == entry::array_create || E == entry::array_3d_create || E == entry::mipmapped_array_create
        ? receipt_kind::handle
    : E == entry::graph_add_mem_alloc_node || E == entry::graph_add_node || E == entry::graph_add_node_12
        ? receipt_kind::graph
        : receipt_kind::address;

/// The key of a call's receipt, from its first result after the call has succeeded. Memory of graphs has no key.
template <typename Made, typename... More>
std::uint64_t receipt_key(const Made* made, const More&... /*more*/) {
  if constexpr (std::is_same_v<Made, CUgraphNode>) return 0;
  if constexpr (std::is_pointer_v<Made>)
    return reinterpret_cast<std::uintptr_t>(*made);
  else
    return *made;
}

/// Rounds up as the driver does: it takes large memory in units of 2 MiB and divides such units for small memory.
constexpr std::uint64_t driver_bytes(std::uint64_t bytes) {
  constexpr std::uint64_t unit = std::uint64_t{2} << 20;
  const std::uint64_t granularity = bytes > unit / 2 ? unit : std::uint64_t{block_granularity};
  return bytes > UINT64_MAX - granularity ? bytes : (bytes + granularity - 1) / granularity * granularity;
}

/// The bytes of an array, without padding that only the driver knows; and of a graph's allocation node, with its
/// device.
std::uint64_t array_bytes(const CUDA_ARRAY_DESCRIPTOR& descriptor);
std::uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR& descriptor, unsigned int levels = 1);
call_size node_size(const CUDA_MEM_ALLOC_NODE_PARAMS& node_params);

// The size of a counted call, from its arguments.

template <typename... More>
call_size size_of_call(CUdeviceptr* /*dptr*/, std::size_t bytes, const More&... /*more*/) {
  return {driver_bytes(bytes)};
}
inline call_size size_of_call(CUdeviceptr*, std::size_t* /*pitch*/, std::size_t width, std::size_t height,
                              unsigned int) {
  return {driver_bytes((width + block_granularity - 1) / block_granularity * block_granularity * height)};
}
inline call_size size_of_call(CUmemGenericAllocationHandle*, std::size_t bytes, const CUmemAllocationProp* prop,
                              unsigned long long) {
  if (prop == nullptr || prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return {};
  return {bytes, prop->location.id};
}
inline call_size size_of_call(CUarray*, const CUDA_ARRAY_DESCRIPTOR* descriptor) {
  return {descriptor != nullptr ? array_bytes(*descriptor) : 0};
}
inline call_size size_of_call(CUarray*, const CUDA_ARRAY3D_DESCRIPTOR* descriptor) {
  return {descriptor != nullptr ? array_bytes(*descriptor) : 0};
}
inline call_size size_of_call(CUmipmappedArray*, const CUDA_ARRAY3D_DESCRIPTOR* descriptor, unsigned int levels) {
  return {descriptor != nullptr ? array_bytes(*descriptor, levels) : 0};
}
inline call_size size_of_call(CUgraphNode*, CUgraph, const CUgraphNode*, std::size_t,
                              CUDA_MEM_ALLOC_NODE_PARAMS* node_params) {
  return node_params != nullptr ? node_size(*node_params) : call_size{};
}
inline call_size size_of_call(CUgraphNode*, CUgraph, const CUgraphNode*, std::size_t, CUgraphNodeParams* node_params) {
  if (node_params == nullptr || node_params->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC) return {};
  return {driver_bytes(node_params->alloc.bytesize), node_params->alloc.poolProps.location.id};
}
inline call_size size_of_call(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, const CUgraphEdgeData*,
                              std::size_t count, CUgraphNodeParams* node_params) {
  return size_of_call(node, graph, dependencies, count, node_params);
}

}  // namespace gpumem::preload
