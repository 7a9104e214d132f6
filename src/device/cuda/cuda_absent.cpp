// The CUDA device's functions in a build without CUDA's headers: they return errors.
#include "gpumem/cuda_device.hpp"
#include "loaded_driver.hpp"

namespace gpumem {
namespace {

status absent() {
  return {errc::unsupported,
          "this gpumem was built without CUDA: build it where a CUDA Toolkit of 12.4 or later is installed"};
}

}  // namespace

result<const cuda_driver*> load_cuda_driver() { return absent(); }
void* loaded_driver_symbol(const char* /*name*/) noexcept { return nullptr; }
result<const cuda_driver*> resolve_cuda_driver(void* /*get_proc_address_v2*/) { return absent(); }
result<int> cuda_device_count(const cuda_driver* /*driver*/) { return absent(); }
result<std::unique_ptr<device>> open_cuda_device(const cuda_config& /*config*/) { return absent(); }

status add_cuda_peer(device& /*target*/, int /*ordinal*/) { return absent(); }

}  // namespace gpumem
