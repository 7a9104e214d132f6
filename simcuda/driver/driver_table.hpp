// Where the double's functions are, by their base names. Constant.
#pragma once

namespace gpumem::simcuda {

struct found_function {
  bool known = false;        ///< under some version
  void* function = nullptr;  ///< null: not in this version, or not in this driver
};

/// `version` is the newest that the caller knows; `driver_version` what the driver pretends to be. With `per_thread`,
/// the variant for which the null stream is the calling thread's own, where the function has one.
found_function find_function(const char* name, int version, int driver_version, bool per_thread);
/// The variant of an exported function, by its symbol; null: it has none.
void* per_thread_variant(const char* symbol);

}  // namespace gpumem::simcuda
