/// Names of the error codes.
#include "gpumem/status.hpp"

namespace gpumem {

std::string_view to_string(errc code) noexcept {
  switch (code) {
    case errc::ok:
      return "ok";
    case errc::invalid_argument:
      return "invalid_argument";
    case errc::bad_setting:
      return "bad_setting";
    case errc::out_of_memory:
      return "out_of_memory";
    case errc::unknown_pointer:
      return "unknown_pointer";
    case errc::double_free:
      return "double_free";
    case errc::wrong_size:
      return "wrong_size";
    case errc::wrong_device:
      return "wrong_device";
    case errc::unsupported:
      return "unsupported";
    case errc::device_error:
      return "device_error";
    case errc::corrupt:
      return "corrupt";
  }
  return "unknown_code";
}

}  // namespace gpumem
