/* The C interface: stream-ordered device memory from gpumem, for C and languages that can call C.
 *
 * Every function returns a code; `gpumem_last_message` explains a failure, with figures. No function throws, and all
 * may be called from any thread. A stream is a cudaStream_t or CUstream passed as a pointer; null is the default
 * stream. Sizes are bytes. Devices are logical ordinals: one per GPU, or those that GPUMEM_POOLS names.
 *
 * Every function reports misuse by the same codes: GPUMEM_INVALID_ARGUMENT for a null argument that is required,
 * GPUMEM_WRONG_DEVICE for a device that does not exist, GPUMEM_UNKNOWN_POINTER for a null pointer or one outside every
 * block, GPUMEM_DEVICE_ERROR for a stream that the device does not know. A free on a destroyed stream is no misuse if
 * the block's pool allocated for it or freed on it before, and was not told of its end (`gpumem_stream_release`).
 *
 *   gpumem_allocator* memory;
 *   void* block;
 *   if (gpumem_default(&memory) || gpumem_allocate(memory, 1 << 20, 0, stream, &block)) puts(gpumem_last_message());
 */
#ifndef GPUMEM_GPUMEM_H
#define GPUMEM_GPUMEM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __GNUC__
#pragma GCC visibility push(default) /* exported by libgpumem.so */
#endif
#ifdef __cplusplus
extern "C" {
#endif

typedef enum gpumem_code {
  GPUMEM_OK = 0,
  GPUMEM_INVALID_ARGUMENT = 1, /* zero bytes, a bad alignment, a required argument that is null */
  GPUMEM_BAD_SETTING = 2,      /* a GPUMEM_* value or combination that cannot be used */
  GPUMEM_OUT_OF_MEMORY = 3,    /* the message is the whole report */
  GPUMEM_UNKNOWN_POINTER = 4,  /* not a block of this allocator */
  GPUMEM_DOUBLE_FREE = 5,      /* a block that is already free */
  GPUMEM_WRONG_SIZE = 6,       /* a free that states another size than the allocation */
  GPUMEM_WRONG_DEVICE = 7,     /* a device that does not exist or is not the block's */
  GPUMEM_UNSUPPORTED = 8,      /* the device cannot do this, or not now (a capture) */
  GPUMEM_DEVICE_ERROR = 9,     /* the driver reported an error */
  GPUMEM_CORRUPT = 10,         /* a damaged file, or an invariant that does not hold */
  GPUMEM_POLICY_FAILED = 11,   /* a function of the policy threw */
  GPUMEM_HOST_FAILURE = 100    /* the host has no memory left for the call itself */
} gpumem_code;

/* The code's name in small letters (`out_of_memory`), or `unknown code`. Never null. */
const char* gpumem_code_name(gpumem_code code);
/* The message of this thread's latest failed call, empty before one. Valid until the thread's next failed call. */
const char* gpumem_last_message(void);

/* --- opening --------------------------------------------------------------------------------------------------- */

typedef struct gpumem_allocator gpumem_allocator;

/* The process's allocator: every visible GPU, settings from GPUMEM_*. The first call opens it; all return the same. */
gpumem_code gpumem_default(gpumem_allocator** allocator);
/* Sets an option of the process's allocator, unless GPUMEM_* of the environment sets it. A null `value` takes that
 * back. Has no effect once that allocator is open. */
gpumem_code gpumem_set_default(const char* name, const char* value);
/* Opens another allocator over every visible GPU. `settings` is null or a list of `name=value` pairs separated by
 * spaces (`policy=hard_cap limit=2GiB pools=1GiB,1GiB`); GPUMEM_* of the environment win over them. On failure
 * `*allocator` is null. */
gpumem_code gpumem_open(const char* settings, gpumem_allocator** allocator);
/* The same over `devices` simulated GPUs of `bytes` each, for tests. If `host_memory` is not 0, the blocks are real
 * host memory that the program may read and write; otherwise their addresses have no memory. */
gpumem_code gpumem_open_simulated(uint64_t bytes, int devices, int host_memory, const char* settings,
                                  gpumem_allocator** allocator);
/* A stream of the simulated GPU behind a logical device; GPUMEM_UNSUPPORTED on a real one. */
gpumem_code gpumem_simulated_stream(gpumem_allocator* memory, int device, void** stream);
/* Checks one `name=value` pair; the message of GPUMEM_BAD_SETTING says what is wrong. Errors that depend on the GPU,
 * such as a limit above its memory, are reported only at opening. */
gpumem_code gpumem_check_setting(const char* name, const char* value);
/* Checks every GPUMEM_* of the environment, and that the policy exists. */
gpumem_code gpumem_check_environment(void);
/* Closes the allocator and returns all its memory. Requires that no other thread uses it. Does nothing for null, and
 * refuses the process's own allocator. */
gpumem_code gpumem_close(gpumem_allocator* memory);

/* --- memory ---------------------------------------------------------------------------------------------------- */

/* Allocates `bytes` for work on `stream`, at a multiple of 512. On failure `*block` is null. */
gpumem_code gpumem_allocate(gpumem_allocator* memory, size_t bytes, int device, void* stream, void** block);
/* The same at a multiple of `alignment`, a power of two. */
gpumem_code gpumem_allocate_aligned(gpumem_allocator* memory, size_t bytes, size_t alignment, int device, void* stream,
                                    void** block);
/* Frees the block in the order of the stream that it was allocated for. Does nothing for null. */
gpumem_code gpumem_free(gpumem_allocator* memory, void* block);
/* Frees the block in the order of `stream`, which must be ordered behind all work that uses the block. */
gpumem_code gpumem_free_on(gpumem_allocator* memory, void* block, void* stream);
/* States that work on `stream` also uses the block. After its free, the block is reusable only when that work is done.
 * The stream must not be destroyed before the block is freed. */
gpumem_code gpumem_record_use(gpumem_allocator* memory, void* block, void* stream);

typedef struct gpumem_block {
  size_t struct_bytes; /* in: sizeof(gpumem_block), as this program knows it */
  void* begin;
  uint64_t bytes; /* the block, a multiple of 512 */
  uint64_t requested_bytes;
  void* segment_begin; /* the segment that contains the block */
  uint64_t segment_bytes;
  int device; /* logical */
} gpumem_block;
/* The block that `inside` points into. */
gpumem_code gpumem_describe(gpumem_allocator* memory, const void* inside, gpumem_block* info);

/* --- streams and captures -------------------------------------------------------------------------------------- */

/* States that `stream` is about to be destroyed. Required if GPUMEM_STREAM_IDS is `notify`. */
gpumem_code gpumem_stream_release(gpumem_allocator* memory, void* stream);
/* Call these around a capture of `stream`; the graph owns the blocks that `stream` allocates in between. If the driver
 * reports captures, gpumem notices them by itself at the stream's first allocation; call `gpumem_capture_begin` to
 * announce one before that. */
gpumem_code gpumem_capture_begin(gpumem_allocator* memory, void* stream);
gpumem_code gpumem_capture_end(gpumem_allocator* memory, void* stream, uint64_t* graph);
/* Checks whether captures that gpumem noticed on this GPU (the driver's ordinal) have ended. Their streams must still
 * exist. Needed for non-blocking streams that allocate nothing after their capture. */
gpumem_code gpumem_captures_ended(gpumem_allocator* memory, int physical_device);
/* States that the graph will not run again. */
gpumem_code gpumem_graph_release(gpumem_allocator* memory, uint64_t graph);

/* --- how much -------------------------------------------------------------------------------------------------- */

/* Returns wholly idle segments to the device until `bytes` are returned (UINT64_MAX: all). `returned` may be null. */
gpumem_code gpumem_trim(gpumem_allocator* memory, int device, uint64_t bytes, uint64_t* returned);
/* Sets the limit at once: the pool takes no memory beyond it, and returns as much of an excess as it can. `over_bytes`,
 * which may be null, gets the bytes still held beyond the limit. */
gpumem_code gpumem_set_limit(gpumem_allocator* memory, int device, uint64_t bytes, uint64_t* over_bytes);

/* Reserved = live + thread_cached + cached + fenced + idle + leaked. Later versions add fields at the end; a program
 * gets the fields that fit `struct_bytes`. gpumem/statistics.hpp describes each field. */
typedef struct gpumem_stats {
  size_t struct_bytes; /* in: sizeof(gpumem_stats), as this program knows it */
  uint64_t reserved_bytes;
  uint64_t live_bytes;
  uint64_t thread_cached_bytes;
  uint64_t cached_bytes;
  uint64_t fenced_bytes;
  uint64_t idle_bytes;
  uint64_t leaked_bytes;
  uint64_t requested_bytes;
  uint64_t peak_live_bytes;
  uint64_t peak_reserved_bytes;
  uint64_t limit_bytes;
  uint64_t largest_free_bytes;
  uint64_t asked_at_start_bytes;
  uint64_t got_at_start_bytes;
  uint64_t metadata_bytes;
  uint64_t live_blocks;
  uint64_t free_blocks;
  uint64_t peak_blocks;
  uint64_t segments;
  uint64_t streams;
  uint64_t allocations;
  uint64_t frees;
  uint64_t misuses;
  uint64_t out_of_memory;
  uint64_t grown_segments;
  uint64_t returned_segments;
  uint64_t fences;
  uint64_t host_waits;
  uint64_t device_waits;
  uint64_t locks;
  uint64_t mapped_pages;
  uint64_t remapped_pages;
  uint64_t returned_pages;
  uint64_t plan_placements;
  uint64_t plan_departures;
  uint64_t taken_bytes;
} gpumem_stats;
gpumem_code gpumem_get_stats(gpumem_allocator* memory, int device, gpumem_stats* stats);

/* Registers a callback for the allocator's life. gpumem calls it before a request fails. It frees memory and returns
 * nonzero to retry the request, or returns 0. */
typedef int (*gpumem_oom_callback)(void* user, int device, uint64_t needed_bytes);
gpumem_code gpumem_on_out_of_memory(gpumem_allocator* memory, gpumem_oom_callback callback, void* user);

/* Verifies every invariant of a pool; on GPUMEM_CORRUPT the message names the violated one. Slow. */
gpumem_code gpumem_check(gpumem_allocator* memory, int device);
/* Writes the recorded part of GPUMEM_TRACE to its file. */
gpumem_code gpumem_flush_trace(gpumem_allocator* memory);

/* --- logical devices ------------------------------------------------------------------------------------------- */

typedef struct gpumem_device {
  size_t struct_bytes;  /* in: sizeof(gpumem_device), as this program knows it */
  int ordinal;          /* logical */
  int physical_ordinal; /* of the GPU, among those that the driver shows */
  char name[64];        /* of the pool: its name in GPUMEM_POOLS, else its ordinal; truncated if longer */
  char policy[64];
  uint64_t total_bytes; /* the most memory that this logical device may hold */
  char gpu_name[128];
  char gpu_uuid[64];
  uint64_t gpu_total_bytes;
  int compute_major;
  int compute_minor;
  int simulated; /* 1 for a simulated GPU */
} gpumem_device;
/* `*count` is 0 on failure. */
gpumem_code gpumem_device_count(gpumem_allocator* memory, int* count);
gpumem_code gpumem_device_properties(gpumem_allocator* memory, int device, gpumem_device* properties);

/* --- a library in place of the CUDA driver --------------------------------------------------------------------- */

/* The library that gpumem loads as the CUDA driver (GPUMEM_CUDA_DRIVER) may define the two functions below; gpumem
 * calls those that it exports, from any thread. libgpumem.so defines neither. They must not call gpumem. Pointers are
 * valid during the call only, but for names of functions, which stay valid. */

typedef enum gpumem_refusal_cause {
  GPUMEM_REFUSED_UNKNOWN = 0,
  GPUMEM_REFUSED_LIMIT = 1,         /* the limit of the pool, the process, its group or its job */
  GPUMEM_REFUSED_DEVICE_FULL = 2,   /* the device has less than is needed */
  GPUMEM_REFUSED_FRAGMENTATION = 3, /* enough is free, but not in one piece */
  GPUMEM_REFUSED_PENDING_WORK = 4,  /* memory that fits waits for work */
  GPUMEM_REFUSED_DRIVER_ERROR = 5   /* a driver call failed for another reason */
} gpumem_refusal_cause;

typedef struct gpumem_refusal {
  size_t struct_bytes;  /* sizeof(gpumem_refusal), as gpumem knows it */
  const char* function; /* the program's call */
  const char* text;     /* one line: the cause with figures, and a remedy */
  uint64_t requested_bytes;
  int physical_device; /* the driver's ordinal */
  gpumem_refusal_cause cause;
} gpumem_refusal;
/* Gets every request that gpumem refused when preloaded or in PyTorch, except those that the driver refused itself. */
void gpumem_refusal_callback(const gpumem_refusal* refusal);

/* Gets every block that a preloaded gpumem hands out in the program's call of `function`: for work on `stream`, or if
 * `any_stream` is not 0, for work on any stream at once. */
void gpumem_served_callback(const char* function, uint64_t block, uint64_t bytes, void* stream, int any_stream);

#ifdef __cplusplus
}
#endif
#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#endif /* GPUMEM_GPUMEM_H */
