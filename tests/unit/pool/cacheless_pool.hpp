/// A pool whose threads keep no caches, so that every request and free takes the lock, with a way to its parts.
#pragma once

#include <gtest/gtest.h>

#include <utility>

#include "arena.hpp"
#include "bits.hpp"
#include "gpumem/sim_device.hpp"
#include "pool.hpp"

namespace gpumem {

struct pool_parts {
  static arena& arena_of(pool& owner) { return *owner.arena_; }
};

class cacheless_pool {
 public:
  cacheless_pool(device& on, pool_config config, std::unique_ptr<policy> decides)
      : pool_{on, named(std::move(config)), std::move(decides)} {}

  status allocate(const request& r, std::uint64_t rounded, address* at, oom_slot* refusal = nullptr) {
    return pool_.allocate(r, rounded, at, refusal);
  }
  /// Allocates; 0 if the request is refused.
  [[nodiscard]] address take(std::uint64_t bytes, stream_ref s = {}) {
    address at = 0;
    static_cast<void>(allocate({.bytes = bytes, .stream = s}, round_up(bytes, 512), &at));
    return at;
  }
  status release_block(address at, const free_args& stated) { return pool_.release_block(at, stated); }
  void give(address at) { EXPECT_TRUE(release_block(at, {}).ok()); }
  status record_use(address at, stream_ref s) { return pool_.record_use(at, s); }
  /// Calls `act(arena, lock)` under the lock.
  template <typename Act>
  auto locked(const Act& act) {
    arena_lock lock{parts().state.mutex};
    return act(parts(), lock);
  }
  [[nodiscard]] arena& parts() { return pool_parts::arena_of(pool_); }
  [[nodiscard]] pool& operator*() { return pool_; }

  [[nodiscard]] result<std::uint64_t> key_of(stream_ref s) { return pool_.streams().key_of(s); }
  trim_result trim(std::uint64_t bytes) { return pool_.trim(bytes); }
  [[nodiscard]] budget& cap() { return parts().state.pool_budget; }
  [[nodiscard]] statistics stats() { return pool_.stats(); }
  [[nodiscard]] status check() { return pool_.check(); }
  [[nodiscard]] bool is_live(address at) {
    const result<block_info> found = pool_.describe(at);
    return found.ok() && found->begin == at;
  }
  [[nodiscard]] bool is_mapped(address at) { return pool_.describe(at)->mapped; }

 private:
  static pool_config named(pool_config config) {
    config.name = "0";
    config.thread_cache = false;
    if (config.total_bytes == 0) config.total_bytes = 80 * gib;
    if (config.limit_bytes == 0) config.limit_bytes = config.total_bytes;
    return config;
  }

  pool pool_;
};

}  // namespace gpumem
