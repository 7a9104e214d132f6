#!/usr/bin/env python3
"""Numba behind the preload library: it opens libcuda.so by that name, and the limit holds all the same.

    gpumem run --limit 1GiB -- python3 tests/frameworks/numba_limit.py 1
"""
import sys

import numpy
from numba import cuda

limit_bytes = int(sys.argv[1]) << 30
held = []
try:
    while len(held) < 4096:
        held.append(cuda.to_device(numpy.ones(64 << 20, dtype=numpy.uint8)))
except cuda.cudadrv.driver.CudaAPIError as refused:
    print(refused)
taken = len(held) * (64 << 20)
assert all(array[0] == 1 for array in held)
print(f"took {taken >> 20} MiB of {limit_bytes >> 20}")
sys.exit(0 if 0 < taken <= limit_bytes else 1)
