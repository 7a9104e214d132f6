// The runtime double: memory, pools, copies and fills.
#include "runtime.hpp"

using namespace gpumem::simcudart;  // NOLINT: the runtime's functions are global

namespace {

CUresult copy(const driver_table& on, void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  if (bytes == 0) return CUDA_SUCCESS;
  if (kind == cudaMemcpyHostToDevice) return on.cuMemcpyHtoD(address_of(to), from, bytes);
  if (kind == cudaMemcpyDeviceToHost) return on.cuMemcpyDtoH(to, address_of(from), bytes);
  return on.cuMemcpy(address_of(to), address_of(from), bytes);
}

CUresult copy_async(const driver_table& on, void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                    cudaStream_t stream) {
  if (bytes == 0) return CUDA_SUCCESS;
  switch (kind) {
    case cudaMemcpyHostToDevice:
      return on.cuMemcpyHtoDAsync(address_of(to), from, bytes, stream);
    case cudaMemcpyDeviceToHost:
      return on.cuMemcpyDtoHAsync(to, address_of(from), bytes, stream);
    case cudaMemcpyDeviceToDevice:
      return on.cuMemcpyDtoDAsync(address_of(to), address_of(from), bytes, stream);
    default:
      return on.cuMemcpyAsync(address_of(to), address_of(from), bytes, stream);
  }
}

/// Copies row by row; bytes between the rows are not touched.
template <typename Row>
CUresult each_row(std::size_t rows, Row&& row) {
  for (std::size_t i = 0; i < rows; ++i) {
    if (const CUresult e = row(i); e != CUDA_SUCCESS) return e;
  }
  return CUDA_SUCCESS;
}

unsigned char* row_at(void* p, std::size_t row, std::size_t pitch) {
  return static_cast<unsigned char*>(p) + row * pitch;
}
const unsigned char* row_at(const void* p, std::size_t row, std::size_t pitch) {
  return static_cast<const unsigned char*>(p) + row * pitch;
}

/// Requires `at` from the call that returned `done`.
CUresult address_into(void** p, CUresult done, const CUdeviceptr& at) {
  *p = done == CUDA_SUCCESS ? reinterpret_cast<void*>(static_cast<std::uintptr_t>(at)) : nullptr;
  return done;
}

}  // namespace

extern "C" {

cudaError_t CUDARTAPI cudaMalloc(void** p, std::size_t bytes) {
  return call([&] {
    CUdeviceptr at = 0;
    return address_into(p, bytes == 0 ? CUDA_SUCCESS : driver().cuMemAlloc(&at, bytes), at);
  });
}

cudaError_t CUDARTAPI cudaMallocManaged(void** p, std::size_t bytes, unsigned int flags) {
  return call([&] {
    CUdeviceptr at = 0;
    return address_into(p, driver().cuMemAllocManaged(&at, bytes, flags), at);
  });
}

cudaError_t CUDARTAPI cudaMallocPitch(void** p, std::size_t* pitch, std::size_t width, std::size_t height) {
  return call([&] {
    CUdeviceptr at = 0;
    return address_into(p, driver().cuMemAllocPitch(&at, pitch, width, height, 4), at);
  });
}

cudaError_t CUDARTAPI cudaMalloc3D(cudaPitchedPtr* p, cudaExtent extent) {
  return call([&] {
    CUdeviceptr at = 0;
    *p = {nullptr, 0, extent.width, extent.height};
    if (extent.height != 0 && extent.depth > SIZE_MAX / extent.height) return CUDA_ERROR_OUT_OF_MEMORY;
    return address_into(&p->ptr,
                        driver().cuMemAllocPitch(&at, &p->pitch, extent.width, extent.height * extent.depth, 4), at);
  });
}

cudaError_t CUDARTAPI cudaFree(void* p) {
  return call([&] { return p == nullptr ? CUDA_SUCCESS : driver().cuMemFree(address_of(p)); });
}

cudaError_t CUDARTAPI cudaHostAlloc(void** p, std::size_t bytes, unsigned int flags) {
  return call([&] { return driver().cuMemHostAlloc(p, bytes, flags); });
}

cudaError_t CUDARTAPI cudaMallocHost(void** p, std::size_t bytes) { return cudaHostAlloc(p, bytes, 0); }

cudaError_t CUDARTAPI cudaFreeHost(void* p) {
  return call([&] { return p == nullptr ? CUDA_SUCCESS : driver().cuMemFreeHost(p); });
}

cudaError_t CUDARTAPI cudaHostGetDevicePointer(void** on_device, void* on_host, unsigned int /*flags*/) {
  *on_device = on_host;  // one address space
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
  return call([&] { return driver().cuMemGetInfo(free_bytes, total_bytes); });
}

cudaError_t CUDARTAPI cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* p) {
  *attributes = {};
  return call([&] {
    unsigned int type = 0;
    int device = -1;
    unsigned int managed = 0;
    CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                   CU_POINTER_ATTRIBUTE_IS_MANAGED};
    void* values[] = {&type, &device, &managed};
    const CUresult e = driver().cuPointerGetAttributes(3, which, values, address_of(p));
    if (e != CUDA_SUCCESS) return e;
    attributes->device = device;
    attributes->type = cudaMemoryTypeUnregistered;
    auto* const same = const_cast<void*>(p);
    if (type == 0) {
      attributes->hostPointer = same;
      return e;
    }
    attributes->devicePointer = same;
    if (managed != 0) {
      attributes->type = cudaMemoryTypeManaged;
    } else {
      attributes->type = type == CU_MEMORYTYPE_HOST ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
    }
    if (attributes->type != cudaMemoryTypeDevice) attributes->hostPointer = same;
    return e;
  });
}

