// What the paths without the lock come to where the latest stream's bin does not serve: another stream or pool than the
// thread's last, a bin that is full, a batch that lies beside an empty one. Still without the lock; what this cannot
// serve either goes by it.
#include "pool_hit.hpp"

#include "bits.hpp"

namespace gpumem {

// Who is told of every free (a trace) is told under the lock, and in order: caches then serve under it, too.
thread_cache* pool::mine_without_lock() const noexcept { return config_.before_free ? nullptr : caches_.mine(); }

address pool::hit_key(std::uint64_t key, std::uint64_t requested) noexcept {
  thread_cache* const mine = mine_without_lock();
  if (mine == nullptr || !mine->enter()) return 0;
  stream_cache* const s = mine->of_key(key);
  const address at = s != nullptr ? hit_in(*mine, *s, requested) : 0;
  mine->leave();
  return at;
}

bool pool::take_back_key(address at, std::uint64_t key, const release& stated) noexcept {
  thread_cache* const mine = mine_without_lock();
  if (mine == nullptr || !mine->enter()) return false;
  if (const stream_cache* const only = mine->of_key(key)) return take_back_inside(*mine, at, stated, only);
  mine->leave();
  return false;
}

// A block of another stream than the latest, or nobody's. The end of `take_back_inside`, and not inline: that one
// then needs no frame.
[[gnu::noinline]] bool pool::take_back_of_other(thread_cache& mine, address at, const release& stated,
                                                const stream_cache* only) noexcept {
  const claim_table::sight seen = claims_.find(at);
  const claim_word w = seen.word();
  stream_cache* const s = w.plainly_live() ? mine.of_owner(w.owner()) : nullptr;
  bool taken = false;
  if (s != nullptr && mine.serves_none()) mine.remember_owner(*s);  // a thread that frees only
  if (s == nullptr || (only != nullptr && only != s)) {
    mine.leave();
    return false;
  }
  stream_cache::bin* const bin = s->that_serves(w.units());
  if (bin != nullptr && (bin->count < bin->most || s->set_aside(*bin))) {
    taken = mine.alone() ? put_into<true>(mine, bin, seen, at, stated) : put_into<false>(mine, bin, seen, at, stated);
  }
  if (!taken) return defer(mine, *s, at, stated);
  mine.leave();
  return true;
}

// The claim of a block of the latest stream, looked at anew: nobody's where another thread has freed it since.
claim_table::sight pool::seen_again(const thread_cache& mine, address at) const noexcept {
  const claim_table::sight seen = claims_.find(at);
  return seen.word().tag() == mine.latest_tag() ? seen : claim_table::sight{};
}

// A block of the latest stream that is in no bin where its claim has it: in the second one of its size, which the claim
// then says, or in none (or that bin is full: it waits, and the bin grows when it is settled). What a free knows is
// looked up anew, as in `defer_of_latest`.
[[gnu::noinline]] bool pool::take_back_elsewhere(address at, const release& stated) noexcept {
  pool& of = *latest_cache_of_thread.of;
  thread_cache& mine = *latest_cache_of_thread.cache;
  stream_cache& s = mine.latest();
  const claim_table::sight seen = of.seen_again(mine, at);
  stream_cache::bin* const bin = seen.of != nullptr ? s.that_serves(seen.word().units()) : nullptr;
  bool taken = false;
  if (bin != nullptr && bin->count < bin->most) {
    taken =
        mine.alone() ? of.put_into<true>(mine, bin, seen, at, stated) : of.put_into<false>(mine, bin, seen, at, stated);
  }
  if (!taken) return of.defer(mine, s, at, stated);
  seen.of->write(seen.word().cached().in_bin(s.place_of(*bin)));
  mine.leave();
  return true;
}

// Who frees what another thread allocates mostly frees runs of neighbours, up or down, which the depot keeps in order.
// Once two frees after each other were of neighbours, the claims of those that would come next are fetched.
void pool::fetch_ahead(const stream_cache::bin& bin, address at) const noexcept {
  constexpr std::uint64_t frees = 12;  // what a line takes from another processor, and half of that once more
  const std::uint64_t bytes = std::uint64_t{bin.units} * block_granularity;
  const address last = claims_[bin.held[bin.count - 1]].begin.load(std::memory_order_relaxed);
  const std::uint64_t step = at - last;  // modulo 2^64
  if (step != bytes && step != 0 - bytes) return;
  const address before = claims_[bin.held[bin.count - 2]].begin.load(std::memory_order_relaxed);
  if (last - before != step) {
    for (std::uint64_t k = 1; k < frees; ++k) claims_.fetch_to_find(at + k * step);
  }
  claims_.fetch_to_find(at + frees * step);
}

// A block of the latest stream for a bin that piles up and has room; the claim stands there, and said that. Not inline,
// like those above.
[[gnu::noinline]] bool pool::take_back_of_run(thread_cache& mine, address at, const release& stated, claim_index place,
                                              std::uint64_t claim_bits) noexcept {
  const claim_table::sight seen{&claims_[place], place, claim_bits};
  stream_cache::bin& bin = mine.latest().at(seen.word().bin());
  fetch_ahead(bin, at);
  if (!put_into<false>(mine, &bin, seen, at, stated)) return defer_of_latest(at, stated);
  mine.leave();
  return true;
}

// A block of the latest stream whose bin is full, which has room where a batch may be set aside. Not inline, like the
// one above.
[[gnu::noinline]] bool pool::take_back_of_full(thread_cache& mine, stream_cache::bin& bin, address at,
                                               const release& stated) noexcept {
  bool taken = false;
  const claim_table::sight seen = seen_again(mine, at);
  if (seen.of != nullptr && seen.word().units() == bin.units && mine.latest().set_aside(bin)) {
    taken = mine.alone() ? put_into<true>(mine, &bin, seen, at, stated) : put_into<false>(mine, &bin, seen, at, stated);
  }
  mine.leave();
  return taken;
}

address pool::hit_any(stream_ref of, std::uint64_t requested) noexcept {
  if (device_.condition() != device_condition::usable || !streams_.key_is_known(of)) return 0;
  thread_cache* const mine = mine_without_lock();
  if (mine == nullptr || !mine->enter()) return 0;
  stream_cache* const s = mine->of_key(streams_.known_key(of));
  if (s != nullptr) mine->remember(of.handle, *s);
  const address at = s != nullptr ? hit_in(*mine, *s, requested) : 0;
  mine->leave();
  return at;
}

bool pool::take_back_any(address at, const release& stated) noexcept {
  if (device_.condition() != device_condition::usable) return false;
  if (stated.stream) {
    return streams_.key_is_known(*stated.stream) && take_back_key(at, streams_.known_key(*stated.stream), stated);
  }
  thread_cache* const mine = mine_without_lock();
  if (mine == nullptr || !mine->enter()) return false;
  return take_back_inside(*mine, at, stated, nullptr);
}

// A small block from a batch beside its empty bin.
address pool::hit_beside(std::uint64_t key, std::uint64_t requested) noexcept {
  thread_cache* const mine = mine_without_lock();
  if (mine == nullptr || !mine->enter()) return 0;
  address at = 0;
  if (stream_cache* const s = mine->of_key(key)) {
    stream_cache::bin* const bin = s->find(static_cast<std::uint32_t>((requested - 1) / block_granularity + 1));
    if (bin != nullptr && bin->count == 0 && s->take_from_beside(*bin)) {
      for (std::uint32_t k = 0; k < bin->count; ++k) claims_.fetch(bin->held[k]);
      at = pop(*mine, *bin, requested);
    }
  }
  mine->leave();
  return at;
}

}  // namespace gpumem
