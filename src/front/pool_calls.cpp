// Streams, captures, regions, limits and figures: each call finds its pools.
#include <fmt/format.h>

#include <algorithm>

#include "assign_or_return.hpp"
#include "gpumem/cuda_device.hpp"
#include "pooled_allocator.hpp"

namespace gpumem {

status pooled_allocator::stream_release(stream_ref stream) {
  return without_exceptions([&] {
    return at_each_that_knows(pools_, stream, nullptr,
                              [](pool& member, std::uint64_t key) { return member.streams().stream_release(key); });
  });
}

status pooled_allocator::stand_for_all_work(stream_ref all) {
  return without_exceptions([&]() -> status {
    for (const logical_pool& p : pools_) {
      if (status ok = p.pool->streams().stand_for_all_work(all); !ok) return ok;
    }
    return {};
  });
}

status pooled_allocator::capture_begin(stream_ref stream) {
  return without_exceptions([&] { return captures_.begin(stream); });
}

result<graph_ref> pooled_allocator::capture_end(stream_ref stream) {
  return without_exceptions([&] { return captures_.end(stream); });
}

status pooled_allocator::graph_release(graph_ref graph) {
  return without_exceptions([&] { return captures_.release(graph); });
}

status pooled_allocator::hold_capture(std::uint64_t number) {
  return without_exceptions([&] {
    captures_.hold(number);
    return status{};
  });
}

status pooled_allocator::end_captures(int physical_device, bool reported_only) {
  return without_exceptions([&]() -> status {
    const auto slot = std::ranges::find(pools_, physical_device,
                                        [](const logical_pool& candidate) { return candidate.device->info().ordinal; });
    if (slot == pools_.end()) {
      return {errc::wrong_device, fmt::format("no pool of this allocator is on device {}", physical_device)};
    }
    if (!slot->asks_for_captures()) return {};
    if (status ok = usable(*slot->device); !ok) return ok;
    captures_.ended_on(*slot->device, reported_only);
    return {};
  });
}

result<std::uint64_t> pooled_allocator::open_region(int device, stream_ref stream) {
  return with_pool<result<std::uint64_t>>(pools_, device, [stream](const logical_pool& slot) -> result<std::uint64_t> {
    ASSIGN_OR_RETURN(const auto captures, slot.pool->streams().captures(stream));
    ASSIGN_OR_RETURN(const auto key, slot.pool->streams().key_of(stream, captures));
    return slot.pool->streams().open_region(stream, key, captures);
  });
}

status pooled_allocator::close_region(int device, std::uint64_t region) {
  return with_pool<status>(pools_, device,
                           [region](const logical_pool& slot) { return slot.pool->streams().graph_release(region); });
}

status pooled_allocator::enable_peer(int device, int physical_ordinal) {
  return with_pool<status>(pools_, device, [physical_ordinal](const logical_pool& slot) {
    return slot.device->info().page_bytes == 0 ? status{} : add_cuda_peer(*slot.device, physical_ordinal);
  });
}

status pooled_allocator::observe_segments(std::shared_ptr<segment_observer> observer) {
  if (observer == nullptr) return {errc::invalid_argument, "the observer of segments is null; expected an observer"};
  return without_exceptions([&] {
    for (const logical_pool& p : pools_) p.pool->observe_segments(observer);
    return status{};
  });
}

void pooled_allocator::on_out_of_memory(oom_callback callback) {
  if (!callback) return;
  for (const logical_pool& p : pools_) p.pool->on_out_of_memory(callback);
}

result<trim_result> pooled_allocator::trim(int device, std::uint64_t bytes) {
  return with_pool<result<trim_result>>(pools_, device, [&](const logical_pool& slot) {
    if (captures_.busy()) captures_.settle(*slot.device);
    return slot.pool->trim(bytes);
  });
}

result<limit_result> pooled_allocator::set_limit(int device, std::uint64_t limit_bytes) {
  return with_pool<result<limit_result>>(pools_, device, [&](const logical_pool& slot) -> result<limit_result> {
    if (status fits = set_limit_beside_others(slot, limit_bytes); !fits) return fits;
    if (captures_.busy()) captures_.settle(*slot.device);
    return slot.pool->trim_to_limit(limit_bytes);
  });
}

// Checks the limit against those of the device's other pools and sets it, atomically with other calls of this.
status pooled_allocator::set_limit_beside_others(const logical_pool& slot, std::uint64_t limit_bytes) {
  const mutex_lock lock{limits_mutex_};
  std::uint64_t other_limits = 0;
  for (const logical_pool& neighbour : pools_) {
    if (neighbour.pool != slot.pool && neighbour.device == slot.device) other_limits += neighbour.pool->limit_bytes();
  }
  const std::uint64_t total = slot.pool->config().total_bytes;
  if (limit_bytes == 0 || limit_bytes > total || other_limits > total - limit_bytes) {
    return {errc::bad_setting,
            fmt::format("limit {} for pool {}: expected more than 0 and at most {} ({} less the other pools' {})",
                        format_bytes(limit_bytes), slot.pool->config().name,
                        format_bytes(total > other_limits ? total - other_limits : 0), format_bytes(total),
                        format_bytes(other_limits))};
  }
  slot.pool->set_limit(limit_bytes);
  return {};
}

result<statistics> pooled_allocator::stats(int device) const {
  return of_pool<result<statistics>>(pools_, device, [&](const logical_pool& slot) {
    statistics s = slot.pool->stats();
    if (device == 0) s.misuses += foreign_misuses_.load(std::memory_order_relaxed);
    return s;
  });
}

result<std::vector<segment_view>> pooled_allocator::segments(int device) const {
  return with_pool<result<std::vector<segment_view>>>(pools_, device,
                                                      [](const logical_pool& slot) { return slot.pool->segments(); });
}

result<piece_statistics> pooled_allocator::pieces(int device) const {
  return of_pool<result<piece_statistics>>(pools_, device,
                                           [](const logical_pool& slot) { return slot.pool->pieces(); });
}

status pooled_allocator::reset_peak_reserved(int device) {
  return with_pool<status>(pools_, device, [](const logical_pool& slot) {
    slot.pool->reset_peak_reserved();
    return status{};
  });
}

status pooled_allocator::check(int device) const {
  return of_pool<status>(pools_, device, [](const logical_pool& slot) { return slot.pool->check(); });
}

status pooled_allocator::for_each_pool(const std::function<status(const pool&)>& each) const {
  return without_exceptions([&]() -> status {
    for (const logical_pool& p : pools_) {
      if (p.device->condition() == device_condition::forked) continue;
      if (status done = each(*p.pool); !done) return done;
    }
    return {};
  });
}

}  // namespace gpumem