cudaError_t CUDARTAPI cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* p) {
  static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(CUipcMemHandle));
  return call([&] { return driver().cuIpcGetMemHandle(reinterpret_cast<CUipcMemHandle*>(handle), address_of(p)); });
}

// --- pools ----------------------------------------------------------------------------------------------------------

cudaError_t CUDARTAPI cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  return call_without_context([&] { return driver().cuDeviceGetDefaultMemPool(pool, device); });
}
cudaError_t CUDARTAPI cudaDeviceGetMemPool(cudaMemPool_t* pool, int device) {
  return call_without_context([&] { return driver().cuDeviceGetMemPool(pool, device); });
}
cudaError_t CUDARTAPI cudaDeviceSetMemPool(int device, cudaMemPool_t pool) {
  return call_without_context([&] { return driver().cuDeviceSetMemPool(device, pool); });
}
cudaError_t CUDARTAPI cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr which, void* value) {
  return call_without_context(
      [&] { return driver().cuMemPoolSetAttribute(pool, static_cast<CUmemPool_attribute>(which), value); });
}
cudaError_t CUDARTAPI cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr which, void* value) {
  return call_without_context(
      [&] { return driver().cuMemPoolGetAttribute(pool, static_cast<CUmemPool_attribute>(which), value); });
}
cudaError_t CUDARTAPI cudaMemPoolTrimTo(cudaMemPool_t pool, std::size_t keep) {
  return call_without_context([&] { return driver().cuMemPoolTrimTo(pool, keep); });
}

}  // extern "C"

ON_STREAM(cudaMallocAsync, _ptsz, (void** p, std::size_t bytes, cudaStream_t stream), {
  CUdeviceptr at = 0;
  return address_into(p, bytes == 0 ? CUDA_SUCCESS : on.cuMemAllocAsync(&at, bytes, stream), at);
})
ON_STREAM(cudaMallocFromPoolAsync, _ptsz, (void** p, std::size_t bytes, cudaMemPool_t pool, cudaStream_t stream), {
  CUdeviceptr at = 0;
  return address_into(p, bytes == 0 ? CUDA_SUCCESS : on.cuMemAllocFromPoolAsync(&at, bytes, pool, stream), at);
})
ON_STREAM(cudaFreeAsync, _ptsz, (void* p, cudaStream_t stream),
          { return p == nullptr ? CUDA_SUCCESS : on.cuMemFreeAsync(address_of(p), stream); })

// --- copies and fills -----------------------------------------------------------------------------------------------

ON_STREAM(cudaMemcpy, _ptds, (void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind),
          { return copy(on, to, from, bytes, kind); })
ON_STREAM(cudaMemcpyAsync, _ptsz,
          (void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream),
          { return copy_async(on, to, from, bytes, kind, stream); })
ON_STREAM(cudaMemcpy2D, _ptds,
          (void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t width,
           std::size_t height, cudaMemcpyKind kind),
          {
            return each_row(height, [&](std::size_t i) {
              return copy(on, row_at(to, i, to_pitch), row_at(from, i, from_pitch), width, kind);
            });
          })
ON_STREAM(cudaMemcpy2DAsync, _ptsz,
          (void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t width,
           std::size_t height, cudaMemcpyKind kind, cudaStream_t stream),
          {
            return each_row(height, [&](std::size_t i) {
              return copy_async(on, row_at(to, i, to_pitch), row_at(from, i, from_pitch), width, kind, stream);
            });
          })
ON_STREAM(cudaMemset, _ptds, (void* p, int value, std::size_t bytes), {
  return bytes == 0 ? CUDA_SUCCESS : on.cuMemsetD8(address_of(p), static_cast<unsigned char>(value), bytes);
})
ON_STREAM(cudaMemsetAsync, _ptsz, (void* p, int value, std::size_t bytes, cudaStream_t stream), {
  return bytes == 0 ? CUDA_SUCCESS
                    : on.cuMemsetD8Async(address_of(p), static_cast<unsigned char>(value), bytes, stream);
})
ON_STREAM(cudaMemset2D, _ptds, (void* p, std::size_t pitch, int value, std::size_t width, std::size_t height), {
  return each_row(height, [&](std::size_t i) {
    return on.cuMemsetD8(address_of(row_at(p, i, pitch)), static_cast<unsigned char>(value), width);
  });
})
ON_STREAM(cudaMemset2DAsync, _ptsz,
          (void* p, std::size_t pitch, int value, std::size_t width, std::size_t height, cudaStream_t stream), {
            return each_row(height, [&](std::size_t i) {
              return on.cuMemsetD8Async(address_of(row_at(p, i, pitch)), static_cast<unsigned char>(value), width,
                                        stream);
            });
          })

// Several devices, one address space: a copy between peers is a copy.
extern "C" cudaError_t CUDARTAPI cudaMemcpyPeer(void* to, int, const void* from, int, std::size_t bytes) {
  return call([&] { return copy(driver(), to, from, bytes, cudaMemcpyDefault); });
}
extern "C" cudaError_t CUDARTAPI cudaMemcpyPeerAsync(void* to, int, const void* from, int, std::size_t bytes,
                                                     cudaStream_t stream) {
  return call([&] { return copy_async(driver(), to, from, bytes, cudaMemcpyDefault, stream); });
}
