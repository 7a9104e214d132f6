// Resolves a driver name when forward.S first calls it.
#include "entry_points.hpp"

namespace gpumem::preload {
namespace {

/// In the order of forward.S's slots.
constexpr const char* const names[] = {
#define NAME(name) #name,
#include "driver_names.def"
#undef NAME
};

}  // namespace
}  // namespace gpumem::preload

extern "C" {
extern __attribute__((visibility("hidden"))) void* gpumem_preload_slots[];
__attribute__((visibility("hidden"))) void* gpumem_preload_bind(void** slot);
}

void* gpumem_preload_bind(void** slot) {
  void* const function = gpumem::preload::bound_to(gpumem::preload::names[slot - gpumem_preload_slots]);
  __atomic_store_n(slot, function, __ATOMIC_RELEASE);
  return function;
}
