// Which streams capture, as far as the program or the device has told, and what became of the graphs.
//
// The program may tell (`capture_begin`, `capture_end`, `graph_release`). A device that reports captures is asked
// besides, under `query` at each allocation: then nobody has to tell. Either way the graph itself is watched from the
// first allocation inside the capture on, so that its blocks come back when it is destroyed. The driver says so from
// a thread of its own, where nothing may be called: it leaves a token, and the next allocation reads it.
// One lock, never held across a call into a pool or the device.
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
    const device* on = nullptr;  ///< null where the program told, which names no device
    stream_ref stream;
    std::uint64_t capture = 0;  ///< the device's id of it; 0 where the program told
    std::uint64_t token = 0;
    bool watched = false;
    bool blocking = false;  ///< noticed on a blocking stream of the device's own context
    /// Where it began, and the stream's key there: its end asks nobody, since the handle may be dead or another's by
    /// then.
    std::vector<std::pair<pool*, std::uint64_t>> in;
  };

  [[nodiscard]] bool any_open() const noexcept { return open_count_.load(std::memory_order_relaxed) != 0; }
  /// True while any stream is known to capture, or a graph is known to be gone.
  [[nodiscard]] bool busy() const noexcept { return any_open() || mail_->any(); }

  void began(const device* on, stream_ref s, std::uint64_t capture, bool blocking,
             const std::vector<std::pair<pool*, std::uint64_t>>& in);
  [[nodiscard]] std::optional<entry> find(stream_ref s) const;
  /// True until that one has ended.
  [[nodiscard]] bool is_open(std::uint64_t token) const;
  /// Those that were noticed on that device.
  [[nodiscard]] std::vector<entry> noticed_on(const device& on) const;
  /// The capture ended and left this graph.
  void ended(stream_ref s, graph_ref left) noexcept;
  void released(graph_ref g);

  /// What to hand to `device::watch_graph`; `set_watched` once that has succeeded.
  [[nodiscard]] std::function<void()> on_gone(std::uint64_t token);
  void set_watched(stream_ref s);

  /// The graphs that are gone, for `graph_release`, and the streams whose capture must have ended with them.
  struct gone {
    std::vector<graph_ref> graphs;
    std::vector<entry> still_open;
    std::size_t tokens = 0;
  };
  [[nodiscard]] gone find_gone() const;
  /// What was found is dealt with; until then it is found again.
  void forget_gone(const gone& found) noexcept { mail_->forget(found.tokens); }

 private:
  class mailbox {
   public:
    /// One more will come; it needs no memory then, since it comes where nobody could be told that there is none.
    void expect_one();
    void put(std::uint64_t token) noexcept;
    [[nodiscard]] std::vector<std::uint64_t> all() const;
    /// The oldest ones.
    void forget(std::size_t tokens) noexcept;
    [[nodiscard]] bool any() const noexcept { return any_.load(std::memory_order_acquire); }

   private:
    mutable checked_mutex mutex_;
    std::vector<std::uint64_t> tokens_ GPUMEM_GUARDED_BY(mutex_);
    std::size_t expected_ GPUMEM_GUARDED_BY(mutex_) = 0;  // in all that may still come, and those that came
    std::atomic<bool> any_{false};
  };
  struct left_graph {
    std::uint64_t token;
    graph_ref graph;
  };

  std::shared_ptr<mailbox> mail_ = std::make_shared<mailbox>();  // the driver may write when the allocator is gone
  mutable checked_mutex mutex_;
  std::vector<entry> open_ GPUMEM_GUARDED_BY(mutex_);  // seldom more than one
  std::vector<left_graph> left_ GPUMEM_GUARDED_BY(mutex_);
  std::uint64_t next_token_ GPUMEM_GUARDED_BY(mutex_) = 1;
  std::atomic<std::size_t> open_count_{0};
};

}  // namespace gpumem
