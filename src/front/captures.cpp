#include "captures.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <utility>

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
  const device* on = nullptr;
  result<std::uint64_t> key{std::uint64_t{0}};
  for (const pool_slot& p : pools) {
    if (only != nullptr && p.on != only) continue;
    if (p.on != on) {  // a device's pools stand side by side
      on = p.on;
      if (status ok = usable(*on); ok) {
        key = p.it->key_of(s);
      } else {
        key = std::move(ok);
      }
      if (!key) unknown = key.why();
    }
    if (!key) continue;
    known = true;
    if (status one = call(*p.it, *key); !one) return one;
  }
  return known ? status{} : unknown;
}

status captures::begin(stream_ref s) {
  const mutex_lock turn{turns_};
  // The program begins a new capture, so an earlier one that was noticed on this handle has ended.
  if (const auto open = log_.find(s); open && open->on != nullptr) static_cast<void>(end_of(*open));
  return begin_and_note(s, nullptr, 0);
}

result<graph_ref> captures::end(stream_ref s) {
  const mutex_lock turn{turns_};
  const auto open = log_.find(s);
  if (!open) return status{errc::invalid_argument, fmt::format("stream {} is not capturing", s.handle)};
  return end_of(*open);
}

status captures::release(graph_ref g) {
  log_.released(g);
  return release_parts(g);
}

// If `on` is given, the capture has already begun on the device.
result<captures::begun_in> captures::begin_on(stream_ref s, const device* on) {
  begun_in begun;
  begun.reserve(pools_.size());
  status ok = at_each_that_knows(pools_, s, on, [s, on, &begun](pool& p, std::uint64_t key) {
    status one = p.below().capture_begin(s, key, on != nullptr);
    if (one.ok()) begun.emplace_back(&p, key);
    return one;
  });
  if (ok) return begun;
  undo(begun);  // every pool captures, or none
  return ok;
}

// Ends the begun captures and releases their empty graphs.
void captures::undo(const begun_in& begun) {
  for (const auto& [p, key] : begun) {
    if (const result<std::uint64_t> graph = p->below().capture_end(key))
      static_cast<void>(p->below().graph_release(*graph));
  }
}

// Pools of other devices may hold blocks that this device's streams use, and would record their fences here.
void captures::forbid_foreign_fences(const begun_in& capturing, bool yes) {
  for (const pool_slot& p : pools_) {
    if (std::ranges::find(capturing, p.it.get(), &begun_in::value_type::first) == capturing.end()) {
      p.it->below().forbid_foreign_fences(yes);
    }
  }
}

// Begins a capture and notes it. If the host has no memory to note it, ends it again.
status captures::begin_and_note(stream_ref s, device* on, std::uint64_t capture) {
  const result<begun_in> begun = begin_on(s, on);
  if (!begun) return begun.why();
  bool blocking = false;
  if (on != nullptr) {
    const result<bool> known = on->is_blocking(s);
    blocking = known && *known;
  }
  try {
    log_.began(on, s, capture, blocking, *begun);
  } catch (const std::bad_alloc&) {
    undo(*begun);
    throw;
  }
  forbid_foreign_fences(*begun, true);
  return {};
}

result<graph_ref> captures::end_of(const capture_log::entry& open) {
  std::vector<graph_part> parts;
  parts.reserve(open.in.size());
  const graph_ref left = take_number();
  status first;
  for (const auto& [p, key] : open.in) {
    const result<std::uint64_t> part =
        without_exceptions([&, in = p, of = key] { return in->below().capture_end(of); });
    if (part) {
      parts.push_back({p, *part});
    } else if (first.ok()) {
      first = part.why();
    }
  }
  if (parts.empty()) return first;
  {
    const mutex_lock lock{graphs_mutex_};
    graphs_[left.id - 1] = std::move(parts);
  }
  log_.ended(open.stream, left);
  forbid_foreign_fences(open.in, false);
  return left;
}

// The number of a new graph without parts, which reads as a released one.
graph_ref captures::take_number() {
  const mutex_lock lock{graphs_mutex_};
  graphs_.emplace_back();
  return graph_ref{graphs_.size()};
}

status captures::release_parts(graph_ref g) {
  std::vector<graph_part> parts;
  {
    const mutex_lock lock{graphs_mutex_};
    if (g.id == 0 || g.id > graphs_.size() || graphs_[g.id - 1].empty()) {
      return {errc::invalid_argument, fmt::format("graph {} is unknown or was released already", g.id)};
    }
    parts.swap(graphs_[g.id - 1]);
  }
  status first;
  for (const graph_part& part : parts) {
    status ok = without_exceptions([&] { return part.in->below().graph_release(part.number); });
    if (!ok && first.ok()) first = std::move(ok);
  }
  return first;
}

void captures::let_go_of_gone() {
  capture_log::gone gone = log_.find_gone();
  for (const capture_log::entry& e : gone.still_open) {
    const mutex_lock turn{turns_};
    if (!log_.is_open(e.token)) continue;
    if (const result<graph_ref> left = end_of(e)) gone.graphs.push_back(*left);
  }
  // Refused for graphs that the program has already released.
  for (const graph_ref g : gone.graphs) static_cast<void>(release(g));
  log_.forget_gone(gone);
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

// Notes a current capture first, so that releasing destroyed graphs does not invalidate it.
status captures::follow(device& on, stream_ref s, bool asks) {
  if (asks) {
    const result<std::uint64_t> now = on.capture_id(s);
    if (!now) return now.why();
    if (*now != 0 || log_.any_open()) {
      if (status noted = notice(on, s, *now); !noted) return noted;
    }
  }
  let_go_of_gone();
  const std::optional<capture_log::entry> known = log_.find(s);
  if (known && !known->watched && on.watch_graph(s, log_.on_gone(known->token))) log_.set_watched(s);
  return {};
}

// `now` is the id of the stream's current capture; 0 for none.
status captures::notice(device& on, stream_ref s, std::uint64_t now) {
  {
    const mutex_lock turn{turns_};
    const std::optional<capture_log::entry> known = log_.find(s);
    const bool over = known && known->on == &on && known->capture != now;
    if (now != 0 && (!known || over)) {
      const without_fences until_noted{pools_, on};
      if (over) static_cast<void>(end_of(*known));
      return begin_and_note(s, &on, now);
    }
    if (over) static_cast<void>(end_of(*known));
  }
  end_blocking_ones_over(on);
  return {};
}

// If a stream allocates nothing more, gpumem does not see its capture end, and cannot ask its handle, which may be
// dead. For blocking streams no handle is needed: the driver tells whether any of them captures.
void captures::end_blocking_ones_over(device& on) {
  std::vector<capture_log::entry> open = log_.noticed_on(on);
  std::erase_if(open, [](const capture_log::entry& e) { return !e.blocking; });
  if (open.empty()) return;
  const result<bool> any = on.blocking_stream_captures();
  if (any && !*any) end_those(open);
}

void captures::ended_on(device& on) {
  std::vector<capture_log::entry> open = log_.noticed_on(on);
  std::erase_if(open, [&on](const capture_log::entry& e) {
    const result<std::uint64_t> now = on.capture_id(e.stream);
    return !now || *now == e.capture;
  });
  end_those(open);
  let_go_of_gone();
}

// Ends only captures that are still open: a stream may have begun a new one since it was asked.
void captures::end_those(const std::vector<capture_log::entry>& over) {
  const mutex_lock turn{turns_};
  for (const capture_log::entry& e : over) {
    if (log_.is_open(e.token)) static_cast<void>(end_of(e));
  }
}

}  // namespace gpumem
