#!/usr/bin/env python3
"""CuPy with gpumem underneath: the lines that a script adds, and a small computation to prove it.

    GPUMEM_POLICY=growth GPUMEM_STATS=exit python3 examples/cupy_allocator.py build/release/src/libgpumem.so
"""
import ctypes
import sys

import cupy


# The lines. An array belongs to the stream that is current where it is made, and an out-of-memory is CuPy's own.
def gpumem_for_cupy(path):
    library = ctypes.CDLL(path)
    library.gpumem_cupy_malloc.restype = ctypes.c_void_p
    library.gpumem_cupy_malloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    library.gpumem_cupy_free.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]

    def malloc(size, device):
        at = library.gpumem_cupy_malloc(cupy.cuda.get_current_stream().ptr, size, device)
        if at is None and size != 0:
            raise cupy.cuda.memory.OutOfMemoryError(size, 0)  # the log has the report
        return at or 0

    def free(at, device):
        library.gpumem_cupy_free(None, at, device)

    return cupy.cuda.PythonFunctionAllocator(malloc, free)


def main():
    cupy.cuda.set_allocator(gpumem_for_cupy(sys.argv[1]).malloc)  # before the first array
    x = cupy.arange(1 << 20, dtype=cupy.float64)
    for step in range(50):
        with cupy.cuda.Stream():
            y = cupy.sort(x[::-1] * 2)
    cupy.cuda.Device().synchronize()
    print(f"largest {y[-1].item():.0f}, sum {x.sum().item():.0f}")
    return 0 if y[-1].item() == 2 * ((1 << 20) - 1) and x.sum().item() == (1 << 19) * ((1 << 20) - 1) else 1


if __name__ == "__main__":
    sys.exit(main())
