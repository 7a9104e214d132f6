/// A memory resource for `cuda::mr`, with the names of CCCL in CUDA 13.0 (`allocate_async`) and the newer ones
/// (`allocate(stream, ...)`, `allocate_sync`).
///
///   gpumem::cuda_resource memory{allocator};                          // or {allocator, device}
///   cuda::mr::async_resource_ref<cuda::mr::device_accessible> ref{memory};
///
/// Use the functions without a stream for set-up, not in loops: they allocate in the order of the default stream and
/// wait for it, so that any stream may use the memory at once. Their frees require that all work on the block is done,
/// except work that the default stream is ordered behind. Needs CCCL and CUDA's runtime. This is a handle: copies are
/// equal and may be used from any thread; the allocator must outlive them.
#pragma once

#ifndef LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE
#define LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE
#endif
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cuda/memory_resource>
#include <cuda/stream_ref>
#include <string>

#include "gpumem/allocator.hpp"

namespace gpumem {

class cuda_resource {
 public:
  explicit cuda_resource(allocator& upstream, int device = 0) noexcept : upstream_{&upstream}, device_{device} {}

  // --- the CCCL of CUDA 13.0 -----------------------------------------------------------------------------
  /// These throw `out_of_memory` or `bad_request`, both std::bad_alloc.
  void* allocate_async(std::size_t bytes, std::size_t alignment, cuda::stream_ref stream) {
    return take(bytes, alignment, stream);
  }
  void* allocate_async(std::size_t bytes, cuda::stream_ref stream) { return take(bytes, block_granularity, stream); }
  void deallocate_async(void* pointer, std::size_t bytes, std::size_t /*alignment*/, cuda::stream_ref stream) noexcept {
    give(pointer, bytes, stream);
  }
  void deallocate_async(void* pointer, std::size_t bytes, cuda::stream_ref stream) noexcept {
    give(pointer, bytes, stream);
  }
  void* allocate(std::size_t bytes, std::size_t alignment = block_granularity) {
    return allocate_sync(bytes, alignment);
  }
  void deallocate(void* pointer, std::size_t bytes, std::size_t alignment = block_granularity) noexcept {
    deallocate_sync(pointer, bytes, alignment);
  }

  // --- later ones ----------------------------------------------------------------------------------------
  void* allocate(cuda::stream_ref stream, std::size_t bytes, std::size_t alignment = block_granularity) {
    return take(bytes, alignment, stream);
  }
  void deallocate(cuda::stream_ref stream, void* pointer, std::size_t bytes,
                  std::size_t /*alignment*/ = block_granularity) noexcept {
    give(pointer, bytes, stream);
  }
  void* allocate_sync(std::size_t bytes, std::size_t alignment = block_granularity) {
    void* const p = take(bytes, alignment, default_stream());
    // Earlier work of the default stream may still use the block.
    if (const cudaError_t waited = wait_for_default_stream(); waited != cudaSuccess) {
      upstream_->deallocate(p);
      throw bad_request{{errc::device_error, std::string{"cudaStreamSynchronize: "} + cudaGetErrorString(waited)}};
    }
    return p;
  }
  void deallocate_sync(void* pointer, std::size_t bytes, std::size_t /*alignment*/ = block_granularity) noexcept {
    give(pointer, bytes, default_stream());
  }

  [[nodiscard]] int device() const noexcept { return device_; }
  friend bool operator==(const cuda_resource&, const cuda_resource&) noexcept = default;
  friend void get_property(const cuda_resource&, cuda::mr::device_accessible) noexcept {}

 private:
  /// Waits on this resource's device, which need not be the current one.
  [[nodiscard]] cudaError_t wait_for_default_stream() const {
    const int own = upstream_->devices().at(static_cast<std::size_t>(device_)).physical_ordinal;
    int current = 0;
    if (const cudaError_t e = cudaGetDevice(&current); e != cudaSuccess) return e;
    if (current == own) return cudaStreamSynchronize(nullptr);
    if (const cudaError_t e = cudaSetDevice(own); e != cudaSuccess) return e;
    const cudaError_t waited = cudaStreamSynchronize(nullptr);
    const cudaError_t back = cudaSetDevice(current);
    return waited != cudaSuccess ? waited : back;
  }
  static cuda::stream_ref default_stream() noexcept { return cuda::stream_ref{cudaStream_t{nullptr}}; }

  void* take(std::size_t bytes, std::size_t alignment, cuda::stream_ref stream) {
    return upstream_->allocate({.bytes = bytes == 0 ? 1 : bytes,
                                .stream = {stream.get()},
                                .device = device_,
                                .alignment = alignment > block_granularity ? alignment : block_granularity});
  }
  void give(void* pointer, std::size_t bytes, cuda::stream_ref stream) noexcept {
    gpumem::free_args stated;
    stated.stream = stream_ref{stream.get()};
    stated.bytes = bytes == 0 ? 1 : bytes;
    upstream_->deallocate(pointer, stated);
  }

  allocator* upstream_;
  int device_;
};

}  // namespace gpumem
