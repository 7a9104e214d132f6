// Frees that wait for several streams, by events that are recorded on each of them.
//
// No event can be recorded on a stream that captures: the use then waits without one, and a later call records it. The
// caller locks.
#pragma once

#include <algorithm>
#include <iterator>
#include <list>
#include <map>

#include "stream_calls.hpp"

struct stream_queue;

/// A stream's use of a block. Allocated when the use is recorded, so that a free needs no host memory.
struct stream_use {
  stream_queue* queue = nullptr;
  void* block = nullptr;
  cudaEvent_t done = nullptr;  // null: not recorded, because the stream captured
};

/// Uses of freed blocks on one stream, in the order of the frees: an event covers all uses before it.
struct stream_queue {
  device_stream stream;
  std::list<stream_use> freed{};
};

class stream_fences {
 public:
  explicit stream_fences(stream_calls& calls) : calls_{calls} {}
  stream_fences(const stream_fences&) = delete;
  stream_fences& operator=(const stream_fences&) = delete;
  ~stream_fences() {
    for (const auto& [unused, queue] : queues_) {
      for (const stream_use& each : queue.freed) {
        if (each.done != nullptr) calls_.destroy(each.done);
      }
    }
  }

  /// Adds the stream to a block's uses, once.
  void add_use(std::list<stream_use>* uses, void* block, const device_stream& user) {
    stream_queue& queue = queues_.try_emplace(user, stream_queue{user}).first->second;
    if (std::ranges::any_of(*uses, [&](const stream_use& each) { return each.queue == &queue; })) return;
    uses->push_back({&queue, block, nullptr});
  }
  /// The block was freed: takes its uses, and records an event on each of their streams.
  void wait_for(std::list<stream_use>* uses) noexcept {
    while (!uses->empty()) {
      std::list<stream_use>& queue = uses->front().queue->freed;
      queue.splice(queue.end(), *uses, uses->begin());
      static_cast<void>(record(queue.back()));
    }
  }
  /// Calls `ended(block)` for each use whose stream is done with it. Does not query events of streams that capture.
  template <typename Ended>
  void settle(const Ended& ended) noexcept {
    for (auto& [stream, queue] : queues_) {
      std::list<stream_use>& freed = queue.freed;
      if (freed.empty() || !calls_.captures_nothing(stream)) continue;
      while (!freed.empty()) {
        auto event = std::ranges::find_if(freed, [](const stream_use& each) { return each.done != nullptr; });
        if (event == freed.end()) {
          event = std::prev(freed.end());
          if (!record(*event)) break;
        }
        if (!calls_.is_done(event->done)) break;
        ++event;
        while (freed.begin() != event) end_first(freed, ended);
      }
    }
  }
  /// Ends all uses by streams of the GPU. Requires that the host waited for it.
  template <typename Ended>
  void finish(int device, const Ended& ended) noexcept {
    for (auto& [stream, queue] : queues_) {
      while (stream.device == device && !queue.freed.empty()) end_first(queue.freed, ended);
    }
  }

 private:
  bool record(stream_use& use) noexcept {
    if (calls_.captures_nothing(use.queue->stream)) use.done = calls_.record(use.queue->stream);
    return use.done != nullptr;
  }
  template <typename Ended>
  void end_first(std::list<stream_use>& freed, const Ended& ended) noexcept {
    const stream_use use = freed.front();
    freed.pop_front();
    if (use.done != nullptr) calls_.destroy(use.done);
    ended(use.block);
  }

  stream_calls& calls_;
  std::map<device_stream, stream_queue> queues_;
};
