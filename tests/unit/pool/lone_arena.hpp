/// An arena with a fake cache layer, which keeps the blocks that a test puts there, and counts.
#pragma once

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "arena.hpp"
#include "bits.hpp"
#include "gpumem/sim_device.hpp"

namespace gpumem {

class lone_arena final : public cache_client {
 public:
  lone_arena(device& on, arena_config config, std::unique_ptr<policy> decides)
      : arena_{on, named(std::move(config)), *this, std::move(decides)} {}

  status allocate(const request& r, std::uint64_t rounded, address* at, std::optional<oom_report>* refusal) {
    arena_lock lock{arena_.mutex()};
    const result<std::uint64_t> key = arena_.streams().key_of(r.stream);
    if (!key) return key.why();
    result<pending_request> w = arena_.prepare(r, rounded, *key);
    if (!w) return w.why();
    const result<block_index> i = arena_.allocate(lock, *w);
    if (!i) return i.why();
    if (*i == no_block) {
      if (refusal != nullptr) {
        arena_.explain(*w, &refusal->emplace());
        (*refusal)->pool_statistics = arena_.figures();
        arena_.ask_device(lock, &**refusal);
      }
      return {errc::out_of_memory, "out of memory"};
    }
    *at = arena_.blocks().at(*i).begin;
    peak_live_bytes_ = std::max(peak_live_bytes_, live_bytes());
    return {};
  }
  /// Allocates; 0 if the request is refused.
  [[nodiscard]] address take(std::uint64_t bytes, stream_ref s = {}) {
    address at = 0;
    static_cast<void>(allocate({.bytes = bytes, .stream = s}, round_up(bytes, 512), &at, nullptr));
    return at;
  }
  status release_block(address at, const free_args& stated) {
    arena_lock lock{arena_.mutex()};
    const block_index i = block_at(at);
    if (i == no_block) return {errc::unknown_pointer, "no live block begins there"};
    const std::uint64_t key = stated.stream ? *arena_.streams().key_of(*stated.stream) : 0;
    const owner_id o = arena_.owner_of_free(i, stated.stream ? &*stated.stream : nullptr, key);
    arena_.transfer_ownership(i, o);
    arena_.has_uses(i) ? arena_.free_behind_uses(lock, i, o) : arena_.free_block(i, o);
    return {};
  }
  void give(address at) { EXPECT_TRUE(release_block(at, {}).ok()); }
  /// Frees the block; the fake keeps it until the arena flushes it.
  void keep(address at) {
    const arena_lock lock{arena_.mutex()};
    kept_.push_back(block_at(at));
    kept_bytes_ += arena_.blocks().at(kept_.back()).bytes;
  }
  status record_use(address at, stream_ref s) {
    const arena_lock lock{arena_.mutex()};
    const block_index i = block_at(at);
    const owner_id user = arena_.prepare_use(i, s, *arena_.streams().key_of(s));
    if (user != idle_owner) arena_.add_use(i, user);
    return {};
  }
  /// Calls `act(arena, lock)` under the lock.
  template <typename Act>
  auto locked(const Act& act) {
    arena_lock lock{arena_.mutex()};
    return act(arena_, lock);
  }

  [[nodiscard]] result<std::uint64_t> key_of(stream_ref s) const { return arena_.streams().key_of(s); }
  /// For calls that take the lock themselves.
  [[nodiscard]] arena& operator*() { return arena_; }
  trim_result trim(std::uint64_t bytes) {
    arena_lock lock{arena_.mutex()};
    return arena_.trim(lock, bytes);
  }
  [[nodiscard]] budget& cap() { return arena_.pool_budget(); }
  [[nodiscard]] statistics stats() {
    const arena_lock lock{arena_.mutex()};
    return arena_.figures();
  }
  [[nodiscard]] status check() {
    const arena_lock lock{arena_.mutex()};
    return arena_.check();
  }
  [[nodiscard]] bool is_live(address at) {
    const arena_lock lock{arena_.mutex()};
    return block_at(at) != no_block;
  }
  [[nodiscard]] bool is_mapped(address at) {
    const arena_lock lock{arena_.mutex()};
    return arena_.mapped(block_at(at));
  }

  unsigned told_of_pressure = 0;
  std::vector<owner_id> told_to_forget;

 private:
  static arena_config named(arena_config config) {
    config.name = "0";
    if (config.total_bytes == 0) config.total_bytes = 80 * gib;
    if (config.limit_bytes == 0) config.limit_bytes = config.total_bytes;
    return config;
  }
  [[nodiscard]] block_index block_at(address at) const GPUMEM_UNDER_LOCK {
    const block_index i = arena_.blocks().containing(at);
    return i != no_block && arena_.blocks().at(i).begin == at && arena_.blocks().at(i).state == block_state::live
               ? i
               : no_block;
  }

  bool reclaim_all() GPUMEM_UNDER_LOCK override {
    const std::vector<block_index> all = std::exchange(kept_, {});
    kept_bytes_ = 0;
    for (const block_index i : all) arena_.free_block(i, arena_.blocks().at(i).owner);
    return !all.empty();
  }
  void reclaim(owner_id only) GPUMEM_UNDER_LOCK override { told_to_forget.push_back(only); }
  void pressure() noexcept override { ++told_of_pressure; }
  [[nodiscard]] std::uint64_t live_bytes() const noexcept GPUMEM_UNDER_LOCK override {
    return arena_.blocks().totals().live_bytes - kept_bytes_;
  }
  [[nodiscard]] std::uint64_t peak_live_bytes() const noexcept override { return peak_live_bytes_; }

  std::vector<block_index> kept_;
  std::uint64_t kept_bytes_ = 0;
  std::uint64_t peak_live_bytes_ = 0;
  arena arena_;
};

}  // namespace gpumem
