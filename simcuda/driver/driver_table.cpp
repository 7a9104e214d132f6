// The simulated driver's functions by name, for cuGetProcAddress.
//
// Only addresses matter here, so this file declares the functions as plain symbols and does not include cuda.h.
#include "driver_table.hpp"

#include <cstring>

#define FUNCTION(name, version, since, symbol) extern "C" void symbol();
#include "functions.def"
#include "functions_of_frameworks.def"
#undef FUNCTION

namespace gpumem::simcuda {
namespace {

struct row {
  const char* name;
  int version;
  int since;
  void (*function)();
  const char* symbol;
};
constexpr row rows[] = {
#define FUNCTION(name, version, since, symbol) {#name, version, since, symbol, #symbol},
#include "functions.def"
#include "functions_of_frameworks.def"
#undef FUNCTION
};

}  // namespace

found_function find_function(const char* name, int version, int driver_version, bool per_thread) {
  found_function found;
  for (const row& r : rows) {
    if (std::strcmp(r.name, name) != 0) continue;
    found.known = true;
    if (r.version > version || r.since > driver_version) continue;
    void* const variant = per_thread ? per_thread_variant(r.symbol) : nullptr;
    found.function = variant != nullptr ? variant : reinterpret_cast<void*>(r.function);
  }
  return found;
}

}  // namespace gpumem::simcuda
