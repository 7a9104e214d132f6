/* Policies in C, as a shared library: `fixed_steps` takes memory in steps of one size, 64 MiB or what is named.
 *
 *   cc -shared -fPIC policy_library.c -o libmine.so
 *   GPUMEM_POLICY_LIBRARY=$PWD/libmine.so gpumem run --policy fixed_steps:mib=256 -- ./program
 */
#include "gpumem/policy_library.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct fixed_steps {
  uint64_t step_bytes;
} fixed_steps;

/* Reads `mib=N`; without parameters it is 64. */
static void* open_steps(const gpumem_policy_device* device, const char* parameters, char* why, size_t why_bytes) {
  unsigned long long mib = 64;
  char* end = NULL;
  fixed_steps* self = NULL;
  if (*parameters != '\0') {
    errno = 0;
    if (strncmp(parameters, "mib=", 4) == 0 && parameters[4] != '-') mib = strtoull(parameters + 4, &end, 10);
    if (end == NULL || end == parameters + 4 || *end != '\0' || errno != 0 || mib == 0 || mib > 1024 * 1024) {
      snprintf(why, why_bytes, "parameters '%s': expected mib=N, from 1 to 1048576", parameters);
      return NULL;
    }
  }
  (void)device;
  self = malloc(sizeof *self);
  if (self == NULL) {
    snprintf(why, why_bytes, "no memory");
    return NULL;
  }
  self->step_bytes = (uint64_t)mib << 20;
  return self;
}

static void close_steps(void* self) { free(self); }

/* The request in whole steps. gpumem cuts it to what the limit leaves. */
static gpumem_policy_segment grow(void* self, const gpumem_policy_view* view, uint64_t need_bytes) {
  const uint64_t step = ((const fixed_steps*)self)->step_bytes;
  const uint64_t more = need_bytes % step == 0 ? 0 : step - need_bytes % step;
  const gpumem_policy_segment wanted = {need_bytes <= UINT64_MAX - more ? need_bytes + more : need_bytes, need_bytes};
  (void)view;
  return wanted;
}

static const gpumem_policy_functions policies[] = {
    {.name = "fixed_steps", .summary = "in steps of one size", .open = open_steps, .close = close_steps, .grow = grow},
};
static const gpumem_policy_library library = {
    .version = GPUMEM_POLICY_LIBRARY_VERSION,
    .function_bytes = sizeof(gpumem_policy_functions),
    .count = sizeof policies / sizeof *policies,
    .policies = policies,
};

const gpumem_policy_library* gpumem_policies(void) { return &library; }
