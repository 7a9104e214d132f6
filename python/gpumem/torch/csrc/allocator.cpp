// The functions that gpumem.torch calls in the extension. Compiled on the user's machine against the headers of the
// installed torch, with a plain C++ compiler, as one translation unit.
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <pthread.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <memory>
#include <string>
#include <tuple>

#include "torch_allocator.hpp"

namespace {

// Never destroyed, because tensors may be freed until the process ends.
torch_allocator& only() {
  static auto* const made = new torch_allocator;
  return *made;
}

/// Returns null, or the message of the exception that `step` throws. The text is valid until the next call.
template <class Step>
const char* what_fails(const Step& step) {
  static std::string why;
  try {
    step();
    return nullptr;
  } catch (const c10::Error& error) {
    why = error.what_without_backtrace();
  } catch (const std::exception& error) {
    why = error.what();
  }
  return why.c_str();
}

}  // namespace

void delete_block(void* ptr) {
  if (ptr != nullptr) only().raw_delete(ptr);
}

#define EXPORTED extern "C" __attribute__((visibility("default")))

/// Whether PyTorch's allocator is initialized, even if torch.cuda does not know: by pinned memory, or before a fork.
EXPORTED bool gpumem_torch_in_use() { return native::get()->initialized(); }

/// Reads free and total bytes of a GPU for this program. False, with nothing changed, before the first use of a GPU.
EXPORTED bool gpumem_torch_memory_info(int device, std::size_t* free, std::size_t* total) try {
  if (!only().initialized()) return false;
  std::tie(*free, *total) = only().memory_info(static_cast<DeviceIndex>(device));
  return true;
} catch (const std::exception&) {
  return false;
}

/// Returns null, or why PyTorch rejects its own settings. While its own allocator is current, all of them are valid.
/// Those that all accelerators have are parsed apart from CUDA's own.
EXPORTED const char* gpumem_torch_read_settings() {
  return what_fails([] {
    static_cast<void>(native::CUDAAllocatorConfig::release_lock_on_cudamalloc());
    static_cast<void>(c10::CachingAllocator::AcceleratorAllocatorConfig::max_split_size());
  });
}

/// Makes gpumem PyTorch's allocator, once PyTorch has read its settings. Returns null, or the error; then nothing has
/// changed. Touches no GPU, so that a process may still fork and choose GPUs by CUDA_VISIBLE_DEVICES.
EXPORTED const char* gpumem_torch_install() {
  return what_fails([] {
    torch::cuda::CUDAPluggableAllocator::changeCurrentAllocator(
        std::shared_ptr<native::CUDAAllocator>{&only(), [](native::CUDAAllocator*) {}});
    // A child that is forked before the first use of a GPU may use a GPU itself.
    pthread_atfork(nullptr, nullptr, [] { in_forked_child = only().initialized(); });
    // torch.accelerator uses c10's registry; there PyTorch's own unused allocator would show no statistics and empty
    // nothing.
    constexpr std::uint8_t above_native = 255;
    c10::SetAllocator(c10::DeviceType::CUDA, &only(), above_native);
  });
}
