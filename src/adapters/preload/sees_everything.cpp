#include "sees.hpp"

namespace gpumem::preload {
const bool is_preloaded = true;
}
