// cuBLASLt: descriptors that keep their attributes, and a heuristic that returns one algorithm without workspace.
// Descriptors are stored in the program's opaque structures, as in the real library.
#include <cublasLt.h>

#include <algorithm>
#include <cstring>

#include "called.hpp"

struct cublasLtContext {
  int created = 1;
};

namespace {

/// The last `slots` attributes that were set on a descriptor.
template <typename Opaque>
struct attributes {
  static constexpr std::size_t slots = (sizeof(Opaque) - 8) / 12;
  int count;
  int reserved;
  struct slot {
    int attr;
    unsigned char value[8];
  } values[slots];
};

template <typename Opaque>
auto* of(Opaque* opaque) {
  return reinterpret_cast<attributes<Opaque>*>(opaque);
}

/// Keeps the first 8 bytes, enough for pointers, enums and counts.
template <typename Opaque>
cublasStatus_t set(Opaque* opaque, int attr, const void* value, std::size_t bytes) {
  if (opaque == nullptr || value == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  auto* const all = of(opaque);
  auto* slot = std::find_if(all->values, all->values + all->count,
                            [attr](const auto& candidate) { return candidate.attr == attr; });
  if (slot == all->values + all->count) {
    if (static_cast<std::size_t>(all->count) == all->slots)
      return CUBLAS_STATUS_SUCCESS;  // unknown attributes matter only if they are read back
    ++all->count;
  }
  slot->attr = attr;
  std::memset(slot->value, 0, sizeof slot->value);
  std::memcpy(slot->value, value, std::min(bytes, sizeof slot->value));
  return CUBLAS_STATUS_SUCCESS;
}

template <typename Opaque>
cublasStatus_t get(const Opaque* opaque, int attr, void* value, std::size_t bytes, std::size_t* written) {
  if (opaque == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  const auto* const all = of(const_cast<Opaque*>(opaque));
  std::memset(value, 0, bytes);
  if (written != nullptr) *written = bytes;
  for (int i = 0; i < all->count; ++i) {
    if (all->values[i].attr == attr) std::memcpy(value, all->values[i].value, std::min<std::size_t>(bytes, 8));
  }
  return CUBLAS_STATUS_SUCCESS;
}

template <typename Opaque>
cublasStatus_t clear(Opaque* opaque, std::size_t bytes) {
  if (opaque == nullptr || bytes < sizeof(Opaque)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memset(opaque, 0, sizeof(Opaque));
  return CUBLAS_STATUS_SUCCESS;
}

template <typename Opaque>
cublasStatus_t create(Opaque** opaque) {
  if (opaque == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  *opaque = new Opaque{};
  return CUBLAS_STATUS_SUCCESS;
}

template <typename Opaque>
cublasStatus_t destroy(const Opaque* opaque) {
  delete opaque;
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

/// Defines the functions that destroy a descriptor, and set and get its attributes.
#define DESCRIPTOR(kind, attribute)                                                                               \
  cublasStatus_t cublasLt##kind##Destroy(const cublasLt##kind##_t gone) { return destroy(gone); }                 \
  cublasStatus_t cublasLt##kind##SetAttribute(cublasLt##kind##_t changed, attribute attr, const void* value,      \
                                              size_t bytes) {                                                     \
    return set(changed, attr, value, bytes);                                                                      \
  }                                                                                                               \
  cublasStatus_t cublasLt##kind##GetAttribute(cublasLt##kind##_t read, attribute attr, void* value, size_t bytes, \
                                              size_t* written) {                                                  \
    return get(read, attr, value, bytes, written);                                                                \
  }

void* simcuda_stream_of(void*) { return nullptr; }  // handles have none: each call names its stream

extern "C" {

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t, const void*, const void*, cublasLtMatrixLayout_t,
                              const void*, cublasLtMatrixLayout_t, const void*, const void*, cublasLtMatrixLayout_t,
                              void*, cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t*, void*, size_t,
                              cudaStream_t stream) {
  simcuda_launch(stream);
  simcuda_computed("cublasLtMatmul");
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  if (handle == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  *handle = reinterpret_cast<cublasLtHandle_t>(new cublasLtContext);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete reinterpret_cast<cublasLtContext*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}
size_t cublasLtGetVersion() { return CUBLAS_VERSION; }
size_t cublasLtGetCudartVersion() { return CUDART_VERSION; }
const char* cublasLtGetStatusName(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS ? "CUBLAS_STATUS_SUCCESS" : "CUBLAS_STATUS_NOT_SUPPORTED";
}
const char* cublasLtGetStatusString(cublasStatus_t status) { return cublasLtGetStatusName(status); }

// --- descriptors ----------------------------------------------------------------------------------------------------

DESCRIPTOR(MatrixLayout, cublasLtMatrixLayoutAttribute_t)
DESCRIPTOR(MatmulDesc, cublasLtMatmulDescAttributes_t)
DESCRIPTOR(MatmulPreference, cublasLtMatmulPreferenceAttributes_t)
DESCRIPTOR(MatrixTransformDesc, cublasLtMatrixTransformDescAttributes_t)

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t layout, size_t bytes, cudaDataType type,
                                                 uint64_t rows, uint64_t columns, int64_t leading) {
  if (const cublasStatus_t e = clear(layout, bytes); e != CUBLAS_STATUS_SUCCESS) return e;
  set(layout, CUBLASLT_MATRIX_LAYOUT_TYPE, &type, sizeof type);
  set(layout, CUBLASLT_MATRIX_LAYOUT_ROWS, &rows, sizeof rows);
  set(layout, CUBLASLT_MATRIX_LAYOUT_COLS, &columns, sizeof columns);
  return set(layout, CUBLASLT_MATRIX_LAYOUT_LD, &leading, sizeof leading);
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t leading) {
  if (const cublasStatus_t e = create(layout); e != CUBLAS_STATUS_SUCCESS) return e;
  return cublasLtMatrixLayoutInit_internal(*layout, sizeof **layout, type, rows, columns, leading);
}

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t desc, size_t bytes, cublasComputeType_t,
                                               cudaDataType_t) {
  return clear(desc, bytes);
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t, cudaDataType_t) {
  return create(desc);
}

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t preference, size_t bytes) {
  return clear(preference, bytes);
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) { return create(preference); }

cublasStatus_t cublasLtMatrixTransformDescCreate(cublasLtMatrixTransformDesc_t* desc, cudaDataType) {
  return create(desc);
}

// --- algorithms -----------------------------------------------------------------------------------------------------

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int* found) {
  if (results == nullptr || found == nullptr || wanted < 1) return CUBLAS_STATUS_INVALID_VALUE;
  results[0] = {};
  results[0].state = CUBLAS_STATUS_SUCCESS;
  results[0].wavesCount = 1.0F;
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoInit(cublasLtHandle_t, cublasComputeType_t, cudaDataType_t, cudaDataType_t,
                                      cudaDataType_t, cudaDataType_t, cudaDataType_t, int,
                                      cublasLtMatmulAlgo_t* algorithm) {
  *algorithm = {};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                       const cublasLtMatmulAlgo_t*, cublasLtMatmulHeuristicResult_t* result) {
  *result = {};
  result->state = CUBLAS_STATUS_SUCCESS;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t*, cublasLtMatmulAlgoConfigAttributes_t,
                                                    void* value, size_t bytes, size_t* written) {
  std::memset(value, 0, bytes);
  if (written != nullptr) *written = bytes;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoConfigSetAttribute(cublasLtMatmulAlgo_t*, cublasLtMatmulAlgoConfigAttributes_t,
                                                    const void*, size_t) {
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
