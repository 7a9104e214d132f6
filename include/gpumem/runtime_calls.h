/* The functions of libgpumem_runtime.so, for programs that are relinked or recompiled (docs/preload.md).
 *
 * Each implements the function of the CUDA runtime that its name ends with, on the current device. The device's context
 * must be current (cudaFree(0) ensures that). Results are cudaError_t. `per_thread` is 1 if the caller is compiled with
 * --default-stream per-thread. Memory that gpumem does not know is passed to the driver. Any thread. */
#ifndef GPUMEM_RUNTIME_CALLS_H
#define GPUMEM_RUNTIME_CALLS_H

#include <stddef.h>

#ifdef __cplusplus
#include <cstddef>
extern "C" {
#endif

int gpumem_runtime_malloc(void** dev_ptr, size_t bytes);
int gpumem_runtime_malloc_pitch(void** dev_ptr, size_t* pitch, size_t width, size_t height);
int gpumem_runtime_free(void* dev_ptr);
int gpumem_runtime_malloc_async(void** dev_ptr, size_t bytes, void* stream, int per_thread);
int gpumem_runtime_free_async(void* dev_ptr, void* stream, int per_thread);
int gpumem_runtime_mem_get_info(size_t* free_bytes, size_t* total_bytes);
/* Call the first before cudaStreamBeginCapture, the second after cudaStreamEndCapture or a failed begin. */
void gpumem_runtime_capture_begins(void* stream, int per_thread);
void gpumem_runtime_capture_is_over(void* stream, int per_thread);
/* Call before cudaDeviceReset, which destroys all memory on the device. */
void gpumem_runtime_forget_device(int device);

#ifdef __cplusplus
}
#endif

#endif
