/* What gpumem is compared with, behind one C interface: CUB's caching allocator, cudaMalloc, cudaMallocAsync.
 *
 * The plug-in is built twice from one source: over the CUDA runtime, for a real GPU, and over the double of the
 * runtime, for a simulated one. gpumem_bench loads the one that fits its device. Functions return a cudaError_t, 0 for
 * success; 2 is out of memory. One device a process; a thread that calls `allocate` or `release` has called
 * `set_device` or `open`. Only "cub", "cub_default" and "cuda_malloc_async" take several threads at once. */
#ifndef GPUMEM_BENCH_BASELINE_H
#define GPUMEM_BENCH_BASELINE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gpumem_baseline gpumem_baseline;

typedef struct gpumem_baseline_api {
  /* "cub", "cub_default", "cuda_malloc" or "cuda_malloc_async"; null where the name is unknown or the device is not. */
  gpumem_baseline* (*open)(const char* kind, int device);
  void (*close)(gpumem_baseline* of);
  int (*allocate)(gpumem_baseline* of, void** p, size_t bytes, void* stream);
  int (*release)(gpumem_baseline* of, void* p, void* stream);
  /* Taken from the device by the baseline itself, now. */
  uint64_t (*reserved_bytes)(gpumem_baseline* of);

  int (*set_device)(int device);
  int (*stream_create)(void** stream);
  int (*stream_destroy)(void* stream);
  int (*synchronize)(void);
  /* `second` runs behind what `first` was given so far. */
  int (*order)(void* first, void* second);
  /* The runtime calls that one allocate and free of a cached block consist of, and nothing of the allocator; -1 where
     the baseline caches nothing. */
  int (*runtime_calls_of_a_pair)(gpumem_baseline* of, void* stream);
  /* Work on a stream that writes some bytes of a block. */
  int (*touch)(void* p, size_t bytes, void* stream);
  /* Forgets everything on the device. */
  int (*reset)(void);
  const char* (*error_text)(int error);
} gpumem_baseline_api;

/* The plug-in's one exported function. */
const gpumem_baseline_api* gpumem_baselines(void);

#ifdef __cplusplus
}
#endif

#endif
