#include "captures.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "without_exceptions.hpp"

namespace gpumem {

status usable(const device& on) {
  switch (on.condition()) {
    case device_condition::usable:
      break;
    case device_condition::forked:
      return {errc::device_error,
              fmt::format("device {} cannot be used in a process that was forked after it was: use it in the parent, "
                          "or start the child with exec or spawn",
                          on.info().ordinal)};
    case device_condition::reset:
      return {errc::device_error, fmt::format("device {} was reset, and all memory on it is gone: open a new allocator",
                                              on.info().ordinal)};
  }
  return {};
}

status at_each_that_knows(const std::vector<pool_slot>& pools, stream_ref s, const device* only,
                          const std::function<status(pool&, std::uint64_t key)>& call) {
  status unknown;
  bool known = false;
  for (const pool_slot& p : pools) {
    if (only != nullptr && p.on != only) continue;
    const status ok = usable(*p.on);
    const result<std::uint64_t> key = ok ? p.it->key_of(s) : ok;
    if (!key) {
      unknown = key.why();
      continue;
    }
    known = true;
    if (status one = call(*p.it, *key); !one) return one;
  }
  return known ? status{} : unknown;
}

namespace {

/// While it exists, no pool of the device records a fence.
class without_fences {
 public:
  without_fences(const std::vector<pool_slot>& pools, const device& on) : pools_{pools}, on_{on} { forbid(true); }
  ~without_fences() { forbid(false); }
  without_fences(const without_fences&) = delete;
  without_fences& operator=(const without_fences&) = delete;

