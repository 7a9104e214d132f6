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

extern "C" {

cufftResult CUFFTAPI cufftCreate(cufftHandle* plan) { return make(plan); }
cufftResult CUFFTAPI cufftPlan1d(cufftHandle* plan, int, cufftType, int) { return make(plan); }
cufftResult CUFFTAPI cufftPlan2d(cufftHandle* plan, int, int, cufftType) { return make(plan); }
cufftResult CUFFTAPI cufftPlan3d(cufftHandle* plan, int, int, int, cufftType) { return make(plan); }
cufftResult CUFFTAPI cufftPlanMany(cufftHandle* plan, int, int*, int*, int, int, int*, int, int, cufftType, int) {
  return make(plan);
}
cufftResult CUFFTAPI cufftMakePlan1d(cufftHandle, int, cufftType, int, size_t* bytes) { return zero(bytes); }
cufftResult CUFFTAPI cufftMakePlan2d(cufftHandle, int, int, cufftType, size_t* bytes) { return zero(bytes); }
cufftResult CUFFTAPI cufftMakePlan3d(cufftHandle, int, int, int, cufftType, size_t* bytes) { return zero(bytes); }
cufftResult CUFFTAPI cufftMakePlanMany(cufftHandle, int, int*, int*, int, int, int*, int, int, cufftType, int,
                                       size_t* bytes) {
  return zero(bytes);
}
cufftResult CUFFTAPI cufftMakePlanMany64(cufftHandle, int, long long int*, long long int*, long long int, long long int,
                                         long long int*, long long int, long long int, cufftType, long long int,
                                         size_t* bytes) {
  return zero(bytes);
}
cufftResult CUFFTAPI cufftXtMakePlanMany(cufftHandle, int, long long int*, long long int*, long long int, long long int,
                                         cudaDataType, long long int*, long long int, long long int, cudaDataType,
                                         long long int, size_t* bytes, cudaDataType) {
  return zero(bytes);
}
cufftResult CUFFTAPI cufftGetSize(cufftHandle, size_t* bytes) { return zero(bytes); }
cufftResult CUFFTAPI cufftGetVersion(int* version) {
  *version = CUFFT_VERSION;
  return CUFFT_SUCCESS;
}
cufftResult CUFFTAPI cufftGetProperty(libraryPropertyType type, int* value) {
  *value = type == MAJOR_VERSION ? CUFFT_VER_MAJOR : type == MINOR_VERSION ? CUFFT_VER_MINOR : CUFFT_VER_PATCH;
  return CUFFT_SUCCESS;
}

}  // extern "C"
