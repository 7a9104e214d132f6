#include "capture_log.hpp"

#include <algorithm>
#include <iterator>

namespace gpumem {

void capture_log::mailbox::expect_one() {
  const mutex_lock lock{mutex_};
  tokens_.reserve(expected_ + 1);
  ++expected_;
}

void capture_log::mailbox::put(std::uint64_t token) noexcept {
  const mutex_lock lock{mutex_};
  tokens_.push_back(token);
  any_.store(true, std::memory_order_release);
}

std::vector<std::uint64_t> capture_log::mailbox::all() const {
  const mutex_lock lock{mutex_};
  return tokens_;
}

void capture_log::mailbox::forget(std::size_t tokens) noexcept {
  const mutex_lock lock{mutex_};
  tokens_.erase(tokens_.begin(), tokens_.begin() + static_cast<std::ptrdiff_t>(tokens));
  expected_ -= tokens;
  any_.store(!tokens_.empty(), std::memory_order_release);
}

void capture_log::began(const device* on, stream_ref s, std::uint64_t capture, bool blocking,
                        const std::vector<std::pair<pool*, std::uint64_t>>& in) {
  const mutex_lock lock{mutex_};
  open_.push_back({.on = on,
                   .stream = s,
                   .capture = capture,
                   .token = next_token_++,
                   .watched = false,
                   .blocking = blocking,
                   .in = in});
  open_count_.store(open_.size(), std::memory_order_relaxed);
}

std::optional<capture_log::entry> capture_log::find(stream_ref s) const {
  const mutex_lock lock{mutex_};
  for (const entry& e : open_) {
    if (e.stream == s) return e;
  }
  return std::nullopt;
}

bool capture_log::is_open(std::uint64_t token) const {
  const mutex_lock lock{mutex_};
  return std::ranges::find(open_, token, &entry::token) != open_.end();
}

std::vector<capture_log::entry> capture_log::noticed_on(const device& on) const {
  std::vector<entry> out;
  if (open_count_.load(std::memory_order_relaxed) == 0) return out;
  const mutex_lock lock{mutex_};
  std::ranges::copy_if(open_, std::back_inserter(out), [&on](const entry& e) { return e.on == &on; });
  return out;
}

void capture_log::ended(stream_ref s, graph_ref left) noexcept {
  const mutex_lock lock{mutex_};
  for (const entry& e : open_) {
    if (e.stream == s && e.watched) left_.push_back({e.token, left});
  }
  std::erase_if(open_, [s](const entry& e) { return e.stream == s; });
  open_count_.store(open_.size(), std::memory_order_relaxed);
}

void capture_log::released(graph_ref g) {
  const mutex_lock lock{mutex_};
  std::erase_if(left_, [g](const left_graph& l) { return l.graph == g; });
}

std::function<void()> capture_log::on_gone(std::uint64_t token) {
  {
    const mutex_lock lock{mutex_};
    left_.reserve(left_.size() + open_.size());  // here, because `ended` must not fail
  }
  mail_->expect_one();
  return [mail = mail_, token] { mail->put(token); };
}

void capture_log::set_watched(stream_ref s) {
  const mutex_lock lock{mutex_};
  for (entry& e : open_) {
    if (e.stream == s) e.watched = true;
  }
}

capture_log::gone capture_log::find_gone() const {
  gone out;
  if (!mail_->any()) return out;
  const std::vector<std::uint64_t> tokens = mail_->all();
  out.tokens = tokens.size();
  for (const std::uint64_t token : tokens) {
    const mutex_lock lock{mutex_};
    if (const auto e = std::ranges::find(open_, token, &entry::token); e != open_.end()) {
      out.still_open.push_back(*e);
    } else if (const auto l = std::ranges::find(left_, token, &left_graph::token); l != left_.end()) {
      out.graphs.push_back(l->graph);
    }
  }
  return out;
}

}  // namespace gpumem
