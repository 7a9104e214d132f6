/* A C program that uses only the installed header: calls every function, correctly and wrongly. */
#define _POSIX_C_SOURCE 200809L /* setenv */

#include <gpumem/gpumem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPECT(condition)                                                                                      \
  do {                                                                                                         \
    if (!(condition)) {                                                                                        \
      fprintf(stderr, "%s:%d: %s; last message: %s\n", __FILE__, __LINE__, #condition, gpumem_last_message()); \
      exit(1);                                                                                                 \
    }                                                                                                          \
  } while (0)
#define EXPECT_REFUSED(call, code_, text)                \
  do {                                                   \
    const gpumem_code got = (call);                      \
    EXPECT(got == (code_));                              \
    EXPECT(strstr(gpumem_last_message(), text) != NULL); \
  } while (0)

static const uint64_t mib = 1 << 20;

static gpumem_stats stats_of(gpumem_allocator* memory, int device) {
  gpumem_stats now;
  now.struct_bytes = sizeof now;
  EXPECT(gpumem_get_stats(memory, device, &now) == GPUMEM_OK);
  EXPECT(now.reserved_bytes == now.live_bytes + now.thread_cached_bytes + now.cached_bytes + now.fenced_bytes +
                                   now.idle_bytes + now.leaked_bytes);
  return now;
}

static void blocks(void) {
  gpumem_allocator* memory = NULL;
  EXPECT(gpumem_open_simulated(256 * mib, 1, 1, "policy=caching", &memory) == GPUMEM_OK);
  void* stream = NULL;
  EXPECT(gpumem_simulated_stream(memory, 0, &stream) == GPUMEM_OK && stream != NULL);
  char* block = NULL;
  EXPECT(gpumem_allocate(memory, 1000, 0, stream, (void**)&block) == GPUMEM_OK);
  EXPECT((uintptr_t)block % 512 == 0);
  memset(block, 7, 1000); /* its memory is the host's */
  gpumem_block found;
  found.struct_bytes = sizeof found;
  EXPECT(gpumem_describe(memory, block + 999, &found) == GPUMEM_OK);
  EXPECT(found.begin == block && found.requested_bytes == 1000 && found.bytes == 1024 && found.device == 0);
  EXPECT(stats_of(memory, 0).live_bytes == 1024);
  EXPECT(gpumem_record_use(memory, block, NULL) == GPUMEM_OK);
  EXPECT(gpumem_free(memory, block) == GPUMEM_OK);
  EXPECT_REFUSED(gpumem_free(memory, block), GPUMEM_DOUBLE_FREE, "free already");
  EXPECT_REFUSED(gpumem_free(memory, &memory), GPUMEM_UNKNOWN_POINTER, "is not a block");
  EXPECT(gpumem_free(memory, NULL) == GPUMEM_OK);
  EXPECT(gpumem_allocate_aligned(memory, 10, 1 << 16, 0, NULL, (void**)&block) == GPUMEM_OK);
  EXPECT((uintptr_t)block % (1 << 16) == 0);
  EXPECT(gpumem_free_on(memory, block, stream) == GPUMEM_OK);
  EXPECT(gpumem_stream_release(memory, stream) == GPUMEM_OK);
  EXPECT(stats_of(memory, 0).frees == 2 && stats_of(memory, 0).misuses == 2);
  EXPECT(gpumem_check(memory, 0) == GPUMEM_OK && gpumem_flush_trace(memory) == GPUMEM_OK);
  uint64_t returned = 0;
  EXPECT(gpumem_trim(memory, 0, UINT64_MAX, &returned) == GPUMEM_OK && returned > 0);
  EXPECT(stats_of(memory, 0).reserved_bytes == 0);
  EXPECT(gpumem_close(memory) == GPUMEM_OK);
}

static void captures(void) {
  gpumem_allocator* memory = NULL;
  EXPECT(gpumem_open_simulated(64 * mib, 1, 0, NULL, &memory) == GPUMEM_OK);
  void* stream = NULL;
  EXPECT(gpumem_simulated_stream(memory, 0, &stream) == GPUMEM_OK);
  uint64_t graph = 0;
  EXPECT_REFUSED(gpumem_capture_end(memory, stream, &graph), GPUMEM_INVALID_ARGUMENT, "not capturing");
  EXPECT(gpumem_capture_begin(memory, stream) == GPUMEM_OK);
  void* block = NULL;
  EXPECT(gpumem_allocate(memory, mib, 0, stream, &block) == GPUMEM_OK);
  EXPECT(gpumem_free(memory, block) == GPUMEM_OK);
  EXPECT(gpumem_capture_end(memory, stream, &graph) == GPUMEM_OK && graph != 0);
  EXPECT(gpumem_captures_ended(memory, 0) == GPUMEM_OK);
  EXPECT_REFUSED(gpumem_captures_ended(memory, 7), GPUMEM_WRONG_DEVICE, "device 7");
  EXPECT(gpumem_graph_release(memory, graph) == GPUMEM_OK);
  EXPECT_REFUSED(gpumem_graph_release(memory, graph), GPUMEM_INVALID_ARGUMENT, "released already");
  EXPECT(gpumem_close(memory) == GPUMEM_OK);
}

static int free_one(void* user, int device, uint64_t needed_bytes) {
  void** held = user;
  EXPECT(device == 0 && needed_bytes == 60 * mib);
  if (held[1] == NULL) return 0;
  EXPECT(gpumem_free(held[0], held[1]) == GPUMEM_OK);
  held[1] = NULL;
  return 1;
}

static void limits(void) {
  gpumem_allocator* memory = NULL;
  EXPECT(gpumem_open_simulated(256 * mib, 1, 0, "policy=hard_cap limit=64MiB", &memory) == GPUMEM_OK);
  void* held[2] = {memory, NULL};
  void* block = memory;
  EXPECT_REFUSED(gpumem_allocate(memory, 65 * mib, 0, NULL, &block), GPUMEM_OUT_OF_MEMORY, "65.00 MiB");
  EXPECT(block == NULL);
  EXPECT(gpumem_on_out_of_memory(memory, free_one, held) == GPUMEM_OK);
  EXPECT(gpumem_allocate(memory, 60 * mib, 0, NULL, &held[1]) == GPUMEM_OK);
  EXPECT(gpumem_allocate(memory, 60 * mib, 0, NULL, &block) == GPUMEM_OK);
  EXPECT(held[1] == NULL); /* the callback made room */
  uint64_t over = 0;
  EXPECT(gpumem_set_limit(memory, 0, 32 * mib, &over) == GPUMEM_OK);
  EXPECT(over == stats_of(memory, 0).reserved_bytes - 32 * mib);
  EXPECT_REFUSED(gpumem_set_limit(memory, 0, 0, NULL), GPUMEM_BAD_SETTING, "limit");
  EXPECT(gpumem_free(memory, block) == GPUMEM_OK);
  EXPECT(gpumem_close(memory) == GPUMEM_OK);
}

static void logical_devices(void) {
  gpumem_allocator* memory = NULL;
  EXPECT(gpumem_open_simulated(256 * mib, 2, 0, "pools=train:64MiB,eval:32MiB", &memory) == GPUMEM_OK);
  int count = 0;
  EXPECT(gpumem_device_count(memory, &count) == GPUMEM_OK && count == 4);
  gpumem_device shown;
  shown.struct_bytes = sizeof shown;
  EXPECT(gpumem_device_properties(memory, 3, &shown) == GPUMEM_OK);
  EXPECT(shown.ordinal == 3 && shown.physical_ordinal == 1 && strcmp(shown.name, "eval") == 0);
  EXPECT(strcmp(shown.policy, "growth") == 0 && shown.total_bytes == 32 * mib && shown.gpu_total_bytes == 256 * mib);
  EXPECT(shown.simulated == 1 && shown.compute_major == 9 && strlen(shown.gpu_name) > 0);
  EXPECT_REFUSED(gpumem_device_properties(memory, 4, &shown), GPUMEM_WRONG_DEVICE, "device 4 does not exist");
  void* block = NULL;
  for (int device = 0; device < count; ++device) {
    EXPECT(gpumem_allocate(memory, mib, device, NULL, &block) == GPUMEM_OK);
    EXPECT(stats_of(memory, device).live_blocks == 1);
  }
  EXPECT_REFUSED(gpumem_allocate(memory, 33 * mib, 1, NULL, &block), GPUMEM_OUT_OF_MEMORY, "pool eval");
  EXPECT(gpumem_close(memory) == GPUMEM_OK); /* frees its live blocks as well */
}

/* A program that was compiled against an earlier header, and one against a later one. */
static void growing_structs(void) {
  gpumem_allocator* memory = NULL;
  EXPECT(gpumem_open_simulated(64 * mib, 1, 0, NULL, &memory) == GPUMEM_OK);
  gpumem_stats now;
  memset(&now, 0x55, sizeof now);
  now.struct_bytes = offsetof(gpumem_stats, thread_cached_bytes);
  EXPECT(gpumem_get_stats(memory, 0, &now) == GPUMEM_OK);
  EXPECT(now.live_bytes == 0 && now.thread_cached_bytes == 0x5555555555555555u);
  struct {
    gpumem_stats known;
    uint64_t later;
  } more;
  memset(&more, 0x55, sizeof more);
  more.known.struct_bytes = sizeof more;
  EXPECT(gpumem_get_stats(memory, 0, &more.known) == GPUMEM_OK);
  EXPECT(more.later == 0 && more.known.struct_bytes == sizeof more);
  now.struct_bytes = 0;
  EXPECT_REFUSED(gpumem_get_stats(memory, 0, &now), GPUMEM_INVALID_ARGUMENT, "struct_bytes is 0");
  EXPECT(gpumem_close(memory) == GPUMEM_OK);
}

static void null_pointers(void) {
  void* block = &block;
  uint64_t number = 1;
  int count = 1;
  gpumem_allocator* memory = NULL;
  EXPECT_REFUSED(gpumem_default(NULL), GPUMEM_INVALID_ARGUMENT, "allocator is null");
  EXPECT_REFUSED(gpumem_open(NULL, NULL), GPUMEM_INVALID_ARGUMENT, "allocator is null");
  EXPECT_REFUSED(gpumem_open_simulated(mib, 1, 0, NULL, NULL), GPUMEM_INVALID_ARGUMENT, "allocator is null");
  EXPECT_REFUSED(gpumem_check_setting(NULL, "1"), GPUMEM_INVALID_ARGUMENT, "the name is null");
  EXPECT_REFUSED(gpumem_check_setting("limit", NULL), GPUMEM_INVALID_ARGUMENT, "the value is null");
  EXPECT_REFUSED(gpumem_check_setting("limit", "much"), GPUMEM_BAD_SETTING, "much");
  EXPECT_REFUSED(gpumem_check_setting("polcy", "growth"), GPUMEM_BAD_SETTING, "polcy=growth: unknown option");
  EXPECT(gpumem_check_setting("limit", "80%") == GPUMEM_OK);
  EXPECT_REFUSED(gpumem_set_default(NULL, "1"), GPUMEM_INVALID_ARGUMENT, "the name is null");
  EXPECT_REFUSED(gpumem_set_default("polcy", "growth"), GPUMEM_BAD_SETTING, "polcy=growth: unknown option");
  EXPECT(gpumem_set_default("limit", "80%") == GPUMEM_OK);
  EXPECT(gpumem_set_default("limit", NULL) == GPUMEM_OK);
  EXPECT(gpumem_check_environment() == GPUMEM_OK);
  setenv("GPUMEM_POLICY", "bogus", 1);
  EXPECT_REFUSED(gpumem_check_environment(), GPUMEM_BAD_SETTING, "GPUMEM_POLICY=bogus: policy 'bogus' is unknown");
  unsetenv("GPUMEM_POLICY");
  setenv("GPUMEM_LIMIT", "abc", 1);
  EXPECT_REFUSED(gpumem_check_environment(), GPUMEM_BAD_SETTING, "GPUMEM_LIMIT=abc");
  unsetenv("GPUMEM_LIMIT");
  EXPECT_REFUSED(gpumem_allocate(NULL, 1, 0, NULL, &block), GPUMEM_INVALID_ARGUMENT, "the allocator is null");
  EXPECT(block == NULL);
  EXPECT_REFUSED(gpumem_free(NULL, &block), GPUMEM_INVALID_ARGUMENT, "the allocator is null");
  EXPECT_REFUSED(gpumem_free_on(NULL, &block, NULL), GPUMEM_INVALID_ARGUMENT, "the allocator is null");
  EXPECT_REFUSED(gpumem_record_use(NULL, &block, NULL), GPUMEM_INVALID_ARGUMENT, "the allocator is null");
  EXPECT_REFUSED(gpumem_stream_release(NULL, NULL), GPUMEM_INVALID_ARGUMENT, "the allocator is null");
  EXPECT_REFUSED(gpumem_capture_begin(NULL, NULL), GPUMEM_INVALID_ARGUMENT, "the allocator is null");
  EXPECT_REFUSED(gpumem_graph_release(NULL, 1), GPUMEM_INVALID_ARGUMENT, "the allocator is null");
  EXPECT_REFUSED(gpumem_trim(NULL, 0, 1, &number), GPUMEM_INVALID_ARGUMENT, "the allocator is null");
  EXPECT_REFUSED(gpumem_set_limit(NULL, 0, 1, &number), GPUMEM_INVALID_ARGUMENT, "the allocator is null");
  EXPECT_REFUSED(gpumem_check(NULL, 0), GPUMEM_INVALID_ARGUMENT, "the allocator is null");
  EXPECT_REFUSED(gpumem_flush_trace(NULL), GPUMEM_INVALID_ARGUMENT, "the allocator is null");
  EXPECT_REFUSED(gpumem_device_count(NULL, &count), GPUMEM_INVALID_ARGUMENT, "the allocator is null");
  EXPECT(number == 0 && count == 0);
  EXPECT(gpumem_close(NULL) == GPUMEM_OK);
  EXPECT(gpumem_open_simulated(64 * mib, 1, 0, NULL, &memory) == GPUMEM_OK);
  EXPECT_REFUSED(gpumem_allocate(memory, 1, 0, NULL, NULL), GPUMEM_INVALID_ARGUMENT, "block is null");
  EXPECT_REFUSED(gpumem_describe(memory, &block, NULL), GPUMEM_INVALID_ARGUMENT, "info is null");
  EXPECT_REFUSED(gpumem_get_stats(memory, 0, NULL), GPUMEM_INVALID_ARGUMENT, "stats is null");
  EXPECT_REFUSED(gpumem_capture_end(memory, NULL, NULL), GPUMEM_INVALID_ARGUMENT, "graph is null");
  EXPECT_REFUSED(gpumem_on_out_of_memory(memory, NULL, NULL), GPUMEM_INVALID_ARGUMENT, "callback is null");
  EXPECT_REFUSED(gpumem_device_count(memory, NULL), GPUMEM_INVALID_ARGUMENT, "count is null");
  EXPECT_REFUSED(gpumem_device_properties(memory, 0, NULL), GPUMEM_INVALID_ARGUMENT, "properties is null");
  EXPECT_REFUSED(gpumem_simulated_stream(memory, 0, NULL), GPUMEM_INVALID_ARGUMENT, "stream is null");
  EXPECT(gpumem_trim(memory, 0, UINT64_MAX, NULL) == GPUMEM_OK);
  EXPECT(gpumem_close(memory) == GPUMEM_OK);
}

static void bad_arguments(void) {
  gpumem_allocator* memory = NULL;
  void* block = NULL;
  EXPECT_REFUSED(gpumem_open_simulated(64 * mib, 0, 0, NULL, &memory), GPUMEM_INVALID_ARGUMENT, "0 devices");
  EXPECT_REFUSED(gpumem_open_simulated(1, 1, 0, NULL, &memory), GPUMEM_INVALID_ARGUMENT, "1 bytes a device");
  EXPECT_REFUSED(gpumem_open_simulated(64 * mib, 1, 0, "limit", &memory), GPUMEM_BAD_SETTING, "expected name=value");
  EXPECT_REFUSED(gpumem_open_simulated(64 * mib, 1, 0, "limit=1GiB", &memory), GPUMEM_BAD_SETTING, "GPUMEM_LIMIT");
  EXPECT_REFUSED(gpumem_open_simulated(64 * mib, 1, 0, "policy=nope", &memory), GPUMEM_BAD_SETTING, "nope");
  EXPECT(memory == NULL);
  EXPECT(gpumem_open_simulated(64 * mib, 1, 0, "  policy=grab_all   reserve=1MiB ", &memory) == GPUMEM_OK);
  EXPECT_REFUSED(gpumem_allocate(memory, 0, 0, NULL, &block), GPUMEM_INVALID_ARGUMENT, "0 bytes");
  EXPECT_REFUSED(gpumem_allocate(memory, 1, -1, NULL, &block), GPUMEM_WRONG_DEVICE, "device -1");
  EXPECT_REFUSED(gpumem_allocate_aligned(memory, 1, 3, 0, NULL, &block), GPUMEM_INVALID_ARGUMENT, "power of two");
  EXPECT_REFUSED(gpumem_trim(memory, 1, 1, NULL), GPUMEM_WRONG_DEVICE, "device 1");
  EXPECT_REFUSED(gpumem_simulated_stream(memory, 1, &block), GPUMEM_WRONG_DEVICE, "device 1");
  EXPECT_REFUSED(gpumem_check(memory, 1), GPUMEM_WRONG_DEVICE, "device 1");
  EXPECT(gpumem_close(memory) == GPUMEM_OK);
  EXPECT(strcmp(gpumem_code_name(GPUMEM_OUT_OF_MEMORY), "out_of_memory") == 0);
  EXPECT(strcmp(gpumem_code_name(GPUMEM_HOST_FAILURE), "host_failure") == 0);
  EXPECT(strcmp(gpumem_code_name((gpumem_code)50), "unknown code") == 0);
}

int main(void) {
  EXPECT(strcmp(gpumem_last_message(), "") == 0);
  blocks();
  captures();
  limits();
  logical_devices();
  growing_structs();
  null_pointers();
  bad_arguments();
  puts("all as expected");
  return 0;
}
