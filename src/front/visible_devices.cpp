#include "visible_devices.hpp"

#include "gpumem/cuda_device.hpp"

namespace gpumem {

result<std::vector<std::unique_ptr<device>>> open_visible_devices() {
  const result<int> count = cuda_device_count();
  if (!count) return count.why();
  if (*count == 0) {
    return status{errc::device_error,
                  "the CUDA driver shows no GPU to this process: see nvidia-smi and CUDA_VISIBLE_DEVICES"};
  }
  std::vector<std::unique_ptr<device>> found;
  for (int ordinal = 0; ordinal < *count; ++ordinal) {
    result<std::unique_ptr<device>> one = open_cuda_device({.ordinal = ordinal, .driver = nullptr});
    if (!one) return one.why();
    found.push_back(*std::move(one));
  }
  return found;
}

}  // namespace gpumem
