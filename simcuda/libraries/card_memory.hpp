/// Memory that a library allocates on the card for itself, charged through the driver like the program's.
///
/// An environment variable sets the amount (`gpumem simulate` sets it from its table); unset or 0 charges nothing.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>
#include <utility>

namespace gpumem::simcuda {

class card_memory {
 public:
  card_memory() = default;
  card_memory& operator=(card_memory&&) = delete;
  ~card_memory() { give_back(); }

  void give_back() {
    if (const auto back = std::exchange(give_back_, nullptr); back != nullptr) static_cast<void>(back(address_));
  }

  /// Allocates the bytes of the variable on the current device. False if the card has no room.
  bool take(const char* variable) {
    const char* const text = std::getenv(variable);
    const unsigned long long bytes = text == nullptr ? 0 : std::strtoull(text, nullptr, 10);
    if (bytes == 0) return true;
    void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (driver == nullptr) return true;
    using take_function = int (*)(std::uint64_t*, std::uint64_t);
    const auto charge = reinterpret_cast<take_function>(::dlsym(driver, "simcuda_charge_library"));
    const auto back = reinterpret_cast<int (*)(std::uint64_t)>(::dlsym(driver, "simcuda_discharge_library"));
    ::dlclose(driver);
    if (charge == nullptr || back == nullptr) return true;
    if (charge(&address_, bytes) != 0) return false;
    give_back_ = back;
    return true;
  }

 private:
  std::uint64_t address_ = 0;
  int (*give_back_)(std::uint64_t) = nullptr;
};

}  // namespace gpumem::simcuda
