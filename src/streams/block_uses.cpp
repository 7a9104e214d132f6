#include "block_uses.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "gpumem/settings.hpp"
#include "log.hpp"
#include "without_exceptions.hpp"

namespace gpumem {

void block_uses::make_room() {
  if (spare_ == no_block) gpumem::make_room(uses_);
  if (waiting_.capacity() < uses_.capacity()) waiting_.reserve(uses_.capacity());  // each waiting block has a use
}

void block_uses::add(block_index index, owner_id user) noexcept {
  block& b = heap_.at(index);
  for (std::uint32_t n = b.in_use.uses; n != no_block; n = uses_[n].next) {
    if (uses_[n].user == user) return;
  }
  std::uint32_t n = spare_;
  if (n == no_block) {
    n = static_cast<std::uint32_t>(uses_.size());
    uses_.emplace_back();
  } else {
    spare_ = uses_[n].next;
  }
  uses_[n] = {.user = user, .fence = no_fence, .next = b.in_use.uses};
  b.in_use.uses = n;
  ++streams_[user].references;
}

void block_uses::drop(block_index index) noexcept {
  block& b = heap_.at(index);
  while (b.in_use.uses != no_block) {
    const std::uint32_t n = b.in_use.uses;
    b.in_use.uses = uses_[n].next;
    if (uses_[n].fence != no_fence) streams_.fences().unref(uses_[n].fence);
    --streams_[uses_[n].user].references;
    uses_[n].next = spare_;
    spare_ = n;
  }
}

void block_uses::leak(block_index index) noexcept {
  drop(index);
  --streams_[heap_.at(index).owner].references;
  heap_.leak(index);
  const block& b = heap_.at(index);
  log_if_possible([&] {
    return fmt::format("pool {}: {} at {:#x} leaked: the query of its fence reported an error", name_,
                       format_bytes(b.bytes), b.begin);
  });
}

// If a capture or the host forbids a fence now, the use stays without one until the next `poll`.
void block_uses::fence_use(use& entry, bool lives) noexcept {
  if (const result<fence_index> recorded = streams_.reserve_fence(entry.user, lives)) entry.fence = *recorded;
}

// Reserves the fences before the block is published: no stream gets it until each use has a fence that is done.
void block_uses::free(block_index index, owner_id owner) noexcept {
  heap_.fence(index);
  bool has_others = false;
  for (std::uint32_t n = heap_.at(index).in_use.uses; n != no_block; n = uses_[n].next) {
    if (uses_[n].user == owner) continue;  // the free is ordered behind this use
    has_others = true;
    fence_use(uses_[n], true);  // a stream lives until the blocks that it uses are freed
  }
  if (!has_others) {
    drop(index);
    return streams_.free_block(index, owner);
  }
  heap_.at(index).in_use.freed_epoch = streams_[owner].epoch;
  streams_[owner].dirty = true;  // a stream that takes the block must be ordered behind this free, too
  waiting_.push_back(index);
  largest_waiting_ = std::max(largest_waiting_, heap_.at(index).bytes);
}

template <typename Leaves>
void block_uses::erase_waiting(const Leaves& leaves) noexcept {
  if (std::erase_if(waiting_, leaves) != 0) largest_is_known_ = false;
}

std::uint64_t block_uses::largest_waiting() const noexcept {
  if (!largest_is_known_) {
    largest_waiting_ = 0;
    for (const block_index i : waiting_) largest_waiting_ = std::max(largest_waiting_, heap_.at(i).bytes);
    largest_is_known_ = true;
  }
  return largest_waiting_;
}

block_uses::wait block_uses::ask_fences(block_index index) noexcept {
  wait all = wait::done;
  for (std::uint32_t n = heap_.at(index).in_use.uses; n != no_block; n = uses_[n].next) {
    if (uses_[n].user == heap_.at(index).owner) continue;
    if (uses_[n].fence == no_fence) {
      fence_use(uses_[n], false);
      all = wait::pending;
      continue;
    }
    const tracked_fence::state seen = streams_.ask(uses_[n].fence);
    if (seen == tracked_fence::state::done) continue;
    if (seen == tracked_fence::state::failed) {
      if (!streams_.fences()[uses_[n].fence].record_failed) return wait::failed;
      streams_.fences().unref(std::exchange(uses_[n].fence, no_fence));  // another is recorded next time
    }
    all = wait::pending;
  }
  return all;
}

// True if the block waits no longer: it is free for its stream or for all, or leaked because a fence failed.
bool block_uses::try_to_free(block_index index) noexcept {
  const block& b = heap_.at(index);
  switch (ask_fences(index)) {
    case wait::pending:
      return false;
    case wait::failed:
      leak(index);
      return true;
    case wait::done:
      break;
  }
  drop(index);
  if (b.in_use.freed_epoch <= streams_[b.owner].done) {
    --streams_[b.owner].references;
    heap_.release(index, idle_owner, 0, false);
  } else {
    streams_.free_block(index, b.owner);
  }
  return true;
}

void block_uses::poll(std::size_t most_pending) noexcept {
  if (waiting_.empty()) return;
  streams_.begin_round();
  std::size_t pending = 0;
  erase_waiting([&](block_index index) {
    if (pending == most_pending) return false;
    const bool leaves = try_to_free(index);
    if (!leaves) ++pending;
    return leaves;
  });
}

// Notes every missing wait, so that all are made in one round.
bool block_uses::is_behind_uses(device_waits& waits, block_index index) noexcept {
  const block& b = heap_.at(index);
  if (!streams_[b.owner].serves_others()) return false;
  const auto is_others = [&](const use& entry) { return entry.user != waits.waiter() && entry.user != b.owner; };
  for (std::uint32_t n = b.in_use.uses; n != no_block; n = uses_[n].next) {
    if (is_others(uses_[n]) && uses_[n].fence == no_fence) return false;
  }
  bool all = b.owner == waits.waiter() || waits.behind(b.owner, b.in_use.freed_epoch);
  for (std::uint32_t n = b.in_use.uses; n != no_block; n = uses_[n].next) {
    if (is_others(uses_[n])) all = waits.behind_fence(uses_[n].fence) && all;
  }
  return all;
}

bool block_uses::free_for(device_waits& waits, block_index index) noexcept {
  if (!is_behind_uses(waits, index)) return false;
  stream_slot& waiter = streams_[waits.waiter()];
  drop(index);
  --streams_[heap_.at(index).owner].references;
  waiter.dirty = true;
  heap_.release(index, waits.waiter(), waiter.epoch, true);
  return true;
}

bool block_uses::take_over(device_waits& waits, block_index index) noexcept {
  if (!free_for(waits, index)) return false;
  waiting_.erase(std::find(waiting_.begin(), waiting_.end(), index));
  largest_is_known_ = false;
  return true;
}

void block_uses::take_over_all(device_waits& waits, owner_id owner) noexcept {
  // Latest first: a wait for a stream's last fence covers its earlier ones.
  for (std::size_t n = waiting_.size(); n-- > 0;) {
    const block_index i = waiting_[n];
    if (owner == idle_owner || heap_.at(i).owner == owner) static_cast<void>(is_behind_uses(waits, i));
  }
  erase_waiting([&](block_index index) {
    return (owner == idle_owner || heap_.at(index).owner == owner) && free_for(waits, index);
  });
}

void block_uses::hold_fences(held_fences* held) {
  for (const block_index i : waiting_) {
    held->add_cover_of(heap_.at(i).owner);
    for (std::uint32_t n = heap_.at(i).in_use.uses; n != no_block; n = uses_[n].next) {
      if (uses_[n].user == heap_.at(i).owner) continue;
      if (uses_[n].fence == no_fence) fence_use(uses_[n], false);
      if (uses_[n].fence != no_fence) held->add(uses_[n].fence);
    }
  }
}

owner_id block_uses::waits_for(block_index index) const noexcept {
  for (std::uint32_t n = heap_.at(index).in_use.uses; n != no_block; n = uses_[n].next) {
    if (uses_[n].user == heap_.at(index).owner) continue;
    if (uses_[n].fence == no_fence) return uses_[n].user;
    if (streams_.fences()[uses_[n].fence].status != tracked_fence::state::done) return uses_[n].user;
  }
  return heap_.at(index).owner;
}

void block_uses::count_references(block_index index, std::vector<std::uint32_t>* references) const noexcept {
  for (std::uint32_t n = heap_.at(index).in_use.uses; n != no_block; n = uses_[n].next) ++(*references)[uses_[n].user];
}

}  // namespace gpumem
