"""gpumem as Numba's memory manager, through Numba's External Memory Management interface (EMM, version 1).

    NUMBA_CUDA_MEMORY_MANAGER=gpumem.numba python3 program.py

or, before the first use of a GPU,

    import gpumem.numba
    gpumem.numba.enable(policy="expandable", limit="80%")

Numba names no stream when it creates or deletes an array. So any stream may use a block at once, and a freed block is
reused once all work enqueued before the free is done, as with cuMemAlloc and cuMemFree; the host does not wait for it.
The driver still allocates pinned and managed memory.
"""
import collections
import contextlib
import ctypes
import itertools
import os
import threading
import weakref

from . import _native

try:
    import numba
    from numba import cuda
    from numba.cuda.cudadrv import driver
except ImportError as why:
    raise ImportError(f"gpumem.numba: Numba's CUDA target cannot be imported ({why}); install it, such as "
                      "`pip install numba-cuda[cu13]`") from why

__all__ = ["TESTED", "Manager", "enable"]

#: Prefixes of the tested versions of Numba.
TESTED = ("0.68.",)


class _AnyStream:
    """Blocks that any stream may use, from a stream-ordered allocator: allocated on `_home` and freed in the order of
    `_all_work`, two streams of our own without work. Before a free, `_all_work` waits for all work of the context so far,
    as gpumem requires of the stream that a free names. Requires that the device's context is current at the creation."""

    def __init__(self, allocator, device):
        self._allocator = allocator
        self._device = device
        self._libcuda = ctypes.CDLL("libcuda.so.1")
        self._context, self._event = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuCtxGetCurrent", ctypes.byref(self._context))
        self._call("cuEventCreate", ctypes.byref(self._event), 2)  # CU_EVENT_DISABLE_TIMING
        self._home, self._all_work = self._stream(), self._stream()
        self._waiting = collections.deque()  # dropped while a stream captured, or by a thread without a context

    def _call(self, name, *arguments):
        code = getattr(self._libcuda, name)(*arguments)
        if code != 0:
            raise driver.CudaAPIError(code, f"Call to {name} results in {code}")

    def _stream(self):
        made = ctypes.c_void_p()
        self._call("cuStreamCreate", ctypes.byref(made), 1)  # CU_STREAM_NON_BLOCKING
        return made.value

    @contextlib.contextmanager
    def _relaxed(self):
        """In its scope, no call of this thread is refused because another stream captures."""
        mode = ctypes.c_int(2)
        self._call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
        try:
            yield
        finally:
            self._call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))

    def allocate(self, size):
        if self._waiting:
            self._free_waiting()
        at = self._allocator.allocate(size, self._device, self._home)
        # Wait for the work that `_home` waits for, so that any stream may use the block.
        with self._relaxed():
            self._call("cuStreamSynchronize", ctypes.c_void_p(self._home))
        return at

    def free(self, at):
        self._waiting.append(at)
        self._free_waiting()

    def _free_waiting(self):
        # Taken before the event, so that it covers the work on each of them.
        blocks = []
        with contextlib.suppress(IndexError):
            while True:
                blocks.append(self._waiting.popleft())
        if not self._order_all_work():
            self._waiting.extend(blocks)
            return
        for at in blocks:
            self._allocator.free_on(at, self._all_work)

    def _order_all_work(self):
        """Orders `_all_work` behind all work of the context so far. False if a capture does not allow it."""
        legacy, capturing = ctypes.c_void_p(1), ctypes.c_int()
        with self._relaxed():
            # An event on the context invalidates a capture. The driver tells of captures on blocking streams alone, so a
            # drop while another stream captures spoils that capture.
            if self._libcuda.cuStreamIsCapturing(legacy, ctypes.byref(capturing)) != 0:
                return False
            record = getattr(self._libcuda, "cuCtxRecordEvent", None)  # from CUDA 12.5 on
            if record is not None:
                return record(self._context, self._event) == 0 and self._libcuda.cuStreamWaitEvent(
                    ctypes.c_void_p(self._all_work), self._event, 0) == 0
            return self._libcuda.cuCtxSynchronize() == 0


def _pointer(at):
    """Converts an address to the type that this version of Numba expects."""
    if hasattr(driver, "drvapi") and not getattr(driver, "USE_NV_BINDING", False):
        return driver.drvapi.cu_device_ptr(at)
    return driver.binding.CUdeviceptr(at)


