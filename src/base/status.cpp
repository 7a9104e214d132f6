/// Messages of failures, and the names of the error codes.
#include "gpumem/status.hpp"

#include <array>
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

void status::unref() const noexcept {
  if (failure_->refcount.fetch_sub(1, std::memory_order_acq_rel) == 1) delete failure_;
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
  constexpr std::array<std::string_view, 12> names{
      "ok",         "invalid_argument", "bad_setting", "out_of_memory", "unknown_pointer", "double_free",
      "wrong_size", "wrong_device",     "unsupported", "device_error",  "corrupt",         "policy_failed"};
  if (code == errc::host_failure) return "host_failure";
  const auto index = static_cast<std::size_t>(code);
  return index < names.size() ? names.at(index) : "unknown_code";
}

}  // namespace gpumem
