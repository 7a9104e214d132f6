// A logical device of an allocator, and functions that find its pool and call it.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "allocation_recorder.hpp"
#include "gpumem/device.hpp"
#include "gpumem/settings.hpp"
#include "history_dump.hpp"
#include "pool.hpp"
#include "without_exceptions.hpp"

namespace gpumem {

struct logical_pool {
  recorder_list recorders;                // the pool keeps pointers to them
  std::unique_ptr<history_file> history;  // null unless GPUMEM_HISTORY and GPUMEM_TRACE are set
  std::unique_ptr<gpumem::pool> pool;
  gpumem::device* device;
  bool takes_everything;

  /// Whether an allocation asks the device if its stream captures.
  [[nodiscard]] bool asks_for_captures() const {
    return pool->config().stream_ids == stream_id_mode::query && device->info().reports_captures;
  }
};

/// Opens a pool of `gpu` with its policy and recorders. `own` are the settings with the device's overrides.
result<logical_pool> open_logical_pool(device& gpu, pool_config config, const settings& own);

/// Returns an error if the device is not usable. Call it before taking a lock: in a forked child a lock may stay locked
/// for ever.
status usable(const device& gpu);

/// `wrong_device` if there is no such logical device. `pools` are in the order of their ordinals, here and below.
status exists(const std::vector<logical_pool>& pools, int device);

/// Calls `call` for each pool whose device knows the stream, until one fails. If `only` is not null, skips the pools of
/// other devices. Also fails if no device knows the stream.
status at_each_that_knows(const std::vector<logical_pool>& pools, stream_ref stream, const device* only,
                          const std::function<status(pool&, std::uint64_t key)>& call);

/// Calls `call` with the pool of a logical device. Fails if there is none, or in a forked child, where a lock of the
/// pool may stay locked.
template <typename Result, typename Call>
Result of_pool(const std::vector<logical_pool>& pools, int device, const Call& call) {
  return without_exceptions([&]() -> Result {
    if (status ok = exists(pools, device); !ok) return ok;
    const logical_pool& found = pools[static_cast<std::size_t>(device)];
    return found.device->condition() == device_condition::forked ? Result{usable(*found.device)} : Result{call(found)};
  });
}

/// Like `of_pool`, but also requires a usable device.
template <typename Result, typename Call>
Result with_pool(const std::vector<logical_pool>& pools, int device, const Call& call) {
  return of_pool<Result>(pools, device, [&](const logical_pool& found) -> Result {
    if (status ok = usable(*found.device); !ok) return ok;
    return call(found);
  });
}

/// Returns the answer of the pool that knows the address. If none does, returns the refusal of the pool whose segment
/// contains it, or of any pool.
template <typename Call>
status ask_pools(const std::vector<logical_pool>& pools, address begin, const Call& call) {
  status refusal;
  for (const logical_pool& p : pools) {
    status answer = usable(*p.device);
    const bool asked = answer.ok();
    if (asked) answer = call(*p.pool);
    if (asked && answer.code() != errc::unknown_pointer) return answer;
    if (!asked || refusal.ok() || p.pool->contains(begin)) refusal = std::move(answer);
  }
  return refusal;
}

}  // namespace gpumem
