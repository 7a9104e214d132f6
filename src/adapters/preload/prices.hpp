// How many bytes a counted call takes and of which device, read off its arguments; and what it gives back, to find the
// price again when that is freed.
#pragma once

#include <algorithm>
#include <array>

#include "entry_points.hpp"
#include "gpumem/request.hpp"

namespace gpumem::preload {

/// An ordinal of -1: the device of the current context.
struct price {
  std::uint64_t bytes = 0;
  int ordinal = -1;
};

/// What the receipt of a call is kept under.
enum class kept_as : std::uint8_t { address, handle, pages, graph };

/// The driver gives large memory in units of 2 MiB, small memory out of such units.
constexpr std::uint64_t price_of_bytes(std::uint64_t bytes) {
  constexpr std::uint64_t unit = std::uint64_t{2} << 20;
  const std::uint64_t to = bytes > unit / 2 ? unit : std::uint64_t{block_granularity};
  return bytes > UINT64_MAX - to ? bytes : (bytes + to - 1) / to * to;
}

std::uint64_t price_of_array(const CUDA_ARRAY_DESCRIPTOR& of);
std::uint64_t price_of_array(const CUDA_ARRAY3D_DESCRIPTOR& of, unsigned int levels = 1);
price price_of_node(const CUDA_MEM_ALLOC_NODE_PARAMS& of);

template <entry E>
struct pricing;

template <>
struct pricing<entry::mem_alloc> {
  static constexpr kept_as kind = kept_as::address;
  static price of(CUdeviceptr*, std::size_t bytes) { return {price_of_bytes(bytes)}; }
  static std::uint64_t given(CUdeviceptr* at, std::size_t) { return *at; }
};
template <>
struct pricing<entry::mem_alloc_pitch> {
  static constexpr kept_as kind = kept_as::address;
  static price of(CUdeviceptr*, std::size_t*, std::size_t width, std::size_t height, unsigned int) {
    return {price_of_bytes((width + block_granularity - 1) / block_granularity * block_granularity * height)};
  }
  static std::uint64_t given(CUdeviceptr* at, std::size_t*, std::size_t, std::size_t, unsigned int) { return *at; }
};
template <>
struct pricing<entry::mem_alloc_managed> {
  static constexpr kept_as kind = kept_as::address;
  static price of(CUdeviceptr*, std::size_t bytes, unsigned int) { return {price_of_bytes(bytes)}; }
  static std::uint64_t given(CUdeviceptr* at, std::size_t, unsigned int) { return *at; }
};
template <>
struct pricing<entry::mem_alloc_async> {
  static constexpr kept_as kind = kept_as::address;
  static price of(CUdeviceptr*, std::size_t bytes, CUstream) { return {price_of_bytes(bytes)}; }
  static std::uint64_t given(CUdeviceptr* at, std::size_t, CUstream) { return *at; }
};
template <>
struct pricing<entry::mem_alloc_from_pool> {
  static constexpr kept_as kind = kept_as::address;
  static price of(CUdeviceptr*, std::size_t bytes, CUmemoryPool, CUstream) { return {price_of_bytes(bytes)}; }
  static std::uint64_t given(CUdeviceptr* at, std::size_t, CUmemoryPool, CUstream) { return *at; }
};
template <>
struct pricing<entry::mem_create> {
  static constexpr kept_as kind = kept_as::pages;
  static price of(CUmemGenericAllocationHandle*, std::size_t bytes, const CUmemAllocationProp* prop,
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
  static price of(CUarray*, const CUDA_ARRAY_DESCRIPTOR* what) { return {what != nullptr ? price_of_array(*what) : 0}; }
  static std::uint64_t given(CUarray* made, const CUDA_ARRAY_DESCRIPTOR*) {
    return reinterpret_cast<std::uintptr_t>(*made);
  }
};
template <>
struct pricing<entry::array_3d_create> {
  static constexpr kept_as kind = kept_as::handle;
  static price of(CUarray*, const CUDA_ARRAY3D_DESCRIPTOR* what) {
    return {what != nullptr ? price_of_array(*what) : 0};
  }
  static std::uint64_t given(CUarray* made, const CUDA_ARRAY3D_DESCRIPTOR*) {
    return reinterpret_cast<std::uintptr_t>(*made);
  }
};
template <>
struct pricing<entry::mipmapped_array_create> {
  static constexpr kept_as kind = kept_as::handle;
  static price of(CUmipmappedArray*, const CUDA_ARRAY3D_DESCRIPTOR* what, unsigned int levels) {
    return {what != nullptr ? price_of_array(*what, levels) : 0};
  }
  static std::uint64_t given(CUmipmappedArray* made, const CUDA_ARRAY3D_DESCRIPTOR*, unsigned int) {
    return reinterpret_cast<std::uintptr_t>(*made);
  }
};
template <>
struct pricing<entry::graph_add_mem_alloc_node> {
  static constexpr kept_as kind = kept_as::graph;
  static price of(CUgraphNode*, CUgraph, const CUgraphNode*, std::size_t, CUDA_MEM_ALLOC_NODE_PARAMS* what) {
    return what != nullptr ? price_of_node(*what) : price{};
  }
  static std::uint64_t given(CUgraphNode*, CUgraph, const CUgraphNode*, std::size_t, CUDA_MEM_ALLOC_NODE_PARAMS*) {
    return 0;
  }
};
template <>
struct pricing<entry::graph_add_node> {
  static constexpr kept_as kind = kept_as::graph;
  static price of(CUgraphNode*, CUgraph, const CUgraphNode*, const CUgraphEdgeData*, std::size_t,
                  CUgraphNodeParams* what) {
    if (what == nullptr || what->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC) return {};
    return {price_of_bytes(what->alloc.bytesize), what->alloc.poolProps.location.id};
  }
  static std::uint64_t given(CUgraphNode*, CUgraph, const CUgraphNode*, const CUgraphEdgeData*, std::size_t,
                             CUgraphNodeParams*) {
    return 0;
  }
};
template <>
struct pricing<entry::graph_add_node_12> {
  static constexpr kept_as kind = kept_as::graph;
  static price of(CUgraphNode* node, CUgraph graph, const CUgraphNode* after, std::size_t count,
                  CUgraphNodeParams* what) {
    return pricing<entry::graph_add_node>::of(node, graph, after, nullptr, count, what);
  }
  static std::uint64_t given(CUgraphNode*, CUgraph, const CUgraphNode*, std::size_t, CUgraphNodeParams*) { return 0; }
};

}  // namespace gpumem::preload
