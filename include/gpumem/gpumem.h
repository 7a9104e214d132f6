/* The C interface: stream-ordered device memory from gpumem, for C and for every language that can call it.
 *
 * Every function returns a code; `gpumem_last_message` then says what failed, with figures. No function throws, all
 * may be called from any thread, and a null pointer where something is needed is GPUMEM_INVALID_ARGUMENT. A stream is
 * a cudaStream_t or CUstream passed as a pointer; null is the default stream. Sizes are bytes. Devices are logical
 * ordinals: one for each GPU, or as many as GPUMEM_POOLS names.
 *
 * A device that does not exist is GPUMEM_WRONG_DEVICE, a null pointer or one that is not a block's
 * GPUMEM_UNKNOWN_POINTER, a stream that the device does not know GPUMEM_DEVICE_ERROR, whichever function is called.
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
  GPUMEM_INVALID_ARGUMENT = 1, /* zero bytes, a bad alignment, a null pointer where something is needed */
  GPUMEM_BAD_SETTING = 2,      /* a GPUMEM_* value, or a combination of them, that cannot be used */
  GPUMEM_OUT_OF_MEMORY = 3,    /* the message is the whole report */
  GPUMEM_UNKNOWN_POINTER = 4,  /* not a block of this allocator */
  GPUMEM_DOUBLE_FREE = 5,      /* a block that is free already */
  GPUMEM_WRONG_SIZE = 6,       /* a free that names another size than the allocation */
  GPUMEM_WRONG_DEVICE = 7,     /* a device that does not exist or is not the block's */
  GPUMEM_UNSUPPORTED = 8,      /* the device, or the moment (a capture, say), cannot do this */
  GPUMEM_DEVICE_ERROR = 9,     /* the driver reported an error */
  GPUMEM_CORRUPT = 10,         /* a damaged file, or an invariant that does not hold */
  GPUMEM_POLICY_FAILED = 11,   /* a function of the policy threw */
  GPUMEM_HOST_FAILURE = 100    /* the host has no memory left for the call itself */
} gpumem_code;

/* The code's name in small letters (`out_of_memory`), or `unknown code`. Never null. */
const char* gpumem_code_name(gpumem_code code);
/* Of the latest call of this thread that failed; empty before that. Valid until the thread's next call that fails. */
const char* gpumem_last_message(void);

/* --- opening --------------------------------------------------------------------------------------------------- */

typedef struct gpumem_allocator gpumem_allocator;

/* The process's own: every visible GPU, settings from GPUMEM_*. Opened by the first call; the same handle each time. */
gpumem_code gpumem_default(gpumem_allocator** out);
/* Another one over every visible GPU. `settings` are `name=value` pairs with spaces between (`policy=hard_cap
 * limit=2GiB pools=1GiB,1GiB`), or null; GPUMEM_* of the environment win over them. On a failure `*out` is null. */
gpumem_code gpumem_open(const char* settings, gpumem_allocator** out);
/* The same over `devices` simulated GPUs of `bytes` each, for tests. With `host_memory` other than 0 the blocks are
 * real host memory that the program may read and write; otherwise nothing stands behind their addresses. */
gpumem_code gpumem_open_simulated(uint64_t bytes, int devices, int host_memory, const char* settings,
                                  gpumem_allocator** out);
/* A stream of the simulated GPU behind a logical device; GPUMEM_UNSUPPORTED on a real one. */
gpumem_code gpumem_simulated_stream(gpumem_allocator* memory, int device, void** stream);
/* Gives everything back to the device. Requires that no other thread uses it. Null is nothing; the process's own
 * allocator is refused. */
gpumem_code gpumem_close(gpumem_allocator* memory);

/* --- memory ---------------------------------------------------------------------------------------------------- */

/* `bytes` for work on `stream`, at a multiple of 512. On a failure `*out` is null. */
gpumem_code gpumem_allocate(gpumem_allocator* memory, size_t bytes, int device, void* stream, void** out);
/* The same at a multiple of `alignment`, a power of two. */
gpumem_code gpumem_allocate_aligned(gpumem_allocator* memory, size_t bytes, size_t alignment, int device, void* stream,
                                    void** out);
/* The block is free in the order of the stream that it was allocated for. Null is nothing. */
gpumem_code gpumem_free(gpumem_allocator* memory, void* block);
/* The block is free in the order of this stream, which must be ordered behind all work that uses it. */
gpumem_code gpumem_free_on(gpumem_allocator* memory, void* block, void* stream);
/* Work on `stream` uses the block, too: it is free only when that is done as well. */
gpumem_code gpumem_record_use(gpumem_allocator* memory, void* block, void* stream);

