/* Policies in a shared library that is not part of gpumem: GPUMEM_POLICY_LIBRARY=path loads it, and GPUMEM_POLICY
 * chooses one of its policies by name, in gpumem_bench, `gpumem run`, preloaded programs and frameworks alike.
 *
 * The library defines `gpumem_policies`, which returns a table of C functions. A policy sees byte counts and answers
 * with byte counts (gpumem/policy.hpp). It serves one pool, which calls it one thread at a time, with a lock of
 * gpumem's held: no function may allocate device memory or wait for a thread that does, and none may throw or longjmp.
 * examples/policy_library.c is a whole one. */
#ifndef GPUMEM_POLICY_LIBRARY_H
#define GPUMEM_POLICY_LIBRARY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What this header describes. A library built for another version is refused. */
#define GPUMEM_POLICY_LIBRARY_VERSION 1u

/* What a policy may know of the device when it is made. */
typedef struct gpumem_policy_device {
  uint64_t total_bytes;
  uint64_t free_at_start_bytes;
  uint64_t granularity_bytes; /* segments are rounded up to this */
  int compute_major;
} gpumem_policy_device;

/* What the pool tells with each question. */
typedef struct gpumem_policy_view {
  uint64_t total_bytes; /* of the device */
  uint64_t free_at_start_bytes;
  uint64_t limit_bytes;     /* what the pool may hold at most */
  uint64_t reserved_bytes;  /* what it holds */
  uint64_t live_bytes;      /* what of that the program holds */
  uint64_t peak_live_bytes; /* the most that it held so far */
  uint64_t granularity_bytes;
} gpumem_policy_view;

/* `bytes` are wanted; anything from `least_bytes` on is taken where the limit or the device has no more. */
typedef struct gpumem_policy_segment {
  uint64_t bytes;
  uint64_t least_bytes;
} gpumem_policy_segment;

/* One policy. `self` is what `open` returned. A function marked optional may be null: the default then serves. */
typedef struct gpumem_policy_functions {
  const char* name;    /* letters, digits, _ - and . */
  const char* summary; /* one line */

  /* Makes the policy of one pool; once, when the library is loaded, of none, with a device of zeros. `parameters` is
   * what stands behind `name:`, as in `name:share=25%,exact`, or empty. Returns null to refuse, with the reason in
   * `why`, at most `why_bytes` with the final null byte. */
  void* (*open)(const gpumem_policy_device* device, const char* parameters, char* why, size_t why_bytes);
  void (*close)(void* self);

  /* A request of `need_bytes` fits nowhere in the pool. `least_bytes` below the need is taken as the need, and more
   * than the limit leaves as what it leaves. */
  gpumem_policy_segment (*grow)(void* self, const gpumem_policy_view* view, uint64_t need_bytes);

  /* Optional: what is taken when the pool serves its first request. Default: nothing. */
  gpumem_policy_segment (*first)(void* self, const gpumem_policy_view* view);
  /* Optional: the pool grew by `bytes`, what it got and not what was asked. */
  void (*grew)(void* self, const gpumem_policy_view* view, uint64_t bytes);
  /* Optional: the device refused `refused_bytes`; the next size to try, or 0 to stop. An answer that is not smaller
   * stops, one below `least_bytes` is taken as that. Default: nine tenths. */
  uint64_t (*smaller)(void* self, uint64_t refused_bytes, uint64_t least_bytes);
  /* Optional: other than 0 where idle segments may go back; `pressure` is 1 where a request would fail otherwise, 0
   * where the program asked. Default: only where it asked. */
  int (*gives_back)(void* self, const gpumem_policy_view* view, int pressure);
  /* Optional: requests of one class never share a segment with those of another; below `segment_classes`, which is 1 to
   * 16 (0 is taken as 1). An answer out of range is taken as class 0. */
  unsigned segment_classes;
  unsigned (*segment_class)(void* self, uint64_t bytes);
} gpumem_policy_functions;

typedef struct gpumem_policy_library {
  uint32_t version;        /* GPUMEM_POLICY_LIBRARY_VERSION */
  uint32_t function_bytes; /* sizeof(gpumem_policy_functions) */
  size_t count;            /* of policies, at least 1 */
  const gpumem_policy_functions* policies;
} gpumem_policy_library;

/* The one symbol of the library, looked up by this name. The table lives as long as the process. */
const gpumem_policy_library* gpumem_policies(void);

#ifdef __cplusplus
}
#endif
#endif /* GPUMEM_POLICY_LIBRARY_H */
