#include "stream_graphs.hpp"

#include <fmt/format.h>

namespace gpumem {

result<owner_id> stream_graphs::begin_capture(owner_id owner) {
  if (streams_[owner].capturing()) return status{errc::invalid_argument, "the stream is capturing already"};
  const owner_id graph = streams_.slots().add_graph(owner);
  streams_[owner].graph = graph;
  ++streams_[owner].references;  // the capture holds both
  ++streams_[graph].references;
  streams_.note_user();
  return graph;
}

std::uint64_t stream_graphs::end_capture(owner_id owner) noexcept {
  stream_slot& slot = streams_[owner];
  const owner_id graph = slot.graph;
  slot.graph = idle_owner;
  --slot.references;
  --streams_[graph].references;
  return streams_[graph].key;
}

std::uint64_t stream_graphs::open_region(stream_ref stream, std::uint64_t key, bool captures) {
  const owner_id graph = streams_.slots().add_graph(streams_.slot_of(stream, key));
  streams_[graph].captured.known_by_handle = captures;
  streams_.note_user();
  return streams_[graph].key;
}

bool stream_graphs::is_region_of(owner_id region, stream_ref stream, std::uint64_t key) noexcept {
  stream_slot& opened = streams_[region];
  const bool captures = streams_[streams_.slots().find(key)].capturing();
  if (opened.captured.origin_key != key) {
    if (!captures && !opened.captured.known_by_handle) return false;
    if (!streams_.keys().is_created_under_query(stream) || opened.stream != stream) return false;
  }
  if (!captures) {
    opened.captured.origin_key = key;
    opened.captured.known_by_handle = false;
  }
  return true;
}

owner_id stream_graphs::find(std::uint64_t number) const noexcept {
  const owner_id graph = streams_.slots().find_graph(number);
  return streams_[graph].ended ? idle_owner : graph;
}

owner_id stream_graphs::owner_of_free(owner_id graph, std::uint64_t key) {
  if (key == streams_[graph].captured.origin_key || streams_[graph].ended) return graph;
  if (streams_[graph].captured.withheld_owner == idle_owner) {
    const owner_id withheld = streams_.slots().add_graph(graph);
    streams_[graph].captured.withheld_owner = withheld;
  }
  return streams_[graph].captured.withheld_owner;
}

status stream_graphs::release(std::uint64_t number) {
  const owner_id graph = find(number);
  if (graph == idle_owner) {
    return {errc::invalid_argument, fmt::format("graph or region {} is unknown here, or was released already", number)};
  }
  if (streams_[graph].references != 0) {
    for (owner_id owner = 0; owner < streams_.slots().end(); ++owner) {
      if (streams_[owner].graph == graph)
        return {errc::invalid_argument, fmt::format("graph {} is still being captured", number)};
    }
  }
  const owner_id withheld = streams_[graph].captured.withheld_owner;
  streams_.end_graph(graph);
  if (withheld != idle_owner) streams_.end_graph(withheld);
  return {};
}

}  // namespace gpumem
