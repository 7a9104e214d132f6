/* Allocates and frees through the installed library, in C; exit status 0 if every step succeeds. */
#include <gpumem/gpumem.h>
#include <stdio.h>

int main(void) {
  gpumem_allocator* memory = NULL;
  void* block = NULL;
  if (gpumem_open_simulated((uint64_t)1 << 30, 1, 0, NULL, &memory) ||
      gpumem_allocate(memory, 3 << 20, 0, NULL, &block) || gpumem_free(memory, block) || gpumem_check(memory, 0)) {
    fprintf(stderr, "%s\n", gpumem_last_message());
    return 1;
  }
  return gpumem_close(memory) == GPUMEM_OK ? 0 : 1;
}
