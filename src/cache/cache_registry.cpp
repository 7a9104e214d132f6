#include "cache_registry.hpp"

#include <sched.h>
#include <unistd.h>

#include "checked_mutex.hpp"

namespace gpumem {

struct open_pool {
  const pid_t process = ::getpid();
  checked_mutex mutex;  // held while a thread gives its cache back; taken before the pool's lock
  std::function<void(thread_cache&)> ends;
  std::atomic<bool> open{true};
};

namespace {

/// Not the number of any allocator. An allocator other than gpumem's has the number 0, and must not find a cache by it.
constexpr std::uint64_t no_allocator = ~std::uint64_t{0};

/// Outlives the thread's list of caches, for frees in the destructors of other thread-local objects.
constinit thread_local bool thread_has_ended = false;

/// A thread's caches in the pools that it used; its destructor gives them back.
struct caches_of_thread {
  struct entry {
    std::uint64_t pool;
    thread_cache* cache;
    std::shared_ptr<open_pool> shared_state;
  };
  caches_of_thread() = default;
  caches_of_thread& operator=(caches_of_thread&&) = delete;
  ~caches_of_thread() {
    thread_has_ended = true;
    tls_last_cache = {no_allocator, 0, 0, nullptr, nullptr};
    if (entries.empty() || process != ::getpid()) return;  // in a fork, a missing thread may hold a lock
    for (const entry& e : entries) {
      const mutex_lock lock{e.shared_state->mutex};
      if (e.shared_state->open) e.shared_state->ends(*e.cache);
    }
  }
  std::vector<entry> entries;
  pid_t process = 0;
};
thread_local caches_of_thread mine_of_all;

}  // namespace

cache_registry::cache_registry(fast_path& fast, cache_place place, std::function<void(thread_cache&)> ends)
    : fast_{fast}, place_{place}, self_{std::make_shared<open_pool>()} {
  static std::atomic<std::uint64_t> latest{0};
  number_ = ++latest;
  self_->ends = std::move(ends);
}

void cache_registry::close() noexcept {
  self_->open = false;
  // In a forked child, a thread that does not exist there may hold the lock forever, and no other gives anything back.
  if (self_->process != ::getpid()) return;
  const mutex_lock calls_under_way{self_->mutex};
}

void cache_registry::set_last_cache(thread_cache* cache) const noexcept {
  const std::uint64_t allocator = place_.allocator != 0 ? place_.allocator : no_allocator;
  tls_last_cache = {allocator, number_, place_.device, cache, &fast_};
}

thread_cache* cache_registry::look_up() const noexcept {
  if (thread_has_ended) return nullptr;
  for (const caches_of_thread::entry& e : mine_of_all.entries) {
    if (e.pool != number_) continue;
    set_last_cache(e.cache);
    return e.cache;
  }
  return nullptr;
}

thread_cache* cache_registry::make_mine() {
  if (thread_cache* const have = mine()) return have;
  if (thread_has_ended) return nullptr;
  caches_of_thread& all = mine_of_all;
  if (const pid_t current_process = ::getpid(); all.process != current_process) {
    all.entries.clear();  // a fork: these belong to the parent
    all.process = current_process;
  }
  std::erase_if(all.entries, [](const auto& entry) { return !entry.shared_state->open; });
  all.entries.reserve(all.entries.size() + 1);  // first, so that every cache is in some thread's list
  all_.push_back(std::make_unique<thread_cache>());
  all.entries.push_back({number_, all_.back().get(), self_});
  set_last_cache(all_.back().get());
  return all_.back().get();
}

void cache_registry::remove(thread_cache& cache) noexcept {
  std::erase_if(all_, [&cache](const auto& each) { return each.get() == &cache; });
}

cache_registry::stop_caches::stop_caches(const cache_registry& caches) : caches_{caches}, mine_{caches.mine()} {
  bool has_others = false;
  for (const auto& each : caches_.all_) {
    if (each.get() == mine_) continue;
    each->request_stop();
    has_others = true;
  }
  if (!has_others) return;
  heavy_fence();
  for (const auto& each : caches_.all_) {
    // A few instructions without a call, unless the thread was preempted in them.
    while (each.get() != mine_ && each->inside()) ::sched_yield();
  }
}

cache_registry::stop_caches::~stop_caches() {
  for (const auto& each : caches_.all_) {
    if (each.get() != mine_) each->end_stop();
  }
}

}  // namespace gpumem
