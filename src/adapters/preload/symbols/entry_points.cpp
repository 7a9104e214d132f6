#include "entry_points.hpp"

#include <cstring>
#include <string>
#include <string_view>

#include "forwarded_call.hpp"

namespace gpumem::preload {
namespace {

struct row {
  const char* name;
  int version;
  const char* symbol;
  void* ours[2];  // indexed by null_stream; the second is null if there is no variant
};

template <typename Function>
void* erased(Function* function) {
  return reinterpret_cast<void*>(function);
}

const row rows[] = {
#define OURS_plain(function) \
  { erased(&function), nullptr }
#define OURS_per_thread(function) \
  { erased(&function), erased(&function##_ptsz) }
#define PASSED_plain(function, how) \
  { erased(&forwarded_call<entry::function, null_stream::legacy, how>::call), nullptr }
#define PASSED_per_thread(function, how)                                             \
  {                                                                                  \
    erased(&forwarded_call<entry::function, null_stream::legacy, how>::call),        \
        erased(&forwarded_call<entry::function, null_stream::per_thread, how>::call) \
  }
#define SERVED(function, name, version, symbol, streams, why) {#name, version, #symbol, OURS_##streams(function)},
#define COUNTED(function, name, version, symbol, streams, why) \
  {#name, version, #symbol, PASSED_##streams(function, accounting::counted)},
#define MEASURED(function, name, version, symbol, streams, why) \
  {#name, version, #symbol, PASSED_##streams(function, accounting::measured)},
#include "entry_points.def"
};
constexpr std::size_t row_count = static_cast<std::size_t>(entry::count_);
static_assert(std::size(rows) == row_count);

/// The driver's functions behind the rows, once looked up; `absent` if the driver lacks the function.
std::atomic<void*> found_functions[row_count][2];
char absent_mark;
void* const absent = &absent_mark;

constexpr std::string_view per_thread_suffix = "_ptsz";

void* look_up(const row& row, null_stream streams) noexcept {
  void* found = nullptr;
  if (const PFN_cuGetProcAddress_v12000 ask = driver_get_proc_address()) {
    const cuuint64_t flags = streams == null_stream::per_thread ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
                                                                : CU_GET_PROC_ADDRESS_LEGACY_STREAM;
    CUdriverProcAddressQueryResult how{};
    if (ask(row.name, &found, row.version, flags, &how) == CUDA_SUCCESS && found != nullptr) return found;
  }
  if (streams == null_stream::legacy) return driver_symbol(row.symbol);
  return driver_symbol((std::string{row.symbol} + std::string{per_thread_suffix}).c_str());
}

CUresult CUDAAPI missing() { return driver_missing(); }

}  // namespace

void* driver_function(entry function, null_stream streams) noexcept {
  const auto i = static_cast<std::size_t>(function);
  std::atomic<void*>& kept = found_functions[i][static_cast<std::size_t>(streams)];
  void* known = kept.load(std::memory_order_acquire);
  if (known == nullptr) {
    known = look_up(rows[i], streams);
    if (known == nullptr) known = absent;
    kept.store(known, std::memory_order_release);
  }
  return known == absent ? nullptr : known;
}

void* bound_to(const char* symbol) noexcept {
  const std::string_view wanted = symbol;
  for (const row& r : rows) {
    const std::string_view base_name = r.symbol;
    if (wanted == base_name) return r.ours[0];
    if (r.ours[1] != nullptr && wanted.size() == base_name.size() + per_thread_suffix.size() &&
        wanted.starts_with(base_name) && wanted.ends_with(per_thread_suffix)) {
      return r.ours[1];
    }
  }
  void* const found = driver_symbol(symbol);
  return found != nullptr ? found : erased(&missing);
}

// A name has a row for each of its signatures. The row is found by the driver's function, because requests with
// different versions and flags that lead to one function mean the same signature.
void* substitute(const char* name, void* found) noexcept {
  if (found == nullptr) return found;
  for (std::size_t i = 0; i < row_count; ++i) {
    if (std::strcmp(rows[i].name, name) != 0) continue;
    if (driver_function(static_cast<entry>(i), null_stream::legacy) == found) return rows[i].ours[0];
    if (rows[i].ours[1] != nullptr && driver_function(static_cast<entry>(i), null_stream::per_thread) == found) {
      return rows[i].ours[1];
    }
  }
  return found;
}

// Without a driver, returns a function that fails when it is called, so that a runtime reports the same error as
// without the shim, and not a broken driver.
bool missing_driver_stub(const char* name, void** function, CUdriverProcAddressQueryResult* how) noexcept {
  if (driver_get_proc_address() != nullptr || name == nullptr || function == nullptr) return false;
  *function = erased(&missing);
  if (how != nullptr) *how = CU_GET_PROC_ADDRESS_SUCCESS;
  return true;
}

// Asks the driver for a function by name, and returns the shim's function instead if the table has a row for it. The
// name cuGetProcAddress has a row, so that later lookups come here, too.
CUresult CUDAAPI get_proc_address(const char* name, void** function, int version, cuuint64_t flags,
                                  CUdriverProcAddressQueryResult* how) {
  if (missing_driver_stub(name, function, how)) return CUDA_SUCCESS;
  if (function != nullptr) *function = nullptr;
  const CUresult e = driver_call<entry::get_proc_address>(name, function, version, flags, how);
  if (e == CUDA_SUCCESS && name != nullptr && function != nullptr) *function = substitute(name, *function);
  return e;
}

CUresult CUDAAPI get_proc_address_11(const char* name, void** function, int version, cuuint64_t flags) {
  if (function != nullptr) *function = nullptr;
  const CUresult e = driver_call<entry::get_proc_address_11>(name, function, version, flags);
  if (e == CUDA_SUCCESS && name != nullptr && function != nullptr) *function = substitute(name, *function);
  return e;
}

}  // namespace gpumem::preload
