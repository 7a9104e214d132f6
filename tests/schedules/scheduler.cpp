#include "scheduler.hpp"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

#include "passed_calls.hpp"
#include "throwing/host_memory.hpp"

namespace gpumem::schedules {

/// The turn of one thread. Orders writes of the thread that passes it on before reads of the thread that gets it.
struct scheduler::baton {
  std::atomic<std::uint32_t> given{0};

  void give() noexcept {
    given.store(1, std::memory_order_release);
    passed().syscall(SYS_futex, &given, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  }
  void take() noexcept {
    while (given.exchange(0, std::memory_order_acquire) == 0) {
      passed().syscall(SYS_futex, &given, FUTEX_WAIT_PRIVATE, 0, nullptr, nullptr, 0);
    }
  }
};

/// A thread of the operating system that runs one thread of a schedule after another.
class worker {
 public:
  explicit worker(scheduler& owner) : owner_{owner} {
    pthread_attr_t how;
    ::pthread_attr_init(&how);
    ::pthread_attr_setstacksize(&how, stack_bytes);
    ::pthread_create(&thread_, &how, &worker::serve, this);
    ::pthread_attr_destroy(&how);
  }
  void begin(scheduler::body task) { body_ = std::move(task); }
  /// Ends the worker. Requires that it waits for a schedule.
  void dismiss() {
    body_ = {};
    turn.give();
    join();
  }
  void join() { ::pthread_join(thread_, nullptr); }

  scheduler::baton turn;
  static constinit thread_local worker* mine;
  static constinit thread_local int quiet;
  scheduler& owner_;

 private:
  static constexpr std::size_t stack_bytes = std::size_t{512} << 10;

  /// Made first in its thread, and so destroyed after every other thread-local object.
  struct last_object {
    last_object() = default;
    last_object(const last_object&) = delete;
    last_object& operator=(const last_object&) = delete;
    ~last_object() {
      if (worker* const server = worker::mine; server != nullptr && server->body_.ends) server->owner_.finish();
    }
  };

  static void* serve(void* argument) {
    static thread_local last_object last;
    static_cast<void>(&last);
    auto* const server = static_cast<worker*>(argument);
    for (;;) {
      server->turn.take();
      if (!server->body_.run) return nullptr;
      mine = server;
      server->body_.run();
      if (server->body_.ends) return nullptr;
      mine = nullptr;
      server->owner_.finish();
    }
  }

