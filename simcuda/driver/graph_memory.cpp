// Memory nodes of graphs: cuMemAllocAsync and cuMemFreeAsync on a capturing stream.
//
// A card takes the memory when the graph is first launched; here it is taken with the node, which is harsher to a
// program near its limit. It goes back when the device's graph memory is trimmed, as on a card. The sentences in
// quotation marks are those of the driver's documentation (cuGraphAddMemAllocNode, if no other is named).
#include "graph_memory.hpp"

#include <algorithm>

#include "keep_report.hpp"
#include "world.hpp"

namespace gpumem::simcuda {
namespace {

struct found_block {
  gpu* on = nullptr;
  CUdeviceptr begin = 0;
  graph_block* it = nullptr;
};

found_block block_around(CUdeviceptr at) {
  for (const auto& g : the_world().gpus) {
    const auto above = g->of_graphs.upper_bound(at);
    if (above == g->of_graphs.begin()) continue;
    auto& [begin, block] = *std::prev(above);
    if (at - begin < block.bytes) return {g.get(), begin, &block};
  }
  return {};
}

bool has_exec(CUgraph graph) {
  return std::ranges::any_of(the_world().execs, [graph](const auto& e) { return e->alive && e->of == graph; });
}

void note_highs(gpu& g) {
  g.graph_highs.used = std::max(g.graph_highs.used, graph_memory_of(g).used);
  g.graph_highs.reserved = std::max(g.graph_highs.reserved, graph_memory_of(g).reserved);
}

}  // namespace

graph_memory graph_memory_of(const gpu& g) {
  graph_memory sum;
  for (const auto& [begin, block] : g.of_graphs) {
    sum.reserved += block.bytes;
    sum.used += block.live ? block.bytes : 0;
  }
  return sum;
}

CUresult allocate_in_graph(CUstream_st& s, gpu& on, CUdeviceptr* at, std::size_t bytes) {
  if (const CUresult e = ready_for_work(s); e != CUDA_SUCCESS) return e;
  const std::uint64_t granule = the_world().config.granularity_bytes;
  const std::uint64_t rounded = (bytes + granule - 1) / granule * granule;
  const auto got = on.sim->alloc(rounded);
  if (!got) {
    note_refused(on, "cuMemAllocAsync", bytes);
    return error_of(got.why());
  }
  on.allocations[*got] = bytes;
  note_taken(on, bytes);
  on.of_graphs[*got] = {.bytes = rounded, .owner = s.graph};
  note_highs(on);
  s.graph->uses.push_back({.at = *got, .bytes = rounded, .node = graph_node::allocate});
  *at = *got;
  return CUDA_SUCCESS;
}

// cuMemFreeAsync: "must therefore be passed the address of a graph allocation". "CUDA_ERROR_INVALID_VALUE if the user
// attempts to free: an allocation twice in the same graph, an address that was not returned by an allocation node, an
// invalid address." "It is not possible to free an allocation in both the owning graph and another graph."
CUresult free_in_graph(CUstream_st& s, CUdeviceptr at) {
  if (const CUresult e = ready_for_work(s); e != CUDA_SUCCESS) return e;
  const found_block b = block_around(at);
  if (b.it == nullptr || b.begin != at) return CUDA_ERROR_INVALID_VALUE;
  const bool by_owner = b.it->owner == s.graph;
  if (b.it->freed_by_owner || (by_owner && b.it->freed_by_another)) return CUDA_ERROR_INVALID_VALUE;
  const auto freed_here = [&](const captured_use& u) { return u.node == graph_node::free && u.at == at; };
  if (std::ranges::any_of(s.graph->uses, freed_here)) return CUDA_ERROR_INVALID_VALUE;
  (by_owner ? b.it->freed_by_owner : b.it->freed_by_another) = true;
  s.graph->uses.push_back({.at = at, .bytes = b.it->bytes, .node = graph_node::free});
  return CUDA_SUCCESS;
}

// "Allocations which are not freed in the same graph can be freed by passing the allocation to cuMemFreeAsync or
// cuMemFree"; the others "cannot be freed outside the owning graph".
std::optional<CUresult> free_of_graph(CUdeviceptr at) {
  const found_block b = block_around(at);
  if (b.it == nullptr) return std::nullopt;
  if (b.begin != at || b.it->freed_by_owner || !b.it->live) return CUDA_ERROR_INVALID_VALUE;
  b.it->live = false;
  return CUDA_SUCCESS;
}

// "The allocation can be accessed by nodes ordered after the allocation node but before the free node." What is not
// freed in its graph "can be accessed [...] also by stream operations ordered after the graph's execution but before
// the allocation is freed".
CUresult reach_in_graphs(const CUstream_st& s, CUdeviceptr at) {
  const found_block b = block_around(at);
  if (b.it == nullptr) return CUDA_SUCCESS;
  if (s.graph != nullptr && s.graph == b.it->owner) {
    return b.it->freed_by_owner ? undefined_use("memory that its graph has freed") : CUDA_SUCCESS;
  }
  if (b.it->live || s.graph != nullptr) return CUDA_SUCCESS;  // use in another graph is checked at that graph's launch
  return undefined_use("memory of a graph that has not run, or that is freed");
}

// "Only one instantiation of the graph may exist at any point in time."
CUresult may_instantiate(CUgraph graph) {
  const bool has_nodes = std::ranges::any_of(graph->uses, [](const auto& u) { return u.node != graph_node::work; });
  return has_nodes && has_exec(graph) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

// cuGraphLaunch: "If any allocations created by hGraphExec remain unfreed (from a previous launch) and hGraphExec was
// not instantiated with CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH, the launch will fail with
// CUDA_ERROR_INVALID_VALUE."
CUresult may_launch(const CUgraphExec_st& exec) {
  for (const captured_use& u : exec.uses) {
    if (u.node == graph_node::work) continue;
    const found_block b = block_around(u.at);
    if (b.it == nullptr) return CUDA_ERROR_INVALID_VALUE;  // the other graph was destroyed, and its memory trimmed
    if (u.node == graph_node::allocate && b.it->live && !exec.frees_on_launch) return CUDA_ERROR_INVALID_VALUE;
    const bool anothers = b.it->owner != exec.of;
    if (u.node == graph_node::free && anothers && !b.it->live) return undefined_use("a free of what is not allocated");
  }
  return CUDA_SUCCESS;
}

bool run_node(const captured_use& u) {
  if (u.node == graph_node::work) return false;
  const found_block b = block_around(u.at);
  b.it->live = u.node == graph_node::allocate;
  note_highs(*b.on);
  return true;
}

// cuDeviceGraphMemTrim: "Blocks which are not in use by a graph that is either currently executing or scheduled to
// execute are freed back to the operating system." What a graph may still run with stays, so that its addresses do.
void trim_graph_memory(gpu& g) {
  const auto captures = [&g](const auto& s) {
    return s->context != nullptr && s->context->on == &g && s->graph != nullptr;
  };
  if (std::ranges::any_of(the_world().streams, captures) || !g.sim->synchronize()) return;
  for (auto it = g.of_graphs.begin(); it != g.of_graphs.end();) {
    const auto& [begin, block] = *it;
    if (block.live || block.owner->alive || has_exec(block.owner) || release(g, begin) != CUDA_SUCCESS) {
      ++it;
    } else {
      it = g.of_graphs.erase(it);
    }
  }
}

}  // namespace gpumem::simcuda
