#include "cuda_driver.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "checked_mutex.hpp"
#include "load_error.hpp"
#include "loaded_driver.hpp"
#include "text.hpp"
#include "trusted_path.hpp"

namespace gpumem {
namespace {

constexpr const char* usual_driver = "libcuda.so.1";
constexpr bool needed = true;
constexpr bool optional = false;

/// Advice for common errors; empty for others.
std::string_view advice(CUresult error) {
  switch (error) {
    case CUDA_ERROR_OUT_OF_MEMORY:
      return "other processes or libraries hold the rest: nvidia-smi shows who";
    case CUDA_ERROR_NO_DEVICE:
      return "no GPU is visible: see nvidia-smi and CUDA_VISIBLE_DEVICES";
    case CUDA_ERROR_INVALID_DEVICE:
      return "see nvidia-smi and CUDA_VISIBLE_DEVICES for the ordinals there are";
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
      return "another process has the GPU for itself (exclusive compute mode): wait for it, or take another GPU";
    case CUDA_ERROR_DEINITIALIZED:
      return "the process is exiting: use no GPU memory after main";
    case CUDA_ERROR_NOT_INITIALIZED:
      return "the driver is not initialised: was this process forked from one that used CUDA?";
    case CUDA_ERROR_INVALID_CONTEXT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
      return "the device was reset, and all memory on it is gone: open a new allocator";
    case CUDA_ERROR_INVALID_HANDLE:
      return "a stream was destroyed before it was last named: keep it, or call stream_release first";
    case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:
    case CUDA_ERROR_STREAM_CAPTURE_INVALIDATED:
    case CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
      return "a stream is being captured: tell capture_begin before the capture begins";
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
      return "an earlier kernel failed and took the context with it: run under compute-sanitizer, and start again";
    case CUDA_ERROR_ECC_UNCORRECTABLE:
      return "the GPU's memory is damaged: see nvidia-smi -q";
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
    case CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE:
      return "the driver's library and its kernel module differ: restart the machine after an update";
    case CUDA_ERROR_SYSTEM_NOT_READY:
      return "a service of the driver does not run: is nvidia-fabricmanager up?";
    case CUDA_ERROR_OPERATING_SYSTEM:
      return "the operating system refused: in a container, are the device files there?";
    case CUDA_ERROR_MPS_CONNECTION_FAILED:
    case CUDA_ERROR_MPS_SERVER_NOT_READY:
      return "the MPS server does not answer: see nvidia-cuda-mps-control";
    case CUDA_ERROR_NOT_SUPPORTED:
      return "this GPU or driver cannot do it";
    default:
      return "";
  }
}

errc code_of(CUresult error) {
  switch (error) {
    case CUDA_ERROR_OUT_OF_MEMORY:
      return errc::out_of_memory;
    case CUDA_ERROR_NOT_SUPPORTED:
    case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:
    case CUDA_ERROR_STREAM_CAPTURE_INVALIDATED:
    case CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
    case CUDA_ERROR_CAPTURED_EVENT:
      return errc::unsupported;
    case CUDA_ERROR_INVALID_DEVICE:
      return errc::wrong_device;
    default:
      return errc::device_error;
  }
}

template <typename Function>
bool resolve(PFN_cuGetProcAddress_v12000 ask, Function& function, const char* name, int version) {
  void* found = nullptr;
  CUdriverProcAddressQueryResult how{};
  function.name = name;
  if (ask(name, &found, version, CU_GET_PROC_ADDRESS_DEFAULT, &how) != CUDA_SUCCESS) return false;
  if (how != CU_GET_PROC_ADDRESS_SUCCESS || found == nullptr) return false;
  function.call = reinterpret_cast<typename Function::pointer>(found);
  return true;
}

/// Keeps a table for the life of the process. Stores equal tables once.
const cuda_driver* kept(std::unique_ptr<const cuda_driver> table) {
  static checked_mutex mutex;
  static auto* const all = new std::vector<std::unique_ptr<const cuda_driver>>;
  const mutex_lock lock{mutex};
  for (const auto& known : *all) {
    if (known->same_as(*table)) return known.get();
  }
  all->push_back(std::move(table));
  return all->back().get();
}

std::atomic<void*> driver_library{nullptr};

/// Loads the driver from `named`, the file in GPUMEM_CUDA_DRIVER, or if empty from the usual one.
result<const cuda_driver*> load_from(const std::string& named) {
  const std::string path = named.empty() ? usual_driver : named;
  const auto failed = [&](std::string why) {
    const std::string place = named.empty() ? fmt::format("no CUDA driver in {}", path)
                                            : fmt::format("GPUMEM_CUDA_DRIVER={}: no CUDA driver", printable(named));
    return status{errc::device_error, fmt::format("{}: {}", place, why)};
  };
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const std::string_view advice = named.empty()
                                        ? "install NVIDIA's driver (CUDA 12.0 or later), or use the simulated device"
                                        : "expected the path of libcuda.so.1 of CUDA 12.0 or later";
    return failed(fmt::format("{}; {}", load_error(path), advice));
  }
  driver_library.store(library, std::memory_order_release);
  void* const ask = dlsym(library, "cuGetProcAddress_v2");
  if (ask != nullptr) return resolve_cuda_driver(ask);
  // A driver before 12.0 can still report its version.
  const auto version_of = reinterpret_cast<PFN_cuDriverGetVersion_v2020>(dlsym(library, "cuDriverGetVersion"));
  int version = 0;
  if (version_of == nullptr || version_of(&version) != CUDA_SUCCESS) {
    return failed("it has neither cuGetProcAddress_v2 nor cuDriverGetVersion; expected a driver of CUDA 12.0 or later");
  }
  return failed(fmt::format("it supports CUDA {}; expected {} or later: update the driver", version_text(version),
                            version_text(oldest_driver_version)));
}

}  // namespace

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

