// Requests and frees, with the pools that serve them.
#include "pooled_allocator.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "assign_or_return.hpp"
#include "bits.hpp"
#include "log.hpp"
#include "oom_advice.hpp"
#include "pointers.hpp"

namespace gpumem {
namespace {

/// Arithmetic on larger sizes could overflow, so larger requests are checked first.
constexpr std::size_t most_hit_bytes = std::size_t{1} << 40;
/// The largest size that stays below 2^63 when rounded up.
constexpr std::size_t most_bytes = (std::size_t{1} << 63) - block_granularity;

std::string recording_of(const logical_pool& slot) {
  if (slot.history != nullptr) return slot.history->path();
  for (const auto& each : slot.recorders) {
    if (std::string path = each->recording(); !path.empty()) return path;
  }
  return {};
}

/// Refuses requests that a device of this size can never serve.
status check_form(const request& request, std::uint64_t total_bytes) {
  std::string wrong;
  if (request.bytes == 0) {
    wrong = "0 bytes asked; expected at least 1";
  } else if (!is_power_of_two(request.alignment)) {
    wrong = fmt::format("alignment {}: expected a power of two", request.alignment);
  } else if (request.alignment > total_bytes) {
    wrong = fmt::format("alignment {}: larger than the device's {}", request.alignment, format_bytes(total_bytes));
  } else if (request.bytes > most_bytes) {
    wrong = fmt::format("{} bytes asked; expected less than 2^63", request.bytes);
  } else if (request.place % std::max<std::uint64_t>(request.alignment, block_granularity) != 0) {
    wrong = fmt::format("place {:#x}: expected a multiple of {}{}", request.place,
                        std::max<std::uint64_t>(request.alignment, block_granularity),
                        request.alignment > block_granularity ? ", the alignment asked" : "");
  }
  return wrong.empty() ? status{} : status{errc::invalid_argument, std::move(wrong)};
}

}  // namespace

result<void*> pooled_allocator::do_allocate(const request& request, oom_slot* refusal) try {
  if (status ok = exists(pools_, request.device); !ok) return ok;
  const logical_pool& slot = pools_[static_cast<std::size_t>(request.device)];
  pool& serving = *slot.pool;
  if (request.alignment != block_granularity || request.bytes - 1 >= most_hit_bytes || request.place != 0) {
    if (status ok = check_form(request, serving.config().total_bytes); !ok) return ok;
  }
  if (slot.device->condition() != device_condition::usable) return usable(*slot.device);
  const bool asks = slot.asks_for_captures();
  std::optional<std::uint64_t> key;
  if (asks || captures_.busy()) {
    if (request.alignment == block_granularity && request.region == 0) {  // a hit needs no look at captures
      const address cached = serving.try_cache(request.stream, request.bytes);
      if (cached != 0) return to_pointer(cached);
    }
    if (status followed = captures_.follow(slot, request, asks, &key); !followed) return followed;
  }
  address begin = 0;
  oom_slot recorded;
  oom_slot* const report = refusal == nullptr && !slot.recorders.empty() ? &recorded : refusal;
  if (status done = serving.allocate(request, round_up(request.bytes, block_granularity), &begin, report, key); !done) {
    if (report != nullptr && *report != nullptr) {
      for (const auto& each : slot.recorders) each->refused(**report, request.stream);
    }
    if (slot.history != nullptr && done.code() == errc::out_of_memory) slot.history->refused(serving);
    if (oom_advice_ && done.code() == errc::out_of_memory) start_oom_advice(recording_of(slot));
    return done;
  }
  if (untouched_.load(std::memory_order_relaxed)) preallocate(request.device);
  for (const auto& each : slot.recorders) each->allocated(begin, request.bytes, request.stream);
  return to_pointer(begin);
} catch (...) {
  return status::of_current_exception();
}

// Refuses a free that states another device than the block's.
status pooled_allocator::refuse_free_of_others(address begin, int stated) {
  if (status known = exists(pools_, stated); !known) {
    ++foreign_misuses_;
    return known;
  }
  for (const logical_pool& slot : pools_) {
    const pool_config& config = slot.pool->config();
    if (config.ordinal == stated || !slot.pool->describe(begin)) continue;
    slot.pool->count_misuse();
    return {errc::wrong_device,
            fmt::format("{:#x} belongs to pool {} and is freed on device {}", begin, config.name, stated)};
  }
  return {};
}

status pooled_allocator::do_deallocate(void* pointer, const free_args& stated) try {
  if (pointer == nullptr) return {};
  const address begin = to_address(pointer);
  if (stated.device) {
    if (status ok = refuse_free_of_others(begin, *stated.device); !ok) return ok;
  }
  if (pools_.size() > 1 || stated.stream) {
    for (const logical_pool& candidate : pools_) {
      if (candidate.pool->free_to_cache(begin, stated)) return {};
    }
  }
  bool owned = false;
  status freed = ask_pools(pools_, begin, [&](pool& candidate) {
    status done = candidate.release_block(begin, stated);
    owned = done.code() != errc::unknown_pointer;
    return done;
  });
  if (!owned) ++foreign_misuses_;
  return freed;
} catch (...) {
  return status::of_current_exception();
}

status pooled_allocator::record_use(void* pointer, stream_ref stream) {
  return without_exceptions([&] {
    return ask_pools(pools_, to_address(pointer),
                     [&](pool& each) { return each.record_use(to_address(pointer), stream); });
  });
}

bool pooled_allocator::free_behind_all_work(void* pointer) noexcept {
  return std::ranges::any_of(
      pools_, [pointer](const logical_pool& slot) { return slot.pool->free_behind_all_work(to_address(pointer)); });
}

result<block_info> pooled_allocator::describe(const void* pointer) const {
  return without_exceptions([&]() -> result<block_info> {
    result<block_info> found = block_info{};
    const status known = ask_pools(pools_, to_address(pointer), [&](const pool& each) {
      found = each.describe(to_address(pointer));
      return found ? status{} : found.why();
    });
    return known ? found : known;
  });
}

void pooled_allocator::preallocate(int used) {
  if (!untouched_.exchange(false, std::memory_order_acq_rel)) return;
  for (const logical_pool& p : pools_) {
    const pool_config& config = p.pool->config();
    if (!p.takes_everything || config.ordinal == used) continue;
    status taken = usable(*p.device);
    if (taken.ok()) taken = without_exceptions([&] { return p.pool->open_ahead(); });
    if (!taken) {
      log_if_possible([&] {
        return fmt::format("pool {} ({}) is not taken yet: {}", config.name, config.policy_name, taken.message());
      });
    }
  }
}

}  // namespace gpumem
