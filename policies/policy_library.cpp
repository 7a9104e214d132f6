/// Loads shared libraries with policies, checks and registers them, and never unloads them.
#include <dlfcn.h>
#include <elf.h>
#include <fmt/format.h>
#include <link.h>

#include <set>
#include <string>

#include "checked_mutex.hpp"
#include "library_policy.hpp"
#include "registry.hpp"
#include "text.hpp"
#include "trusted_path.hpp"

namespace gpumem {
namespace {

constexpr const char* variable = "GPUMEM_POLICY_LIBRARY";
constexpr const char* symbol = "gpumem_policies";

status refused(const std::string& path, std::string_view why) {
  return {errc::bad_setting, fmt::format("{}={}: {}", variable, printable(path), why)};
}

/// Whether the address `found` by dlsym is a function. The resolved function of an IFUNC may have no symbol entry.
bool is_function(void* found) {
  Dl_info info{};
  ElfW(Sym)* entry = nullptr;
  if (dladdr1(found, &info, reinterpret_cast<void**>(&entry), RTLD_DL_SYMENT) == 0) return false;
  if (entry == nullptr) return true;
  const auto type = ELF64_ST_TYPE(entry->st_info);
  return type == STT_FUNC || type == STT_GNU_IFUNC;
}

/// Registers the policies of the open library.
status add_from(void* library, const std::string& path) {
  using table_function = const gpumem_policy_library* (*)();
  void* const found = dlsym(library, symbol);
  if (found == nullptr) {
    return refused(
        path, fmt::format("it has no symbol {}; expected a library as gpumem/policy_library.h describes it", symbol));
  }
  if (!is_function(found)) {
    return refused(
        path,
        fmt::format("its symbol {} is data; expected a function, as gpumem/policy_library.h describes it", symbol));
  }
  result<std::vector<registered_policy>> rows = policies_of_table(reinterpret_cast<table_function>(found)());
  if (!rows) return refused(path, rows.why().message());
  if (status added = add_policies(*std::move(rows)); !added) return refused(path, added.message());
  return {};
}

}  // namespace

status load_policy_library(const std::string& path) {
  static checked_mutex mutex;
  static auto* const loaded = new std::set<void*>;  // for the whole process
  const mutex_lock lock{mutex};
  // A name without `/` would be searched for in the system's folders.
  const std::string file = path.find('/') == std::string::npos ? "./" + path : path;
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = dlerror();
    return refused(
        path, fmt::format("{}; expected a shared library with policies", why != nullptr ? why : "it cannot be loaded"));
  }
  if (loaded->contains(library)) {  // already loaded: undo the extra dlopen
    dlclose(library);
    return {};
  }
  if (status added = add_from(library, path); !added) {
    dlclose(library);
    return added;
  }
  loaded->insert(library);
  return {};
}

status load_named_policy_library() {
  const std::string path = trusted_path(variable);
  return path.empty() ? status{} : load_policy_library(path);
}

}  // namespace gpumem