status driver_status(const cuda_driver& driver, const char* call, CUresult error, std::string_view doing) {
  const char* name = nullptr;
  const char* text = nullptr;
  if (!driver.get_error_name || driver.get_error_name(error, &name) != CUDA_SUCCESS) name = nullptr;
  if (!driver.get_error_string || driver.get_error_string(error, &text) != CUDA_SUCCESS) text = nullptr;
  std::string line = fmt::format("{}{}{} failed: {}", call, doing.empty() ? "" : " ", doing,
                                 name != nullptr ? name : fmt::format("CUDA error {}", static_cast<int>(error)));
  if (text != nullptr) line += fmt::format(" ({})", text);
  if (const std::string_view todo = advice(error); !todo.empty()) line += fmt::format("; {}", todo);
  return {code_of(error), std::move(line)};
}

result<const cuda_driver*> resolve_cuda_driver(void* get_proc_address_v2) {
  if (get_proc_address_v2 == nullptr) {
    return status{errc::invalid_argument, "cuGetProcAddress_v2 is null; expected the driver's function"};
  }
  const auto ask = reinterpret_cast<PFN_cuGetProcAddress_v12000>(get_proc_address_v2);
  auto table = std::make_unique<cuda_driver>();
  std::string missing;
#define DRIVER(member, name, asked, type, since) \
  if (!resolve(ask, table->member, name, asked) && (since)) missing += missing.empty() ? name : ", " name;
#include "cuda_driver.def"
  if (table->driver_get_version && table->driver_get_version(&table->version) != CUDA_SUCCESS) table->version = 0;
  if (table->version != 0 && table->version < oldest_driver_version) {
    return status{errc::device_error, fmt::format("the CUDA driver supports CUDA {}; expected {} or later: update it",
                                                  version_text(table->version), version_text(oldest_driver_version))};
  }
  if (!missing.empty()) {
    return status{errc::device_error,
                  fmt::format("the CUDA driver, which supports CUDA {}, lacks {}; expected a driver "
                              "of CUDA {} or later with all of its functions",
                              version_text(table->version), missing, version_text(oldest_driver_version))};
  }
  if (const CUresult failed = table->init(0); failed != CUDA_SUCCESS) {
    return driver_status(*table, table->init.name, failed);
  }
  return kept(std::move(table));
}

result<const cuda_driver*> load_cuda_driver() {
  static checked_mutex once;
  static const cuda_driver* loaded = nullptr;  // does not cache errors, because the user may fix the cause
  const mutex_lock lock{once};
  if (loaded != nullptr) return loaded;
  result<const cuda_driver*> driver = load_from(trusted_path("GPUMEM_CUDA_DRIVER"));
  if (driver) loaded = *driver;
  return driver;
}

void* loaded_driver_symbol(const char* name) noexcept {
  void* const library = driver_library.load(std::memory_order_acquire);
  if (library == nullptr) return nullptr;
  void* const found = dlsym(library, name);
  return found != nullptr ? found : dlsym(RTLD_DEFAULT, name);
}

result<int> cuda_device_count(const cuda_driver* driver) {
  if (driver == nullptr) {
    const result<const cuda_driver*> found = load_cuda_driver();
    if (!found) return found.why();
    driver = *found;
  }
  int count = 0;
  const CUresult asked = driver->device_get_count(&count);
  if (asked != CUDA_SUCCESS) return driver_status(*driver, driver->device_get_count.name, asked);
  return count;
}

}  // namespace gpumem
