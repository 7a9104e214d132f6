#include "physical_device.hpp"

#include <fmt/format.h>

namespace gpumem {

result<int> first_logical_on(const allocator& in, int physical) {
  for (const logical_device& d : in.devices()) {
    if (d.physical_ordinal == physical) return d.ordinal;
  }
  return status{errc::wrong_device, fmt::format("GPU {} has no logical device; expected one of the GPUs behind the {} "
                                                "that there are",
                                                physical, in.devices().size())};
}

}  // namespace gpumem
