#!/usr/bin/env python3
"""CuPy with gpumem underneath: the lines that a script adds, and a small computation to prove it.

    GPUMEM_POLICY=growth GPUMEM_STATS=exit python3 examples/cupy_allocator.py build/release/src/libgpumem.so
"""
import ctypes
import sys

import cupy

# The lines: before the first array. The first argument is the stream that memory is for; 0 is CuPy's default stream.
library = ctypes.CDLL(sys.argv[1])
address = lambda name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value
gpumem = cupy.cuda.CFunctionAllocator(0, address("gpumem_cupy_malloc"), address("gpumem_cupy_free"), library)
cupy.cuda.set_allocator(gpumem.malloc)

x = cupy.arange(1 << 20, dtype=cupy.float64)
for step in range(50):
    y = cupy.sort(x[::-1] * 2)
print(f"largest {y[-1].item():.0f}, sum {x.sum().item():.0f}")
sys.exit(0 if y[-1].item() == 2 * ((1 << 20) - 1) and x.sum().item() == (1 << 19) * ((1 << 20) - 1) else 1)
