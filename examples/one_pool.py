#!/usr/bin/env python3
"""PyTorch, CuPy and Numba in one process, on one pool: each takes most of a limit that they share, which only works because
what one of them frees, the next one gets. Those that are installed take part; at least two.

    python3 examples/one_pool.py
"""
import gc
import importlib.util
import os
import sys

import gpumem._native

MIB = 1 << 20


# Each makes an array of a size, and returns it with a function that waits for the GPU.
def torch_array(bytes_):
    import torch

    return torch.empty(bytes_, dtype=torch.uint8, device="cuda"), torch.cuda.synchronize


def cupy_array(bytes_):
    import cupy

    return cupy.empty(bytes_, dtype=cupy.uint8), cupy.cuda.Device().synchronize


def numba_array(bytes_):
    import numpy
    from numba import cuda

    return cuda.device_array(bytes_, numpy.uint8), cuda.synchronize


def main(names):
    makers = {"torch": torch_array, "cupy": cupy_array, "numba": numba_array}
    makers = {name: make for name, make in makers.items() if importlib.util.find_spec(name) and name in (names or makers)}
    if len(makers) < 2:
        print(f"one_pool.py: {', '.join(makers) or 'none'} of torch, cupy, numba here; expected two at least", file=sys.stderr)
        return 77
    os.environ["GPUMEM_LIMIT"] = "512MiB"
    for name in makers:  # before the first use of the GPU
        importlib.import_module(f"gpumem.{name}").enable()
    pool = gpumem._native.Allocator()
    for name, make in makers.items():
        held, synchronize = make(384 * MIB)
        live, reserved, _ = pool.usage(0)
        print(f"{name}: {live // MIB} MiB live, {reserved // MIB} MiB reserved")
        del held
        gc.collect()
        synchronize()  # freed memory serves another framework once the work before the free is done
    together = [make(64 * MIB) for make in makers.values()]
    live, reserved, limit = pool.usage(0)
    print(f"together: {live // MIB} MiB live, {reserved // MIB} MiB reserved")
    return 0 if live >= len(together) * 64 * MIB and reserved <= limit else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
