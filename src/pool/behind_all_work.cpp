// Frees behind all work of the device, as a preloaded cudaFree is one: the block is free for others when everything
// that the device was given until then is done. A thread sets such frees aside without the lock and records a fence
// behind each batch at its last free; what was enqueued later is waited for by nobody. The thread's next request brings
// the batches here.
#include "pool.hpp"
#include "without_exceptions.hpp"

namespace gpumem {

status pool::stand_for_all_work(stream_ref all) {
  const result<std::uint64_t> key = streams_.key_of(all);
  if (!key) return key.why();
  const guard lock{mutex_};
  all_work_.owner = streams_.slot_of(all, *key);
  streams_[all_work_.owner].everything = true;
  ++streams_[all_work_.owner].references;  // for good
  return {};
}

// A capture that nobody tells of would be spoilt by the fence: under `query` such frees come by the lock.
bool pool::free_behind_all_work(address at) noexcept {
  if (all_work_.owner == idle_owner || config_.stream_ids != stream_id_mode::notify) return false;
  if (device_.condition() != device_condition::usable) return false;
  const block_cache::aside how = cache_.free_aside(at);
  if (how != block_cache::aside::fence_due) return how == block_cache::aside::taken;
  if (!all_work_.records.enter()) return true;  // something captures: a fence is recorded when memory is wanted
  const result<fence> behind = without_exceptions([this] { return device_.record_context(); });
  all_work_.records.leave();
  if (behind && !cache_.fence_aside(*behind)) device_.drop(*behind);
  return true;
}

void pool::take_back_behind(std::span<const block_index> blocks, fence behind) noexcept {
  owner_id o = all_work_.owner;
  if (behind) {
    try {
      o = streams_.begin_batch(streams_[all_work_.owner].stream, behind);
    } catch (...) {  // the host is short: another one is recorded when memory is wanted
      device_.drop(behind);
    }
  }
  for (const block_index i : blocks) {
    if (planned_.gone(i)) promised_ = streams_[o].promised = true;
    --streams_[heap_.at(i).owner].references;
    ++streams_[o].references;
    heap_.at(i).owner = o;
    take_back(i, o);
  }
  if (o != all_work_.owner) streams_.end_batch(o);
}

// The same of a free that came by the lock: the fence is recorded behind as many of them.
void pool::fence_all_work(guard& lock, std::uint64_t bytes) {
  all_work_.unfenced_bytes += bytes;
  if (++all_work_.unfenced < frees_aside::frees_a_fence && all_work_.unfenced_bytes < frees_aside::bytes_a_fence)
    return;
  {
    const stream_order::later unlocked{streams_};
    const result<fence_index> f = streams_.cover(all_work_.owner);
    if (!f) return;
    if (*f != no_fence) streams_.let_go(*f);
  }
  all_work_.unfenced = 0;
  all_work_.unfenced_bytes = 0;
  record_fences(lock);
}

}  // namespace gpumem
