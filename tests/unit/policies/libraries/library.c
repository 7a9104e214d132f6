/* Policy libraries for policy_library_test.cpp, one for each mistake: BUILD names it. */
#include <stdio.h>
#include <string.h>

#define GOOD 0
#define NO_SYMBOL 1
#define WRONG_VERSION 2
#define NULL_FUNCTION 3
#define NAME_TAKEN 4
#define NULL_TABLE 5
#define WRONG_SIZE 6
#define TOO_MANY_CLASSES 7
#define DATA_SYMBOL 8
#define THREAD_DATA_SYMBOL 9
#define HIDDEN_IFUNC 10

#if BUILD == DATA_SYMBOL || BUILD == THREAD_DATA_SYMBOL
#define gpumem_policies declared_as_a_function /* the name is data below */
#endif
#include "gpumem/policy_library.h"
#undef gpumem_policies

static int something;

static void* open_it(const gpumem_policy_device* device, const char* parameters, char* why, size_t why_bytes) {
  (void)device;
  if (strcmp(parameters, "bad=1") == 0) {
    snprintf(why, why_bytes, "bad=1 is refused");
    return NULL;
  }
  return &something;
}
static void close_it(void* self) { (void)self; }
static gpumem_policy_segment grow(void* self, const gpumem_policy_view* view, uint64_t need_bytes) {
  gpumem_policy_segment out = {2 * need_bytes, need_bytes};
  (void)self;
  (void)view;
  return out;
}

static const gpumem_policy_functions all[] = {
    {.name = BUILD == GOOD           ? "from_a_library"
             : BUILD == HIDDEN_IFUNC ? "by_ifunc"
                                     : "first_of_two",
     .summary = "twice the need",
     .open = open_it,
     .close = close_it,
     .grow = BUILD == NULL_FUNCTION ? NULL : grow,
     .segment_classes = BUILD == TOO_MANY_CLASSES ? 17 : 0},
    {.name = BUILD == NAME_TAKEN     ? "growth"
             : BUILD == HIDDEN_IFUNC ? "also_by_ifunc"
                                     : "also_from_a_library",
     .summary = "the same",
     .open = open_it,
     .close = close_it,
     .grow = grow},
};
static const gpumem_policy_library table = {
    .version = BUILD == WRONG_VERSION ? GPUMEM_POLICY_LIBRARY_VERSION + 1 : GPUMEM_POLICY_LIBRARY_VERSION,
    .function_bytes = BUILD == WRONG_SIZE ? 8 : sizeof(gpumem_policy_functions),
    .count = 2,
    .policies = all,
};

#if BUILD == NO_SYMBOL
const gpumem_policy_library* another_name(void);
const gpumem_policy_library* another_name(void) { return &table; }
#elif BUILD == DATA_SYMBOL
extern const gpumem_policy_library* const gpumem_policies;
const gpumem_policy_library* const gpumem_policies = &table;
#elif BUILD == THREAD_DATA_SYMBOL
extern _Thread_local const gpumem_policy_library* gpumem_policies;
_Thread_local const gpumem_policy_library* gpumem_policies = &table;
#elif BUILD == HIDDEN_IFUNC
static const gpumem_policy_library* the_table(void) { return &table; }
typedef const gpumem_policy_library* (*table_function)(void);
table_function choose(void);
table_function choose(void) { return the_table; }
const gpumem_policy_library* gpumem_policies(void) __attribute__((ifunc("choose")));
#else
const gpumem_policy_library* gpumem_policies(void) { return BUILD == NULL_TABLE ? NULL : &table; }
#endif
