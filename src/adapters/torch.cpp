// Entry points for PyTorch: torch.cuda.memory.CUDAPluggableAllocator(path, "gpumem_torch_alloc", "gpumem_torch_free").
//
// PyTorch looks the two functions up by name and calls them with a size, a device ordinal in PyTorch's count and a
// stream, from any thread. It does not check for null, so out-of-memory throws and reaches Python as an exception with
// the whole report. The hooks that PyTorch takes by address are named at their functions.
//
// The hooks begin_allocate_to_pool and release_pool are not needed: gpumem detects captures itself, and the driver
// tells it when a graph is destroyed.
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "gpumem/default_allocator.hpp"
#include "gpumem/export.h"
#include "gpumem/refusal.hpp"
#include "log.hpp"
#include "physical_device.hpp"

namespace {

gpumem::allocator& opened() {
  const gpumem::result<gpumem::allocator*> found = gpumem::default_allocator();
  if (!found) throw std::runtime_error{"gpumem: " + found.why().message()};
  return **found;
}

/// Returns the logical device for PyTorch's tensors on a GPU: the first one if the GPU has several pools.
int logical_of(const gpumem::allocator& allocator, int physical) {
  const gpumem::result<int> logical = gpumem::first_logical_on(allocator, physical);
  if (!logical) throw gpumem::bad_request{logical.why()};
  return *logical;
}

}  // namespace

/// Has the calling convention of PyTorch's MempoolId_t: two integers in registers.
struct gpumem_torch_pool_id {
  unsigned long long first;
  unsigned long long second;
};

extern "C" {

/// Takes `cudaStream_t` as a pointer, so that this needs no CUDA header.
GPUMEM_API void* gpumem_torch_alloc(std::ptrdiff_t bytes, int device, void* stream) {
  if (bytes <= 0) return nullptr;
  gpumem::allocator& allocator = opened();
  try {
    return allocator.allocate({.bytes = static_cast<std::size_t>(bytes),
                               .stream = {stream},
                               .device = logical_of(allocator, device),
                               .reports_capture_end = true});
  } catch (const gpumem::out_of_memory& refused) {
    gpumem::report_refusal(refused.report(), device, "gpumem_torch_alloc");
    throw;
  }
}

// Frees the block in the order of the stream that it was allocated on; `stream` names the same one. Uses on other
// streams are reported through gpumem_torch_record_stream.
GPUMEM_API void gpumem_torch_free(void* ptr, std::ptrdiff_t /*bytes*/, int /*device*/, void* /*stream*/) {
  if (ptr == nullptr) return;
  const gpumem::result<gpumem::allocator*> found = gpumem::default_allocator();
  if (found) (*found)->deallocate(ptr);
}

/// For `set_record_stream_fn`: work on another stream uses the tensor, too.
GPUMEM_API void gpumem_torch_record_stream(void* ptr, void* stream) {
  if (ptr == nullptr) return;
  if (const gpumem::status noted = opened().record_use(ptr, {stream}); !noted) {
    gpumem::log_line("record_stream: " + noted.message());
  }
}

/// For `set_end_allocate_to_pool_fn`, which PyTorch calls when a capture on that device has ended. Only the stream of
/// that capture is queried, because it still exists; streams of other libraries may be destroyed.
GPUMEM_API void gpumem_torch_end_allocate_to_pool(int device, gpumem_torch_pool_id /*pool*/) {
  const gpumem::result<gpumem::allocator*> found = gpumem::default_allocator();
  if (!found) return;
  if (const gpumem::status ended = (*found)->reported_captures_ended(device); !ended) {
    gpumem::log_line("end of a capture: " + ended.message());
  }
}

/// For `set_reset_fn`: torch.cuda.empty_cache().
GPUMEM_API void gpumem_torch_empty_cache() {
  gpumem::allocator& all = opened();
  for (const gpumem::logical_device& d : all.devices()) static_cast<void>(all.trim(d.ordinal));
}

/// For `set_init_fn`: opens the allocator when PyTorch starts to use GPUs, so that a bad GPUMEM_* is reported then.
GPUMEM_API void gpumem_torch_init(int /*devices*/) { static_cast<void>(opened()); }

/// For `set_memory_fraction_fn` (torch.cuda.set_per_process_memory_fraction): limits the pool of PyTorch's tensors on
/// that GPU to a fraction of the GPU's memory.
GPUMEM_API void gpumem_torch_memory_fraction(double fraction, int device) {
  gpumem::allocator& allocator = opened();
  const int logical = logical_of(allocator, device);
  if (!(fraction > 0 && fraction <= 1)) {  // NaN fails this test too
    throw std::invalid_argument{"gpumem: a memory fraction of " + std::to_string(fraction) + ": expected (0, 1]"};
  }
  const auto total = static_cast<double>(allocator.devices()[static_cast<std::size_t>(logical)].gpu_total_bytes);
  const gpumem::result<gpumem::limit_result> applied =
      allocator.set_limit(logical, static_cast<std::uint64_t>(fraction * total));
  if (!applied) throw std::invalid_argument{"gpumem: " + applied.why().message()};
}

/// For `set_base_alloc_fn`: returns the block's segment and its size.
GPUMEM_API void* gpumem_torch_base_alloc(void* ptr, std::size_t* bytes) {
  const gpumem::result<gpumem::block_info> found = opened().describe(ptr);
  if (!found) throw std::invalid_argument{"gpumem: " + found.why().message()};
  if (bytes != nullptr) *bytes = found->segment_bytes;
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(found->segment_begin));
}

}  // extern "C"
