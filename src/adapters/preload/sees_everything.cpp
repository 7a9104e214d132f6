#include "sees.hpp"

namespace gpumem::preload {
const bool sees_everything = true;
}
