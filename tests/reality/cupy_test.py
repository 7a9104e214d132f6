"""A7: gpumem.cupy over the double of the driver: CuPy's streams, its out-of-memory, and what enabling refuses.

    PYTHONPATH=python python3 cupy_test.py libgpumem.so libcuda.so.1

CuPy needs a GPU. What stands here in its place is what gpumem.cupy uses of it: the current stream, the default pool, and an
allocator that makes pointers of what it is given, as PythonFunctionAllocator does.
"""
import ctypes
import os
import pathlib
import subprocess
import sys
import types
import warnings

MIB = 1 << 20


class Stream:
    current = []

    def __init__(self, ptr):
        self.ptr = ptr

    def __enter__(self):
        Stream.current.append(self)

    def __exit__(self, *_):
        Stream.current.pop()


class OutOfMemoryError(MemoryError):
    def __init__(self, size, total, limit=0):
        super().__init__(f"{size} bytes, {total} in use, limit {limit}")


class PythonFunctionAllocator:
    def __init__(self, malloc, free):
        self.malloc = lambda size: malloc(size, 0)
        self.free = lambda at: free(at, 0)


class Pool:
    bytes = 0

    def total_bytes(self):
        return Pool.bytes


def stand_in(version):
    cupy = types.ModuleType("cupy")
    cupy.__version__ = version
    cupy.get_default_memory_pool = Pool
    cupy.cuda = types.SimpleNamespace(
        get_current_stream=lambda: Stream.current[-1],
        memory=types.SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
        PythonFunctionAllocator=PythonFunctionAllocator,
        set_allocator=lambda malloc: setattr(cupy, "malloc", malloc),
    )
    return cupy


def refused(kind, call, *words):
    try:
        call()
    except kind as why:
        assert all(word in str(why) for word in words), f"{why}; expected {words}"
        return why
    raise AssertionError(f"accepted; expected {kind.__name__} with {words}")


def enabling(gpumem_cupy):
    refused(ImportError, gpumem_cupy.enable, "pip install cupy")
    sys.modules["cupy"] = cupy = stand_in("99.0")
    Pool.bytes = 512
    refused(RuntimeError, lambda: gpumem_cupy.enable(policy="caching"), "512 bytes", "before the first array")
    assert not hasattr(cupy, "malloc") and "GPUMEM_POLICY" not in os.environ, "half enabled"
    Pool.bytes = 0
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        gpumem_cupy.enable(policy="growth")
    assert "CuPy 99.0 is not one of those tested" in str(said[0].message), said
    gpumem_cupy.enable()
    refused(RuntimeError, lambda: gpumem_cupy.enable(policy="caching"), "already")
    return cupy, gpumem_cupy._enabled


def blocks(with_gpumem):
    with Stream(0):
        first = with_gpumem.malloc(MIB)
        assert first % 512 == 0 and first != 0
        with_gpumem.free(first)
        assert with_gpumem.malloc(0) == 0
        with_gpumem.free(0)
        why = refused(OutOfMemoryError, lambda: with_gpumem.malloc(1 << 40), str(1 << 40), "limit 1073741824")
        assert "1.00 TiB" in str(why.__cause__), f"{why.__cause__}; expected gpumem's report"
        refused(RuntimeError, lambda: with_gpumem.free(first), "free already")


def streams(with_gpumem, driver):
    driver.simcuda_hazards.restype = ctypes.c_uint64
    driver.simcuda_use.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64]
    driver.simcuda_handed_out.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p]
    driver.simcuda_given_back.argtypes = [ctypes.c_uint64]
    made_streams = []
    context = ctypes.c_void_p()
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0 and driver.cuCtxSetCurrent(context) == 0
    for _ in range(2):
        made = ctypes.c_void_p()
        assert driver.cuStreamCreate(ctypes.byref(made), 1) == 0
        made_streams.append(made.value)
    for turn in range(4):  # each stream works on an array and lets go of it while that work runs
        stream = made_streams[turn % 2]
        with Stream(stream):
            at = with_gpumem.malloc(8 * MIB)
            driver.simcuda_handed_out(at, 8 * MIB, stream)
            driver.simcuda_use(stream, 1_000_000_000, at, 8 * MIB)
            driver.simcuda_given_back(at)
            with_gpumem.free(at)
    hazards = driver.simcuda_hazards()
    assert hazards == 0, f"{hazards} times an array was another stream's while that one still worked on it"


def main(library, driver_path, *only):
    import gpumem

    gpumem.library = lambda: pathlib.Path(library)
    import gpumem.cupy

    if only:  # a process whose settings are bad
        sys.modules["cupy"] = stand_in("14.2.0")
        refused(RuntimeError, gpumem.cupy.enable, "GPUMEM_LIMIT=much")
        return
    sys.modules["cupy"] = None
    cupy, with_gpumem = enabling(gpumem.cupy)
    assert cupy.malloc is with_gpumem.malloc
    blocks(with_gpumem)
    streams(with_gpumem, ctypes.CDLL(driver_path))
    subprocess.run([sys.executable, __file__, library, driver_path, "bad"], check=True, timeout=30,
                   env={**os.environ, "GPUMEM_LIMIT": "much", "GPUMEM_STRICT": "1"})
    print("an array belongs to the stream that made it, and out of memory is raised")


if __name__ == "__main__":
    main(*sys.argv[1:])
