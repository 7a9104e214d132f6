// What one thread keeps of one pool: freed blocks by stream and exact size, to be had again without a lock.
//
// A cache is touched by its thread between `enter` and `leave`, and by whoever holds the pool's lock and has claimed it
// (thread_caches.hpp); its own thread, under the lock, needs no claim. Blocks in it are out of the heap, and their
// claims (claims.hpp) say `cache`. Sizes are exact: nothing is rounded up to serve from a cache.
// After Bonwick and Adams, "Magazines and Vmem", 2001: bins are magazines, and full ones go to the depot (depot.hpp).
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "asymmetric_fence.hpp"
#include "block.hpp"
#include "claims.hpp"
#include "gpumem/request.hpp"

namespace gpumem {

/// Bins by size: one for each multiple of 512 B up to 64 KiB; above that sizes share bins by hash, one size at a time,
/// with a choice of two.
struct bin_places {
  static constexpr std::uint32_t exact = 128;
  static constexpr std::uint32_t shared = 256;
  static constexpr std::uint32_t all = exact + shared;
  static constexpr std::uint64_t most_units = UINT32_MAX;
  /// Blocks of up to 4 KiB, of which full bins are little, are held without a limit in bytes.
  static constexpr std::uint64_t small_units = 8;
  static constexpr std::uint32_t small_bins = small_units;  ///< the first ones

  [[nodiscard]] static constexpr std::uint32_t of(std::uint32_t units) noexcept {
    if (units <= exact) [[likely]]
      return units - 1;
    return of_shared(units);
  }
  [[nodiscard]] static constexpr std::uint32_t of_bytes(std::uint64_t bytes) noexcept {
    return of(static_cast<std::uint32_t>(bytes / block_granularity));
  }
  [[nodiscard]] static constexpr std::uint32_t of_shared(std::uint32_t units) noexcept {
    return exact + (units * 0x9e37'79b1U >> 24);
  }
  /// The other choice, for a size that shares.
  [[nodiscard]] static constexpr std::uint32_t beside(std::uint32_t place) noexcept { return place ^ 1U; }
  /// Whether a block counts against the limit.
  [[nodiscard]] static constexpr bool weighs(std::uint64_t units) noexcept { return units > small_units; }
  /// And for how much.
  [[nodiscard]] static constexpr std::uint64_t weight(std::uint64_t units) noexcept {
    return weighs(units) ? units * block_granularity : 0;
  }
};

/// A thread's blocks of one stream.
class stream_cache {
 public:
  static constexpr std::uint8_t room = 62;
  static constexpr std::uint32_t batch = 30;  ///< blocks that change their place at once

  /// Blocks of one size. The first of its lines of memory has all that a bin needs that holds little.
  struct alignas(64) bin {
    std::uint32_t units = 0;  ///< of 512 B; 0: of no size yet
    std::uint8_t count = 0;
    std::uint8_t most = 0;               ///< how many it may hold now
    std::uint8_t unused = 0;             ///< the fewest that it held since it was looked at, or was full, last
    std::array<claim_index, room> held;  ///< the claims of its blocks, the latest last

    /// Requires that it is in use and has room.
    void push(claim_index i) noexcept {
      held[count] = i;
      ++count;
    }
    /// Requires that it is in use, empty, and has room for so many.
    void fill(const claim_index* first, std::uint32_t blocks) noexcept {
      std::copy_n(first, blocks, held.begin());
      count = static_cast<std::uint8_t>(blocks);
    }
    /// Requires that it holds one.
    [[nodiscard]] claim_index pop() noexcept {
      const std::uint8_t left = --count;
      unused = std::min(unused, left);
      return held[left];
    }
    /// It was full, and holds a batch all the time since: its thread frees what another one allocates.
    [[nodiscard]] bool piles_up() const noexcept { return unused >= batch; }
    /// Without its oldest batch, which the caller has taken since it was full.
    void drop_batch() noexcept {
      drop_oldest(batch);
      unused = count;
    }
    /// Without its oldest blocks, which the caller has taken.
    void drop_oldest(std::uint32_t going) noexcept {
      std::copy(held.begin() + going, held.begin() + count, held.begin());
      count = static_cast<std::uint8_t>(count - going);
      unused = static_cast<std::uint8_t>(unused - std::min<std::uint32_t>(unused, going));
    }
  };
  static_assert(sizeof(bin) == 256);

