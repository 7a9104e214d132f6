#include "capture_log.hpp"

#include <algorithm>

namespace gpumem {

void capture_log::mailbox::put(std::uint64_t token) {
  const std::lock_guard lock{mutex_};
  tokens_.push_back(token);
  any_.store(true, std::memory_order_release);
}

std::vector<std::uint64_t> capture_log::mailbox::take() {
  const std::lock_guard lock{mutex_};
  any_.store(false, std::memory_order_release);
  return std::exchange(tokens_, {});
}

void capture_log::began(const device* on, stream_ref s, std::uint64_t capture,
                        std::vector<std::pair<pool*, std::uint64_t>> in) {
  const std::lock_guard lock{mutex_};
  open_.push_back(
      {.on = on, .stream = s, .capture = capture, .token = next_token_++, .watched = false, .in = std::move(in)});
  open_count_.store(open_.size(), std::memory_order_relaxed);
}

std::optional<capture_log::entry> capture_log::find(stream_ref s) const {
  const std::lock_guard lock{mutex_};
  for (const entry& e : open_) {
    if (e.stream == s) return e;
  }
  return std::nullopt;
}

void capture_log::ended(stream_ref s, graph_ref left) {
  const std::lock_guard lock{mutex_};
  for (const entry& e : open_) {
    if (e.stream == s && e.watched) left_.push_back({e.token, left});
  }
  std::erase_if(open_, [s](const entry& e) { return e.stream == s; });
  open_count_.store(open_.size(), std::memory_order_relaxed);
}

void capture_log::released(graph_ref g) {
  const std::lock_guard lock{mutex_};
  std::erase_if(left_, [g](const left_graph& l) { return l.graph == g; });
}

std::function<void()> capture_log::on_gone(std::uint64_t token) const {
  return [mail = mail_, token] { mail->put(token); };
}

void capture_log::set_watched(stream_ref s) {
  const std::lock_guard lock{mutex_};
  for (entry& e : open_) {
    if (e.stream == s) e.watched = true;
  }
}

capture_log::gone capture_log::take_gone() {
  gone out;
  if (!mail_->any()) return out;
  for (const std::uint64_t token : mail_->take()) {
    const std::lock_guard lock{mutex_};
    if (const auto e = std::ranges::find(open_, token, &entry::token); e != open_.end()) {
      out.still_open.push_back(*e);
    } else if (const auto l = std::ranges::find(left_, token, &left_graph::token); l != left_.end()) {
      out.graphs.push_back(l->graph);
    }
  }
  return out;
}

}  // namespace gpumem
