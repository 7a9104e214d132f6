// The paths of a pool that make no driver call that can block: serve from what is free, free, record a use.
#include "pool.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "bits.hpp"
#include "log.hpp"
#include "pool_hit.hpp"

namespace gpumem {

pool::pool(device& on, pool_config config, std::unique_ptr<policy> decides)
    : config_{std::move(config)},
      device_{on},
      policy_{std::move(decides)},
      classes_{policy_->segment_classes()},
      budget_{config_.limit_bytes, config_.group},
      heap_{classes_},
      streams_{on, heap_, config_.stream_ids},
      follower_{config_.plan != nullptr ? std::make_unique<plan::follower>(config_.plan) : nullptr},
      caches_{*this, {config_.before_free ? 0 : config_.allocator_number, config_.ordinal}, [this](thread_cache& c) {
                thread_ends(c);
              }} {
  if (on.info().page_bytes != 0) page_rules_ = policy_->pages(view());
  if (page_rules_.looks_ahead) large_bytes_ = page_rules_.lowest_fit_bytes;
}

pool::~pool() {
  caches_.close();
  if (device_.condition() != device_condition::usable) return;  // the memory went with the device, or is the parent's
  return_everything_paged();
  for (const backed_segment& s : backed_) {
    if (s.bytes == 0) continue;
    if (const status ok = return_segment(device_, s); !ok) {
      log_line(fmt::format("pool {}: a segment of {} stays with the driver: {}", config_.name, format_bytes(s.bytes),
                           ok.message()));
    }
  }
}

[[gnu::noinline, gnu::flatten]] status pool::allocate(const request& r, std::uint64_t rounded, address* at,
                                                      oom_slot* refusal) {
  const bool aligned = r.alignment <= block_granularity;
  std::uint64_t key = 0;
  if (streams_.key_is_known(r.stream)) {
    key = streams_.known_key(r.stream);
  } else {
    const result<std::uint64_t> asked = streams_.key_of(r.stream);
    if (!asked) return asked.why();
    key = *asked;
    if (aligned && (*at = hit_key(key, r.bytes)) != 0) return {};
  }
  if (r.bytes <= bin_places::small_units * block_granularity && aligned && config_.thread_cache) {
    if ((*at = hit_beside(key, r.bytes)) != 0) return {};
  }
  guard lock = enter();
  thread_cache* const mine = fold_mine();
  // Frees of the only stream so far take in idle neighbours, which they may not any more once there is a second one.
  if (streams_.single() && !streams_.was_latest(key) && mine != nullptr) settle_all_of(*mine, nullptr, 0);
  const owner_id stream = streams_.slot_of(r.stream, key);
  const stream_slot& asks = streams_[stream];
  want w;
  w.capturing = asks.capturing;
  w.owner = w.capturing ? asks.graph : stream;
  w.bytes = rounded;
  w.alignment = std::max<std::uint64_t>(r.alignment, block_granularity);
  w.klass = classes_ == 1 ? 0 : policy_->segment_class(rounded);
  stream_slot& owner = streams_[w.owner];
  w.plain = plain_of(w.owner, owner, rounded);
  if (mine != nullptr) {
    if (mine->figures.deferred != 0) {
      settle_all_of(*mine, aligned ? mine->of_owner(w.owner) : nullptr, rounded / block_granularity);
    }
    if (aligned && w.plain && streams_.captures() == 0 && !owner.gone) {
      *at = refill(*mine, w.owner, rounded, r.bytes);
      if (*at != 0) return {};
    }
    look_after(*mine);
  }
  return serve(lock, r, w, key, at, refusal);
}

// By the heap, or by what the driver and everybody else can be made to give.
status pool::serve(guard& lock, const request& r, want& w, std::uint64_t key, address* at, oom_slot* refusal) {
  note_calm(w.bytes);
  ++streams_[w.owner].references;  // keeps the slot while the lock is given up, and then stands for the block
  block_index i = follower_ != nullptr ? place_planned(lock, w, key) : no_block;
  if (i == no_block && opened_) i = is_large(w.bytes) ? search_large(lock, w) : search(w);
  if (i == no_block) i = follower_ != nullptr ? climb_beside_plan(lock, w) : climb(lock, w);
  if (i == no_block) return out_of_memory(lock, r, w, refusal);
  *at = hand_out(i, w.owner, w.plain, r.bytes);
  if (w.asked != 0) [[unlikely]]
    note_large_place(w, *at);
  return {};
}

[[gnu::cold]] status pool::out_of_memory(guard& lock, const request& r, const want& w, oom_slot* refusal) {
  --streams_[w.owner].references;
  ++counts_.out_of_memory;
  oom_report local;
  fill_report(lock, r, w, &local);
  status failed{errc::out_of_memory, local.headline()};
  if (refusal != nullptr) *refusal = std::make_unique<oom_report>(std::move(local));
  return failed;
}

// True where a request of a paged pool takes the upper end of its place.
bool pool::from_above(std::uint64_t bytes, std::uint64_t alignment) const noexcept {
  return bytes < page_rules_.upper_end_bytes && alignment == block_granularity &&
         heap_.totals().segment_bytes < page_rules_.upper_end_pool_bytes;
}

block_index pool::search(const want& w) { return search(w.owner, w.klass, w.bytes, w.alignment); }

block_index pool::search(owner_id o, unsigned klass, std::uint64_t bytes, std::uint64_t alignment) {
  // Idle memory beside the stream's own makes one hole with it, which is worth most where holes are large.
  if (bytes >= page_rules_.lowest_fit_bytes && !streams_.single()) heap_.absorb_idle(o);
  const block_index from = bytes < page_rules_.lowest_fit_bytes ? heap_.best_fit(klass, o, true, bytes, alignment)
                                                                : heap_.lowest_fit(klass, o, bytes, alignment);
  if (from == no_block) return no_block;
  if (!from_above(bytes, alignment)) return heap_.carve(from, bytes, alignment);
  const block& b = heap_.at(from);
  return heap_.carve_at(from, b.begin + b.bytes - bytes, bytes, o);
}

// Among one other owner's blocks, behind which the request's stream is ordered already.
block_index pool::search_of(const want& w, owner_id other) {
  const block_index from = heap_.best_fit(w.klass, other, false, w.bytes, w.alignment);
  return from == no_block ? no_block : heap_.carve(from, w.bytes, w.alignment);
}

address pool::hand_out(block_index i, owner_id o, bool plain, std::uint64_t requested_bytes) {
  block& b = heap_.at(i);
  b.owner = o;
  if (!claims_.has_room()) make_room_for_claim_of(i);
  claims_.insert(b.begin, i,
                 plain ? claim_word::plain(b.bytes, requested_bytes, o, bin_places::of_bytes(b.bytes))
                       : claim_word::odd(b.bytes - requested_bytes));
  ++counts_.allocations;
  counts_.requested_bytes += requested_bytes;
  const heap_totals& now = heap_.totals();
  note_live();
  counts_.peak_blocks = std::max(counts_.peak_blocks, now.live_blocks + now.free_blocks);
  return b.begin;
}

// What an address that is no live block's is; `i` is what its claim, if it has one, belongs to.
[[gnu::cold]] status pool::why_not_live(address at, block_index i) const {
  const block_index in = i != no_block ? i : heap_.containing(at);
  if (in == no_block) {
    return {errc::unknown_pointer, fmt::format("{:#x} is not a block of pool {}", at, config_.name)};
  }
  const block& b = heap_.at(in);
  if (b.state != block_state::live || held_as(in).held_by() == holder::cache) {
    return {errc::double_free, fmt::format("{:#x} in pool {} is free already: a second free?", at, config_.name)};
  }
  return {errc::unknown_pointer,
          fmt::format("{:#x} lies inside a block of pool {}, which begins at {:#x}", at, config_.name, b.begin)};
}

// The claim of any block that the heap knows; nobody's where the heap has it.
claim_word pool::held_as(block_index i) const noexcept {
  return i != no_block && heap_.at(i).state == block_state::live ? claims_.find(heap_.at(i).begin).word()
                                                                 : claim_word{};
}

[[gnu::flatten]] status pool::release_block(address at, const release& stated) {
  std::uint64_t key = 0;
  if (stated.stream) {
    const result<std::uint64_t> k = streams_.key_of(*stated.stream);
    if (!k) return k.why();
    key = *k;
    if (!streams_.key_is_known(*stated.stream) && take_back_key(at, key, stated)) return {};
  }
  const guard lock = enter();
  const claim_table::sight seen = claims_.find(at);
  const claim_word held = seen.word();
  if (held.held_by() != holder::program) {
    status why = why_not_live(at, held.held_by() == holder::cache ? claims_.block_of(seen.at) : no_block);
    if (why.code() == errc::double_free) ++counts_.misuses;
    return why;
  }
  const block_index i = claims_.block_of(seen.at);
  block& b = heap_.at(i);
  const std::uint64_t requested = b.bytes - held.slack_bytes();
  if (stated.bytes && *stated.bytes != requested) {
    ++counts_.misuses;
    return {errc::wrong_size,
            fmt::format("{:#x} was allocated with {} bytes and is freed with {}", at, requested, *stated.bytes)};
  }
  if (alone_) {
    seen.of->write(held.cached());
  } else if (!seen.of->change(held, held.cached())) {  // another thread frees it at this moment
    ++counts_.misuses;
    return {errc::double_free, fmt::format("{:#x} in pool {} is free already: a second free?", at, config_.name)};
  }
  thread_cache* const mine = fold_mine();  // not before: a refused free changes nothing
  if (mine != nullptr) {
    settle_all_of(*mine, nullptr, 0);
    look_after(*mine);
  }
  if (follower_ != nullptr) follower_->gone(i);
  // What a capture allocated stays with its graph, whoever frees it.
  const owner_id o = stated.stream && !streams_[b.owner].is_graph ? streams_.slot_of(*stated.stream, key) : b.owner;
  if (config_.before_free) config_.before_free(at, requested, streams_[o].stream);
  ++counts_.frees;
  counts_.requested_bytes -= requested;
  if (o != b.owner) {
    ++streams_[o].references;
    --streams_[b.owner].references;
    b.owner = o;
  }
  if (b.in_use.uses != no_block) {
    claims_.erase(seen.at);
    fence_uses(i, o);
  } else {
    const bool may_stay = mine != nullptr && cacheable(o, b.bytes);
    if (may_stay && keep(*mine, seen.at, o, false)) return {};
    to_heap(seen.at, o);
    if (may_stay && calm_) let_wait(*mine, o);
  }
  return {};
}

// The block's own stream may have it again at once; the reference that it held on its slot ends.
void pool::free_now(block_index i, owner_id o) {
  stream_slot& slot = streams_[o];
  --slot.references;
  slot.dirty = true;
  heap_.release(i, o, slot.epoch, streams_.single());
}

void pool::add_use(block_index i, owner_id user) {
  block& b = heap_.at(i);
  for (std::uint32_t n = b.in_use.uses; n != no_block; n = nodes_[n].next) {
    if (nodes_[n].user == user) return;
  }
  b.in_use.uses = take_node({.user = user, .behind = no_fence, .next = b.in_use.uses});
  ++streams_[user].references;
}

std::uint32_t pool::take_node(const use_node& n) {
  if (spare_node_ == no_block) {
    nodes_.push_back(n);
    return static_cast<std::uint32_t>(nodes_.size() - 1);
  }
  const std::uint32_t i = spare_node_;
  spare_node_ = nodes_[i].next;
  nodes_[i] = n;
  return i;
}

[[gnu::noinline]] void pool::drop_uses(block_index i) {
  block& b = heap_.at(i);
  while (b.in_use.uses != no_block) {
    const std::uint32_t n = b.in_use.uses;
    b.in_use.uses = nodes_[n].next;
    if (nodes_[n].behind != no_fence) streams_.let_go(nodes_[n].behind);
    --streams_[nodes_[n].user].references;
    nodes_[n].next = spare_node_;
    spare_node_ = n;
  }
}

// Record the fences first, publish the block later: until each use has one that is done, nobody gets it.
[[gnu::noinline]] void pool::fence_uses(block_index i, owner_id o) {
  block& b = heap_.at(i);
  if (is_large(b.bytes)) note_large_free(b.begin);
  heap_.fence(i);
  bool wait = false;
  for (std::uint32_t n = b.in_use.uses; n != no_block; n = nodes_[n].next) {
    if (nodes_[n].user == o) continue;  // the free is ordered behind it
    wait = true;
    const result<fence_index> behind = streams_.record(nodes_[n].user);
    if (behind.ok()) {
      nodes_[n].behind = *behind;
    } else if (behind.code() != errc::unsupported) {
      drop_uses(i);
      --streams_[o].references;
      heap_.leak(i);
      log_line(fmt::format("pool {}: {} at {:#x} leaked, its fence failed: {}", config_.name, format_bytes(b.bytes),
                           b.begin, behind.why().message()));
      return;
    }  // else a capture forbids it for now, and settle_fenced records it later
  }
  if (!wait) {
    drop_uses(i);
    free_now(i, o);
    return;
  }
  b.in_use.freed_epoch = streams_[o].epoch;
  streams_[o].dirty = true;  // whoever takes it from here is ordered behind this free, too
  fenced_.push_back(i);
}

// True when the block left the fenced state: free for its stream, or leaked because a fence failed.
bool pool::settle_fenced(block_index i) {
  block& b = heap_.at(i);
  bool done = true;
  for (std::uint32_t n = b.in_use.uses; n != no_block; n = nodes_[n].next) {
    if (nodes_[n].user == b.owner) continue;
    if (nodes_[n].behind == no_fence) {
      if (const result<fence_index> behind = streams_.record(nodes_[n].user)) nodes_[n].behind = *behind;
      done = false;
      continue;
    }
    const tracked_fence::state seen = streams_.ask(nodes_[n].behind);
    if (seen == tracked_fence::state::failed) {
      drop_uses(i);
      --streams_[b.owner].references;
      heap_.leak(i);
      log_line(fmt::format("pool {}: {} at {:#x} leaked: its fence reported an error", config_.name,
                           format_bytes(b.bytes), b.begin));
      return true;
    }
    if (seen == tracked_fence::state::pending) done = false;
  }
  if (!done) return false;
  drop_uses(i);
  if (b.in_use.freed_epoch <= streams_[b.owner].done) {
    --streams_[b.owner].references;
    heap_.release(i, idle_owner, 0, false);
  } else {
    free_now(i, b.owner);
  }
  return true;
}

// Takes note of every fence that is done by now.
void pool::poll() {
  if (streams_.captures() > 0) return;  // even a query could spoil a capture
  streams_.poll();  // first: what is done on the owner's stream lets a fenced block go to everybody at once
  std::erase_if(fenced_, [this](block_index i) { return settle_fenced(i); });
}

status pool::record_use(address at, stream_ref s) {
  const result<std::uint64_t> key = streams_.key_of(s);
  if (!key) return key.why();
  const guard lock = enter();
  claim_table::sight seen = claims_.find(at);
  if (seen.word().held_by() == holder::nobody) {  // inside a block, maybe
    const block_index around = heap_.containing(at);
    if (around != no_block) seen = claims_.find(heap_.at(around).begin);
  }
  claim_word held = seen.word();
  const block_index i = claims_.block_of(seen.at);
  const owner_id user = held.held_by() == holder::program ? streams_.slot_of(s, *key) : idle_owner;
  if (user != idle_owner && user == heap_.at(i).owner) return {};
  // From here on its free comes by the lock, unless it is under way already.
  while (held.plainly_live() && !seen.of->change(held, held.made_odd())) held = seen.of->read();
  if (held.held_by() != holder::program) {
    return {errc::unknown_pointer, fmt::format("{:#x} is not in a live block of pool {}", at, config_.name)};
  }
  add_use(i, user);
  return {};
}

status pool::stream_release(std::uint64_t key) {
  const guard lock = enter();
  const std::optional<owner_id> o = streams_.find(key);
  if (!o) return {};
  if (streams_[*o].capturing) {
    return {errc::invalid_argument, "a stream that is capturing cannot be released; end the capture first"};
  }
  forget_caches(*o);
  streams_.stream_gone(*o);
  return {};
}

status pool::capture_begin(stream_ref s, std::uint64_t key) {
  guard lock = enter();
  forget_caches(idle_owner);  // what is freed from here on is looked at under the lock
  poll();                     // the last chance to learn of fences before the capture forbids asking
  status begun = streams_.capture_begin(streams_.slot_of(s, key)).why();
  // From here on no call begins that would spoil it; those under way are waited for.
  if (begun) unlocked_calls_done_.wait(lock, [this] { return unlocked_calls_ == 0; });
  return begun;
}

result<std::uint64_t> pool::capture_end(std::uint64_t key) {
  const guard lock = enter();
  const std::optional<owner_id> o = streams_.find(key);
  if (!o) return status{errc::invalid_argument, "the stream is not capturing"};
  return streams_.capture_end(*o);
}

status pool::graph_release(std::uint64_t graph) {
  const guard lock{mutex_};
  return streams_.graph_gone(graph);
}

void pool::on_out_of_memory(const oom_callback& callback) {
  const guard lock{mutex_};
  callbacks_.push_back(callback);
}

void pool::count_misuse() {
  const guard lock{mutex_};
  ++counts_.misuses;
}

bool pool::contains(address at) const {
  const guard lock{mutex_};
  return heap_.containing(at) != no_block;
}

result<block_info> pool::describe(address at) const {
  const guard lock{mutex_};
  const block_index i = heap_.containing(at);
  const claim_word held = held_as(i);
  if (held.held_by() != holder::program) {
    return status{errc::unknown_pointer, fmt::format("{:#x} is not in a live block of pool {}", at, config_.name)};
  }
  const block& b = heap_.at(i);
  const heap_segment& s = heap_.segments()[b.segment];
  return block_info{.begin = b.begin,
                    .bytes = b.bytes,
                    .requested_bytes = b.bytes - held.slack_bytes(),
                    .segment_begin = s.begin,
                    .segment_bytes = s.bytes,
                    .device = config_.ordinal};
}

}  // namespace gpumem
