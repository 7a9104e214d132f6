// The simulated runtime: memory, pools, copies and fills.
#include "runtime.hpp"

using namespace gpumem::simcudart;  // NOLINT: the runtime's functions are global

namespace {

CUresult copy(const driver_table& table, void* dst, const void* src, std::size_t bytes, cudaMemcpyKind kind) {
  if (bytes == 0) return CUDA_SUCCESS;
  if (kind == cudaMemcpyHostToDevice) return table.cuMemcpyHtoD(address_of(dst), src, bytes);
  if (kind == cudaMemcpyDeviceToHost) return table.cuMemcpyDtoH(dst, address_of(src), bytes);
  return table.cuMemcpy(address_of(dst), address_of(src), bytes);
}

CUresult copy_async(const driver_table& table, void* dst, const void* src, std::size_t bytes, cudaMemcpyKind kind,
                    cudaStream_t stream) {
  if (bytes == 0) return CUDA_SUCCESS;
  switch (kind) {
    case cudaMemcpyHostToDevice:
      return table.cuMemcpyHtoDAsync(address_of(dst), src, bytes, stream);
    case cudaMemcpyDeviceToHost:
      return table.cuMemcpyDtoHAsync(dst, address_of(src), bytes, stream);
    case cudaMemcpyDeviceToDevice:
      return table.cuMemcpyDtoDAsync(address_of(dst), address_of(src), bytes, stream);
    default:
      return table.cuMemcpyAsync(address_of(dst), address_of(src), bytes, stream);
  }
}

/// Copies row by row; bytes between the rows stay unchanged.
template <typename Row>
CUresult each_row(std::size_t rows, Row&& row) {
  for (std::size_t i = 0; i < rows; ++i) {
    if (const CUresult e = row(i); e != CUDA_SUCCESS) return e;
  }
  return CUDA_SUCCESS;
}

unsigned char* row_at(void* base, std::size_t row, std::size_t pitch) {
  return static_cast<unsigned char*>(base) + row * pitch;
}
const unsigned char* row_at(const void* base, std::size_t row, std::size_t pitch) {
  return static_cast<const unsigned char*>(base) + row * pitch;
}

}  // namespace

extern "C" {

cudaError_t CUDARTAPI cudaMalloc(void** dev_ptr, std::size_t bytes) {
  return call([&] {
    CUdeviceptr address = 0;
    return address_into(dev_ptr, bytes == 0 ? CUDA_SUCCESS : driver().cuMemAlloc(&address, bytes), address);
  });
}

cudaError_t CUDARTAPI cudaMallocManaged(void** dev_ptr, std::size_t bytes, unsigned int flags) {
  return call([&] {
    CUdeviceptr address = 0;
    return address_into(dev_ptr, driver().cuMemAllocManaged(&address, bytes, flags), address);
  });
}

cudaError_t CUDARTAPI cudaMallocPitch(void** dev_ptr, std::size_t* pitch, std::size_t width, std::size_t height) {
  return call([&] {
    CUdeviceptr address = 0;
    return address_into(dev_ptr, driver().cuMemAllocPitch(&address, pitch, width, height, 4), address);
  });
}

cudaError_t CUDARTAPI cudaMalloc3D(cudaPitchedPtr* pitched_dev_ptr, cudaExtent extent) {
  return call([&] {
    CUdeviceptr address = 0;
    *pitched_dev_ptr = {nullptr, 0, extent.width, extent.height};
    if (extent.height != 0 && extent.depth > SIZE_MAX / extent.height) return CUDA_ERROR_OUT_OF_MEMORY;
    return address_into(
        &pitched_dev_ptr->ptr,
        driver().cuMemAllocPitch(&address, &pitched_dev_ptr->pitch, extent.width, extent.height * extent.depth, 4),
        address);
  });
}

cudaError_t CUDARTAPI cudaFree(void* dev_ptr) {
  return call([&] { return dev_ptr == nullptr ? CUDA_SUCCESS : driver().cuMemFree(address_of(dev_ptr)); });
}

FORWARD(cudaHostAlloc, (void** p_host, std::size_t bytes, unsigned int flags), cuMemHostAlloc(p_host, bytes, flags))

cudaError_t CUDARTAPI cudaMallocHost(void** ptr, std::size_t bytes) { return cudaHostAlloc(ptr, bytes, 0); }

cudaError_t CUDARTAPI cudaFreeHost(void* ptr) {
  return call([&] { return ptr == nullptr ? CUDA_SUCCESS : driver().cuMemFreeHost(ptr); });
}

cudaError_t CUDARTAPI cudaHostGetDevicePointer(void** on_device, void* on_host, unsigned int /*flags*/) {
  *on_device = on_host;  // one address space
  return cudaSuccess;
}

FORWARD(cudaMemGetInfo, (std::size_t * free_bytes, std::size_t* total_bytes), cuMemGetInfo(free_bytes, total_bytes))

cudaError_t CUDARTAPI cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* ptr) {
  *attributes = {};
  return call([&] {
    unsigned int type = 0;
    int device = -1;
    unsigned int managed = 0;
    CUpointer_attribute queried[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                     CU_POINTER_ATTRIBUTE_IS_MANAGED};
    void* values[] = {&type, &device, &managed};
    const CUresult e = driver().cuPointerGetAttributes(3, queried, values, address_of(ptr));
    if (e != CUDA_SUCCESS) return e;
    attributes->device = device;
    attributes->type = cudaMemoryTypeUnregistered;
    auto* const same = const_cast<void*>(ptr);
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

cudaError_t CUDARTAPI cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* dev_ptr) {
  static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(CUipcMemHandle));
  return call(
      [&] { return driver().cuIpcGetMemHandle(reinterpret_cast<CUipcMemHandle*>(handle), address_of(dev_ptr)); });
}

// --- pools ----------------------------------------------------------------------------------------------------------

FORWARD_WITHOUT_CONTEXT(cudaDeviceGetDefaultMemPool, (cudaMemPool_t * pool, int device),
                        cuDeviceGetDefaultMemPool(pool, device))
FORWARD_WITHOUT_CONTEXT(cudaDeviceGetMemPool, (cudaMemPool_t * pool, int device), cuDeviceGetMemPool(pool, device))
FORWARD_WITHOUT_CONTEXT(cudaDeviceSetMemPool, (int device, cudaMemPool_t pool), cuDeviceSetMemPool(device, pool))
FORWARD_WITHOUT_CONTEXT(cudaMemPoolSetAttribute, (cudaMemPool_t pool, cudaMemPoolAttr attr, void* value),
                        cuMemPoolSetAttribute(pool, static_cast<CUmemPool_attribute>(attr), value))
FORWARD_WITHOUT_CONTEXT(cudaMemPoolGetAttribute, (cudaMemPool_t pool, cudaMemPoolAttr attr, void* value),
                        cuMemPoolGetAttribute(pool, static_cast<CUmemPool_attribute>(attr), value))
FORWARD_WITHOUT_CONTEXT(cudaMemPoolTrimTo, (cudaMemPool_t pool, std::size_t keep), cuMemPoolTrimTo(pool, keep))

}  // extern "C"

