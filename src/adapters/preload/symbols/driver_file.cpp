#include "driver_file.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <cstdlib>
#include <string_view>
#include <utility>

#include "gpumem/settings.hpp"
#include "log.hpp"
#include "process_settings.hpp"
#include "trusted_path.hpp"
#include "visible_now.hpp"
#include "whole_file.hpp"

namespace gpumem::preload {
namespace {

constexpr std::string_view soname = "libcuda.so.1";
#if defined(__aarch64__)
#define GPUMEM_MULTIARCH "aarch64-linux-gnu"
#else
#define GPUMEM_MULTIARCH "x86_64-linux-gnu"
#endif
constexpr const char* usual_folders[] = {"/usr/lib/" GPUMEM_MULTIARCH,
                                         "/usr/lib64",
                                         "/usr/lib",
                                         "/lib/" GPUMEM_MULTIARCH,
                                         "/usr/lib/wsl/lib",
                                         "/usr/local/nvidia/lib64",
                                         "/usr/local/nvidia/lib",
                                         "/run/opengl-driver/lib"};

/// Reads an environment variable; null if it is unset or empty.
const char* variable(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

bool same_file(const std::string& first, const char* second) {
  struct stat of_first {};
  struct stat of_second {};
  return stat(first.c_str(), &of_first) == 0 && stat(second, &of_second) == 0 && of_first.st_dev == of_second.st_dev &&
         of_first.st_ino == of_second.st_ino;
}

const char* this_library() {
  static const int somewhere_in_it = 0;
  Dl_info info{};
  return dladdr(&somewhere_in_it, &info) != 0 ? info.dli_fname : nullptr;
}

/// Adds every path in ldconfig's cache that ends with the driver's name, without parsing the cache's format.
void add_from_cache(std::vector<std::string>& paths) {
  const std::string all = content_of("/etc/ld.so.cache");
  const std::string ending = fmt::format("/{}", soname) + '\0';
  for (std::size_t offset = all.find(ending); offset != std::string::npos; offset = all.find(ending, offset + 1)) {
    const std::size_t before = all.rfind('\0', offset);
    const std::size_t begin = before == std::string::npos ? 0 : before + 1;
    paths.push_back(all.substr(begin, offset - begin) + std::string{ending.data(), ending.size() - 1});
  }
}

struct driver_file {
  void* opened = nullptr;
  PFN_cuGetProcAddress_v12000 ask = nullptr;
};

/// Applies GPUMEM_DEVICES before the driver reads CUDA_VISIBLE_DEVICES at its first call. False if the settings cannot
/// be used: then the program must get no device, so that it never runs on an unintended card or without its limit.
bool obey_settings() {
  const process_settings& process = settings_of_process();
  status obeyed = process.usable;
  if (obeyed && process.options.devices) {
    result<chosen_cards> cards = choose_cards(process.options, visible_by::rule);
    if (cards) {
      cards->claims.keep_until_exit();
      setenv("CUDA_VISIBLE_DEVICES", cards->list.c_str(), 1);
      unsetenv("GPUMEM_DEVICES");  // already applied; a child must not apply it to the remaining devices
    }
    obeyed = cards.why();
  }
  if (!obeyed) log_line(fmt::format("{}; this program sees no device", obeyed.message()));
  return obeyed.ok();
}

driver_file open_driver() {
  driver_file found;
  if (!obey_settings()) return found;
  std::string failures;
  for (const std::string& path : driver_candidates()) {
    found.opened = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (found.opened != nullptr) {
      found.ask = reinterpret_cast<PFN_cuGetProcAddress_v12000>(dlsym(found.opened, "cuGetProcAddress_v2"));
      return found;
    }
    const char* const why = dlerror();
    failures += fmt::format("; {}", why != nullptr ? why : path);
  }
  if (variable("GPUMEM_CUDA_DRIVER") != nullptr || variable("GPUMEM_VERBOSE") != nullptr) {
    log_line(fmt::format("no CUDA driver to preload for{}; every driver call fails with CUDA_ERROR_NO_DEVICE",
                         failures.empty() ? "; no libcuda.so.1 was found" : failures));
  }
  return found;
}

const driver_file& driver() {
  static const driver_file only = open_driver();
  return only;
}

}  // namespace

std::vector<std::string> driver_candidates() {
  const char* const self = this_library();
  if (std::string named = trusted_path("GPUMEM_CUDA_DRIVER"); !named.empty()) {
    if (self == nullptr || !same_file(named, self)) return {std::move(named)};
    log_line(fmt::format("GPUMEM_CUDA_DRIVER={}: this is gpumem's own library; expected the driver's", named));
    return {};
  }
  std::vector<std::string> all;
  if (const char* const folders = runs_secure() ? nullptr : variable("LD_LIBRARY_PATH")) {
    std::string_view rest = folders;
    while (!rest.empty()) {
      const std::size_t end = std::min(rest.find_first_of(":;"), rest.size());
      if (end > 0) all.push_back(fmt::format("{}/{}", rest.substr(0, end), soname));
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  }
  add_from_cache(all);
  for (const char* const folder : usual_folders) all.push_back(fmt::format("{}/{}", folder, soname));
  std::erase_if(all, [self](const std::string& path) {
    struct stat file_status {};
    return stat(path.c_str(), &file_status) != 0 || (self != nullptr && same_file(path, self));
  });
  return all;
}

void* driver_symbol(const char* name) noexcept {
  return driver().opened != nullptr ? dlsym(driver().opened, name) : nullptr;
}

PFN_cuGetProcAddress_v12000 driver_get_proc_address() noexcept { return driver().ask; }

CUresult driver_missing() noexcept {
  return driver().opened != nullptr ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_NO_DEVICE;
}

}  // namespace gpumem::preload
