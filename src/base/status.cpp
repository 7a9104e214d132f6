/// Messages of failures, and the names of the error codes.
#include "gpumem/status.hpp"

#include <cstdio>
#include <cstdlib>

#include "without_exceptions.hpp"

namespace gpumem {
namespace {

/// Never destroyed: a program may allocate while it exits.
const status& host_failure() {
  static const status& made = *new status{
      errc::host_failure, "the host has no memory left for the call itself: nothing was changed; free host memory"};
  return made;
}

/// Created when the library is loaded, because later there may be no memory for it.
[[maybe_unused]] const status& made_early = host_failure();

}  // namespace

status status::of_current_exception() noexcept {
  try {
    throw;
  } catch (const thrown_status& carried) {
    return carried.why;
  } catch (...) {
    return host_failure();
  }
}

const std::string& status::message() const noexcept {
  static const std::string none;
  return ok() ? none : failure_->message;
}

void status::let_go() const noexcept {
  if (failure_->holders.fetch_sub(1, std::memory_order_acq_rel) == 1) delete failure_;
}

void abort_without_value(const status& why) noexcept {
  if (why.ok()) {
    std::fputs("gpumem: a result was made of a status that is ok; expected a value or a failure\n", stderr);
  } else {
    std::fprintf(stderr, "gpumem: the value of a failed call was read: %s: %s\n", to_string(why.code()).data(),
                 why.message().c_str());
  }
  std::abort();
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
    case errc::policy_failed:
      return "policy_failed";
    case errc::host_failure:
      return "host_failure";
  }
  return "unknown_code";
}

}  // namespace gpumem
