// The host's cost of each call of the simulated device, with its source.
//
// Published figures are for one thread: an H100 with driver 580.82 and CUDA 12.8 (median, per call on one 2 MiB page)
// and cudaMalloc on an A100 (MoonBright, OSDI '26). The other figures are derived from these or assumed, as marked.
// README.md in this folder prints this table; a test compares the two.
#include <array>
#include <cstddef>

#include "gpumem/sim_device.hpp"

namespace gpumem {
namespace {

struct cost_entry {
  device_call call;
  call_cost cost;
  std::string_view source;
};

// alloc: building the page table took 47 us for 2 MB and 949 us for 128 MB, 80 to 99 % of the call's latency.
// The share grows with the size, so 2 MB took 47 / 0.80 = 58.75 us in all; 128 MB took 966 us in all. A line
// through both: (966 - 58.75) / 63 further pages = 14.40 us. The published 16 MB (422 us of page table) is
// above that line, which gives 58.75 + 7 * 14.40 = 159.6 us.
// create: of the 966 us for 128 MB, 10 us were for physical memory: 10 / 64 = 0.156 us per page.
// set_access: in a trace, 705 calls for 5,996 pages took 68 to 102 ms: on average 85 ms, or 120.57 us per call
// of 8.505 pages. Less 66.9 us for the first page: 53.67 / 7.505 = 7.151 us per further page.
// unmap: reverses set_access, so a further page has the same share of the call: 7.151 * 37.9 / 66.9 = 4.051 us.
// destroy: in the same proportion to create: 0.156 * 34.5 / 19.0 = 0.283 us.
// free: reverses alloc, as unmap and destroy of the same pages do: 37.9 + 34.5 = 72.4 us and
// 4.051 + 0.283 = 4.334 us. The wait for running work is extra.
constexpr std::array<cost_entry, device_call_kinds> entries{{
    {device_call::alloc, {58'750, 14'400}, "derived: line through cudaMalloc of 2 MB and 128 MB, A100"},
    {device_call::free, {72'400, 4'334}, "derived: unmap + destroy of the same pages; waiting comes on top"},
    {device_call::alloc_host, {58'750, 14'400}, "assumed: as alloc"},
    {device_call::free_host, {72'400, 4'334}, "assumed: as free"},
    {device_call::reserve, {1'400, 0}, "published: H100; further pages assumed free"},
    {device_call::release_range, {1'000, 0}, "published: H100; further pages assumed free"},
    {device_call::create, {19'000, 156}, "published: H100; further pages derived from cudaMalloc of 128 MB, A100"},
    {device_call::destroy, {34'500, 283}, "published: H100; further pages derived: in proportion to create"},
    {device_call::map, {1'400, 0}, "published: H100; further pages assumed free"},
    {device_call::set_access, {66'900, 7'151}, "published: H100; further pages derived from 705 calls on 5,996 pages"},
    {device_call::unmap, {37'900, 4'051}, "published: H100; further pages derived: in proportion to set_access"},
    {device_call::memory, {1'000, 0}, "assumed"},
    {device_call::record, {1'000, 0}, "assumed"},
    {device_call::record_context, {1'000, 0}, "assumed: as record"},
    {device_call::query, {500, 0}, "assumed: half a record"},
    {device_call::wait_host, {1'000, 0}, "assumed; waiting comes on top"},
    {device_call::wait_stream, {1'000, 0}, "assumed: as record"},
    {device_call::stream_id, {100, 0}, "assumed: a look-up in the driver's library"},
    {device_call::capture_id, {100, 0}, "assumed: as stream_id"},
    {device_call::watch_graph, {1'000, 0}, "assumed"},
    {device_call::synchronize, {1'000, 0}, "assumed; waiting comes on top"},
}};

constexpr bool in_order_of_calls() {
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (static_cast<std::size_t>(entries[i].call) != i) return false;
  }
  return true;
}
static_assert(in_order_of_calls(), "one entry for each device_call, in the order of the enumeration");

constexpr cost_table costs_of_entries() {
  cost_table table{};
  for (std::size_t i = 0; i < entries.size(); ++i) table[i] = entries[i].cost;
  return table;
}
constexpr cost_table default_costs = costs_of_entries();

}  // namespace

const cost_table& sim_default_costs() noexcept { return default_costs; }

std::string_view sim_cost_source(device_call call) noexcept {
  const auto i = static_cast<std::size_t>(call);
  return i < entries.size() ? entries[i].source : std::string_view{};
}

}  // namespace gpumem
