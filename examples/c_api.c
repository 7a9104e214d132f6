/* The C interface: the process's own allocator, or with `--simulated` one over a simulated GPU; allocates for a stream,
 * frees, and says what it holds. */
#include <gpumem/gpumem.h>
#include <stdio.h>
#include <string.h>

static int failed(gpumem_code code) {
  if (code == GPUMEM_OK) return 0;
  fprintf(stderr, "c_api: %s: %s\n", gpumem_code_name(code), gpumem_last_message());
  return 1;
}

int main(int argc, char** argv) {
  const int simulated = argc > 1 && strcmp(argv[1], "--simulated") == 0;
  gpumem_allocator* memory = NULL;
  if (failed(simulated ? gpumem_open_simulated((uint64_t)8 << 30, 1, 0, NULL, &memory) : gpumem_default(&memory)))
    return 1;

  int devices = 0;
  if (failed(gpumem_device_count(memory, &devices))) return 1;
  for (int d = 0; d < devices; ++d) {
    gpumem_device shown;
    shown.struct_bytes = sizeof shown;
    if (failed(gpumem_device_properties(memory, d, &shown))) return 1;
    printf("device %d: pool %s on %s, policy %s, at most %llu MiB\n", d, shown.name, shown.gpu_name, shown.policy,
           (unsigned long long)(shown.total_bytes >> 20));
  }

  void* const stream = NULL; /* or any cudaStream_t */
  void* block = NULL;
  if (failed(gpumem_allocate(memory, (size_t)64 << 20, 0, stream, &block))) return 1;
  if (failed(gpumem_free(memory, block))) return 1;

  gpumem_stats now;
  now.struct_bytes = sizeof now;
  if (failed(gpumem_get_stats(memory, 0, &now))) return 1;
  printf("live %llu B, reserved %llu MiB\n", (unsigned long long)now.live_bytes,
         (unsigned long long)(now.reserved_bytes >> 20));
  return simulated ? failed(gpumem_close(memory)) : 0;
}
