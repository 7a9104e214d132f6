/// A fake arena: it hands out addresses without memory, and counts the blocks that come back.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "bits.hpp"
#include "block_cache.hpp"
#include "caches/forwarding_device.hpp"

namespace gpumem {

/// A cache over it, with the lock that guards both.
class fake_arena final : public cache_source {
 public:
  explicit fake_arena(block_cache::options how = {.place = {.allocator = 2'000'001, .device = 0}})
      : cache{device, *this, how, [this](thread_cache& c) {
                const std::lock_guard held{lock};
                cache.end(c, &ended_allocations, &ended_frees, &ended_requested_bytes);
              }} {}
  ~fake_arena() { cache.close(); }
  fake_arena(const fake_arena&) = delete;
  fake_arena& operator=(const fake_arena&) = delete;

  void free_block(block_index i, owner_id o) noexcept override {
    EXPECT_EQ(blocks[i].owner, o);
    EXPECT_TRUE(blocks[i].out) << "block " << i << " comes back twice";
    blocks[i].out = false;
    out -= blocks[i].bytes;
    ++came_back;
  }
  void free_behind_fence(std::span<const block_index> batch, fence behind) noexcept override {
    for (const block_index i : batch) free_block(i, blocks[i].owner);
    fenced += behind ? batch.size() : 0;
    if (behind) device.drop(behind);
  }
  void ref_owner(owner_id o) noexcept override { ++references[o]; }
  void unref_owner(owner_id o) noexcept override { --references[o]; }
  [[nodiscard]] std::uint64_t out_bytes() const noexcept override { return out; }
  [[nodiscard]] class_usage usage_of(unsigned) const noexcept override {
    class_usage r = room;
    r.free_bytes = r.bytes > out ? r.bytes - out : 0;
    return r;
  }

  /// Like a pool on a miss, and on a free that no cache takes.
  address allocate(std::uint64_t bytes, cached_stream of = {1, 100}, std::uint64_t requested = 0) {
    if (requested == 0) requested = bytes;
    const std::lock_guard held{lock};
    if (const address at = cache.refill(of, bytes, {.bytes = requested}); at != 0) return at;
    const auto same = std::find_if(blocks.begin(), blocks.end(), [&](const fake_block& b) {
      return serves_again && !b.out && b.bytes == bytes && b.owner == of.owner;
    });
    const auto i = static_cast<block_index>(same - blocks.begin());
    if (same == blocks.end()) {
      blocks.push_back({.begin = next, .bytes = bytes, .owner = of.owner});
      next += round_up(bytes, 4096);
    }
    blocks[i].out = true;
    out += bytes;
    cache.insert(blocks[i].begin, i, owner_word::plain(bytes, requested, of.owner));
    return blocks[i].begin;
  }
  /// A request that no cache may serve. Requires the lock.
  address miss(std::uint64_t bytes) { return cache.refill({}, bytes, {.bytes = bytes}); }
  /// Hands out the same block again if the arena has it, as best fit would.
  address again(address at, cached_stream of = {1, 100}) {
    const std::lock_guard held{lock};
    cache.return_pair(cache.mine());
    const auto same = std::find_if(blocks.begin(), blocks.end(), [at](const fake_block& b) { return b.begin == at; });
    EXPECT_FALSE(same->out);
    same->out = true;
    out += same->bytes;
    cache.insert(at, static_cast<block_index>(same - blocks.begin()),
                 owner_word::plain(same->bytes, same->bytes, of.owner));
    return at;
  }
  /// Frees the block. True if the thread's cache keeps it.
  bool release(address at, cached_stream of = {1, 100}) {
    const std::lock_guard held{lock};
    thread_cache* const mine = cache.mine();
    cache.return_pair(mine);
    const pointer_map::lookup seen = cache.pointers().find(at);
    EXPECT_EQ(seen.word().held_by(), holder::program);
    const std::uint64_t bytes = blocks[cache.pointers().block_of(seen.index)].bytes;
    EXPECT_TRUE(seen.slot->change(seen.word(), seen.word().cached()));
    if (mine != nullptr && cache.keep(*mine, seen.index, of, bytes, 0)) return true;
    cache.return_block(seen.index, of.owner);
    return false;
  }
  /// Reaches a peak that hardly any test reaches, and allocates and frees so often that caches then keep blocks of
  /// every size. Leaves no block behind.
  void calm() {
    static_cast<void>(release(allocate(64 * mib)));
    came_back = 0;
    const std::lock_guard held{lock};
    for (int k = 0; k < 600; ++k) EXPECT_EQ(miss(64 * mib), 0U);
  }
  [[nodiscard]] block_cache::sums sums() {
    const std::lock_guard held{lock};
    const auto stopped = cache.stop();
    return cache.add_up();
  }

  struct fake_block {
    address begin = 0;
    std::uint64_t bytes = 0;
    owner_id owner = idle_owner;
    bool out = false;
  };
  sim_device simulated;
  caches::forwarding_device device{simulated};
  std::mutex lock;
  std::vector<fake_block> blocks;
  class_usage room{.bytes = gib};
  std::uint64_t out = 0;
  std::uint64_t came_back = 0;
  std::map<owner_id, int> references;
  std::uint64_t fenced = 0;  // of these, by batches that had a fence
  std::uint64_t ended_allocations = 0;
  std::uint64_t ended_frees = 0;
  std::uint64_t ended_requested_bytes = 0;
  bool serves_again = false;  // what came back, where it is of that size and stream
  address next = 0x7000'0000'0000;
  block_cache cache;
};

inline constexpr cached_stream first{1, 100};
inline constexpr cached_stream second{2, 200};

inline stream_ref handle_of(std::uintptr_t number) {
  stream_ref s;
  s.handle = reinterpret_cast<decltype(s.handle)>(number);
  return s;
}

inline thread_cache& mine_of(fake_arena& a) {
  const std::lock_guard held{a.lock};
  return *a.cache.mine();
}

/// Allocates and frees `count` blocks of a size, so that this thread's cache keeps as many as it may.
inline std::vector<address> fill(fake_arena& a, std::uint64_t bytes, unsigned count, cached_stream of = first) {
  std::vector<address> all;
  for (unsigned k = 0; k < count; ++k) all.push_back(a.allocate(bytes, of));
  for (const address at : all) static_cast<void>(a.release(at, of));
  return all;
}

}  // namespace gpumem
