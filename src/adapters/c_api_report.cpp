// gpumem.h: what it tells of blocks, pools and logical devices, as structs that may grow.
#include "c_edge.hpp"
#include "pointers.hpp"

namespace {

using namespace gpumem::c_edge;
using gpumem::result;
using gpumem::status;
using gpumem::to_pointer;

template <std::size_t N>
void copy_text(char (&to)[N], const std::string& from) {
  to[from.copy(to, N - 1)] = '\0';
}

gpumem_stats to_c(const gpumem::statistics& s) {
  return {.struct_bytes = sizeof(gpumem_stats),
          .reserved_bytes = s.reserved_bytes,
          .live_bytes = s.live_bytes,
          .thread_cached_bytes = s.thread_cached_bytes,
          .cached_bytes = s.cached_bytes,
          .fenced_bytes = s.fenced_bytes,
          .idle_bytes = s.idle_bytes,
          .leaked_bytes = s.leaked_bytes,
          .requested_bytes = s.requested_bytes,
          .peak_live_bytes = s.peak_live_bytes,
          .peak_reserved_bytes = s.peak_reserved_bytes,
          .limit_bytes = s.limit_bytes,
          .largest_free_bytes = s.largest_free_bytes,
          .asked_at_start_bytes = s.asked_at_start_bytes,
          .got_at_start_bytes = s.got_at_start_bytes,
          .metadata_bytes = s.metadata_bytes,
          .live_blocks = s.live_blocks,
          .free_blocks = s.free_blocks,
          .peak_blocks = s.peak_blocks,
          .segments = s.segments,
          .streams = s.streams,
          .allocations = s.allocations,
          .frees = s.frees,
          .misuses = s.misuses,
          .out_of_memory = s.out_of_memory,
          .grown_segments = s.grown_segments,
          .returned_segments = s.returned_segments,
          .fences = s.fences,
          .host_waits = s.host_waits,
          .device_waits = s.device_waits,
          .locks = s.locks,
          .mapped_pages = s.mapped_pages,
          .remapped_pages = s.remapped_pages,
          .returned_pages = s.returned_pages,
          .plan_placements = s.plan_placements,
          .plan_departures = s.plan_departures,
          .taken_bytes = s.taken_bytes};
}

}  // namespace

extern "C" {

gpumem_code gpumem_describe(gpumem_allocator* memory, const void* inside, gpumem_block* out) {
  return with_allocator(memory, [&](gpumem::allocator& in) -> status {
    if (out == nullptr) return null_argument("out");
    const result<gpumem::block_info> found = in.describe(inside);
    if (!found) return found.why();
    return hand_over(gpumem_block{.struct_bytes = sizeof(gpumem_block),
                                  .begin = to_pointer(found->begin),
                                  .bytes = found->bytes,
                                  .requested_bytes = found->requested_bytes,
                                  .segment_begin = to_pointer(found->segment_begin),
                                  .segment_bytes = found->segment_bytes,
                                  .device = found->device},
                     out);
  });
}

gpumem_code gpumem_get_stats(gpumem_allocator* memory, int device, gpumem_stats* out) {
  return with_allocator(memory, [&](gpumem::allocator& in) -> status {
    if (out == nullptr) return null_argument("out");
    const result<gpumem::statistics> now = in.stats(device);
    if (!now) return now.why();
    return hand_over(to_c(*now), out);
  });
}

gpumem_code gpumem_device_count(gpumem_allocator* memory, int* count) {
  if (count != nullptr) *count = 0;
  return with_allocator(memory, [&](gpumem::allocator& in) -> status {
    if (count == nullptr) return null_argument("count");
    *count = static_cast<int>(in.devices().size());
    return {};
  });
}

gpumem_code gpumem_device_properties(gpumem_allocator* memory, int device, gpumem_device* out) {
  return with_allocator(memory, [&](gpumem::allocator& in) -> status {
    if (out == nullptr) return null_argument("out");
    if (!exists(in, device)) return no_such_device(in, device);
    const gpumem::logical_device& d = in.devices()[static_cast<std::size_t>(device)];
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
    return hand_over(shown, out);
  });
}

}  // extern "C"
