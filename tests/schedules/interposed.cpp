// The C library's functions as the product calls them: points for the scheduler's threads, unchanged for others.
//
// The program defines these names, so its own calls and those of libstdc++ come here. Mutexes are locked in fact, so
// that both kinds of threads may share one. Condition variables, atomic waits (the futex system call) and sleeps of the
// scheduler's threads end by the scheduler alone.
#include <dlfcn.h>
#include <linux/futex.h>
#include <sys/syscall.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdint>

#include "passed_calls.hpp"
#include "scheduler.hpp"

namespace gpumem::schedules {
namespace {

constexpr std::uint64_t second_ns = 1'000'000'000;

template <typename Function>
void find(Function& function, const char* name) noexcept {
  function = reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

std::uint64_t to_ns(const timespec& time) noexcept {
  return static_cast<std::uint64_t>(time.tv_sec) * second_ns + static_cast<std::uint64_t>(time.tv_nsec);
}

timespec to_timespec(std::uint64_t ns) noexcept {
  return {.tv_sec = static_cast<time_t>(ns / second_ns), .tv_nsec = static_cast<long>(ns % second_ns)};
}

void lock(scheduler& schedule, pthread_mutex_t* mutex) {
  while (passed().mutex_trylock(mutex) == EBUSY) static_cast<void>(schedule.wait("mutex", mutex));
}

int unlock(scheduler& schedule, pthread_mutex_t* mutex) {
  const int done = passed().mutex_unlock(mutex);
  schedule.wake(mutex);
  return done;
}

int wait_for_condition(scheduler& schedule, pthread_cond_t* condition, pthread_mutex_t* mutex,
                       std::uint64_t deadline_ns) {
  schedule.point();
  unlock(schedule, mutex);
  const bool woken = schedule.wait("condition variable", condition, deadline_ns);
  lock(schedule, mutex);
  return woken ? 0 : ETIMEDOUT;
}

// Both clocks of the program are the scheduler's time.
std::uint64_t deadline_of(scheduler& schedule, bool is_absolute, const timespec* time) noexcept {
  if (time == nullptr) return no_deadline;
  return is_absolute ? to_ns(*time) : schedule.now() + to_ns(*time);
}

long wait_for_word(scheduler& schedule, std::uint32_t* word, std::uint32_t expected, std::uint64_t deadline_ns) {
  schedule.point();
  if (std::atomic_ref{*word}.load() != expected) {
    errno = EAGAIN;
    return -1;
  }
  if (schedule.wait("atomic wait", word, deadline_ns)) return 0;
  errno = ETIMEDOUT;
  return -1;
}

}  // namespace

const passed_calls& passed() noexcept {
  static const passed_calls all = [] {
    passed_calls real{};
    find(real.mutex_lock, "pthread_mutex_lock");
    find(real.mutex_trylock, "pthread_mutex_trylock");
    find(real.mutex_unlock, "pthread_mutex_unlock");
    find(real.cond_wait, "pthread_cond_wait");
    find(real.cond_timedwait, "pthread_cond_timedwait");
    find(real.cond_clockwait, "pthread_cond_clockwait");
    find(real.cond_signal, "pthread_cond_signal");
    find(real.cond_broadcast, "pthread_cond_broadcast");
    find(real.syscall, "syscall");
    find(real.clock_gettime, "clock_gettime");
    find(real.sched_yield, "sched_yield");
    find(real.nanosleep, "nanosleep");
    find(real.clock_nanosleep, "clock_nanosleep");
    return real;
  }();
  return all;
}

}  // namespace gpumem::schedules

using gpumem::schedules::deadline_of;
using gpumem::schedules::no_deadline;
using gpumem::schedules::passed;
using gpumem::schedules::scheduler;

extern "C" {

int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  scheduler* const schedule = scheduler::current();
  if (schedule == nullptr) return passed().mutex_lock(mutex);
  schedule->point();
  gpumem::schedules::lock(*schedule, mutex);
  return 0;
}

int pthread_mutex_trylock(pthread_mutex_t* mutex) noexcept {
  if (scheduler* const schedule = scheduler::current()) schedule->point();
  return passed().mutex_trylock(mutex);
}

int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  scheduler* const schedule = scheduler::current();
  if (schedule == nullptr) return passed().mutex_unlock(mutex);
  const int done = gpumem::schedules::unlock(*schedule, mutex);
  schedule->point();
  return done;
}