  scheduler::body body_;
  pthread_t thread_{};
};

constinit thread_local worker* worker::mine = nullptr;
constinit thread_local int worker::quiet = 0;

scheduler::scheduler() : done_{std::make_unique<baton>()} {}

scheduler::~scheduler() {
  for (const std::unique_ptr<worker>& each : workers_) {
    if (each != nullptr) each->dismiss();
  }
}

scheduler* scheduler::current() noexcept {
  worker* const server = worker::mine;
  return server != nullptr && worker::quiet == 0 ? &server->owner_ : nullptr;
}

scheduler* scheduler::from_thread() noexcept {
  worker* const server = worker::mine;
  return server != nullptr ? &server->owner_ : nullptr;
}

scheduler::quiet_section::quiet_section() noexcept { ++worker::quiet; }
scheduler::quiet_section::~quiet_section() { --worker::quiet; }

scheduler::loud_section::loud_section() noexcept : before_{std::exchange(worker::quiet, 0)} {}
scheduler::loud_section::~loud_section() { worker::quiet = before_; }

std::uint64_t scheduler::excused_ns() const noexcept { return threads_[running_].excused_ns; }

worker& scheduler::worker_at(std::size_t index) {
  if (workers_.size() <= index) workers_.resize(index + 1);
  if (workers_[index] == nullptr) workers_[index] = std::make_unique<worker>(*this);
  return *workers_[index];
}

run_record scheduler::run(std::span<const body> bodies, chooser& decides, const limits& most) {
  threads_.assign(bodies.size(), {});
  at_work_.clear();
  decides_ = &decides;
  most_ = most;
  record_ = {};
  now_ns_ = most.begin_ns;
  unfinished_ = bodies.size();
  for (const body& task : bodies) {
    at_work_.push_back(&worker_at(most.first_worker + at_work_.size()));
    at_work_.back()->begin(task);
  }
  running_ = 0;  // the first point of thread 0 is the first decision
  at_work_[running_]->turn.give();
  done_->take();
  if (record_.outcome != ending::finished) {
    // No thread may end, because its caches would go back to an allocator that is in the middle of a call.
    for (std::unique_ptr<worker>& each : workers_) static_cast<void>(each.release());
    return std::move(record_);
  }
  for (std::size_t i = 0; i < bodies.size(); ++i) {
    if (!bodies[i].ends) continue;
    std::unique_ptr<worker>& each = workers_[most.first_worker + i];
    each->join();
    each = nullptr;
  }
  return std::move(record_);
}

void scheduler::begin_operation(std::uint32_t operation) {
  threads_[running_].operation = operation;
  threads_[running_].point = 0;
  decide(false);
}

void scheduler::point() { decide(false); }
void scheduler::yield() { decide(true); }

// Chooses the thread that continues. Returns when the calling thread continues.
void scheduler::decide(bool prefers_another) {
  if (++record_.points > most_.points) return stop(ending::endless);
  const host_memory::unwatched uncounted;
  thread_state& mine = threads_[running_];
  do {
    runnable_.clear();
    for (std::uint32_t i = 0; i < threads_.size(); ++i) {
      if (threads_[i].current == thread_state::stage::runnable) runnable_.push_back(i);
    }
    if (runnable_.empty() && !pass_to_next_deadline()) return stop(ending::hung);
  } while (runnable_.empty());
  const position place{.thread = static_cast<std::uint32_t>(running_),
                       .operation = mine.operation,
                       .point = mine.point++,
                       .can_go_on = mine.current == thread_state::stage::runnable,
                       .yields = prefers_another};
  const std::uint32_t next = runnable_.size() == 1 ? runnable_.front() : decides_->choose(place, runnable_);
  if (next != chooser::usual(place, runnable_))
    record_.turns.push_back({place.thread, place.operation, place.point, next});
  if (next != running_) give_turn(next);
}

void scheduler::give_turn(std::size_t thread) {
  worker& mine = *at_work_[running_];
  const bool returns = threads_[running_].current != thread_state::stage::finished;
  running_ = thread;
  at_work_[thread]->turn.give();
  if (returns) mine.turn.take();
}

// The schedule has failed: its threads stay where they are.
void scheduler::stop(ending outcome) {
  record_.outcome = outcome;
  for (std::size_t i = 0; i < threads_.size(); ++i) {
    const thread_state& each = threads_[i];
    if (each.current == thread_state::stage::finished) continue;
    const bool waits = each.current == thread_state::stage::waiting;
    record_.stand += "\n  thread " + std::to_string(i) + " in operation #" + std::to_string(each.operation) +
                     (waits ? " waits for: " : " could run");
    if (waits) record_.stand += each.where;
  }
  done_->give();
  baton for_ever;
  for (;;) for_ever.take();
}

bool scheduler::wait(std::string_view where, const void* object, std::uint64_t deadline_ns) {
  thread_state& mine = threads_[running_];
  mine.current = thread_state::stage::waiting;
  mine.where = where;
  mine.object = object;
  mine.deadline_ns = deadline_ns;
  mine.ticket = next_ticket_++;
  mine.woken = false;
  if (deadline_ns <= now_ns_) mine.current = thread_state::stage::runnable;
  decide(false);
  return mine.woken;
}

void scheduler::wake(const void* object, std::size_t most) {
  for (; most != 0; --most) {
    thread_state* first = nullptr;
    for (thread_state& each : threads_) {
      if (each.current != thread_state::stage::waiting || each.object != object) continue;
      if (first == nullptr || each.ticket < first->ticket) first = &each;
    }
    if (first == nullptr) return;
    first->current = thread_state::stage::runnable;
    first->woken = true;
  }
}

void scheduler::sleep_until(std::uint64_t ns) { static_cast<void>(wait("sleep", nullptr, ns)); }

void scheduler::pass(std::uint64_t ns) {
  const std::uint64_t until = now_ns_ + ns;
  for (thread_state& each : threads_) {
    const bool waits_for_time = each.current == thread_state::stage::waiting && each.deadline_ns != no_deadline;
    each.excused_ns += until - std::min(until, std::max(now_ns_, waits_for_time ? each.deadline_ns : 0));
  }
  advance_to(until);
}

bool scheduler::pass_to_next_deadline() {
  std::uint64_t next = no_deadline;
  for (const thread_state& each : threads_) {
    if (each.current == thread_state::stage::waiting) next = std::min(next, each.deadline_ns);
  }
  if (next == no_deadline) return false;
  advance_to(std::max(next, now_ns_));
  return true;
}

void scheduler::advance_to(std::uint64_t ns) {
  now_ns_ = ns;
  for (thread_state& each : threads_) {
    if (each.current == thread_state::stage::waiting && each.deadline_ns <= ns)
      each.current = thread_state::stage::runnable;
  }
  const quiet_section quiet;
  if (on_time) on_time(ns);
}

void scheduler::finish() {
  thread_state& state = threads_[running_];
  state.current = thread_state::stage::finished;
  worker::mine = nullptr;
  if (--unfinished_ == 0) return done_->give();
  decide(false);
}

}  // namespace gpumem::schedules
