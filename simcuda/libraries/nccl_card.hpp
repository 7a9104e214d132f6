/// Functions of the simulated driver and runtime, found by name: the program has loaded both.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>

namespace gpumem::simcuda {

class nccl_card {
 public:
  nccl_card() {
    void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == nullptr) return;
    find(driver, "simcuda_use", use_);
    find(driver, "simcuda_captures", captures_);
    find(driver, "simcuda_keeps_values", keeps_values_);
    find(driver, "simcuda_load_values", load_values_);
    find(driver, "simcuda_store_values", store_values_);
    find(driver, "simcuda_note_rank", note_rank_);
    find(driver, "simcuda_note_lost_rank", note_lost_rank_);
    ::dlclose(driver);
  }

  void use(void* stream, std::uint64_t duration_ns, const void* address, std::size_t bytes) const {
    if (use_ != nullptr) use_(stream, duration_ns, number(address), bytes);
  }
  [[nodiscard]] bool captures(void* stream) const { return captures_ != nullptr && captures_(stream) != 0; }
  [[nodiscard]] bool keeps_values(std::size_t bytes) const {
    return keeps_values_ != nullptr && keeps_values_(bytes) != 0;
  }
  /// Copies values to the host; returns whether they are true.
  [[nodiscard]] bool load_values(void* result, const void* address, std::size_t bytes) const {
    return load_values_ != nullptr && load_values_(result, number(address), bytes) != 0;
  }
  void store_values(void* address, const void* values, std::size_t bytes, bool is_true) const {
    if (store_values_ != nullptr) store_values_(number(address), values, bytes, is_true ? 1 : 0);
  }
  void note_rank(int rank, int ranks) const {
    if (note_rank_ != nullptr) note_rank_(rank, ranks);
  }
  void note_lost_rank() const {
    if (note_lost_rank_ != nullptr) note_lost_rank_();
  }

  [[nodiscard]] static int current_device() {
    int device = 0;
    const auto get = in_runtime<int(int*)>("cudaGetDevice");
    return get != nullptr && get(&device) == 0 ? device : 0;
  }
  [[nodiscard]] static bool set_device(int device) {
    const auto set = in_runtime<int(int)>("cudaSetDevice");
    return set != nullptr && set(device) == 0;
  }
  [[nodiscard]] static bool copy(void* target, const void* source, std::size_t bytes, void* stream) {
    constexpr int device_to_device = 3;
    if (target == source || bytes == 0) return true;
    const auto move = in_runtime<int(void*, const void*, std::size_t, int, void*)>("cudaMemcpyAsync");
    return move != nullptr && move(target, source, bytes, device_to_device, stream) == 0;
  }

  template <typename Function>
  static Function* in_runtime(const char* name) {
    return reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, name));
  }

 private:
  template <typename Function>
  static void find(void* driver, const char* name, Function*& result) {
    result = reinterpret_cast<Function*>(::dlsym(driver, name));
  }
  static std::uint64_t number(const void* address) {
    return static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(address));
  }

  void (*use_)(void*, std::uint64_t, std::uint64_t, std::uint64_t) = nullptr;
  int (*captures_)(void*) = nullptr;
  int (*keeps_values_)(std::uint64_t) = nullptr;
  int (*load_values_)(void*, std::uint64_t, std::uint64_t) = nullptr;
  void (*store_values_)(std::uint64_t, const void*, std::uint64_t, int) = nullptr;
  void (*note_rank_)(int, int) = nullptr;
  void (*note_lost_rank_)() = nullptr;
};

inline const nccl_card& card() {
  static const nccl_card found;
  return found;
}

}  // namespace gpumem::simcuda