int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
  scheduler* const schedule = scheduler::current();
  return schedule == nullptr ? passed().cond_wait(condition, mutex)
                             : gpumem::schedules::wait_for_condition(*schedule, condition, mutex, no_deadline);
}

int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex, const timespec* deadline) {
  scheduler* const schedule = scheduler::current();
  if (schedule == nullptr) return passed().cond_timedwait(condition, mutex, deadline);
  return gpumem::schedules::wait_for_condition(*schedule, condition, mutex, deadline_of(*schedule, true, deadline));
}

int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const timespec* deadline) {
  scheduler* const schedule = scheduler::current();
  if (schedule == nullptr) return passed().cond_clockwait(condition, mutex, clock, deadline);
  return gpumem::schedules::wait_for_condition(*schedule, condition, mutex, deadline_of(*schedule, true, deadline));
}

int pthread_cond_signal(pthread_cond_t* condition) noexcept {
  scheduler* const schedule = scheduler::current();
  if (schedule != nullptr) {
    schedule->wake(condition, 1);
    schedule->point();
  }
  return passed().cond_signal(condition);
}

int pthread_cond_broadcast(pthread_cond_t* condition) noexcept {
  scheduler* const schedule = scheduler::current();
  if (schedule != nullptr) {
    schedule->wake(condition);
    schedule->point();
  }
  return passed().cond_broadcast(condition);
}

// std::atomic::wait and notify, and the barrier of all threads, which threads that run one at a time do not need.
long syscall(long number, ...) noexcept {
  std::va_list list;
  va_start(list, number);
  long arguments[6];
  for (long& each : arguments) each = va_arg(list, long);
  va_end(list);
  scheduler* const schedule = scheduler::current();
  if (schedule != nullptr && number == SYS_membarrier) return 0;
  if (schedule != nullptr && number == SYS_futex) {
    auto* const word = reinterpret_cast<std::uint32_t*>(arguments[0]);
    const long operation = arguments[1] & FUTEX_CMD_MASK;
    const auto* const time = reinterpret_cast<const timespec*>(arguments[3]);
    if (operation == FUTEX_WAIT || operation == FUTEX_WAIT_BITSET) {
      return gpumem::schedules::wait_for_word(*schedule, word, static_cast<std::uint32_t>(arguments[2]),
                                              deadline_of(*schedule, operation == FUTEX_WAIT_BITSET, time));
    }
    if (operation == FUTEX_WAKE || operation == FUTEX_WAKE_BITSET) {
      schedule->wake(word, static_cast<std::size_t>(arguments[2]));
      schedule->point();
      return 0;
    }
  }
  return passed().syscall(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
}

int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const scheduler* const schedule = scheduler::current();
  const bool is_time = clock != CLOCK_PROCESS_CPUTIME_ID && clock != CLOCK_THREAD_CPUTIME_ID;
  if (schedule == nullptr || !is_time) return passed().clock_gettime(clock, time);
  *time = gpumem::schedules::to_timespec(schedule->now());
  return 0;
}

int sched_yield() noexcept {
  scheduler* const schedule = scheduler::current();
  if (schedule == nullptr) return passed().sched_yield();
  schedule->yield();
  return 0;
}

int nanosleep(const timespec* how_long, timespec* rest) {
  scheduler* const schedule = scheduler::current();
  if (schedule == nullptr) return passed().nanosleep(how_long, rest);
  schedule->sleep_until(deadline_of(*schedule, false, how_long));
  return 0;
}

int clock_nanosleep(clockid_t clock, int flags, const timespec* time, timespec* rest) {
  scheduler* const schedule = scheduler::current();
  if (schedule == nullptr) return passed().clock_nanosleep(clock, flags, time, rest);
  schedule->sleep_until(deadline_of(*schedule, (flags & TIMER_ABSTIME) != 0, time));
  return 0;
}

}  // extern "C"
