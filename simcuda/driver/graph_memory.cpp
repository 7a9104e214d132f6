// Memory nodes of graphs: cuMemAllocAsync and cuMemFreeAsync on a capturing stream.
//
// A card allocates the memory when the graph is first launched; the simulated driver allocates it with the node, which
// is stricter near a memory limit. It is freed when the device's graph memory is trimmed, as on a card. Quoted
// sentences are from the driver's documentation (cuGraphAddMemAllocNode, unless another function is named).
#include "graph_memory.hpp"

#include <algorithm>

#include "driver_state.hpp"
#include "run_recorder.hpp"

namespace gpumem::simcuda {
namespace {

struct found_block {
  gpu* device = nullptr;
  CUdeviceptr begin = 0;
  graph_block* block = nullptr;
};

found_block block_around(CUdeviceptr address) {
  for (const auto& g : the_driver_state().gpus) {
    const auto next = g->of_graphs.upper_bound(address);
    if (next == g->of_graphs.begin()) continue;
    auto& [begin, block] = *std::prev(next);
    if (address - begin < block.bytes) return {g.get(), begin, &block};
  }
  return {};
}

bool has_exec(CUgraph graph) {
  return std::ranges::any_of(the_driver_state().execs,
                             [graph](const auto& exec) { return exec->alive && exec->graph == graph; });
}

void note_highs(gpu& device) {
  device.graph_highs.used = std::max(device.graph_highs.used, graph_memory_of(device).used);
  device.graph_highs.reserved = std::max(device.graph_highs.reserved, graph_memory_of(device).reserved);
}

}  // namespace

graph_memory graph_memory_of(const gpu& device) {
  graph_memory sum;
  for (const auto& [begin, block] : device.of_graphs) {
    sum.reserved += block.bytes;
    sum.used += block.live ? block.bytes : 0;
  }
  return sum;
}

CUresult allocate_in_graph(CUstream_st& stream, gpu& device, CUdeviceptr* address, std::size_t bytes) {
  if (const CUresult e = ready_for_work(stream); e != CUDA_SUCCESS) return e;
  const std::uint64_t granule = the_driver_state().config.granularity_bytes;
  const std::uint64_t rounded = (bytes + granule - 1) / granule * granule;
  const auto got = device.sim->alloc(rounded);
  if (!got) {
    note_refused(device, "cuMemAllocAsync", bytes);
    return error_of(got.why());
  }
  device.allocations[*got] = bytes;
  note_taken(device, bytes);
  device.of_graphs[*got] = {.bytes = rounded, .owner = stream.graph};
  note_highs(device);
  stream.graph->uses.push_back({.address = *got, .bytes = rounded, .node = graph_node::allocate});
  *address = *got;
  return CUDA_SUCCESS;
}

// cuMemFreeAsync: "must therefore be passed the address of a graph allocation". "CUDA_ERROR_INVALID_VALUE if the user
// attempts to free: an allocation twice in the same graph, an address that was not returned by an allocation node, an
// invalid address." "It is not possible to free an allocation in both the owning graph and another graph."
CUresult free_in_graph(CUstream_st& stream, CUdeviceptr address) {
  if (const CUresult e = ready_for_work(stream); e != CUDA_SUCCESS) return e;
  const found_block b = block_around(address);
  if (b.block == nullptr || b.begin != address) return CUDA_ERROR_INVALID_VALUE;
  const bool by_owner = b.block->owner == stream.graph;
  if (b.block->freed_by_owner || (by_owner && b.block->freed_by_another)) return CUDA_ERROR_INVALID_VALUE;
  const auto freed_here = [&](const captured_use& captured) {
    return captured.node == graph_node::free && captured.address == address;
  };
  if (std::ranges::any_of(stream.graph->uses, freed_here)) return CUDA_ERROR_INVALID_VALUE;
  (by_owner ? b.block->freed_by_owner : b.block->freed_by_another) = true;
  stream.graph->uses.push_back({.address = address, .bytes = b.block->bytes, .node = graph_node::free});
  return CUDA_SUCCESS;
}

// "Allocations which are not freed in the same graph can be freed by passing the allocation to cuMemFreeAsync or
// cuMemFree"; the others "cannot be freed outside the owning graph".
std::optional<CUresult> free_of_graph(CUdeviceptr address) {
  const found_block b = block_around(address);
  if (b.block == nullptr) return std::nullopt;
  if (b.begin != address || b.block->freed_by_owner || !b.block->live) return CUDA_ERROR_INVALID_VALUE;
  b.block->live = false;
  return CUDA_SUCCESS;
}

// "The allocation can be accessed by nodes ordered after the allocation node but before the free node." An allocation
// that its graph does not free "can be accessed [...] also by stream operations ordered after the graph's execution but
// before the allocation is freed".
CUresult reach_in_graphs(const CUstream_st& stream, CUdeviceptr address) {
  const found_block b = block_around(address);
  if (b.block == nullptr) return CUDA_SUCCESS;
  if (stream.graph != nullptr && stream.graph == b.block->owner) {
    return b.block->freed_by_owner ? undefined_use("memory that its graph has freed") : CUDA_SUCCESS;
  }
  if (b.block->live || stream.graph != nullptr) return CUDA_SUCCESS;  // another graph's use is checked at its launch
  return undefined_use("memory of a graph that has not run, or that is freed");
}

// "Only one instantiation of the graph may exist at any point in time."
CUresult may_instantiate(CUgraph graph) {
  const bool has_nodes =
      std::ranges::any_of(graph->uses, [](const auto& captured) { return captured.node != graph_node::work; });
  return has_nodes && has_exec(graph) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

// cuGraphLaunch: "If any allocations created by hGraphExec remain unfreed (from a previous launch) and hGraphExec was
// not instantiated with CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH, the launch will fail with
// CUDA_ERROR_INVALID_VALUE."
CUresult may_launch(const CUgraphExec_st& exec) {
  for (const captured_use& u : exec.uses) {
    if (u.node == graph_node::work) continue;
    const found_block b = block_around(u.address);
    if (b.block == nullptr) return CUDA_ERROR_INVALID_VALUE;  // the other graph was destroyed, and its memory trimmed
    if (u.node == graph_node::allocate && b.block->live && !exec.frees_on_launch) return CUDA_ERROR_INVALID_VALUE;
    const bool anothers = b.block->owner != exec.graph;
    if (u.node == graph_node::free && anothers && !b.block->live)
      return undefined_use("a free of what is not allocated");
  }
  return CUDA_SUCCESS;
}

bool run_node(const captured_use& captured) {
  if (captured.node == graph_node::work) return false;
  const found_block b = block_around(captured.address);
  b.block->live = captured.node == graph_node::allocate;
  note_highs(*b.device);
  return true;
}

// cuDeviceGraphMemTrim: "Blocks which are not in use by a graph that is either currently executing or scheduled to
// execute are freed back to the operating system." Keeps memory that a graph may still use, so that its addresses stay.
void trim_graph_memory(gpu& device) {
  const auto captures = [&device](const auto& stream) {
    return stream->context != nullptr && stream->context->device == &device && stream->graph != nullptr;
  };
  if (std::ranges::any_of(the_driver_state().streams, captures) || !device.sim->synchronize()) return;
  for (auto entry = device.of_graphs.begin(); entry != device.of_graphs.end();) {
    const auto& [begin, block] = *entry;
    if (block.live || block.owner->alive || has_exec(block.owner) || release(device, begin) != CUDA_SUCCESS) {
      ++entry;
    } else {
      entry = device.of_graphs.erase(entry);
    }
  }
}

}  // namespace gpumem::simcuda
