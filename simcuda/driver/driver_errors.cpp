// The simulated driver: names and texts of the errors that it returns or that tests inject.
#include <cuda.h>

#include <algorithm>
#include <iterator>

namespace {

struct named_error {
  CUresult code;
  const char* name;
  const char* text;
};
constexpr named_error errors[] = {
#define ERROR(code, runtime_code, text) {code, #code, text},
#include "errors.def"
};

const named_error* find(CUresult code) {
  const auto* const found = std::find_if(std::begin(errors), std::end(errors),
                                         [code](const named_error& error) { return error.code == code; });
  return found == std::end(errors) ? nullptr : found;
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuGetErrorName(CUresult error, const char** text) {
  const named_error* const e = find(error);
  *text = e == nullptr ? nullptr : e->name;
  return e == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult CUDAAPI cuGetErrorString(CUresult error, const char** text) {
  const named_error* const e = find(error);
  *text = e == nullptr ? nullptr : e->text;
  return e == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

}  // extern "C"
