/// The C library's own functions, which interposed.cpp hides.
#pragma once

#include <pthread.h>

#include <ctime>

namespace gpumem::schedules {

struct passed_calls {
  int (*mutex_lock)(pthread_mutex_t*);
  int (*mutex_trylock)(pthread_mutex_t*);
  int (*mutex_unlock)(pthread_mutex_t*);
  int (*cond_wait)(pthread_cond_t*, pthread_mutex_t*);
  int (*cond_timedwait)(pthread_cond_t*, pthread_mutex_t*, const timespec*);
  int (*cond_clockwait)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const timespec*);
  int (*cond_signal)(pthread_cond_t*);
  int (*cond_broadcast)(pthread_cond_t*);
  long (*syscall)(long, ...);
  int (*clock_gettime)(clockid_t, timespec*);
  int (*sched_yield)();
  int (*nanosleep)(const timespec*, timespec*);
  int (*clock_nanosleep)(clockid_t, int, const timespec*, timespec*);
};
const passed_calls& passed() noexcept;

}  // namespace gpumem::schedules