 private:
  void forbid(bool yes) {
    for (const pool_slot& p : pools_) {
      if (p.on == &on_) p.it->below().forbid_fences(yes);
    }
  }
  const std::vector<pool_slot>& pools_;
  const device& on_;
};

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

status captures::begin(stream_ref s) {
  const mutex_lock lock{mutex_};
  // The program begins a new capture, so an earlier one that was noticed on this handle has ended.
  if (const open_capture* const open = find(s); open != nullptr && open->noticed_on != nullptr) {
    static_cast<void>(end_in_pools(*open));
  }
  return begin_in_pools(s, nullptr, 0);
}

result<graph_ref> captures::end(stream_ref s) {
  const mutex_lock lock{mutex_};
  if (const open_capture* const open = find(s)) return end_in_pools(*open);
  return status{errc::invalid_argument, fmt::format("stream {} is not capturing", s.handle)};
}

status captures::release(graph_ref g) {
  in_pools parts;
  {
    const mutex_lock lock{mutex_};
    const auto found = graphs_.find(g.id);
    if (found == graphs_.end() || found->second.empty()) {
      return {errc::invalid_argument, fmt::format("graph {} is unknown or was released already", g.id)};
    }
    parts = std::move(found->second);
    graphs_.erase(found);
  }
  status first;
  for (const auto& [p, graph] : parts) {
    status ok = without_exceptions([in = p, number = graph] { return in->below().graph_release(number); });
    if (!ok && first.ok()) first = std::move(ok);
  }
  return first;
}

captures::open_capture* captures::find(stream_ref s) {
  const auto found = std::ranges::find(open_, s, &open_capture::stream);
  return found == open_.end() ? nullptr : &*found;
}

// Every pool captures, or none. If `on` is given, the capture has already begun on the device.
status captures::begin_in_pools(stream_ref s, device* on, std::uint64_t device_id) {
  make_room(open_);
  in_pools begun;
  begun.reserve(pools_.size());
  const result<bool> blocking = on == nullptr ? false : on->is_blocking(s);  // may throw: nothing has begun yet
  status ok = at_each_that_knows(pools_, s, on, [&](pool& p, std::uint64_t key) {
    status one = p.below().capture_begin(s, key, on != nullptr);
    if (one.ok()) begun.emplace_back(&p, key);
    return one;
  });
  if (!ok) {
    for (const auto& [p, key] : begun) {
      const result<std::uint64_t> graph = p->below().capture_end(key);
      if (graph) static_cast<void>(p->below().graph_release(*graph));
    }
    return ok;
  }
  forbid_foreign_fences(begun, true);
  open_.push_back({.number = next_number_++,
                   .noticed_on = on,
                   .device_id = device_id,
                   .stream = s,
                   .blocking = blocking && *blocking,
                   .watched = false,
                   .keys = std::move(begun)});
  open_count_.store(open_.size(), std::memory_order_relaxed);
  return {};
}

// Removes the capture if it ended in any pool.
result<graph_ref> captures::end_in_pools(const open_capture& open) {
  const graph_ref left{open.number};
  in_pools& parts = graphs_[left.id];
  parts.reserve(open.keys.size());
  status first;
  for (const auto& [p, key] : open.keys) {
    const result<std::uint64_t> part = without_exceptions([in = p, of = key] { return in->below().capture_end(of); });
    if (part) {
      parts.emplace_back(p, *part);
    } else if (first.ok()) {
      first = part.why();
    }
  }
  if (parts.empty()) return first;
  forbid_foreign_fences(open.keys, false);
  std::erase_if(open_, [left](const open_capture& each) { return each.number == left.id; });
  open_count_.store(open_.size(), std::memory_order_relaxed);
  return left;
}

// Pools of other devices may hold blocks that this device's streams use, and would record their fences here.
void captures::forbid_foreign_fences(const in_pools& capturing, bool yes) {
  for (const pool_slot& p : pools_) {
    if (std::ranges::find(capturing, p.it.get(), &in_pools::value_type::first) == capturing.end()) {
      p.it->below().forbid_foreign_fences(yes);
    }
  }
}

// Notes a current capture first, so that releasing destroyed graphs does not invalidate it.
status captures::follow(device& on, stream_ref s, bool asks) {
  if (asks) {
    const result<std::uint64_t> now = on.capture_id(s);
    if (!now) return now.why();
    if (*now != 0 || any_open()) {
      const mutex_lock lock{mutex_};
      if (status noted = notice(on, s, *now); !noted) return noted;
    }
  }
  release_gone();
  if (!any_open()) return {};
  const mutex_lock lock{mutex_};
  if (open_capture* const open = find(s); open != nullptr && !open->watched) {
    const auto number = std::make_shared<std::list<std::uint64_t>>(1, open->number);
    open->watched = on.watch_graph(s, [to = gone_, number] { to->put(*number); }).ok();
  }
  return {};
}

// `now` is the id of the stream's current capture; 0 for none.
status captures::notice(device& on, stream_ref s, std::uint64_t now) {
  const open_capture* const known = find(s);
  const bool over = known != nullptr && known->noticed_on == &on && known->device_id != now;
  if (now != 0 && (known == nullptr || over)) {
    const without_fences until_noted{pools_, on};
    if (over) static_cast<void>(end_in_pools(*known));
    return begin_in_pools(s, &on, now);
  }
  if (over) static_cast<void>(end_in_pools(*known));
  // If a stream allocates nothing more, gpumem does not see its capture end, and cannot ask its handle, which may be
  // dead. For blocking streams no handle is needed: the driver tells whether any of them captures.
  if (std::ranges::any_of(open_, [&](const open_capture& c) { return c.noticed_on == &on && c.blocking; })) {
    const result<bool> any = on.blocking_stream_captures();
    end_noticed_on(on, [&](const open_capture& c) { return c.blocking && any && !*any; });
  }
  return {};
}

void captures::ended_on(device& on) {
  {
    const mutex_lock lock{mutex_};
    end_noticed_on(on, [&](const open_capture& c) {
      const result<std::uint64_t> now = on.capture_id(c.stream);
      return now && *now != c.device_id;
    });
  }
  release_gone();
}

template <typename condition>
void captures::end_noticed_on(const device& on, const condition& over) {
  for (std::size_t i = 0; i < open_.size();) {
    const bool ended = open_[i].noticed_on == &on && over(open_[i]) && end_in_pools(open_[i]);
    if (!ended) ++i;
  }
}

// A capture whose graph is gone must have ended. Graphs that the program has already released are refused.
void captures::release_gone() {
  if (!gone_->any()) return;
  for (const std::uint64_t number : gone_->all()) {
    {
      const mutex_lock lock{mutex_};
      const auto open = std::ranges::find(open_, number, &open_capture::number);
      if (open != open_.end()) static_cast<void>(end_in_pools(*open));
    }
    static_cast<void>(release({number}));
    gone_->forget(number);
  }
}

}  // namespace gpumem
