// The paths of a pool that make no driver call that can block: serve from what is free, free, record a use.
#include "pool.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "bits.hpp"
#include "log.hpp"
#include "without_exceptions.hpp"

namespace gpumem {

pool::pool(device& on, pool_config config, std::unique_ptr<policy> decides)
    : config_{std::move(config)},
      device_{on},
      cache_{on,
             *this,
             {.on = config_.thread_cache,
              // Who is told of every free (a trace) is told under the lock, and in order.
              .without_lock = !config_.before_free,
              .place = {config_.before_free ? 0 : config_.allocator_number, config_.ordinal}},
             [this](thread_cache& c) { thread_ends(c); }},
      policy_{std::move(decides), config_.policy_name},
      budget_{config_.limit_bytes, config_.group},
      heap_{policy_.segment_classes()},
      streams_{on, heap_, config_.stream_ids},
      uses_{heap_, streams_, config_.name},
      planned_{config_.plan} {
  if (planned_.follows()) streams_.keep_idle_apart();
  if (on.info().page_bytes != 0) page_rules_ = policy_.pages(view());
  no_report_ = {errc::out_of_memory, fmt::format("out of memory on pool {} ({}); the host has no memory for the report",
                                                 config_.name, config_.policy_name)};
  best_fit_ = best_fit{page_rules_};
  if (page_rules_.looks_ahead) lookahead_ = lookahead{page_rules_.lowest_fit_bytes};
}

pool::~pool() {
  cache_.close();
  if (device_.condition() != device_condition::usable) return;  // the memory went with the device, or is the parent's
  if (all_work_.owner != idle_owner) cache_.reclaim_all();      // whose fences are the device's
  return_everything_paged();
  for (const backed_segment& s : backed_) {
    if (s.bytes == 0) continue;
    if (const status ok = return_segment(device_, s); !ok) {
      log_if_possible([&] {
        return fmt::format("pool {}: a segment of {} stays with the driver: {}", config_.name, format_bytes(s.bytes),
                           ok.message());
      });
    }
  }
}

bool pool::free_to_cache(address at, const free_args& stated) noexcept {
  if (device_.condition() != device_condition::usable) return false;
  if (!stated.stream) return cache_.free_of_any_stream(at, stated);
  return streams_.key_is_known(*stated.stream) && cache_.free_by_key(at, streams_.known_key(*stated.stream), stated);
}

void pool::take_back(block_index i, owner_id o) noexcept {
  if (lookahead_.is_large(heap_.at(i).bytes)) [[unlikely]]
    lookahead_.freed(heap_.at(i).begin);
  streams_.free_block(i, o);
}

class_room pool::room_of(unsigned klass) const noexcept {
  return {.bytes = heap_.segment_bytes(klass),
          .free_bytes = heap_.free_bytes(klass),
          .segment_bytes = heap_.totals().segment_bytes,
          .only_class = policy_.segment_classes() == 1,
          .paged = paged()};
}

void pool::thread_ends(thread_cache& c) {
  if (device_.condition() == device_condition::forked) return;
  const guard lock{mutex_};
  ++counts_.locks;
  cache_.end(c, &counts_.allocations, &counts_.frees, &counts_.requested_bytes);
}

bool pool::plain_of(owner_id o, const stream_slot& slot, std::uint64_t bytes) noexcept {
  return o <= owner_word::most_owner && !slot.is_graph && bytes <= bin_places::most_units * block_granularity;
}

bool pool::cacheable(owner_id o, std::uint64_t bytes) const noexcept {
  const stream_slot& slot = streams_[o];
  return plain_of(o, slot, bytes) && streams_.captures() == 0 && !slot.gone && o != all_work_.owner;
}

status pool::allocate(const request& r, std::uint64_t rounded, address* at, oom_slot* refusal) {
  const bool aligned = r.alignment <= block_granularity;
  std::uint64_t key = 0;
  if (streams_.key_is_known(r.stream)) {
    key = streams_.known_key(r.stream);
  } else {
    const result<std::uint64_t> asked = streams_.key_of(r.stream);
    if (!asked) return asked.why();
    key = *asked;
    if (aligned && r.region == 0 && (*at = cache_.allocate_by_key(key, r.bytes)) != 0) return {};
  }
  guard lock{mutex_};
  ++counts_.locks;
  thread_cache* const mine = cache_.mine();
  const owner_id stream = streams_.slot_of(r.stream, key);
  const stream_slot& asks = streams_[stream];
  want w;
  w.capturing = asks.capturing;
  w.owner = r.region != 0 ? streams_.region(r.region) : w.capturing ? asks.graph : stream;
  if (w.owner == idle_owner) {
    return {errc::invalid_argument, fmt::format("region {} of pool {} is not open", r.region, config_.name)};
  }
  w.bytes = rounded;
  w.alignment = std::max<std::uint64_t>(r.alignment, block_granularity);
  w.klass = policy_.segment_class(rounded);
  stream_slot& owner = streams_[w.owner];
  w.plain = plain_of(w.owner, owner, rounded);
  if (mine != nullptr) {
    cache_.bring_aside(*mine);
    if (aligned && w.plain && streams_.captures() == 0 && !owner.gone) {
      *at = cache_.refill(*mine, {w.owner, owner.key}, rounded, r.bytes);
      if (*at != 0) return {};
    }
    cache_.age(*mine);
  }
  return serve(lock, r, w, key, at, refusal);
}

// By the heap, or by what the driver and everybody else can be made to give.
status pool::serve(guard& lock, const request& r, want& w, std::uint64_t key, address* at, oom_slot* refusal) {
  cache_.served_below(w.bytes);
  slot_reference kept{streams_, w.owner};  // while the lock is given up; then it stands for the block
  if (r.place != 0) {
    const block_index there = place_in_region(w, r.place);
    if (there == no_block) {
      return {errc::unsupported, fmt::format("{} at {:#x} are not free in region {} of pool {}", format_bytes(w.bytes),
                                             r.place, r.region, config_.name)};
    }
    kept.keep();
    *at = hand_out(there, w.owner, w.plain, r.bytes);
    return {};
  }
  block_index i = planned_.follows() ? place_planned(lock, w, key) : no_block;
  if (i == no_block && opened_) i = lookahead_.is_large(w.bytes) ? search_large(lock, w) : search(w);
  if (i == no_block) i = planned_.follows() ? climb_beside_plan(lock, w) : climb(lock, w);
  if (i == no_block) return out_of_memory(lock, r, w, refusal);
  kept.keep();
  *at = hand_out(i, w.owner, w.plain, r.bytes);
  if (w.asked != 0) [[unlikely]]
    lookahead_.placed(w.asked, *at);
  return {};
}

status pool::out_of_memory(guard& lock, const request& r, const want& w, oom_slot* refusal) {
  ++counts_.out_of_memory;
  try {
    oom_report local;
    fill_report(lock, r, w, &local);
    status failed{errc::out_of_memory, local.headline()};
    if (refusal != nullptr) *refusal = std::make_unique<oom_report>(std::move(local));
    return failed;
  } catch (const std::bad_alloc&) {
    return no_report_;
  }
}

block_index pool::search(const want& w) { return search(w.owner, w.klass, w.bytes, w.alignment); }

block_index pool::search(owner_id o, unsigned klass, std::uint64_t bytes, std::uint64_t alignment) {
  // Idle memory beside the stream's own makes one hole with it, which is worth most where holes are large.
  if (best_fit_.takes_lowest(bytes) && !streams_.single()) heap_.absorb_idle(o);
  const free_place at = best_fit_.find(heap_, {.owner = o, .klass = klass, .bytes = bytes, .alignment = alignment});
  if (at.from == no_block) return no_block;
  if (!at.upper_end) return heap_.carve(at.from, bytes, alignment);
  const block& b = heap_.at(at.from);
  return heap_.carve_at(at.from, b.begin + b.bytes - bytes, bytes, o);
}

// Nobody but the region itself gets what is free in it.
block_index pool::place_in_region(const want& w, address at) {
  const block_index first = heap_.containing(at);
  for (block_index i = first; i != no_block && heap_.at(i).state == block_state::free; i = heap_.at(i).above) {
    const block& b = heap_.at(i);
    if (b.owner != w.owner && b.owner != idle_owner) break;
    if (b.begin + b.bytes >= at + w.bytes) return heap_.carve_at(first, at, w.bytes, w.owner);
  }
  return no_block;
}

// Among one other owner's blocks, behind which the request's stream is ordered already.
block_index pool::search_of(const want& w, owner_id other) {
  const block_index from = heap_.best_fit(w.klass, other, false, w.bytes, w.alignment);
  return from == no_block ? no_block : heap_.carve(from, w.bytes, w.alignment);
}

address pool::hand_out(block_index i, owner_id o, bool plain, std::uint64_t requested_bytes) {
  block& b = heap_.at(i);
  b.owner = o;
  const owner_word word =
      plain ? owner_word::plain(b.bytes, requested_bytes, o) : owner_word::needs_lock(b.bytes - requested_bytes);
  try {
    cache_.insert(b.begin, i, word);
  } catch (const std::bad_alloc&) {  // nobody ever had the block
    planned_.gone(i);
    streams_.free_block(i, o);
    throw;
  }
  ++counts_.allocations;
  counts_.requested_bytes += requested_bytes;
  const heap_totals& now = heap_.totals();
  cache_.note_live();
  counts_.peak_blocks = std::max(counts_.peak_blocks, now.live_blocks + now.free_blocks);
  return b.begin;
}

// What an address that is no live block's is; `i` is what its slot, if it has one, belongs to.
status pool::why_not_live(address at, block_index i) const {
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

// The slot of any block that the heap knows; nobody's where the heap has it.
owner_word pool::held_as(block_index i) const noexcept {
  return i != no_block && heap_.at(i).state == block_state::live ? cache_.pointers().find(heap_.at(i).begin).word()
                                                                 : owner_word{};
}

// The driver leaves it undefined to ask a handle that is destroyed, and a stated free often comes when its stream is
// gone. So the handle is looked up first: in the block's own slot, then among the streams known so far. A handle that
// was reused is then taken for the former stream, which never allocates again: the block waits for a fence.
result<std::uint64_t> pool::key_of_stated(address at, stream_ref s) {
  if (streams_.has_lasting_handle(s)) {
    const guard lock{mutex_};
    const pointer_map::lookup seen = cache_.pointers().find(at);
    if (seen.word().held_by() == holder::program) {
      const stream_slot& own = streams_[heap_.at(cache_.pointers().block_of(seen.at)).owner];
      if (!own.is_graph && own.stream == s) return own.key;
    }
    if (const std::optional<std::uint64_t> known = streams_.key_of_handle(s)) return *known;
  }
  return streams_.key_of(s);
}

status pool::release_block(address at, const free_args& stated) {
  std::uint64_t key = 0;
  if (stated.stream) {
    const result<std::uint64_t> k = key_of_stated(at, *stated.stream);
    if (!k) return k.why();
    key = *k;
    if (!streams_.key_is_known(*stated.stream) && cache_.free_by_key(at, key, stated)) return {};
  }
  guard lock{mutex_};
  ++counts_.locks;
  const pointer_map::lookup seen = cache_.pointers().find(at);
  const owner_word held = seen.word();
  if (held.held_by() != holder::program) {
    status why = why_not_live(at, held.held_by() == holder::cache ? cache_.pointers().block_of(seen.at) : no_block);
    if (why.code() == errc::double_free) ++counts_.misuses;
    return why;
  }
  const block_index i = cache_.pointers().block_of(seen.at);
  block& b = heap_.at(i);
  const std::uint64_t requested = b.bytes - held.slack_bytes();
  if (stated.bytes && *stated.bytes != requested) {
    ++counts_.misuses;
    return {errc::wrong_size,
            fmt::format("{:#x} was allocated with {} bytes and is freed with {}", at, requested, *stated.bytes)};
  }
  thread_cache* const mine = cache_.mine();  // not before: a refused free changes nothing
  if (mine != nullptr) cache_.age(*mine);
  // What a capture allocated stays with its graph, whoever frees it. A stream that is seen for the first time takes
  // host memory: where there is none, the block is still live.
  const owner_id o = !stated.stream               ? b.owner
                     : streams_[b.owner].is_graph ? streams_.graph_owner_of_free(b.owner, key)
                                                  : streams_.slot_of(*stated.stream, key);
  if (!seen.of->change(held, held.cached())) {  // another thread frees it at this moment
    ++counts_.misuses;
    return {errc::double_free, fmt::format("{:#x} in pool {} is free already: a second free?", at, config_.name)};
  }
  // From here on nothing takes host memory that can fail.
  if (planned_.gone(i)) promised_ = streams_[o].promised = true;
  if (config_.before_free) config_.before_free(at, requested, streams_[o].stream);
  ++counts_.frees;
  counts_.requested_bytes -= requested;
  if (o != b.owner) {
    ++streams_[o].references;
    --streams_[b.owner].references;
    b.owner = o;
  }
  if (uses_.any(i)) {
    cache_.pointers().erase(seen.at);
    if (lookahead_.is_large(b.bytes)) lookahead_.freed(b.begin);
    {
      const stream_order::later unlocked{streams_};
      uses_.free(i, o);
    }
    record_fences(lock);
  } else {
    const bool kept =
        mine != nullptr && cacheable(o, b.bytes) && cache_.keep(*mine, seen.at, {o, streams_[o].key}, b.bytes, b.klass);
    if (!kept) cache_.return_block(seen.at, o);
  }
  if (o == all_work_.owner) fence_all_work(lock, requested);
  return {};
}

// Takes note of every fence that is done by now; while a capture is under way none is asked (`stream_order::ask`).
// Records what uses still lack, for which the lock is given up.
void pool::poll(guard& lock) {
  {
    const device::calls_together row{device_};
    const stream_order::later unlocked{streams_};
    streams_.poll();  // first: what is done on the owner's stream lets a fenced block go to everybody at once
    uses_.poll();
  }
  record_fences(lock);
}

// Records the fences that were made under `stream_order::later`, without the lock: the driver blocks while the queue of
// a stream is full, and that is no reason for other threads to wait. Those that a capture has overtaken are left for
// later.
void pool::record_fences(guard& lock) {
  const std::vector<unrecorded_fence> fences = streams_.take_unrecorded();
  if (fences.empty()) return;
  const device::calls_together row{device_};
  const unsigned captures = streams_.captures();
  for (const unrecorded_fence& f : fences) {
    const bool overtaken = streams_.captures() > captures;
    streams_.recorded(f, overtaken ? std::nullopt : record_unlocked(lock, f));
  }
}

std::optional<fence> pool::record_unlocked(guard& lock, const unrecorded_fence& f) {
  const blocking_call waits{calls_.records, lock, mutex_};
  const result<fence> made = streams_.record_on_device(f);
  return made ? std::optional{*made} : std::nullopt;
}

status pool::record_use(address at, stream_ref s) {
  const result<std::uint64_t> key = streams_.key_of(s);
  if (!key) return key.why();
  const guard lock{mutex_};
  ++counts_.locks;
  pointer_map::lookup seen = cache_.pointers().find(at);
  if (seen.word().held_by() == holder::nobody) {  // inside a block, maybe
    const block_index around = heap_.containing(at);
    if (around != no_block) seen = cache_.pointers().find(heap_.at(around).begin);
  }
  owner_word held = seen.word();
  const block_index i = cache_.pointers().block_of(seen.at);
  const owner_id user = held.held_by() == holder::program ? streams_.slot_of(s, *key) : idle_owner;
  if (user != idle_owner && user == heap_.at(i).owner) return {};
  if (user != idle_owner) uses_.make_room();  // a use that is refused changes nothing
  // From here on its free comes by the lock, unless it is under way already.
  while (held.plainly_live() && !seen.of->change(held, held.marked_needs_lock())) held = seen.of->read();
  if (held.held_by() != holder::program) {
    return {errc::unknown_pointer, fmt::format("{:#x} is not in a live block of pool {}", at, config_.name)};
  }
  uses_.add(i, user);
  return {};
}

status pool::stream_release(std::uint64_t key) {
  guard lock{mutex_};
  ++counts_.locks;
  const std::optional<owner_id> o = streams_.find(key);
  if (!o) return {};
  if (streams_[*o].capturing) {
    return {errc::invalid_argument, "a stream that is capturing cannot be released; end the capture first"};
  }
  cache_.reclaim(*o);
  {
    const stream_order::later unlocked{streams_};
    streams_.stream_gone(*o);
  }
  record_fences(lock);
  calls_.records.wait_for_none(lock);  // another thread may name the handle, which is destroyed next
  return {};
}

status pool::capture_begin(stream_ref s, std::uint64_t key, bool has_begun) {
  guard lock{mutex_};
  ++counts_.locks;
  cache_.reclaim(idle_owner);  // what is freed from here on is looked at under the lock
  if (!has_begun) poll(lock);  // the last chance to learn of fences before the capture forbids asking
  status begun = streams_.capture_begin(streams_.slot_of(s, key)).why();
  // From here on no call begins that would spoil it; those under way are waited for.
  if (begun) {
    all_work_.records.close();
    calls_.waits.wait_for_none(lock);
    calls_.records.wait_for_none(lock);
    without_lock(lock, [this] { all_work_.records.wait_for_none(); });
  }
  return begun;
}

void pool::forbid_fences(bool yes) {
  guard lock{mutex_};
  ++counts_.locks;
  streams_.forbid_fences(yes);
  yes ? all_work_.records.close() : all_work_.records.open();
  if (!yes) return;
  calls_.records.wait_for_none(lock);
  without_lock(lock, [this] { all_work_.records.wait_for_none(); });
}

void pool::forbid_foreign_fences(bool yes) {
  guard lock{mutex_};
  streams_.forbid_foreign_fences(yes);
  if (yes) calls_.records.wait_for_none(lock);
}

result<std::uint64_t> pool::capture_end(std::uint64_t key) {
  const guard lock{mutex_};
  ++counts_.locks;
  const std::optional<owner_id> o = streams_.find(key);
  if (!o) return status{errc::invalid_argument, "the stream is not capturing"};
  result<std::uint64_t> ended = streams_.capture_end(*o);
  if (ended) all_work_.records.open();
  return ended;
}

status pool::graph_release(std::uint64_t graph) {
  guard lock{mutex_};
  status gone;
  {
    const stream_order::later unlocked{streams_};
    gone = streams_.graph_gone(graph);
  }
  record_fences(lock);
  return gone;
}

result<std::uint64_t> pool::open_region(stream_ref s, std::uint64_t key) {
  const guard lock{mutex_};
  return streams_.open_region(s, key);
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
  const owner_word held = held_as(i);
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
                    .device = config_.ordinal,
                    .mapped = backed_[b.segment].kind != segment_kind::plain};
}

}  // namespace gpumem
