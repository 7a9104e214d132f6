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

void history_chunk::begin_writer(std::uint64_t time_ns) noexcept {
  writers_[writer_count_++] = {.begin_ns = time_ns, .end_ns = 0, .thread = thread_number(), .first_row = used_};
}

void event_history::retire(history_chunk* full) noexcept {
  full->next_ = nullptr;
  (latest_full_ != nullptr ? latest_full_->next_ : oldest_full_) = full;
  latest_full_ = full;
  full_events_ += full->used_;
  ++full_chunks_;
}

void event_history::end_thread(history_chunk* last) noexcept {
  if (last == nullptr) return;
  last->end_writer(now_ns());
  if (last->is_full() || last->writer_count_ == history_chunk::max_writers) return retire(last);
  last->next_ = without_writer_;
  without_writer_ = last;
}

history_chunk* event_history::take_oldest() noexcept {
  history_chunk* const oldest = oldest_full_;
  if (oldest == nullptr) return nullptr;
  oldest_full_ = oldest->next_;
  if (oldest_full_ == nullptr) latest_full_ = nullptr;
  full_events_ -= oldest->used_;
  --full_chunks_;
  if (oldest->used_ != 0) first_kept_ = std::max(first_kept_, oldest->rows_[oldest->used_ - 1].number + 1);
  return oldest;
}

// Reuses the oldest full chunk if enough events remain without it. The kept events begin after that chunk's last one.
// Chunks that had room when it became full may have begun before that and so do not count in full.
history_chunk* event_history::take_empty() noexcept {
  max_with_room_ = std::max(max_with_room_, chunks_.size() - full_chunks_ + 1);
  const std::uint64_t most = events_ + max_with_room_ * history_chunk::capacity;
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
  made->writer_count_ = 0;
  return made;
}

history_chunk* event_history::renew(history_chunk* full) noexcept {
  const std::uint64_t current_ns = now_ns();
  if (full != nullptr) {
    full->end_writer(current_ns);
    retire(full);
  }
  history_chunk* chunk = without_writer_;
  if (chunk != nullptr) {
    without_writer_ = chunk->next_;
  } else {
    chunk = take_empty();
  }
  if (chunk != nullptr) chunk->begin_writer(current_ns);
  return chunk;
}

std::vector<history_event> event_history::latest() const {
  const std::uint64_t noted = next_.load(std::memory_order_relaxed);
  const std::uint64_t first = std::max(first_kept_, noted > events_ ? noted - events_ : 0);
  std::vector<history_event> kept;
  kept.reserve(noted - std::min(noted, first));
  const std::uint64_t current_ns = now_ns();
  for (const auto& chunk : chunks_) {
    std::uint32_t k = 0;  // the writer of the row
    for (std::uint32_t i = 0; i < chunk->used_; ++i) {
      if (k + 1 < chunk->writer_count_ && chunk->writers_[k + 1].first_row == i) ++k;
      const history_chunk::writer& writer = chunk->writers_[k];
      const history_chunk::row& row = chunk->rows_[i];
      if (row.number < first) continue;
      const std::uint64_t end_ns = writer.end_ns != 0 ? writer.end_ns : current_ns;
      const std::uint64_t span_ns = end_ns - std::min(end_ns, writer.begin_ns);
      const std::uint32_t end_row = k + 1 < chunk->writer_count_ ? chunk->writers_[k + 1].first_row : chunk->used_;
      const std::uint32_t rows = end_row - writer.first_row;
      kept.push_back({.number = row.number,
                      .pointer = row.pointer,
                      .requested_bytes = row.bytes_and_kind >> history_chunk::kind_bits,
                      .stream = {row.stream},
                      .kind = static_cast<event_kind>(row.bytes_and_kind & ((1U << history_chunk::kind_bits) - 1)),
                      .thread = writer.thread,
                      .time_ns = writer.begin_ns + span_ns / rows * (i - writer.first_row)});
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
