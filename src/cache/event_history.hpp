// The latest allocations and frees of a pool, cache hits included (GPUMEM_HISTORY).
//
// Each thread writes its events into a chunk of its own: inside its cache, or under the pool's lock. A counter numbers
// the events of all threads: an event has a larger number than those that it depends on. A hit whose thread has no room
// in its chunk takes the lock, where the oldest full chunk replaces it. The chunk of a thread that ends goes to the
// next thread that needs one, so memory stays bounded with many short threads. The blocks that were live before the
// kept events are derived from those that are live now, so recording needs no lookups.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "gpumem/device.hpp"

namespace gpumem {

enum class event_kind : std::uint8_t {
  allocated,
  freed,
  refused,  ///< out of memory; `pointer` then holds the most bytes that the pool could have had
};

struct history_event {
  std::uint64_t number = 0;  ///< the event's number, from 0 on
  address pointer = 0;
  std::uint64_t requested_bytes = 0;
  stream_ref stream{};  ///< with its handle at that time
  event_kind kind = event_kind::allocated;
  std::uint32_t thread = 0;   ///< thread_number.hpp
  std::uint64_t time_ns = 0;  ///< steady clock, interpolated over its thread's events in the same chunk
};

/// Events of one thread at a time. It writes them inside its cache or under the lock; others read them with its cache
/// stopped.
class history_chunk {
 public:
  static constexpr std::uint32_t capacity = 512;

  [[nodiscard]] bool is_full() const noexcept { return used_ == capacity; }
  /// Requires room.
  void add(std::uint64_t number, event_kind kind, address pointer, std::uint64_t requested_bytes,
           stream_ref stream) noexcept {
    rows_[used_++] = {number, pointer, requested_bytes << kind_bits | static_cast<std::uint64_t>(kind), stream.handle};
  }

 private:
  friend class event_history;
  static constexpr unsigned kind_bits = 2;
  struct row {
    std::uint64_t number;
    address pointer;
    std::uint64_t bytes_and_kind;
    void* stream;
  };

  static constexpr std::uint32_t max_writers = 64;
  struct writer {
    std::uint64_t begin_ns;
    std::uint64_t end_ns;  // 0: still writing
    std::uint32_t thread;
    std::uint32_t first_row;
  };
  void begin_writer(std::uint64_t time_ns) noexcept;
  void end_writer(std::uint64_t time_ns) noexcept { writers_[writer_count_ - 1].end_ns = time_ns; }

  std::uint32_t used_ = 0;
  std::uint32_t writer_count_ = 0;
  history_chunk* next_ = nullptr;  // in the list of full chunks, or of those without a writer
  std::array<writer, max_writers> writers_;
  std::array<row, capacity> rows_;  // the first `used_` have values
};

class event_history {
 public:
  /// Keeps at least the latest `events` events.
  explicit event_history(std::uint64_t events) noexcept : events_{events} {}
  event_history& operator=(event_history&&) = delete;

  /// For any thread, into its own chunk. Requires room.
  void add(history_chunk& chunk, event_kind kind, address pointer, std::uint64_t requested_bytes,
           stream_ref stream) noexcept {
    chunk.add(next_.fetch_add(1, std::memory_order_relaxed), kind, pointer, requested_bytes, stream);
  }

  // --- under the pool's lock -----------------------------------------------------------------------------------
  /// Returns a chunk with room for the calling thread. Takes over `full`, which may be null. Null if the host has no
  /// memory.
  [[nodiscard]] history_chunk* renew(history_chunk* full) noexcept;
  /// Takes the last chunk of a thread that ends, for another thread; may be null.
  void end_thread(history_chunk* last) noexcept;
  /// An event was lost: the kept ones begin after it.
  void lose() noexcept { first_kept_ = next_.load(std::memory_order_relaxed); }

  /// The latest events in order, at most `events`. Requires that every cache is stopped.
  [[nodiscard]] std::vector<history_event> latest() const;
  [[nodiscard]] std::size_t chunk_count() const noexcept { return chunks_.size(); }
  /// The number of events since the pool was created.
  [[nodiscard]] std::uint64_t noted() const noexcept { return next_.load(std::memory_order_relaxed); }

 private:
  void retire(history_chunk* full) noexcept;
  [[nodiscard]] history_chunk* take_oldest() noexcept;
  [[nodiscard]] history_chunk* take_empty() noexcept;

  std::uint64_t events_;
  std::uint64_t first_kept_ = 0;  // events before it are incomplete
  std::uint64_t full_events_ = 0;
  std::uint64_t full_chunks_ = 0;
  std::uint64_t max_with_room_ = 1;  // chunks with room at a time, with the one that is being sought
  history_chunk* oldest_full_ = nullptr;
  history_chunk* latest_full_ = nullptr;
  history_chunk* without_writer_ = nullptr;  // these have room
  std::vector<std::unique_ptr<history_chunk>> chunks_;
  alignas(64) std::atomic<std::uint64_t> next_{0};
};

/// A block that was live before the first of the kept events.
struct history_block {
  address pointer = 0;
  std::uint64_t requested_bytes = 0;
  stream_ref stream;
};

/// Content of a dump.
struct pool_history {
  std::vector<history_block> live_before;  ///< by address
  std::vector<history_event> events;
  std::uint64_t noted = 0;  ///< number of events since the pool was created
};

/// Returns the blocks that were live before the first event, by address. `live_now`: the blocks that are live after the
/// last event. Undoes the events from the last to the first.
[[nodiscard]] std::vector<history_block> live_before(const std::vector<history_event>& events,
                                                     std::vector<history_block> live_now);

}  // namespace gpumem
