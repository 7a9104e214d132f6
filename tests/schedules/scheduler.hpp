/// Runs the threads of a test one at a time, and decides at every point which thread continues.
///
/// A point is a call that other threads can notice: a lock, a condition variable, an atomic wait, a sleep, a device
/// call, a step of the test itself. interposed.cpp turns the C library's functions into points for the scheduler's own
/// threads, so that the product runs as it ships. Time is virtual: it passes when every thread waits, or when a thread
/// says so. One scheduler runs at a time in a process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "chooser.hpp"

namespace gpumem::schedules {

enum class ending : std::uint8_t {
  finished,
  hung,     ///< every thread waits, and no deadline is left
  endless,  ///< more points than `limits::points`
};

struct limits {
  std::uint64_t points = 30'000;
  std::uint64_t begin_ns = 0;    ///< the time at the start
  std::size_t first_worker = 0;  ///< body i runs in the operating system's thread number `first_worker` + i
};

/// The course of a schedule.
struct run_record {
  ending outcome = ending::finished;
  std::uint64_t points = 0;
  std::vector<turn> turns;  ///< every decision that a replay needs
  std::string stand{};      ///< where the unfinished threads are
};

inline constexpr std::uint64_t no_deadline = UINT64_MAX;

class worker;

class scheduler {
 public:
  scheduler();
  ~scheduler();
  scheduler(const scheduler&) = delete;
  scheduler& operator=(const scheduler&) = delete;

  /// A thread's program, and whether the thread ends with it: then its thread-local objects are destroyed under the
  /// scheduler too. Otherwise the thread serves further schedules.
  struct body {
    std::function<void()> run;
    bool ends = false;
  };
  /// Runs the bodies to their ends. After `hung` or `endless` the threads remain suspended for ever, so everything that
  /// they use must outlive them.
  run_record run(std::span<const body> bodies, chooser& decides, const limits& most = {});
  /// Called whenever the time has changed.
  std::function<void(std::uint64_t now_ns)> on_time;

  // --- the rest is called by the scheduler's own threads --------------------------------------------------------
  /// The calling thread's scheduler; null in other threads and inside `atomically`.
  static scheduler* current() noexcept;
  /// The same inside `atomically` too.
  static scheduler* from_thread() noexcept;
  /// Runs `call` without points. It must not wait for another thread.
  template <typename Call>
  static auto atomically(const Call& call) {
    const quiet_section quiet;
    return call();
  }

  /// Inside `atomically`, runs `call` with its points: a call of the product in a step of the test.
  template <typename Call>
  static auto with_points(const Call& call) {
    const loud_section loud;
    return call();
  }

  /// Another thread may go on here.
  void point();
  /// Like `point`, but prefers another thread.
  void yield();
  /// Waits until `wake` names the object. False if the deadline comes first.
  bool wait(std::string_view where, const void* object, std::uint64_t deadline_ns = no_deadline);
  void wake(const void* object, std::size_t most = SIZE_MAX);
  void sleep_until(std::uint64_t ns);
  /// Time passes while every other thread stands still.
  void pass(std::uint64_t ns);
  /// The operation that the calling thread begins, which names the points up to the next one.
  void begin_operation(std::uint32_t operation);

  [[nodiscard]] std::uint64_t now() const noexcept { return now_ns_; }
  /// The calling thread's number in `run`.
  [[nodiscard]] std::size_t thread() const noexcept { return running_; }
  /// The time that passed while the calling thread was runnable, for which its calls are not responsible.
  [[nodiscard]] std::uint64_t excused_ns() const noexcept;

 private:
  friend class worker;
  struct thread_state {
    enum class stage : std::uint8_t { runnable, waiting, finished };
    stage current = stage::runnable;
    const void* object = nullptr;
    std::string_view where{};
    std::uint64_t deadline_ns = no_deadline;
    std::uint64_t ticket = 0;  // the order in which threads began to wait
    bool woken = false;
    std::uint32_t operation = 0;
    std::uint32_t point = 0;
    std::uint64_t excused_ns = 0;
  };
  class quiet_section {
   public:
    quiet_section() noexcept;
    ~quiet_section();
    quiet_section(const quiet_section&) = delete;
    quiet_section& operator=(const quiet_section&) = delete;
  };

  class loud_section {
   public:
    loud_section() noexcept;
    ~loud_section();
    loud_section(const loud_section&) = delete;
    loud_section& operator=(const loud_section&) = delete;

   private:
    int before_;
  };

  void decide(bool prefers_another);
  void give_turn(std::size_t thread);
  void stop(ending outcome);
  bool pass_to_next_deadline();
  void advance_to(std::uint64_t ns);
  void finish();
  worker& worker_at(std::size_t index);

  std::vector<thread_state> threads_;
  std::vector<std::uint32_t> runnable_;
  std::vector<worker*> at_work_;
  std::vector<std::unique_ptr<worker>> workers_;
  chooser* decides_ = nullptr;
  limits most_;
  run_record record_;
  std::size_t running_ = 0;
  std::size_t unfinished_ = 0;
  std::uint64_t now_ns_ = 0;
  std::uint64_t next_ticket_ = 0;
  struct baton;
  std::unique_ptr<baton> done_;
};

}  // namespace gpumem::schedules