  /// Whole batches beside a bin of small blocks. Threads that hand blocks to each other would have to meet for each
  /// batch, and what the pool's lock guards travels from one processor to the other each time; so it is for several.
  struct stack {
    static constexpr std::uint32_t most = 7;
    std::uint32_t count = 0;
    std::uint32_t allowed = 0;  ///< of how many its owner may make use without the lock
    std::array<std::array<claim_index, batch>, most> held;
  };
  static constexpr std::uint32_t no_bin = bin_places::all;

  /// Blocks that no bin took, in the order of their frees: on their way to the heap. It has them before it is asked for
  /// another one, so that places are as if it had had them at once; their thread takes the lock once for all of them.
  struct deferred_frees {
    static constexpr std::uint32_t most = 16;
    std::uint32_t count = 0;
    std::array<claim_index, most> held;
  };

  stream_cache(owner_id owner, std::uint64_t key) : owner_{owner}, key_{key} {}

  /// For another stream from here on. Requires that it is empty, and every bin closed.
  void begin_anew(owner_id owner, std::uint64_t key) noexcept {
    owner_ = owner;
    key_ = key;
  }
  [[nodiscard]] owner_id owner() const noexcept { return owner_; }
  [[nodiscard]] std::uint64_t key() const noexcept { return key_; }
  [[nodiscard]] bin& at(std::uint32_t place) noexcept { return bins_[place]; }
  [[nodiscard]] std::uint32_t place_of(const bin& b) const noexcept {
    return static_cast<std::uint32_t>(&b - bins_.data());
  }
  [[nodiscard]] deferred_frees& deferred() noexcept { return deferred_; }
  /// The bin of that size, or null where it has none now. Requires 1 to `bin_places::most_units`.
  [[nodiscard]] bin* find(std::uint32_t units) noexcept {
    const std::uint32_t place = bin_places::of(units);
    if (bins_[place].units == units) [[likely]]
      return &bins_[place];
    if (units <= bin_places::exact) return nullptr;
    const std::uint32_t second = bin_places::beside(place);
    return bins_[second].units == units ? &bins_[second] : nullptr;
  }
  /// The bin of that size, or null where it has none now; of up to 64 KiB, the one that may hold that size, if none.
  /// Any number of units; none at all may give a bin that has no size yet, and so holds and takes nothing.
  [[nodiscard]] bin* that_serves(std::uint64_t units) noexcept {
    if (units - 1 < bin_places::exact) [[likely]]
      return &bins_[units - 1];
    // No bin's size has more than 32 bits, so where one is equal, these are all.
    const std::uint32_t place = bin_places::of_shared(static_cast<std::uint32_t>(units));
    if (bins_[place].units == units) [[likely]]
      return &bins_[place];
    const std::uint32_t second = bin_places::beside(place);
    return bins_[second].units == units ? &bins_[second] : nullptr;
  }
  /// The bin that is to become that size's, by the caller, once it is empty. Requires that `find` finds none.
  [[nodiscard]] bin& bin_to_change(std::uint32_t units) noexcept {
    const std::uint32_t place = bin_places::of(units);
    if (units <= bin_places::exact) return bins_[place];
    const std::uint32_t second = bin_places::beside(place);
    return bins_[second].count < bins_[place].count ? bins_[second] : bins_[place];
  }
  /// The bin may hold blocks of that size from here on: it is in use.
  void open(bin& b, std::uint32_t units, std::uint8_t most) noexcept {
    b.units = units;
    b.unused = 0;
    b.most = most;
    in_use_.add(place_of(b));
    on_condition_.remove(place_of(b));
  }
  /// The batches beside that bin; null for one of larger blocks.
  [[nodiscard]] stack* beside(const bin& b) noexcept {
    const std::uint32_t place = place_of(b);
    return place < bin_places::small_bins ? &beside_[place] : nullptr;
  }
  /// Its oldest batch goes beside it; false where it is not full, or no more may lie there.
  bool set_aside(bin& b) noexcept {
    stack* const all = beside(b);
    if (b.count != room || all == nullptr || all->count >= all->allowed) return false;
    std::copy_n(b.held.begin(), batch, all->held[all->count].begin());
    ++all->count;
    b.drop_batch();
    return true;
  }
  /// The latest batch from beside it is its own; false where none lies there. Requires that it is empty.
  bool take_from_beside(bin& b) noexcept {
    stack* const all = beside(b);
    if (all == nullptr || all->count == 0) return false;
    --all->count;
    b.fill(all->held[all->count].data(), batch);
    return true;
  }
  /// Requires that it is empty, and nothing lies beside it.
  void close(bin& b) noexcept {
    b.most = 0;
    if (stack* const all = beside(b)) all->allowed = 0;
    in_use_.remove(place_of(b));
    on_condition_.remove(place_of(b));
  }
  /// It holds blocks that would return to their places, until the heap changes. Requires that it is in use.
  void put_on_condition(bin& b) noexcept { on_condition_.add(place_of(b)); }
  [[nodiscard]] bool is_on_condition(const bin& b) const noexcept { return on_condition_.has(place_of(b)); }

