"""Tells the referee of simulated cards a Python program's lines, and the memory that PyTorch's operations use.

The simulated driver knows the order of streams, but not which bytes a kernel uses. For PyTorch, an operation that
launched a kernel is assumed to use all its tensors, on the current stream. PyTorch's trace callbacks report blocks,
whatever its allocator. A capture's memory is not checked, because graphs reuse it by design.
"""
import ctypes
import os
import sys
import threading

_here = os.path.dirname(os.path.abspath(__file__))
_installed = ("/site-packages/", "/dist-packages/", "/lib/python3")
_fresh = set()  # allocated addresses that no operation has returned yet
_held = set()  # addresses reported to the referee as handed out


def _load():
    # By path, because an allocator in front of the driver may have the driver's name.
    double = ctypes.CDLL(os.environ.get("SIMCUDA_DRIVER", "libcuda.so.1"))
    u64, pointer = ctypes.c_uint64, ctypes.c_void_p
    double.simcuda_handed_out.argtypes = [u64, u64, pointer]
    double.simcuda_given_back.argtypes = [u64]
    double.simcuda_use.argtypes = [pointer, u64, u64, u64]
    double.simcuda_place_hazards.argtypes = [ctypes.c_char_p]
    double.simcuda_note_unseen.argtypes = [ctypes.c_char_p]
    double.simcuda_watch_python.argtypes = [ctypes.c_int, ctypes.c_int]
    double.simcuda_hazards.restype = u64
    double.simcuda_kernels.restype = u64
    return double


def watch():
    """Lets the simulated driver find the line of a calling thread by faulthandler, which needs no interpreter lock."""
    global _double
    import faulthandler
    import signal

    _double = _load()
    number = signal.SIGRTMAX - 2
    file = os.memfd_create("python lines")
    faulthandler.register(number, file=file, all_threads=False)
    _double.simcuda_watch_python(number, file)


def _line_of(frame):
    """Returns the first frame outside installed packages, or None."""
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(_here) and not any(each in code.co_filename for each in _installed):
            return f"{code.co_filename}:{frame.f_lineno} in {code.co_name}"
        frame = frame.f_back
    return None


def _line():
    here = _line_of(sys._getframe(1))
    if here is not None:
        return here
    # One of PyTorch's threads runs the backward pass, while the main thread usually waits for it.
    main = _line_of(sys._current_frames().get(threading.main_thread().ident))
    return f"{main or 'no line of the program'} (a thread of PyTorch's own)"


def watch_torch(torch):
    if not hasattr(torch._C, "_activate_gpu_trace"):
        _double.simcuda_note_unseen(f"torch {torch.__version__} tells nobody of its allocations".encode())
        return
    import torch.cuda._gpu_trace as trace
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    torch._C._activate_gpu_trace()
    trace.register_callback_for_memory_allocation(_fresh.add)
    trace.register_callback_for_memory_deallocation(_given_back)
    capturing = torch._C._cuda_isCurrentStreamCapturing
    stream_of = torch._C._cuda_getCurrentRawStream

    def blocks(values):
        """Returns the blocks of tensors on cards, each once: (device, address, bytes)."""
        found = {}
        for each in tree_leaves(values):
            if isinstance(each, torch.Tensor) and each.is_cuda and each.layout is torch.strided:
                try:
                    storage = each.untyped_storage()
                    found[storage.data_ptr()] = (each.get_device(), storage.nbytes())
                except (RuntimeError, NotImplementedError):  # a compiler's tracing tensor has no memory
                    pass
        return [(device, at, size) for at, (device, size) in found.items() if at != 0 and size != 0]

    class uses(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            kernels, hazards = _double.simcuda_kernels(), _double.simcuda_hazards()
            out = function(*args, **(kwargs or {}))
            if torch.cuda.is_initialized():
                launched = _double.simcuda_kernels() != kernels
                for device, at, size in blocks((args, kwargs, out)):
                    stream = stream_of(device)
                    if at in _fresh:
                        _fresh.discard(at)
                        if not capturing():
                            _held.add(at)
                            _double.simcuda_handed_out(at, size, stream)
                    if launched:
                        _double.simcuda_use(stream, 0, at, size)
                if _double.simcuda_hazards() != hazards:
                    _double.simcuda_place_hazards(_line().encode())
            return out

    _in_every_thread(uses)


def _given_back(at):
    _fresh.discard(at)
    if at in _held:
        _held.discard(at)
        _double.simcuda_given_back(at)


def _in_every_thread(mode):
    """Enters the mode, which is per thread, in the calling thread and in each thread that `threading` starts later."""
    mode().__enter__()
    start = threading.Thread.start

    def start_watched(thread):
        run = thread.run

        def watched():
            del thread.run
            with mode():
                run()

        thread.run = watched
        start(thread)

    threading.Thread.start = start_watched
