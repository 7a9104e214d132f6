// Memory that belongs to graphs: graph_memory.cpp has the rules.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <optional>

struct CUstream_st;
struct CUgraphExec_st;

namespace gpumem::simcuda {

struct gpu;
struct captured_use;

/// An allocation node's memory.
struct graph_block {
  std::uint64_t bytes = 0;
  CUgraph owner = nullptr;
  bool freed_by_owner = false;    ///< by a node of its own graph
  bool freed_by_another = false;  ///< by a node of another one
  bool live = false;              ///< a launch has allocated it, and nobody has freed it since
};

struct graph_memory {
  std::uint64_t used = 0;
  std::uint64_t reserved = 0;
};
graph_memory graph_memory_of(const gpu& g);

/// While the stream captures.
CUresult allocate_in_graph(CUstream_st& s, gpu& on, CUdeviceptr* at, std::size_t bytes);
CUresult free_in_graph(CUstream_st& s, CUdeviceptr at);
/// A free outside any capture; nothing where it is no graph's memory.
std::optional<CUresult> free_of_graph(CUdeviceptr at);
/// Whether work on the stream may touch the bytes, as far as they are a graph's.
CUresult reach_in_graphs(const CUstream_st& s, CUdeviceptr at);
CUresult may_instantiate(CUgraph graph);
CUresult may_launch(const CUgraphExec_st& exec);
/// False where it is work and not a node that allocates or frees.
bool run_node(const captured_use& u);
/// Gives back what no graph can use any more.
void trim_graph_memory(gpu& g);

}  // namespace gpumem::simcuda