ON_STREAM(cudaMallocAsync, _ptsz, (void** dev_ptr, std::size_t bytes, cudaStream_t stream), {
  CUdeviceptr address = 0;
  return address_into(dev_ptr, bytes == 0 ? CUDA_SUCCESS : table.cuMemAllocAsync(&address, bytes, stream), address);
})
ON_STREAM(cudaMallocFromPoolAsync, _ptsz, (void** dev_ptr, std::size_t bytes, cudaMemPool_t pool, cudaStream_t stream),
          {
            CUdeviceptr address = 0;
            return address_into(
                dev_ptr, bytes == 0 ? CUDA_SUCCESS : table.cuMemAllocFromPoolAsync(&address, bytes, pool, stream),
                address);
          })
ON_STREAM(cudaFreeAsync, _ptsz, (void* dev_ptr, cudaStream_t stream),
          { return dev_ptr == nullptr ? CUDA_SUCCESS : table.cuMemFreeAsync(address_of(dev_ptr), stream); })

// --- copies and fills -----------------------------------------------------------------------------------------------

ON_STREAM(cudaMemcpy, _ptds, (void* dst, const void* src, std::size_t bytes, cudaMemcpyKind kind),
          { return copy(table, dst, src, bytes, kind); })
ON_STREAM(cudaMemcpyAsync, _ptsz,
          (void* dst, const void* src, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream),
          { return copy_async(table, dst, src, bytes, kind, stream); })
ON_STREAM(cudaMemcpy2D, _ptds,
          (void* dst, std::size_t dpitch, const void* src, std::size_t spitch, std::size_t width, std::size_t height,
           cudaMemcpyKind kind),
          {
            return each_row(height, [&](std::size_t row) {
              return copy(table, row_at(dst, row, dpitch), row_at(src, row, spitch), width, kind);
            });
          })
ON_STREAM(cudaMemcpy2DAsync, _ptsz,
          (void* dst, std::size_t dpitch, const void* src, std::size_t spitch, std::size_t width, std::size_t height,
           cudaMemcpyKind kind, cudaStream_t stream),
          {
            return each_row(height, [&](std::size_t row) {
              return copy_async(table, row_at(dst, row, dpitch), row_at(src, row, spitch), width, kind, stream);
            });
          })
ON_STREAM(cudaMemset, _ptds, (void* dev_ptr, int value, std::size_t bytes), {
  return bytes == 0 ? CUDA_SUCCESS : table.cuMemsetD8(address_of(dev_ptr), static_cast<unsigned char>(value), bytes);
})
ON_STREAM(cudaMemsetAsync, _ptsz, (void* dev_ptr, int value, std::size_t bytes, cudaStream_t stream), {
  return bytes == 0 ? CUDA_SUCCESS
                    : table.cuMemsetD8Async(address_of(dev_ptr), static_cast<unsigned char>(value), bytes, stream);
})
ON_STREAM(cudaMemset2D, _ptds, (void* dev_ptr, std::size_t pitch, int value, std::size_t width, std::size_t height), {
  return each_row(height, [&](std::size_t row) {
    return table.cuMemsetD8(address_of(row_at(dev_ptr, row, pitch)), static_cast<unsigned char>(value), width);
  });
})
ON_STREAM(cudaMemset2DAsync, _ptsz,
          (void* dev_ptr, std::size_t pitch, int value, std::size_t width, std::size_t height, cudaStream_t stream), {
            return each_row(height, [&](std::size_t row) {
              return table.cuMemsetD8Async(address_of(row_at(dev_ptr, row, pitch)), static_cast<unsigned char>(value),
                                           width, stream);
            });
          })

// All devices share one address space, so a copy between peers is a plain copy.
extern "C" cudaError_t CUDARTAPI cudaMemcpyPeer(void* dst, int, const void* src, int, std::size_t bytes) {
  return call([&] { return copy(driver(), dst, src, bytes, cudaMemcpyDefault); });
}
extern "C" cudaError_t CUDARTAPI cudaMemcpyPeerAsync(void* dst, int, const void* src, int, std::size_t bytes,
                                                     cudaStream_t stream) {
  return call([&] { return copy_async(driver(), dst, src, bytes, cudaMemcpyDefault, stream); });
}
