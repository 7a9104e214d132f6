// Looks up the simulated driver's functions by their base names. The table is constant.
#pragma once

namespace gpumem::simcuda {

struct found_function {
  bool known = false;        ///< exists in some version
  void* function = nullptr;  ///< null: missing in this version, or in this driver
};

/// `version`: the newest that the caller knows; `driver_version`: the driver's own. With `per_thread`, returns the
/// variant whose null stream is the calling thread's own, if the function has one.
found_function find_function(const char* name, int version, int driver_version, bool per_thread);
/// Returns the per-thread variant of an exported function, by its symbol; null if there is none.
void* per_thread_variant(const char* symbol);

}  // namespace gpumem::simcuda
