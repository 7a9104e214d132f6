// cuBLAS: handles and their state. Workspaces belong to the program (cublasSetWorkspace) or to the handle, charged to
// the card by `card_memory`; every product is a generated function that does nothing.
#include <cublas_v2.h>

#include <utility>

#include "called.hpp"
#include "card_memory.hpp"

struct cublasContext {
  cudaStream_t stream = nullptr;
  cublasMath_t math = CUBLAS_DEFAULT_MATH;
  cublasPointerMode_t pointers = CUBLAS_POINTER_MODE_HOST;
  cublasAtomicsMode_t atomics = CUBLAS_ATOMICS_NOT_ALLOWED;
  int multiprocessors = 0;
  gpumem::simcuda::card_memory own;
};

namespace {

template <typename Value>
cublasStatus_t get(cublasHandle_t handle, Value cublasContext::*member, Value* value) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (value == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  *value = handle->*member;
  return CUBLAS_STATUS_SUCCESS;
}

template <typename Value>
cublasStatus_t set(cublasHandle_t handle, Value cublasContext::*member, Value value) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  handle->*member = value;
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

/// Defines the functions that set and get a member of a handle.
#define PROPERTY(name, type, member)                                                \
  cublasStatus_t CUBLASWINAPI cublasSet##name(cublasHandle_t handle, type value) {  \
    return set(handle, &cublasContext::member, value);                              \
  }                                                                                 \
  cublasStatus_t CUBLASWINAPI cublasGet##name(cublasHandle_t handle, type* value) { \
    return get(handle, &cublasContext::member, value);                              \
  }

void* simcuda_stream_of(void* handle) { return static_cast<cublasHandle_t>(handle)->stream; }

extern "C" {

cublasStatus_t CUBLASWINAPI cublasCreate_v2(cublasHandle_t* handle) {
  if (handle == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  *handle = new cublasContext;
  if ((*handle)->own.take("SIMCUDA_CUBLAS_BYTES")) return CUBLAS_STATUS_SUCCESS;
  delete *handle;
  *handle = nullptr;
  return CUBLAS_STATUS_ALLOC_FAILED;
}
cublasStatus_t CUBLASWINAPI cublasDestroy_v2(cublasHandle_t handle) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t CUBLASWINAPI cublasGetVersion_v2(cublasHandle_t, int* version) {
  *version = CUBLAS_VERSION;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t CUBLASWINAPI cublasGetProperty(libraryPropertyType type, int* value) {
  *value = type == MAJOR_VERSION ? CUBLAS_VER_MAJOR : type == MINOR_VERSION ? CUBLAS_VER_MINOR : CUBLAS_VER_PATCH;
  return CUBLAS_STATUS_SUCCESS;
}
size_t CUBLASWINAPI cublasGetCudartVersion() { return CUDART_VERSION; }

cublasStatus_t CUBLASWINAPI cublasSetWorkspace_v2(cublasHandle_t handle, void*, size_t) {
  return handle == nullptr ? CUBLAS_STATUS_NOT_INITIALIZED : CUBLAS_STATUS_SUCCESS;
}
PROPERTY(Stream_v2, cudaStream_t, stream)
PROPERTY(MathMode, cublasMath_t, math)
PROPERTY(PointerMode_v2, cublasPointerMode_t, pointers)
PROPERTY(AtomicsMode, cublasAtomicsMode_t, atomics)
PROPERTY(SmCountTarget, int, multiprocessors)

const char* CUBLASWINAPI cublasGetStatusName(cublasStatus_t status) {
  constexpr std::pair<cublasStatus_t, const char*> names[] = {
      {CUBLAS_STATUS_SUCCESS, "CUBLAS_STATUS_SUCCESS"},
      {CUBLAS_STATUS_NOT_INITIALIZED, "CUBLAS_STATUS_NOT_INITIALIZED"},
      {CUBLAS_STATUS_ALLOC_FAILED, "CUBLAS_STATUS_ALLOC_FAILED"},
      {CUBLAS_STATUS_INVALID_VALUE, "CUBLAS_STATUS_INVALID_VALUE"},
      {CUBLAS_STATUS_NOT_SUPPORTED, "CUBLAS_STATUS_NOT_SUPPORTED"},
  };
  for (const auto& [named, name] : names) {
    if (named == status) return name;
  }
  return "CUBLAS_STATUS_INTERNAL_ERROR";
}
const char* CUBLASWINAPI cublasGetStatusString(cublasStatus_t status) { return cublasGetStatusName(status); }

}  // extern "C"