typedef struct gpumem_block {
  size_t struct_bytes; /* in: sizeof(gpumem_block), as this program knows it */
  void* begin;
  uint64_t bytes; /* the block, a multiple of 512 */
  uint64_t requested_bytes;
  void* segment_begin; /* what the device gave, of which the block is a part */
  uint64_t segment_bytes;
  int device; /* logical */
} gpumem_block;
/* The block that `inside` points into. */
gpumem_code gpumem_describe(gpumem_allocator* memory, const void* inside, gpumem_block* out);

/* --- streams and captures -------------------------------------------------------------------------------------- */

/* `stream` is about to be destroyed. Needed where GPUMEM_STREAM_IDS is `notify`. */
gpumem_code gpumem_stream_release(gpumem_allocator* memory, void* stream);
/* Between these, `stream` captures: what it allocates belongs to the graph. On a GPU whose driver tells of captures
 * these are noticed, and only `gpumem_capture_begin` ahead of the first allocation is worth a call. */
gpumem_code gpumem_capture_begin(gpumem_allocator* memory, void* stream);
gpumem_code gpumem_capture_end(gpumem_allocator* memory, void* stream, uint64_t* graph);
/* Every capture that was noticed on that GPU (as the driver counts them) and whose stream still exists is asked whether
 * it has ended. For captures of non-blocking streams that allocate nothing afterwards: nothing else tells of their end.
 */
gpumem_code gpumem_captures_ended(gpumem_allocator* memory, int physical_device);
/* The graph will not run again. */
gpumem_code gpumem_graph_release(gpumem_allocator* memory, uint64_t graph);

/* --- how much -------------------------------------------------------------------------------------------------- */

/* Gives wholly idle segments back until `bytes` are returned (UINT64_MAX: all). `returned` may be null. */
gpumem_code gpumem_trim(gpumem_allocator* memory, int device, uint64_t bytes, uint64_t* returned);
/* In force at once: nothing is taken beyond it, and what can be given back is. `over`, which may be null, gets what
 * could not: bytes still held beyond the limit. */
gpumem_code gpumem_set_limit(gpumem_allocator* memory, int device, uint64_t bytes, uint64_t* over);

/* Reserved = live + thread_cached + cached + fenced + idle + leaked. Later versions add fields at the end; a program
 * gets those that it knows, by the size that it states. gpumem/statistics.hpp says what each means. */
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
gpumem_code gpumem_get_stats(gpumem_allocator* memory, int device, gpumem_stats* out);

/* Calls `callback` when a request fails and nothing that gpumem holds can help; it frees what it can and returns other
 * than 0 to have the request tried again. It stays for the allocator's life. */
typedef int (*gpumem_oom_callback)(void* user, int device, uint64_t needed_bytes);
gpumem_code gpumem_on_out_of_memory(gpumem_allocator* memory, gpumem_oom_callback callback, void* user);

/* Proves every invariant of a pool; GPUMEM_CORRUPT says what does not hold. Slow. */
gpumem_code gpumem_check(gpumem_allocator* memory, int device);
/* Writes out what GPUMEM_TRACE has recorded so far. */
gpumem_code gpumem_flush_trace(gpumem_allocator* memory);

/* --- logical devices ------------------------------------------------------------------------------------------- */

typedef struct gpumem_device {
  size_t struct_bytes;  /* in: sizeof(gpumem_device), as this program knows it */
  int ordinal;          /* logical */
  int physical_ordinal; /* of the GPU, as the driver counts those that it shows */
  char name[64];        /* of the pool: its name in GPUMEM_POOLS, else its ordinal; longer ones are cut */
  char policy[64];
  uint64_t total_bytes; /* the most that this logical device may hold: its memory, for code that asks */
  char gpu_name[128];
  char gpu_uuid[64];
  uint64_t gpu_total_bytes;
  int compute_major;
  int compute_minor;
  int simulated; /* 1 for a simulated GPU */
} gpumem_device;
/* Null-safe like all others: `*count` is 0 on a failure. */
gpumem_code gpumem_device_count(gpumem_allocator* memory, int* count);
gpumem_code gpumem_device_properties(gpumem_allocator* memory, int device, gpumem_device* out);

#ifdef __cplusplus
}
#endif
#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#endif /* GPUMEM_GPUMEM_H */
