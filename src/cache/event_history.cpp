#include "event_history.hpp"

#include <algorithm>
#include <chrono>
#include <map>
#include <new>

#include "thread_number.hpp"

namespace gpumem {
namespace {

std::uint64_t now_ns() noexcept {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(since).count());
}

}  // namespace

void event_history::retire(history_chunk* last) noexcept {
  if (last == nullptr) return;
  last->end_ns_ = now_ns();
  last->next_full_ = nullptr;
  (latest_full_ != nullptr ? latest_full_->next_full_ : oldest_full_) = last;
  latest_full_ = last;
  full_events_ += last->used_;
}

history_chunk* event_history::take_oldest() noexcept {
  history_chunk* const oldest = oldest_full_;
  if (oldest == nullptr) return nullptr;
  oldest_full_ = oldest->next_full_;
  if (oldest_full_ == nullptr) latest_full_ = nullptr;
  full_events_ -= oldest->used_;
  if (oldest->used_ != 0) first_kept_ = std::max(first_kept_, oldest->rows_[oldest->used_ - 1].number + 1);
  return oldest;
}

// Reuses the oldest full chunk if enough events remain without it. The kept events begin after that chunk's last one.
// Each other thread may have one chunk that began before that and so does not count in full.
history_chunk* event_history::renew(history_chunk* full, std::uint64_t writers) noexcept {
  retire(full);
  const std::uint64_t most = events_ + writers * history_chunk::capacity;
  history_chunk* made = nullptr;
  if (oldest_full_ != nullptr && full_events_ - oldest_full_->used_ >= most) made = take_oldest();
  if (made == nullptr) {
    try {
      // Leaves the rows uninitialized, so that their pages are touched only when they are written.
      chunks_.push_back(std::unique_ptr<history_chunk>{new history_chunk});
      made = chunks_.back().get();
    } catch (const std::bad_alloc&) {
      made = take_oldest();
      if (made == nullptr) return nullptr;
    }
  }
  made->used_ = 0;
  made->thread_ = thread_number();
  made->begin_ns_ = now_ns();
  made->end_ns_ = 0;
  return made;
}

std::vector<history_event> event_history::latest() const {
  const std::uint64_t noted = next_.load(std::memory_order_relaxed);
  const std::uint64_t first = std::max(first_kept_, noted > events_ ? noted - events_ : 0);
  std::vector<history_event> kept;
  kept.reserve(noted - std::min(noted, first));
  const std::uint64_t current_ns = now_ns();
  for (const auto& chunk : chunks_) {
    const std::uint64_t end_ns = chunk->end_ns_ != 0 ? chunk->end_ns_ : current_ns;
    const std::uint64_t span_ns = end_ns - std::min(end_ns, chunk->begin_ns_);
    for (std::uint32_t i = 0; i < chunk->used_; ++i) {
      const history_chunk::row& row = chunk->rows_[i];
      if (row.number < first) continue;
      kept.push_back({.number = row.number,
                      .pointer = row.pointer,
                      .requested_bytes = row.bytes_and_kind >> history_chunk::kind_bits,
                      .stream = {row.stream},
                      .kind = static_cast<event_kind>(row.bytes_and_kind & ((1U << history_chunk::kind_bits) - 1)),
                      .thread = chunk->thread_,
                      .time_ns = chunk->begin_ns_ + span_ns / chunk->used_ * i});
    }
  }
  std::ranges::sort(kept, {}, &history_event::number);
  std::uint64_t latest_ns = 0;  // times of different chunks overlap
  for (history_event& each : kept) each.time_ns = latest_ns = std::max(latest_ns, each.time_ns);
  return kept;
}

std::vector<history_block> live_before(const std::vector<history_event>& events, std::vector<history_block> live_now) {
  std::map<address, history_block> live;
  for (const history_block& each : live_now) live.emplace(each.pointer, each);
  for (auto event = events.rbegin(); event != events.rend(); ++event) {
    if (event->kind == event_kind::allocated) live.erase(event->pointer);
    if (event->kind == event_kind::freed)
      live[event->pointer] = {event->pointer, event->requested_bytes, event->stream};
  }
  live_now.clear();
  for (const auto& [at, each] : live) live_now.push_back(each);
  return live_now;
}

}  // namespace gpumem
