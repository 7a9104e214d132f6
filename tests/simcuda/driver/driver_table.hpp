// Where the double's functions are, by their base names. Constant.
#pragma once

namespace gpumem::simcuda {

struct found_function {
  bool known = false;        ///< under some version
  void* function = nullptr;  ///< null: not in this version, or not in this driver
};

/// `version` is the newest that the caller knows; `driver_version` what the driver pretends to be.
found_function find_function(const char* name, int version, int driver_version);

}  // namespace gpumem::simcuda
