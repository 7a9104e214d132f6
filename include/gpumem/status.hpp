/// Outcome of an operation: `status` (ok, or a code with a message) and `result<T>` (a value or a status).
///
/// Functions inside gpumem do not throw: device, heap and pool return these, and `allocator::allocate` turns them into
/// exceptions. A message is one line that names the thing, its value and the expected value.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "gpumem/export.h"

namespace GPUMEM_API gpumem {

enum class errc : std::uint8_t {
  ok,
  invalid_argument,    ///< zero bytes, alignment that is not a power of two, a size that overflows
  bad_setting,         ///< a GPUMEM_* value or combination that cannot be used
  out_of_memory,       ///< the limit or the device refused; the message is the first line of the report
  unknown_pointer,     ///< not a block of this allocator
  double_free,         ///< a block that is already free
  wrong_size,          ///< a free that states another size than the allocation
  wrong_device,        ///< a device that does not exist, or is not the block's
  unsupported,         ///< the device cannot do this, or not now (during a capture, for example)
  device_error,        ///< the driver reported an error
  corrupt,             ///< a damaged file, or an invariant that does not hold
  policy_failed,       ///< a function of the policy threw; the message names the policy and the function
  host_failure = 100,  ///< the host has no memory left for the call itself; nothing is lost
};

/// The code's name as written above, for messages and JSON.
std::string_view to_string(errc code) noexcept;

/// Success is a null pointer and costs as little. Copies of a failure share its code and message.
class [[nodiscard]] status {
 public:
  status() noexcept = default;
  /// `errc::ok` has no message.
  status(errc code, std::string message)
      : failure_{code == errc::ok ? nullptr : new failure{{1}, code, std::move(message)}} {}
  status(const status& source) noexcept : failure_{source.failure_} {
    if (failure_ != nullptr) [[unlikely]]
      failure_->refcount.fetch_add(1, std::memory_order_relaxed);
  }
  status(status&& source) noexcept : failure_{std::exchange(source.failure_, nullptr)} {}
  status& operator=(status source) noexcept {
    std::swap(failure_, source.failure_);
    return *this;
  }
  /// In a catch block: a status for the current exception. Never throws, even if the host has no memory.
  static status of_current_exception() noexcept;
  ~status() {
    if (failure_ != nullptr) [[unlikely]]
      unref();
  }

  [[nodiscard]] bool ok() const noexcept { return failure_ == nullptr; }
  explicit operator bool() const noexcept { return ok(); }
  [[nodiscard]] errc code() const noexcept { return ok() ? errc::ok : failure_->code; }
  /// Empty on success.
  [[nodiscard]] const std::string& message() const noexcept;

 private:
  struct failure {
    std::atomic<unsigned> refcount;
    errc code;
    std::string message;
  };
  void unref() const noexcept;

  failure* failure_ = nullptr;
};

/// Prints the message and aborts. Called when a program reads the value of a failed `result`.
[[noreturn]] void abort_without_value(const status& why) noexcept;

/// A value, or a status with the reason why there is none. `T` must be default constructible. Reading the value of a
/// failure prints its message and aborts the program; so does constructing a result from an ok status.
template <typename T>
class [[nodiscard]] result {
 public:
  result(T value) noexcept(noexcept(T(std::move(value)))) : value_{std::move(value)} {}  // NOLINT: converts
  result(status why) noexcept : status_{std::move(why)} {                                // NOLINT: converts
    if (status_.ok()) [[unlikely]]
      abort_without_value(status_);
  }

  [[nodiscard]] bool ok() const noexcept { return status_.ok(); }
  explicit operator bool() const noexcept { return ok(); }
  [[nodiscard]] const status& why() const noexcept { return status_; }
  [[nodiscard]] errc code() const noexcept { return status_.code(); }

  [[nodiscard]] T& operator*() & noexcept { return require_value(), value_; }
  [[nodiscard]] const T& operator*() const& noexcept { return require_value(), value_; }
  [[nodiscard]] T&& operator*() && noexcept { return require_value(), std::move(value_); }
  [[nodiscard]] T* operator->() noexcept { return require_value(), &value_; }
  [[nodiscard]] const T* operator->() const noexcept { return require_value(), &value_; }

 private:
  void require_value() const noexcept {
    if (!ok()) [[unlikely]]
      abort_without_value(status_);
  }

  status status_;
  T value_{};
};

}  // namespace gpumem
