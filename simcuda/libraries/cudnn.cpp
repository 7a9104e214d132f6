// cuDNN: handles, versions, descriptors, and size queries. Workspaces are 0 bytes: the real cuDNN chooses algorithms,
// and so their workspaces, by measurements on the card (README.md).
//
// Written without cuDNN's header, which the Toolkit does not include: statuses and enumerators are their documented
// values.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "called.hpp"
#include "card_memory.hpp"

namespace {

constexpr int success = 0;
constexpr int bad_parameter = 2000;
constexpr int alloc_failed = 4003;

struct handle_record {
  void* stream = nullptr;
  gpumem::simcuda::card_memory own;
};

/// Programs refuse a cuDNN older than the one they were built with, so the version is higher than any: 9.90.
/// SIMCUDA_CUDNN_VERSION overrides it.
std::size_t version() {
  static const std::size_t number = [] {
    const char* const text = std::getenv("SIMCUDA_CUDNN_VERSION");
    return text != nullptr ? std::strtoull(text, nullptr, 10) : 99000ULL;
  }();
  return number;
}

struct descriptor {
  std::int64_t words[64] = {};
};

int create(void** created) {
  if (created == nullptr) return bad_parameter;
  *created = new descriptor;
  return success;
}
int destroy(void* gone) {
  delete static_cast<descriptor*>(gone);
  return success;
}
int zero(std::size_t* bytes) {
  if (bytes == nullptr) return bad_parameter;
  *bytes = 0;
  return success;
}

}  // namespace

#define DESCRIPTOR(kind)                                                              \
  int cudnnCreate##kind##Descriptor(void** descriptor) { return create(descriptor); } \
  int cudnnDestroy##kind##Descriptor(void* descriptor) { return destroy(descriptor); }

/// Defines a function that returns 0 bytes by its last argument.
#define ZERO_BYTES(name, ...) \
  int name(__VA_ARGS__, std::size_t* bytes) { return zero(bytes); }

void* simcuda_stream_of(void* handle) { return static_cast<handle_record*>(handle)->stream; }

extern "C" {

int cudnnCreate(void** handle) {
  if (handle == nullptr) return bad_parameter;
  auto* const made = new handle_record;
  if (!made->own.take("SIMCUDA_CUDNN_BYTES")) {
    delete made;
    return alloc_failed;
  }
  *handle = made;
  return success;
}
int cudnnDestroy(void* handle) {
  delete static_cast<handle_record*>(handle);
  return success;
}
int cudnnSetStream(void* handle, void* stream) {
  if (handle == nullptr) return bad_parameter;
  static_cast<handle_record*>(handle)->stream = stream;
  return success;
}
int cudnnGetStream(void* handle, void** stream) {
  if (handle == nullptr || stream == nullptr) return bad_parameter;
  *stream = static_cast<handle_record*>(handle)->stream;
  return success;
}

std::size_t cudnnGetVersion() { return version(); }
std::size_t cudnnGetCudartVersion() { return 13000; }
int cudnnGetProperty(int type, int* value) {
  const int whole = static_cast<int>(version());
  *value = type == 0 ? whole / 10000 : type == 1 ? whole / 100 % 100 : whole % 100;
  return success;
}
int cudnnGraphVersionCheck() { return success; }
int cudnnOpsVersionCheck() { return success; }
int cudnnCnnVersionCheck() { return success; }
int cudnnAdvVersionCheck() { return success; }

const char* cudnnGetErrorString(int status) {
  return status == success ? "CUDNN_STATUS_SUCCESS"
         : status == 3000  ? "CUDNN_STATUS_NOT_SUPPORTED"
                           : "CUDNN_STATUS_BAD_PARAM";
}
void cudnnGetLastErrorString(char* message, std::size_t bytes) {
  if (bytes != 0) std::snprintf(message, bytes, "cuDNN is a stand-in of the simulated card");
}

// --- descriptors ----------------------------------------------------------------------------------------------------

DESCRIPTOR(Activation)
DESCRIPTOR(CTCLoss)
DESCRIPTOR(Convolution)
DESCRIPTOR(Dropout)
DESCRIPTOR(Filter)
DESCRIPTOR(LRN)
DESCRIPTOR(OpTensor)
DESCRIPTOR(Pooling)
DESCRIPTOR(RNNData)
DESCRIPTOR(ReduceTensor)
DESCRIPTOR(SpatialTransformer)
DESCRIPTOR(Tensor)

// --- sizes ----------------------------------------------------------------------------------------------------------

ZERO_BYTES(cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize, void*, int, int, void*, void*, void*, void*, void*)
ZERO_BYTES(cudnnGetBatchNormalizationBackwardExWorkspaceSize, void*, int, int, void*, void*, void*, void*, void*, void*,
           void*)
ZERO_BYTES(cudnnGetBatchNormalizationTrainingExReserveSpaceSize, void*, int, int, void*, void*)
ZERO_BYTES(cudnnDropoutGetStatesSize, void*)
ZERO_BYTES(cudnnGetConvolutionForwardWorkspaceSize, void*, void*, void*, void*, void*, int)
ZERO_BYTES(cudnnGetConvolutionBackwardDataWorkspaceSize, void*, void*, void*, void*, void*, int)
ZERO_BYTES(cudnnGetConvolutionBackwardFilterWorkspaceSize, void*, void*, void*, void*, void*, int)

}  // extern "C"
