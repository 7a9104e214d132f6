// Entry points for CuPy without the Python package. A PythonFunctionAllocator calls them through Python; a
// CFunctionAllocator, whose signature they have, calls them by address.
//
// `param` is the block's stream; 0 is the default stream. Python passes the current stream. A CFunctionAllocator always
// passes the same `param` and does not check for null. No exception leaves these functions: on out-of-memory they log
// the whole report and return null. Any thread.
#include <cstddef>
#include <exception>
#include <mutex>

#include "gpumem/default_allocator.hpp"
#include "gpumem/export.h"
#include "log.hpp"
#include "physical_device.hpp"

extern "C" {

GPUMEM_API void* gpumem_cupy_malloc(void* param, std::size_t bytes, int device) {
  if (bytes == 0) return nullptr;
  try {
    const gpumem::result<gpumem::allocator*> found = gpumem::default_allocator();
    if (!found) {
      static std::once_flag said;  // CuPy calls this for every array
      std::call_once(said, [&] { gpumem::log_line("cupy: " + found.why().message()); });
      return nullptr;
    }
    gpumem::allocator& allocator = **found;
    const gpumem::result<int> logical = gpumem::first_logical_on(allocator, device);
    if (!logical) throw gpumem::bad_request{logical.why()};
    return allocator.allocate({.bytes = bytes, .stream = {param}, .device = *logical});
  } catch (const std::exception& failed) {
    gpumem::log_line(std::string{"cupy: "} + failed.what());
    return nullptr;
  }
}

GPUMEM_API void gpumem_cupy_free(void* /*param*/, void* ptr, int /*device*/) {
  if (ptr == nullptr) return;
  const gpumem::result<gpumem::allocator*> found = gpumem::default_allocator();
  if (found) (*found)->deallocate(ptr);
}

}  // extern "C"
