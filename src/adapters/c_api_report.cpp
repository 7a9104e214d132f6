// gpumem.h: reports about blocks, pools and logical devices, as structs that later versions may extend.
#include "assign_or_return.hpp"
#include "c_edge.hpp"
#include "pointers.hpp"

namespace {

using namespace gpumem::c_edge;
using gpumem::result;
using gpumem::status;
using gpumem::to_pointer;

template <std::size_t N>
void copy_text(char (&buffer)[N], const std::string& text) {
  buffer[text.copy(buffer, N - 1)] = '\0';
}

gpumem_stats to_c(const gpumem::statistics& statistics) {
  return {.struct_bytes = sizeof(gpumem_stats),
          .reserved_bytes = statistics.reserved_bytes,
          .live_bytes = statistics.live_bytes,
          .thread_cached_bytes = statistics.thread_cached_bytes,
          .cached_bytes = statistics.cached_bytes,
          .fenced_bytes = statistics.fenced_bytes,
          .idle_bytes = statistics.idle_bytes,
          .leaked_bytes = statistics.leaked_bytes,
          .requested_bytes = statistics.requested_bytes,
          .peak_live_bytes = statistics.peak_live_bytes,
          .peak_reserved_bytes = statistics.peak_reserved_bytes,
          .limit_bytes = statistics.limit_bytes,
          .largest_free_bytes = statistics.largest_free_bytes,
          .asked_at_start_bytes = statistics.asked_at_start_bytes,
          .got_at_start_bytes = statistics.got_at_start_bytes,
          .metadata_bytes = statistics.metadata_bytes,
          .live_blocks = statistics.live_blocks,
          .free_blocks = statistics.free_blocks,
          .peak_blocks = statistics.peak_blocks,
          .segments = statistics.segments,
          .streams = statistics.streams,
          .allocations = statistics.allocations,
          .frees = statistics.frees,
          .misuses = statistics.misuses,
          .out_of_memory = statistics.out_of_memory,
          .grown_segments = statistics.grown_segments,
          .returned_segments = statistics.returned_segments,
          .fences = statistics.fences,
          .host_waits = statistics.host_waits,
          .device_waits = statistics.device_waits,
          .locks = statistics.locks,
          .mapped_pages = statistics.mapped_pages,
          .remapped_pages = statistics.remapped_pages,
          .returned_pages = statistics.returned_pages,
          .plan_placements = statistics.plan_placements,
          .plan_departures = statistics.plan_departures,
          .taken_bytes = statistics.taken_bytes};
}

}  // namespace

extern "C" {

gpumem_code gpumem_describe(gpumem_allocator* memory, const void* inside, gpumem_block* info) {
  return with_allocator(memory, [&](gpumem::allocator& allocator) -> status {
    if (info == nullptr) return null_argument("info");
    ASSIGN_OR_RETURN(const auto found, allocator.describe(inside));
    return hand_over(gpumem_block{.struct_bytes = sizeof(gpumem_block),
                                  .begin = to_pointer(found.begin),
                                  .bytes = found.bytes,
                                  .requested_bytes = found.requested_bytes,
                                  .segment_begin = to_pointer(found.segment_begin),
                                  .segment_bytes = found.segment_bytes,
                                  .device = found.device},
                     info);
  });
}

gpumem_code gpumem_get_stats(gpumem_allocator* memory, int device, gpumem_stats* stats) {
  return with_allocator(memory, [&](gpumem::allocator& allocator) -> status {
    if (stats == nullptr) return null_argument("stats");
    ASSIGN_OR_RETURN(const auto statistics, allocator.stats(device));
    return hand_over(to_c(statistics), stats);
  });
}

gpumem_code gpumem_device_count(gpumem_allocator* memory, int* count) {
  if (count != nullptr) *count = 0;
  return with_allocator(memory, [&](gpumem::allocator& allocator) -> status {
    if (count == nullptr) return null_argument("count");
    *count = static_cast<int>(allocator.devices().size());
    return {};
  });
}

gpumem_code gpumem_device_properties(gpumem_allocator* memory, int device, gpumem_device* properties) {
  return with_allocator(memory, [&](gpumem::allocator& allocator) -> status {
    if (properties == nullptr) return null_argument("properties");
    if (!exists(allocator, device)) return no_such_device(allocator, device);
    const gpumem::logical_device& d = allocator.devices()[static_cast<std::size_t>(device)];
    gpumem_device shown{};
    shown.ordinal = d.ordinal;
    shown.physical_ordinal = d.physical_ordinal;
    copy_text(shown.name, d.name);
    copy_text(shown.policy, d.policy);
    shown.total_bytes = d.limit_bytes;
    copy_text(shown.gpu_name, d.gpu_name);
    copy_text(shown.gpu_uuid, d.gpu_uuid);
    shown.gpu_total_bytes = d.gpu_total_bytes;
    shown.compute_major = d.compute_major;
    shown.compute_minor = d.compute_minor;
    shown.simulated = d.simulated ? 1 : 0;
    return hand_over(shown, properties);
  });
}

}  // extern "C"