  /// The first bin from `place` on that is in use, or `no_bin`.
  [[nodiscard]] std::uint32_t next_in_use(std::uint32_t place) const noexcept { return in_use_.next(place); }
  /// The same of those on that condition.
  [[nodiscard]] std::uint32_t next_on_condition(std::uint32_t place) const noexcept {
    return on_condition_.next(place);
  }

 private:
  /// Some of the bins.
  class bin_set {
   public:
    void add(std::uint32_t place) noexcept { words_[place / 64] |= std::uint64_t{1} << (place % 64); }
    void remove(std::uint32_t place) noexcept { words_[place / 64] &= ~(std::uint64_t{1} << (place % 64)); }
    [[nodiscard]] bool has(std::uint32_t place) const noexcept { return (words_[place / 64] >> place % 64 & 1U) != 0; }
    [[nodiscard]] std::uint32_t next(std::uint32_t place) const noexcept {
      for (; place < bin_places::all; place = (place | 63U) + 1) {
        const std::uint64_t word = words_[place / 64] >> (place % 64);
        if (word != 0) return place + static_cast<std::uint32_t>(std::countr_zero(word));
      }
      return no_bin;
    }

   private:
    std::array<std::uint64_t, bin_places::all / 64> words_{};
  };

  std::array<bin, bin_places::all> bins_;  // first, where a bin's place is all that its address needs
  owner_id owner_;
  std::uint64_t key_;
  bin_set in_use_;
  bin_set on_condition_;
  deferred_frees deferred_;
  std::array<stack, bin_places::small_bins> beside_;
};

/// What happened in a cache since its thread held the pool's lock last (the first two), and since ever.
struct cache_figures {
  std::int64_t handed_bytes = 0;         ///< handed out less taken in
  std::int64_t most_handed_bytes = 0;    ///< its maximum
  std::uint64_t requested_bytes = 0;     ///< of what was handed out less of what was taken in, modulo 2^64
  std::uint64_t weighed_bytes = 0;       ///< held now, but for small blocks
  std::uint64_t most_weighed_bytes = 0;  ///< the limit of that
  // Not beside the other two that a free changes: a compiler would change both at once, and the next allocation's load
  // of one of them would wait until that store has left the processor's buffer.
  std::uint64_t frees = 0;     ///< taken in
  std::uint32_t deferred = 0;  ///< of those, blocks that wait for the heap
  std::uint64_t deferred_bytes = 0;
  // Under the lock only.
  std::uint64_t held_bytes = 0;  ///< when the thread was there last
  std::uint64_t filled = 0;      ///< blocks that came from the depot
  std::uint64_t emptied = 0;     ///< that went to it or to the heap
  bool on_condition = false;     ///< a bin may hold blocks on that condition
  std::uint64_t most_deferred_bytes = UINT64_MAX;

