// Memory that belongs to graphs. graph_memory.cpp documents the rules.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <optional>

struct CUstream_st;
struct CUgraphExec_st;

namespace gpumem::simcuda {

struct gpu;
struct captured_use;

/// The memory of an allocation node.
struct graph_block {
  std::uint64_t bytes = 0;
  CUgraph owner = nullptr;
  bool freed_by_owner = false;    ///< by a node of its own graph
  bool freed_by_another = false;  ///< by a node of another graph
  bool live = false;              ///< allocated by a launch and not freed since
};

struct graph_memory {
  std::uint64_t used = 0;
  std::uint64_t reserved = 0;
};
graph_memory graph_memory_of(const gpu& device);

/// Allocates or frees on a capturing stream.
CUresult allocate_in_graph(CUstream_st& stream, gpu& device, CUdeviceptr* address, std::size_t bytes);
CUresult free_in_graph(CUstream_st& stream, CUdeviceptr address);
/// Frees outside any capture; empty if the memory belongs to no graph.
std::optional<CUresult> free_of_graph(CUdeviceptr address);
/// Whether work on the stream may use the bytes. Restricts only bytes that belong to a graph.
CUresult reach_in_graphs(const CUstream_st& stream, CUdeviceptr address);
CUresult may_instantiate(CUgraph graph);
CUresult may_launch(const CUgraphExec_st& exec);
/// Runs an allocation or free node; false for other work.
bool run_node(const captured_use& captured);
/// Frees memory that no graph can use any more.
void trim_graph_memory(gpu& device);

}  // namespace gpumem::simcuda
