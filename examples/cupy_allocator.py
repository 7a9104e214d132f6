#!/usr/bin/env python3
"""CuPy with gpumem underneath: the lines that a script adds, and a small computation to prove it. Needs a GPU.

    GPUMEM_POLICY=growth GPUMEM_STATS=exit python3 examples/cupy_allocator.py
"""
import sys

import cupy

import gpumem.cupy

gpumem.cupy.enable()  # before the first array


def main():
    x = cupy.arange(1 << 20, dtype=cupy.float64)
    for _ in range(50):
        with cupy.cuda.Stream():
            y = cupy.sort(x[::-1] * 2)
    cupy.cuda.Device().synchronize()
    print(f"largest {y[-1].item():.0f}, sum {x.sum().item():.0f}")
    try:
        cupy.empty(1 << 50, dtype=cupy.uint8)
        return 1
    except cupy.cuda.memory.OutOfMemoryError as refused:
        print(refused)
    return 0 if y[-1].item() == 2 * ((1 << 20) - 1) and x.sum().item() == (1 << 19) * ((1 << 20) - 1) else 1


if __name__ == "__main__":
    sys.exit(main())
