/// What a failure says, and the names of the error codes.
#include "gpumem/status.hpp"

namespace gpumem {

const std::string& status::message() const noexcept {
  static const std::string none;
  return ok() ? none : failure_->message;
}

void status::let_go() const noexcept {
  if (failure_->holders.fetch_sub(1, std::memory_order_acq_rel) == 1) delete failure_;
}

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
