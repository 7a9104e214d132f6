// The known captures, and the graphs that they left.
//
// The program may announce captures (`capture_begin`, `capture_end`, `graph_release`). Under `query`, gpumem also asks
// a device that reports captures at each allocation, so that the program need not. In both cases gpumem watches the
// graph from the first allocation inside the capture on, so that its blocks come back when it is destroyed. The driver
// reports that on its own thread, which must not call anything: the callback stores a token, and the next allocation
// reads it. One lock, never held across a call into a pool or the device.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "checked_mutex.hpp"
#include "gpumem/allocator.hpp"

namespace gpumem {

class pool;

class capture_log {
 public:
  struct entry {
    const device* on = nullptr;  ///< null if the program announced it, which names no device
    stream_ref stream;
    std::uint64_t capture = 0;  ///< the device's id; 0 if the program announced it
    std::uint64_t token = 0;
    bool watched = false;
    bool blocking = false;  ///< noticed on a blocking stream of the device's own context
    /// The pools in which it began, with the stream's keys. Its end must not use the handle, which may be dead or
    /// reused by then.
    std::vector<std::pair<pool*, std::uint64_t>> in;
  };

  [[nodiscard]] bool any_open() const noexcept { return open_count_.load(std::memory_order_relaxed) != 0; }
  /// True while any stream is known to capture, or a graph is known to be gone.
  [[nodiscard]] bool busy() const noexcept { return any_open() || mail_->any(); }

  void began(const device* on, stream_ref s, std::uint64_t capture, bool blocking,
             const std::vector<std::pair<pool*, std::uint64_t>>& in);
  [[nodiscard]] std::optional<entry> find(stream_ref s) const;
  /// True until the capture with this token has ended.
  [[nodiscard]] bool is_open(std::uint64_t token) const;
  /// The open captures that gpumem noticed on this device.
  [[nodiscard]] std::vector<entry> noticed_on(const device& on) const;
  /// Notes that the capture of `s` ended and left this graph.
  void ended(stream_ref s, graph_ref left) noexcept;
  void released(graph_ref g);

  /// The callback for `device::watch_graph`. Call `set_watched` once that has succeeded.
  [[nodiscard]] std::function<void()> on_gone(std::uint64_t token);
  void set_watched(stream_ref s);

  /// Destroyed graphs, for `graph_release`, and captures that must have ended with them.
  struct gone {
    std::vector<graph_ref> graphs;
    std::vector<entry> still_open;
    std::size_t tokens = 0;
  };
  [[nodiscard]] gone find_gone() const;
  /// Removes what `find_gone` found, after it has been handled.
  void forget_gone(const gone& found) noexcept { mail_->forget(found.tokens); }

 private:
  class mailbox {
   public:
    /// Reserves memory for one more token, because `put` cannot report a failure.
    void expect_one();
    void put(std::uint64_t token) noexcept;
    [[nodiscard]] std::vector<std::uint64_t> all() const;
    /// Removes the oldest tokens.
    void forget(std::size_t tokens) noexcept;
    [[nodiscard]] bool any() const noexcept { return any_.load(std::memory_order_acquire); }

   private:
    mutable checked_mutex mutex_;
    std::vector<std::uint64_t> tokens_ GPUMEM_GUARDED_BY(mutex_);
    std::size_t expected_ GPUMEM_GUARDED_BY(mutex_) = 0;  // capacity reserved for tokens, received or not
    std::atomic<bool> any_{false};
  };
  struct left_graph {
    std::uint64_t token;
    graph_ref graph;
  };

  std::shared_ptr<mailbox> mail_ =
      std::make_shared<mailbox>();  // shared: the driver may write after the allocator is gone
  mutable checked_mutex mutex_;
  std::vector<entry> open_ GPUMEM_GUARDED_BY(mutex_);  // rarely more than one
  std::vector<left_graph> left_ GPUMEM_GUARDED_BY(mutex_);
  std::uint64_t next_token_ GPUMEM_GUARDED_BY(mutex_) = 1;
  std::atomic<std::size_t> open_count_{0};
};

}  // namespace gpumem
