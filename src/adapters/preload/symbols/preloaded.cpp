#include "is_preloaded.hpp"

namespace gpumem::preload {
const bool is_preloaded = true;
}
