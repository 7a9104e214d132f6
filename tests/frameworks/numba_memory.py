#!/usr/bin/env python3
"""Numba over gpumem on a GPU: kernels on several streams in memory that changes hands, and out of memory.

    NUMBA_CUDA_MEMORY_MANAGER=gpumem.numba GPUMEM_LIMIT=2GiB python3 tests/frameworks/numba_memory.py
"""
import sys

import numpy
from numba import cuda

N = 4 << 20


@cuda.jit
def fill(x, value):
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        x[i] = value


def main():
    import gpumem.numba

    manager = cuda.current_context().memory_manager
    assert isinstance(manager, gpumem.numba.Manager), f"{manager}; expected gpumem's"
    streams = [cuda.stream() for _ in range(4)]
    for turn in range(200):  # an array is dropped while its stream still works on it
        stream = streams[turn % 4]
        x = cuda.device_array(N * (1 + turn % 3), numpy.float32, stream=stream)
        fill[256, 256, stream](x, turn)
        if turn % 10 == 0:
            back = x.copy_to_host(stream=stream)
            stream.synchronize()
            assert (back == turn).all(), f"turn {turn}: {back.min()} to {back.max()}; expected {turn} alone"
        del x
    cuda.synchronize()
    live, reserved, limit = manager._allocator.usage(0)
    assert live == 0, f"{live} bytes are live; expected none"
    held = []
    try:
        while True:
            held.append(cuda.device_array(64 << 20, numpy.uint8))
    except cuda.cudadrv.driver.CudaAPIError as refused:
        assert "CUDA_ERROR_OUT_OF_MEMORY" in str(refused), refused
    print(f"200 arrays on 4 streams in {reserved >> 20} MiB; out of memory after {len(held) * 64} MiB of {limit >> 20}")
    return 0 if 0 < len(held) << 26 <= limit else 1


if __name__ == "__main__":
    sys.exit(main())
