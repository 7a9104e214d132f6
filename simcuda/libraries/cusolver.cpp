// cuSOLVER: handles. Workspace sizes are unknown here, so functions with a workspace are not supported.
#include <cusolverDn.h>

struct cusolverDnContext {
  cudaStream_t stream = nullptr;
};

extern "C" {

cusolverStatus_t CUSOLVERAPI cusolverDnCreate(cusolverDnHandle_t* handle) {
  if (handle == nullptr) return CUSOLVER_STATUS_INVALID_VALUE;
  *handle = new cusolverDnContext;
  return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t CUSOLVERAPI cusolverDnDestroy(cusolverDnHandle_t handle) {
  delete handle;
  return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t CUSOLVERAPI cusolverDnSetStream(cusolverDnHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t CUSOLVERAPI cusolverDnGetStream(cusolverDnHandle_t handle, cudaStream_t* stream) {
  *stream = handle->stream;
  return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t CUSOLVERAPI cusolverGetVersion(int* version) {
  *version = CUSOLVER_VERSION;
  return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t CUSOLVERAPI cusolverGetProperty(libraryPropertyType type, int* value) {
  *value = type == MAJOR_VERSION ? CUSOLVER_VER_MAJOR : type == MINOR_VERSION ? CUSOLVER_VER_MINOR : CUSOLVER_VER_PATCH;
  return CUSOLVER_STATUS_SUCCESS;
}

}  // extern "C"
