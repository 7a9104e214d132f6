// Entry points for CuPy without the Python package: called by a PythonFunctionAllocator, or by address by a
// CFunctionAllocator, whose signature they have.
//
// `param` is the stream that the block belongs to; 0 is the default stream. Python passes the current one; a
// CFunctionAllocator passes the same for good, and does not look at null. No exception leaves them: an out-of-memory is
// told in the log with its whole report and returns null. Any thread.
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
      static std::once_flag said;  // CuPy asks again for every array
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
