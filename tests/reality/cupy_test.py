"""A7: CuPy's streams and its out-of-memory, by the lines of examples/cupy_allocator.py over the double of the driver.

    python3 cupy_test.py EXAMPLE libgpumem.so libcuda.so.1

CuPy needs a GPU. What stands here in its place is what the lines use of it: the current stream, and an allocator that
makes pointers of what it is given, as PythonFunctionAllocator does.
"""
import ctypes
import importlib.util
import sys
import types

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
        super().__init__(f"{size} bytes")


class PythonFunctionAllocator:
    def __init__(self, malloc, free):
        self.malloc = lambda size: malloc(size, 0)
        self.free = lambda at: free(at, 0)


def stand_in():
    cupy = types.ModuleType("cupy")
    cupy.cuda = types.SimpleNamespace(
        get_current_stream=lambda: Stream.current[-1],
        memory=types.SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
        PythonFunctionAllocator=PythonFunctionAllocator,
    )
    return cupy


def main(example, library, driver_path):
    sys.modules["cupy"] = stand_in()
    spec = importlib.util.spec_from_file_location("example", example)
    lines = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(lines)
    driver = ctypes.CDLL(driver_path)
    driver.simcuda_hazards.restype = ctypes.c_uint64
    driver.simcuda_use.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64]
    driver.simcuda_handed_out.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p]
    driver.simcuda_given_back.argtypes = [ctypes.c_uint64]

    with_gpumem = lines.gpumem_for_cupy(library)
    with Stream(0):
        first = with_gpumem.malloc(MIB)
        assert first % 512 == 0 and first != 0
        with_gpumem.free(first)
        assert with_gpumem.malloc(0) == 0
        try:
            with_gpumem.malloc(1 << 40)
        except OutOfMemoryError:
            pass
        else:
            raise AssertionError("out of memory was not raised: CuPy writes where 0 points")

    streams = []
    context = ctypes.c_void_p()
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0 and driver.cuCtxSetCurrent(context) == 0
    for _ in range(2):
        made = ctypes.c_void_p()
        assert driver.cuStreamCreate(ctypes.byref(made), 1) == 0
        streams.append(made.value)
    for turn in range(4):  # each stream works on an array and lets go of it while that work runs
        stream = streams[turn % 2]
        with Stream(stream):
            at = with_gpumem.malloc(8 * MIB)
            driver.simcuda_handed_out(at, 8 * MIB, stream)
            driver.simcuda_use(stream, 1_000_000_000, at, 8 * MIB)
            driver.simcuda_given_back(at)
            with_gpumem.free(at)
    hazards = driver.simcuda_hazards()
    assert hazards == 0, f"{hazards} times an array was another stream's while that one still worked on it"
    print("an array belongs to the stream that made it, and out of memory is raised")


if __name__ == "__main__":
    main(*sys.argv[1:])
