#include "physical_device.hpp"

#include <fmt/format.h>

namespace gpumem {

result<int> first_logical_on(const allocator& allocator, int physical) {
  for (const logical_device& d : allocator.devices()) {
    if (d.physical_ordinal == physical) return d.ordinal;
  }
  return status{errc::wrong_device, fmt::format("GPU {} has no logical device; expected one of the GPUs behind the {} "
                                                "that there are",
                                                physical, allocator.devices().size())};
}

}  // namespace gpumem
