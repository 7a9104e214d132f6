/// Outcome of an operation: `status` (ok, or a code with a message) and `result<T>` (a value or a status).
///
/// Nothing inside gpumem throws; device, heap and pool return these, and the C++ surface in
/// allocator.hpp turns them into exceptions where a caller asked for that.
/// A message is one line that names the thing, its value and what was expected.
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
  bad_setting,         ///< a GPUMEM_* value, or a combination of them, that cannot be used
  out_of_memory,       ///< the limit or the device refuses; the message is the first line of the report
  unknown_pointer,     ///< not a block of this allocator
  double_free,         ///< a block that is already free
  wrong_size,          ///< a free that names another size than the allocation
  wrong_device,        ///< a free or a request that names a device that does not exist or is not the block's
  unsupported,         ///< the device, or the moment (a capture, say), cannot do this
  device_error,        ///< the driver reported an error
  corrupt,             ///< a damaged file, or an invariant that does not hold
  policy_failed,       ///< a function of the policy threw; the message names the policy and the function
  host_failure = 100,  ///< the host has no memory left for the call itself; nothing is lost
};

/// The code's name as written above, for messages and JSON.
std::string_view to_string(errc code) noexcept;

/// Ok is a null pointer and costs what one costs; what there is to say of a failure is shared by its copies.
class [[nodiscard]] status {
 public:
  status() noexcept = default;
  /// `errc::ok` has no message.
  status(errc code, std::string message)
      : failure_{code == errc::ok ? nullptr : new failure{{1}, code, std::move(message)}} {}
  status(const status& other) noexcept : failure_{other.failure_} {
    if (failure_ != nullptr) [[unlikely]]
      failure_->holders.fetch_add(1, std::memory_order_relaxed);
  }
  status(status&& other) noexcept : failure_{std::exchange(other.failure_, nullptr)} {}
  status& operator=(status other) noexcept {
    std::swap(failure_, other.failure_);
    return *this;
  }
  /// In a catch block: what the exception says. Never throws, and needs no memory where the host has none.
  static status of_current_exception() noexcept;
  ~status() {
    if (failure_ != nullptr) [[unlikely]]
      let_go();
  }

  [[nodiscard]] bool ok() const noexcept { return failure_ == nullptr; }
  explicit operator bool() const noexcept { return ok(); }
  [[nodiscard]] errc code() const noexcept { return ok() ? errc::ok : failure_->code; }
  /// Empty where it is ok.
  [[nodiscard]] const std::string& message() const noexcept;

 private:
  struct failure {
    std::atomic<unsigned> holders;
    errc code;
    std::string message;
  };
  void let_go() const noexcept;

  failure* failure_ = nullptr;
};

/// A program asked a `result` for the value that it does not have: prints the failure's message and aborts.
[[noreturn]] void abort_without_value(const status& why) noexcept;

/// A value, or the status that says why there is none. `T` must be default constructible. Reading the value of a
/// failure prints its message and aborts the program; so does making a result of an ok status, which would be neither.
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
