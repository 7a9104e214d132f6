/* Policies in a shared library outside gpumem. GPUMEM_POLICY_LIBRARY=path loads it, and GPUMEM_POLICY chooses one of
 * its policies by name, in gpumem_bench, `gpumem run`, preloaded programs and frameworks.
 *
 * The library defines `gpumem_policies`, which returns a table of C functions. A policy receives byte counts and
 * answers with byte counts (gpumem/policy.hpp). One instance serves one pool, which calls it from one thread at a time,
 * holding a lock of gpumem. No function may allocate device memory, wait for a thread that does, throw or longjmp.
 * examples/policy_library.c is a complete library. */
#ifndef GPUMEM_POLICY_LIBRARY_H
#define GPUMEM_POLICY_LIBRARY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header. gpumem refuses a library built for another one. */
#define GPUMEM_POLICY_LIBRARY_VERSION 1u

/* The device of a policy, at its creation. */
typedef struct gpumem_policy_device {
  uint64_t total_bytes;
  uint64_t free_at_start_bytes;
  uint64_t granularity_bytes; /* segments are rounded up to this */
  int compute_major;
} gpumem_policy_device;

/* The state of the pool at each question. */
typedef struct gpumem_policy_view {
  uint64_t total_bytes; /* of the device */
  uint64_t free_at_start_bytes;
  uint64_t limit_bytes;     /* the most that the pool may hold */
  uint64_t reserved_bytes;  /* held by the pool */
  uint64_t live_bytes;      /* the part of it that the program holds */
  uint64_t peak_live_bytes; /* the highest live_bytes so far */
  uint64_t granularity_bytes;
} gpumem_policy_view;

/* Asks for `bytes`. If the limit or the device has less, the pool takes any amount from `least_bytes` on. */
typedef struct gpumem_policy_segment {
  uint64_t bytes;
  uint64_t least_bytes;
} gpumem_policy_segment;

/* One policy. `self` is the result of `open`. Optional functions may be null; the default then applies. */
typedef struct gpumem_policy_functions {
  const char* name;    /* letters, digits, _ - and . */
  const char* summary; /* one line */

  /* Creates the policy of one pool. Also called once at loading, without a pool, with a device of zeros. `parameters`
   * is the text after `name:`, as in `name:share=25%,exact`, or empty. Returns null to refuse, with the reason in
   * `why`, of at most `why_bytes` with the final null byte. */
  void* (*open)(const gpumem_policy_device* device, const char* parameters, char* why, size_t why_bytes);
  void (*close)(void* self);

  /* The segment to take when a request of `need_bytes` fits nowhere in the pool. gpumem raises `least_bytes` to the
   * need and cuts `bytes` to what the limit leaves. */
  gpumem_policy_segment (*grow)(void* self, const gpumem_policy_view* view, uint64_t need_bytes);

  /* Optional: the segment to take before the pool serves its first request. Default: none. */
  gpumem_policy_segment (*first)(void* self, const gpumem_policy_view* view);
  /* Optional: called after the pool grew by `bytes`, which may be less than it asked for. */
  void (*grew)(void* self, const gpumem_policy_view* view, uint64_t bytes);
  /* Optional: the next size to try after the device refused `refused_bytes`, or 0 to stop. An answer that is not
   * smaller stops as well; gpumem raises it to `least_bytes`. Default: nine tenths. */
  uint64_t (*smaller)(void* self, uint64_t refused_bytes, uint64_t least_bytes);
  /* Optional: nonzero if idle segments may go back. `pressure` is 1 if a request would fail otherwise, 0 if the program
   * called trim or lowered the limit. Default: only if `pressure` is 0. */
  int (*gives_back)(void* self, const gpumem_policy_view* view, int pressure);
  /* Optional: the class of a request. Requests of different classes never share a segment. `segment_classes` is 1 to 16
   * (0 counts as 1); a class that is not below it counts as 0. */
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
