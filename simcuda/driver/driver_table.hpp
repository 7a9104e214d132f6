// Looks up the double's functions by their base names. Constant.
#pragma once

namespace gpumem::simcuda {

struct found_function {
  bool known = false;        ///< in some version
  void* function = nullptr;  ///< null: not in this version, or not in this driver
};

/// `version` is the newest one known to the caller; `driver_version` the one that the driver reports. With
/// `per_thread`, returns the variant whose null stream is the calling thread's own, if the function has one.
found_function find_function(const char* name, int version, int driver_version, bool per_thread);
/// The per-thread variant of an exported function, by its symbol; null if there is none.
void* per_thread_variant(const char* symbol);

}  // namespace gpumem::simcuda
