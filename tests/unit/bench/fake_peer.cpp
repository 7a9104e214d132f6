// A peer's plug-in with one fault, chosen by its kind: "crash", "hang", "refuse", or "talk", which prints on standard
// output and then runs out of memory. It uses no CUDA.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "baseline.h"

struct gpumem_baseline {
  std::string_view kind;
};

namespace {

gpumem_baseline* open_fake(const char* kind, int /*device*/) {
  for (const std::string_view known : {"crash", "hang", "refuse", "talk"}) {
    if (kind == known) return new gpumem_baseline{known};
  }
  return nullptr;
}

int allocate(gpumem_baseline* of, void** /*p*/, std::size_t /*bytes*/, void* /*stream*/) {
  if (of->kind == "crash") std::abort();
  if (of->kind == "hang") ::sleep(1000);
  if (of->kind == "refuse") return 999;
  std::puts("{\"failed\": \"this is no answer\"}");
  std::fflush(stdout);
  return 2;
}

int nothing() { return 0; }

constexpr gpumem_baseline_api api{
    .open = open_fake,
    .close = [](gpumem_baseline* of) { delete of; },
    .allocate = allocate,
    .release = [](gpumem_baseline*, void*, void*) { return 0; },
    .reserved_bytes = [](gpumem_baseline*) -> std::uint64_t { return 0; },
    .set_device = [](int) { return 0; },
    .stream_create = [](void** stream) { return *stream = nullptr, 0; },
    .stream_destroy = [](void*) { return 0; },
    .synchronize = nothing,
    .order = [](void*, void*) { return 0; },
    .runtime_calls_of_a_pair = [](gpumem_baseline*, void*) { return 0; },
    .touch = [](void*, std::size_t, void*) { return 0; },
    .reset = nothing,
    .error_text = [](int) { return "as it was told to"; },
};

}  // namespace

extern "C" const gpumem_baseline_api* gpumem_baselines(void) { return &api; }
