// cuFFT: plans without a work area; transforms do nothing.
#include <cufft.h>
#include <cufftXt.h>

#include <atomic>

namespace {

std::atomic<int> next_plan = 1;

cufftResult make(cufftHandle* plan) {
  if (plan == nullptr) return CUFFT_INVALID_VALUE;
  *plan = next_plan++;
  return CUFFT_SUCCESS;
}
cufftResult zero(size_t* bytes) {
  if (bytes != nullptr) *bytes = 0;
  return CUFFT_SUCCESS;
}

}  // namespace

/// Defines a function that returns 0 bytes by its last argument.
#define ZERO_BYTES(name, ...) \
  cufftResult CUFFTAPI name(__VA_ARGS__, size_t* bytes) { return zero(bytes); }

extern "C" {

cufftResult CUFFTAPI cufftCreate(cufftHandle* plan) { return make(plan); }
cufftResult CUFFTAPI cufftPlan1d(cufftHandle* plan, int, cufftType, int) { return make(plan); }
cufftResult CUFFTAPI cufftPlan2d(cufftHandle* plan, int, int, cufftType) { return make(plan); }
cufftResult CUFFTAPI cufftPlan3d(cufftHandle* plan, int, int, int, cufftType) { return make(plan); }
cufftResult CUFFTAPI cufftPlanMany(cufftHandle* plan, int, int*, int*, int, int, int*, int, int, cufftType, int) {
  return make(plan);
}
ZERO_BYTES(cufftMakePlan1d, cufftHandle, int, cufftType, int)
ZERO_BYTES(cufftMakePlan2d, cufftHandle, int, int, cufftType)
ZERO_BYTES(cufftMakePlan3d, cufftHandle, int, int, int, cufftType)
ZERO_BYTES(cufftMakePlanMany, cufftHandle, int, int*, int*, int, int, int*, int, int, cufftType, int)
ZERO_BYTES(cufftMakePlanMany64, cufftHandle, int, long long int*, long long int*, long long int, long long int,
           long long int*, long long int, long long int, cufftType, long long int)
cufftResult CUFFTAPI cufftXtMakePlanMany(cufftHandle, int, long long int*, long long int*, long long int, long long int,
                                         cudaDataType, long long int*, long long int, long long int, cudaDataType,
                                         long long int, size_t* bytes, cudaDataType) {
  return zero(bytes);
}
ZERO_BYTES(cufftGetSize, cufftHandle)
cufftResult CUFFTAPI cufftGetVersion(int* version) {
  *version = CUFFT_VERSION;
  return CUFFT_SUCCESS;
}
cufftResult CUFFTAPI cufftGetProperty(libraryPropertyType type, int* value) {
  *value = type == MAJOR_VERSION ? CUFFT_VER_MAJOR : type == MINOR_VERSION ? CUFFT_VER_MINOR : CUFFT_VER_PATCH;
  return CUFFT_SUCCESS;
}

}  // extern "C"
