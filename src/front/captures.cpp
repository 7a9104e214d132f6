#include "captures.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "assign_or_return.hpp"
#include "without_exceptions.hpp"

namespace gpumem {

namespace {

/// Whether the program created the stream, so that its handle means the same stream in every thread.
bool is_created(stream_ref stream) noexcept { return reinterpret_cast<std::uintptr_t>(stream.handle) > 2; }

}  // namespace

void captures::gone_graphs::put(std::list<std::uint64_t>& number) noexcept {
  const mutex_lock lock{mutex_};
  numbers_.splice(numbers_.end(), number);
  any_.store(true, std::memory_order_release);
}

std::vector<std::uint64_t> captures::gone_graphs::all() const {
  const mutex_lock lock{mutex_};
  return {numbers_.begin(), numbers_.end()};
}

void captures::gone_graphs::forget(std::uint64_t number) noexcept {
  const mutex_lock lock{mutex_};
  numbers_.remove(number);
  any_.store(!numbers_.empty(), std::memory_order_release);
}

// Waits for the driver calls of other threads without the mutex, because requests on other streams need it.
status captures::begin(stream_ref stream) {
  std::vector<std::optional<std::uint64_t>> keys(pools_.size());  // by pool; empty if the pool does not know the stream
  for (const logical_pool& p : pools_) {
    if (usable(*p.device)) p.pool->streams().poll();
  }
  {
    const mutex_lock lock{mutex_};
    if (status opened = open(stream, nullptr, 0); !opened) return opened;
    for (std::size_t i = 0; i < pools_.size(); ++i) {
      const auto known = std::ranges::find(open_.back().parts, pools_[i].pool.get(), &part::member);
      if (known != open_.back().parts.end()) keys[i] = known->key;
    }
  }
  for (std::size_t i = 0; i < pools_.size(); ++i) {
    pools_[i].pool->streams().wait_for_calls(keys[i] ? capture_effect::announced : capture_effect::foreign, keys[i]);
  }
  return {};
}

// Does not query the handle of a created stream: the program may have destroyed the stream by now.
result<graph_ref> captures::end(stream_ref stream) {
  const mutex_lock lock{mutex_};
  auto found = open_.end();
  if (is_created(stream)) {
    found = std::ranges::find(open_, stream, &open_capture::stream);
  } else {
    static_cast<void>(
        at_each_that_knows(pools_, stream, nullptr, [&](pool& p, std::uint64_t key) GPUMEM_REQUIRES(mutex_) {
          if (found == open_.end()) found = find(p, key);
          return status{};
        }));
  }
  if (found != open_.end()) return close(found);
  return status{errc::invalid_argument, fmt::format("stream {} is not capturing", stream.handle)};
}

status captures::release(graph_ref released) {
  graph_parts parts;
  {
    const mutex_lock lock{mutex_};
    const auto found = graphs_.find(released.id);
    if (found == graphs_.end()) {
      return {errc::invalid_argument, fmt::format("graph {} is unknown or was released already", released.id)};
    }
    parts = std::move(found->second);
    graphs_.erase(found);
  }
  status first;
  for (const auto& [p, graph] : parts) {
    status ok = without_exceptions([member = p, number = graph] { return member->streams().graph_release(number); });
    if (!ok && first.ok()) first = std::move(ok);
  }
  return first;
}

void captures::hold(std::uint64_t number) {
  std::vector<pool_capture> all;
  all.reserve(pools_.size());
  for (const logical_pool& p : pools_) {
    all.push_back(p.pool->streams().capture_elsewhere(capture_effect::announced));
    p.pool->streams().wait_for_calls(capture_effect::announced, std::nullopt);
  }
  const mutex_lock lock{mutex_};
  held_[number] = std::move(all);
}

void captures::end_hold(std::uint64_t number) noexcept {
  const mutex_lock lock{mutex_};
  held_.erase(number);
}

// Identifies a capture by the stream's key in a pool, never by its handle: the default streams of all threads have the
// same handle, and the driver reuses the handles of destroyed streams.
captures::open_list::iterator captures::find(const pool& member, std::uint64_t key) {
  return std::ranges::find_if(open_, [&](const open_capture& capture) {
    return std::ranges::any_of(capture.parts,
                               [&](const part& each) { return each.member == &member && each.key == key; });
  });
}

// Begins the capture in every pool that knows the stream, or in none. A noticed capture has begun on its device already
// and concerns only that device's pools.
status captures::open(stream_ref stream, device* noticed_on, std::uint64_t device_id) {
  open_list opened(1);
  open_capture& made = opened.front();
  made.number = next_number_;
  made.noticed_on = noticed_on;
  made.device_id = device_id;
  made.may_block = noticed_on == nullptr;
  made.stream = stream;
  made.parts.reserve(pools_.size());
  made.elsewhere.reserve(pools_.size());
  graph_map ahead;
  ahead[made.number].reserve(pools_.size());
  made.graph = ahead.extract(made.number);
  const capture_effect effect = noticed_on != nullptr ? capture_effect::noticed : capture_effect::announced;
  bool foreign = false;
  if (noticed_on != nullptr) {
    const result<std::uint64_t> context = noticed_on->foreign_context(stream);
    foreign = context && *context != 0;
  }
  const status ok = at_each_that_knows(
      pools_, stream, noticed_on, [&](pool& member, std::uint64_t key) GPUMEM_REQUIRES(mutex_) -> status {
        close_superseded(member, key, stream);
        ASSIGN_OR_RETURN(auto begun, member.streams().capture_begin(stream, key, effect));
        made.parts.push_back({&member, key, std::move(begun)});
        return {};
      });
  if (!ok) return ok;
  if (noticed_on != nullptr && !foreign) note_blocking(made);
  // Pools of other devices may hold blocks that this device's streams use, and would record fences on these streams. A
  // stream of another context may even belong to one of those devices.
  for (const logical_pool& p : pools_) {
    if (std::ranges::find(made.parts, p.pool.get(), &part::member) != made.parts.end()) continue;
    made.elsewhere.push_back(p.pool->streams().capture_elsewhere(foreign ? effect : capture_effect::foreign));
  }
  ++next_number_;
  open_.splice(open_.end(), opened);
  open_count_.store(open_.size(), std::memory_order_relaxed);
  return {};
}

// The driver refuses to tell a capturing stream's flags. If no blocking stream captures, this one is none. If one does,
// and no other capture that gpumem knows of may be on a blocking stream, this capture is. Streams that joined a capture
// end with it.
void captures::note_blocking(open_capture& made) {
  const auto is_same = [&](const open_capture& open) {
    return open.noticed_on == made.noticed_on && open.device_id == made.device_id;
  };
  const result<bool> any = made.noticed_on->blocking_stream_captures();
  made.may_block = any ? *any : any.code() != errc::unsupported;
  const bool is_only = std::ranges::none_of(open_, [&](const open_capture& open) {
    return open.may_block && !is_same(open) && (open.noticed_on == nullptr || open.noticed_on == made.noticed_on);
  });
  made.blocking = (any && *any && is_only) ||
                  std::ranges::any_of(open_, [&](const open_capture& open) { return open.blocking && is_same(open); });
  if (!made.blocking) return;
  for (open_capture& open : open_) open.blocking = open.blocking || is_same(open);
}

graph_ref captures::close(open_list::iterator ended) noexcept {
  for (part& each : ended->parts) ended->graph.mapped().emplace_back(each.member, each.capture.end());
  const graph_ref left{ended->number};
  graphs_.insert(std::move(ended->graph));
  open_.erase(ended);
  open_count_.store(open_.size(), std::memory_order_relaxed);
  return left;
}

template <typename condition>
void captures::close_where(const condition& ended) {
  for (auto next = open_.begin(); next != open_.end();) {
    const auto each = next++;
    if (ended(*each)) close(each);
  }
}

// Called when `stream` begins a capture. Closes captures that must be over: one noticed earlier on this stream, and any
// of a destroyed stream with the same handle.
void captures::close_superseded(const pool& member, std::uint64_t key, stream_ref stream) {
  close_where([&](const open_capture& capture) {
    return std::ranges::any_of(capture.parts, [&](const part& each) {
      return each.member == &member &&
             (each.key == key ? capture.noticed_on != nullptr : is_created(stream) && capture.stream == stream);
    });
  });
}

// If a stream allocates nothing more, gpumem does not see its capture end, and must not query its handle, which may be
// destroyed. Blocking streams need no handle: the driver tells whether any of them captures.
void captures::close_blocking(device& gpu) {
  const auto may_block = [&](const open_capture& capture) { return capture.noticed_on == &gpu && capture.may_block; };
  if (std::ranges::none_of(open_, may_block)) return;
  const result<bool> any = gpu.blocking_stream_captures();
  if (!any || *any) return;
  close_where([&](const open_capture& capture) { return capture.noticed_on == &gpu && capture.blocking; });
  for (open_capture& capture : open_) capture.may_block = capture.may_block && capture.noticed_on != &gpu;
}

// Notes a current capture first, so that releasing destroyed graphs does not invalidate it.
status captures::follow(const logical_pool& slot, const request& asking, bool asks, std::optional<std::uint64_t>* key) {
  const stream_ref stream = asking.stream;
  std::uint64_t current = 0;
  if (asks) {
    ASSIGN_OR_RETURN(current, slot.device->capture_id(stream));
    ASSIGN_OR_RETURN(*key, slot.pool->streams().key_of(stream, current != 0));
  } else if (any_open()) {
    ASSIGN_OR_RETURN(*key, slot.pool->streams().key_of(stream));
  }
  if (asks && (current != 0 || any_open())) {
    const mutex_lock lock{mutex_};
    if (status noted = notice(slot, stream, **key, current); !noted) return noted;
  }
  release_gone();
  if (!*key || !any_open()) return {};
  const mutex_lock lock{mutex_};
  const auto open = find(*slot.pool, **key);
  if (open == open_.end()) return {};
  open->reported = open->reported || asking.reports_capture_end;
  if (!open->watched) {
    const auto number = std::make_shared<std::list<std::uint64_t>>(1, open->number);
    open->watched = slot.device->watch_graph(stream, [to = gone_, number] { to->put(*number); }).ok();
  }
  return {};
}

// `current` is the id of the stream's current capture; 0 for none.
status captures::notice(const logical_pool& slot, stream_ref stream, std::uint64_t key, std::uint64_t current) {
  const auto known = find(*slot.pool, key);
  const bool ended = known != open_.end() && known->noticed_on == slot.device && known->device_id != current;
  if (current != 0 && (known == open_.end() || ended)) {
    std::vector<pool_capture> until_noted;  // between the end of one capture and the next, which has begun already
    until_noted.reserve(pools_.size());
    for (const logical_pool& p : pools_) {
      if (p.device == slot.device) until_noted.push_back(p.pool->streams().capture_elsewhere(capture_effect::noticed));
    }
    return open(stream, slot.device, current);
  }
  if (ended) {  // with its stream all that joined it
    const std::uint64_t ended_id = known->device_id;
    close_where([&](const open_capture& capture) {
      return capture.noticed_on == slot.device && capture.device_id == ended_id;
    });
  } else if (current == 0 && is_created(stream)) {
    // While it captured, the stream may have had another key (`stream_slots::key_while_capturing`).
    close_where(
        [&](const open_capture& capture) { return capture.noticed_on == slot.device && capture.stream == stream; });
  }
  close_blocking(*slot.device);
  return {};
}

void captures::settle(device& gpu) {
  if (any_open()) {
    const mutex_lock lock{mutex_};
    close_blocking(gpu);
  }
  release_gone();
}

void captures::ended_on(device& gpu, bool reported_only) {
  {
    const mutex_lock lock{mutex_};
    close_blocking(gpu);
    close_where([&](const open_capture& capture) {
      if (capture.noticed_on != &gpu || capture.blocking || (reported_only && !capture.reported)) return false;
      if (!is_created(capture.stream)) {  // the handle may name another thread's default stream
        const result<std::uint64_t> own = capture.parts.front().member->streams().key_of(capture.stream);
        if (!own || *own != capture.parts.front().key) return false;
      }
      const result<std::uint64_t> latest = gpu.capture_id(capture.stream);
      return latest && *latest != capture.device_id;
    });
  }
  release_gone();
}

// A capture with a destroyed graph must have ended, so closes it first. `release` refuses a graph that the program has
// released already.
void captures::release_gone() {
  if (!gone_->any()) return;
  for (const std::uint64_t number : gone_->all()) {
    {
      const mutex_lock lock{mutex_};
      const auto open = std::ranges::find(open_, number, &open_capture::number);
      if (open != open_.end()) close(open);
    }
    static_cast<void>(release({number}));
    gone_->forget(number);
  }
}

}  // namespace gpumem