  /// One of any size; more as far as these are not too many bytes.
  [[nodiscard]] bool may_defer(std::uint64_t bytes) const noexcept {
    return deferred == 0 || (bytes <= most_deferred_bytes && deferred_bytes <= most_deferred_bytes - bytes);
  }
  /// Held when the thread was here last, in bins that count against no limit, and beside them.
  [[nodiscard]] std::uint64_t unweighed_bytes() const noexcept { return held_bytes - weighed_bytes - deferred_bytes; }
};

class alignas(64) thread_cache {
 public:
  /// A stream's cache takes some 100 KiB, and streams may end without a word.
  static constexpr std::uint32_t most_streams = 64;

  thread_cache() noexcept : bars_{asymmetric_fences() ? no_bars : costly_fence} {}

  /// The thread's own: true where it may go on, until `leave`. False where another has claimed the cache; the way then
  /// leads through the pool's lock.
  [[nodiscard]] bool enter() noexcept {
    inside_.store(true, std::memory_order_relaxed);
    light_fence();
    const unsigned char bars = bars_.load(std::memory_order_seq_cst);
    if (bars == 0) [[likely]]
      return true;
    if (bars == costly_fence) {
      inside_.exchange(true, std::memory_order_seq_cst);
      if (bars_.load(std::memory_order_seq_cst) == costly_fence) return true;
    }
    leave();
    return false;
  }
  void leave() noexcept { inside_.store(false, std::memory_order_release); }

  /// While no other thread uses the pool: what is the program's is this thread's alone to change. Asked inside.
  [[nodiscard]] bool alone() const noexcept { return alone_.load(std::memory_order_relaxed); }
  void set_alone(bool yes) noexcept { alone_.store(yes, std::memory_order_seq_cst); }

  /// Another thread's, under the pool's lock: announce, then `heavy_fence` once for all, then wait until it is out.
  void announce_claim() noexcept { bars_.fetch_or(claimed, std::memory_order_seq_cst); }
  [[nodiscard]] bool inside() const noexcept { return inside_.load(std::memory_order_seq_cst); }
  void end_claim() noexcept { bars_.fetch_and(costly_fence, std::memory_order_release); }

