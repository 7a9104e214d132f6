// Reads from a counted call's arguments how many bytes it takes, on which device, and the result that identifies the
// memory when it is freed.
#pragma once

#include <algorithm>
#include <array>

#include "entry_points.hpp"
#include "gpumem/request.hpp"

namespace gpumem::preload {

/// An ordinal of -1 means the device of the current context.
struct call_size {
  std::uint64_t bytes = 0;
  int ordinal = -1;
};

/// The kind of key under which the receipt of a call is stored.
enum class kept_as : std::uint8_t { address, handle, pages, graph };

/// Rounds up as the driver does: it takes large memory in units of 2 MiB and divides such units for small memory.
constexpr std::uint64_t price_of_bytes(std::uint64_t bytes) {
  constexpr std::uint64_t unit = std::uint64_t{2} << 20;
  const std::uint64_t granularity = bytes > unit / 2 ? unit : std::uint64_t{block_granularity};
  return bytes > UINT64_MAX - granularity ? bytes : (bytes + granularity - 1) / granularity * granularity;
}

/// The bytes of an array, without padding that only the driver knows; and of a graph's allocation node, with its
/// device.
std::uint64_t price_of_array(const CUDA_ARRAY_DESCRIPTOR& descriptor);
std::uint64_t price_of_array(const CUDA_ARRAY3D_DESCRIPTOR& descriptor, unsigned int levels = 1);
call_size price_of_node(const CUDA_MEM_ALLOC_NODE_PARAMS& node_params);

/// How a counted call is charged. `kind`: the key under which its receipt is stored. `of`: its size, from its
/// arguments. `given`: the key itself, from its results, after the call has succeeded.
template <entry E>
struct pricing;

template <>
struct pricing<entry::mem_alloc> {
  static constexpr kept_as kind = kept_as::address;
  static call_size of(CUdeviceptr*, std::size_t bytes) { return {price_of_bytes(bytes)}; }
  static std::uint64_t given(CUdeviceptr* dptr, std::size_t) { return *dptr; }
};
template <>
struct pricing<entry::mem_alloc_pitch> {
  static constexpr kept_as kind = kept_as::address;
  static call_size of(CUdeviceptr*, std::size_t*, std::size_t width, std::size_t height, unsigned int) {
    return {price_of_bytes((width + block_granularity - 1) / block_granularity * block_granularity * height)};
  }
  static std::uint64_t given(CUdeviceptr* dptr, std::size_t*, std::size_t, std::size_t, unsigned int) { return *dptr; }
};
template <>
struct pricing<entry::mem_alloc_managed> {
  static constexpr kept_as kind = kept_as::address;
  static call_size of(CUdeviceptr*, std::size_t bytes, unsigned int) { return {price_of_bytes(bytes)}; }
  static std::uint64_t given(CUdeviceptr* dptr, std::size_t, unsigned int) { return *dptr; }
};
template <>
struct pricing<entry::mem_alloc_async> {
  static constexpr kept_as kind = kept_as::address;
  static call_size of(CUdeviceptr*, std::size_t bytes, CUstream) { return {price_of_bytes(bytes)}; }
  static std::uint64_t given(CUdeviceptr* dptr, std::size_t, CUstream) { return *dptr; }
};
template <>
struct pricing<entry::mem_alloc_from_pool> {
  static constexpr kept_as kind = kept_as::address;
  static call_size of(CUdeviceptr*, std::size_t bytes, CUmemoryPool, CUstream) { return {price_of_bytes(bytes)}; }
  static std::uint64_t given(CUdeviceptr* dptr, std::size_t, CUmemoryPool, CUstream) { return *dptr; }
};
template <>
struct pricing<entry::mem_create> {
  static constexpr kept_as kind = kept_as::pages;
  static call_size of(CUmemGenericAllocationHandle*, std::size_t bytes, const CUmemAllocationProp* prop,
                      unsigned long long) {
    if (prop == nullptr || prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return {};
    return {bytes, prop->location.id};
  }
  static std::uint64_t given(CUmemGenericAllocationHandle* pages, std::size_t, const CUmemAllocationProp*,
                             unsigned long long) {
    return *pages;
  }
};
template <>
struct pricing<entry::array_create> {
  static constexpr kept_as kind = kept_as::handle;
  static call_size of(CUarray*, const CUDA_ARRAY_DESCRIPTOR* descriptor) {
    return {descriptor != nullptr ? price_of_array(*descriptor) : 0};
  }
  static std::uint64_t given(CUarray* made, const CUDA_ARRAY_DESCRIPTOR*) {
    return reinterpret_cast<std::uintptr_t>(*made);
  }
};
template <>
struct pricing<entry::array_3d_create> {
  static constexpr kept_as kind = kept_as::handle;
  static call_size of(CUarray*, const CUDA_ARRAY3D_DESCRIPTOR* descriptor) {
    return {descriptor != nullptr ? price_of_array(*descriptor) : 0};
  }
  static std::uint64_t given(CUarray* made, const CUDA_ARRAY3D_DESCRIPTOR*) {
    return reinterpret_cast<std::uintptr_t>(*made);
  }
};
template <>
struct pricing<entry::mipmapped_array_create> {
  static constexpr kept_as kind = kept_as::handle;
  static call_size of(CUmipmappedArray*, const CUDA_ARRAY3D_DESCRIPTOR* descriptor, unsigned int levels) {
    return {descriptor != nullptr ? price_of_array(*descriptor, levels) : 0};
  }
  static std::uint64_t given(CUmipmappedArray* made, const CUDA_ARRAY3D_DESCRIPTOR*, unsigned int) {
    return reinterpret_cast<std::uintptr_t>(*made);
  }
};
template <>
struct pricing<entry::graph_add_mem_alloc_node> {
  static constexpr kept_as kind = kept_as::graph;
  static call_size of(CUgraphNode*, CUgraph, const CUgraphNode*, std::size_t, CUDA_MEM_ALLOC_NODE_PARAMS* node_params) {
    return node_params != nullptr ? price_of_node(*node_params) : call_size{};
  }
  static std::uint64_t given(CUgraphNode*, CUgraph, const CUgraphNode*, std::size_t, CUDA_MEM_ALLOC_NODE_PARAMS*) {
    return 0;
  }
};
template <>
struct pricing<entry::graph_add_node> {
  static constexpr kept_as kind = kept_as::graph;
  static call_size of(CUgraphNode*, CUgraph, const CUgraphNode*, const CUgraphEdgeData*, std::size_t,
                      CUgraphNodeParams* node_params) {
    if (node_params == nullptr || node_params->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC) return {};
    return {price_of_bytes(node_params->alloc.bytesize), node_params->alloc.poolProps.location.id};
  }
  static std::uint64_t given(CUgraphNode*, CUgraph, const CUgraphNode*, const CUgraphEdgeData*, std::size_t,
                             CUgraphNodeParams*) {
    return 0;
  }
};
template <>
struct pricing<entry::graph_add_node_12> {
  static constexpr kept_as kind = kept_as::graph;
  static call_size of(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, std::size_t count,
                      CUgraphNodeParams* node_params) {
    return pricing<entry::graph_add_node>::of(node, graph, dependencies, nullptr, count, node_params);
  }
  static std::uint64_t given(CUgraphNode*, CUgraph, const CUgraphNode*, std::size_t, CUgraphNodeParams*) { return 0; }
};

}  // namespace gpumem::preload