def _out_of_memory_code():
    if hasattr(driver, "enums") and not getattr(driver, "USE_NV_BINDING", False):
        return driver.enums.CUDA_ERROR_OUT_OF_MEMORY
    return driver.binding.CUresult.CUDA_ERROR_OUT_OF_MEMORY


class Manager(cuda.GetIpcHandleMixin, cuda.HostOnlyCUDAMemoryManager):
    """One for each context. On out-of-memory raises Numba's CudaAPIError with CUDA's code and gpumem's report."""

    interface_version = 1

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._memory = None
        self._opening = threading.Lock()
        self._live = {}  # block number -> address
        self._numbers = itertools.count()
        self._later = collections.deque()  # frees under defer_cleanup
        self._deferred = 0

    def initialize(self):
        with self._opening:
            if self._memory is not None:
                return
            device = self.context.device.id
            self._allocator = _open()
            self._memory = _AnyStream(self._allocator, int(device))
        if self.deallocations.memory_capacity == 0:  # for pinned and managed memory
            self.deallocations.memory_capacity = self.get_memory_info().total

    def memalloc(self, size):
        at = self._attempt_allocation(lambda: self._allocate(size))
        number = next(self._numbers)
        self._live[number] = at
        manager = weakref.ref(self)

        def gone():
            there = manager()
            if there is not None:
                there._free(number)

        return cuda.MemoryPointer(weakref.proxy(self.context), _pointer(at), size, finalizer=gone)

    def _allocate(self, size):
        try:
            return self._memory.allocate(size)
        except _native.OutOfMemory as report:
            raise driver.CudaAPIError(_out_of_memory_code(), f"CUDA_ERROR_OUT_OF_MEMORY: {report}") from None

    def _free(self, number):
        if self._deferred:
            self._later.append(number)
            return
        at = self._live.pop(number, None)
        if at is not None:
            self._memory.free(at)

    def get_ipc_handle(self, memory):
        try:
            return super().get_ipc_handle(memory)
        except driver.CudaAPIError as why:
            raise driver.CudaAPIError(why.code, f"{why.msg}: mapped memory has no such handle; set GPUMEM_BACKING=plain and "
                                      "a policy other than expandable") from None

    def get_memory_info(self):
        """Free and total bytes for this program, within the GPU's free memory and gpumem's limit."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._memory._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        live, reserved, most = self._allocator.usage(int(self.context.device.id))
        return cuda.MemoryInfo(free=max(0, min(most - live, free.value + reserved - live)), total=most)

    def reset(self):
        super().reset()
        self._later.clear()
        for number in list(self._live):
            at = self._live.pop(number, None)
            if at is not None:
                self._memory.free(at)

    @contextlib.contextmanager
    def defer_cleanup(self):
        with super().defer_cleanup():
            self._deferred += 1
            try:
                yield
            finally:
                self._deferred -= 1
                while self._later and not self._deferred:
                    self._free(self._later.popleft())


_numba_memory_manager = Manager


def _open():
    if any(name.startswith("GPUMEM_STREAM_IDS") and value == "notify" for name, value in os.environ.items()):
        raise RuntimeError("GPUMEM_STREAM_IDS=notify: Numba tells of no stream that ends; expected query, the default")
    return _native.Allocator()


def enable(**settings):
    """Makes gpumem Numba's memory manager. Call it before the first use of a GPU; a second call does nothing.

    `settings` are gpumem's options in lower case; a GPUMEM_* variable of the environment overrides them. On failure
    raises RuntimeError with the cause and the remedy, and Numba keeps its own memory manager.
    """
    if driver._memory_manager is Manager:
        if settings:
            raise RuntimeError("gpumem is Numba's memory manager already: its settings are those of the first enable()")
        return
    if driver._memory_manager is not None:
        raise RuntimeError("a GPU is in use already, with Numba's own memory manager: call gpumem.numba.enable() before the "
                           "first use of a GPU, or set NUMBA_CUDA_MEMORY_MANAGER=gpumem.numba in the environment")
    with _native.settings(settings):
        _open()
        cuda.set_memory_manager(Manager)
    _native.warn_if_untested("Numba", numba.__version__, TESTED)