  /// The latest stream's where that is its handle, else null. A handle is remembered only while it is a name for good.
  [[nodiscard]] stream_cache* of_handle(const void* handle) const noexcept {
    return serves_latest(handle) ? latest_ : nullptr;
  }
  /// The two halves of that, for who has no use for a null.
  [[nodiscard]] bool serves_latest(const void* handle) const noexcept { return handle == latest_handle_; }
  /// The same from outside: true where a hit looked here just now, unless another thread emptied the cache meanwhile.
  [[nodiscard]] bool served_latest(const void* handle) noexcept {
    return std::atomic_ref{latest_handle_}.load(std::memory_order_relaxed) == handle;
  }
  /// Requires that some handle or tag is the latest's.
  [[nodiscard]] stream_cache& latest() const noexcept { return *latest_; }
  /// The tag of its live blocks' claims (claims.hpp), or no claim's.
  [[nodiscard]] std::uint64_t latest_tag() const noexcept { return latest_tag_; }
  /// Whether no handle is remembered.
  [[nodiscard]] bool serves_none() const noexcept { return latest_handle_ == &no_stream; }
  /// The latest for frees, by its owner. Requires that no handle is remembered.
  void remember_owner(stream_cache& s) noexcept { remember(&no_stream, s); }
  void remember(const void* handle, stream_cache& s) noexcept {
    set_latest_handle(handle);
    latest_tag_ = claim_word::plain_tag_of(s.owner());
    latest_ = &s;
  }
  /// Null where this thread has none for the stream of that key, or for that owner.
  [[nodiscard]] stream_cache* of_key(std::uint64_t key) const noexcept {
    for (const auto& s : by_owner_) {
      if (s && s->key() == key) return s.get();
    }
    return nullptr;
  }
  [[nodiscard]] stream_cache* of_owner(owner_id o) const noexcept {
    return o < by_owner_.size() ? by_owner_[o].get() : nullptr;
  }
  /// `made` serves that owner; null: a new one does. Requires that there is none for it, and less than `most_streams`.
  stream_cache& add(owner_id o, std::uint64_t key, std::unique_ptr<stream_cache> made = nullptr) {
    if (o >= by_owner_.size()) by_owner_.resize(o + 1);
    if (made != nullptr) {
      made->begin_anew(o, key);
    } else {
      made = std::make_unique<stream_cache>(o, key);
    }
    by_owner_[o] = std::move(made);
    ++streams_;
    return *by_owner_[o];
  }
  /// What served that owner. Requires that it is empty.
  std::unique_ptr<stream_cache> forget(owner_id o) noexcept {
    set_latest_handle(&no_stream);
    latest_tag_ = claim_word::no_tag;
    latest_ = nullptr;
    --streams_;
    return std::move(by_owner_[o]);
  }
  [[nodiscard]] bool full() const noexcept { return streams_ == most_streams; }
  /// Whose has to go for another one: each in turn. Requires that there is one.
  [[nodiscard]] owner_id next_to_go() noexcept {
    do {
      going_ = going_ + 1 < by_owner_.size() ? going_ + 1 : 0;
    } while (!by_owner_[going_]);
    return going_;
  }
  [[nodiscard]] owner_id owners() const noexcept { return static_cast<owner_id>(by_owner_.size()); }
  [[nodiscard]] std::uint64_t blocks() const noexcept {
    std::uint64_t sum = 0;
    for (const auto& s : by_owner_) {
      if (!s) continue;
      sum += s->deferred().count;
      for (std::uint32_t at = s->next_in_use(0); at != stream_cache::no_bin; at = s->next_in_use(at + 1)) {
        sum += s->at(at).count;
        if (const auto* const beside = s->beside(s->at(at))) sum += std::uint64_t{beside->count} * stream_cache::batch;
      }
    }
    return sum;
  }
  /// Served from here: what came less what is left and what went.
  [[nodiscard]] std::uint64_t allocations() const noexcept {
    return figures.frees + figures.filled - figures.emptied - blocks();
  }
  [[nodiscard]] std::uint64_t metadata_bytes() const noexcept {
    std::uint64_t bytes = sizeof(thread_cache) + by_owner_.capacity() * sizeof(void*);
    for (const auto& s : by_owner_) bytes += s ? sizeof(stream_cache) : 0;
    return bytes;
  }

 private:
  static constexpr unsigned char no_bars = 0;
  static constexpr unsigned char claimed = 1;
  static constexpr unsigned char costly_fence = 2;  ///< for good: the kernel offers none that costs nothing
  static constexpr char no_stream = 0;              ///< its address is no stream's handle

  // Atomic for who asks from outside; inside, it is read as it is.
  void set_latest_handle(const void* handle) noexcept {
    std::atomic_ref{latest_handle_}.store(handle, std::memory_order_relaxed);
  }

  std::atomic<bool> inside_{false};
  std::atomic<unsigned char> bars_;  ///< what stands in the way of who enters
  std::atomic<bool> alone_{false};
  const void* latest_handle_ = &no_stream;
  stream_cache* latest_ = nullptr;
  std::uint64_t latest_tag_ = claim_word::no_tag;

 public:
  cache_figures figures;
  std::uint32_t hand = 0;    ///< the bin behind the one looked at last, over all streams
  std::uint32_t misses = 0;  ///< while large blocks were held

 private:
  std::vector<std::unique_ptr<stream_cache>> by_owner_;
  std::uint32_t streams_ = 0;
  owner_id going_ = 0;
};

}  // namespace gpumem
