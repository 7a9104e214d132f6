/* The declarations that fragments of documents take for granted: stream, sizes and pointers. */
#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
#include <algorithm>
#include <memory>
#include <vector>
#define GIVEN [[maybe_unused]] static
#else
#define GIVEN __attribute__((unused)) static
#endif

GIVEN cudaStream_t stream;
GIVEN size_t n = 1;
GIVEN size_t bytes = 1;
GIVEN int device;
GIVEN float* to;
