"""gpumem as PyTorch's allocator.

    import gpumem.torch
    gpumem.torch.enable(policy="expandable", limit="80%")

before the first use of a GPU; or only set GPUMEM_TORCH=1 in the environment.
"""
import contextlib
import ctypes
import functools
import os
import warnings

from .. import _native, library
from . import _build, _settings

__all__ = ["enable", "how", "TESTED"]

#: Versions of torch that gpumem's tests cover.
TESTED = ("2.11", "2.15")

LOST = ("memory statistics, snapshots, memory pools, checkpoints of graph trees, and torch.OutOfMemoryError (out of "
        "memory is a RuntimeError)")

IN_USE = ("a GPU is in use already, and PyTorch's own allocator has the memory of what was made there (tensors, CUDA "
          "graphs, pinned memory): in a new process call gpumem.torch.enable() before the first use of a GPU, or set "
          "GPUMEM_TORCH=1 in the environment")


class _RefusedByTorch(RuntimeError):
    """PyTorch rejects its own settings. Without gpumem it raises this error at the first use of a GPU."""


_how = None
_kept = []  # keeps libraries and functions that PyTorch calls alive


def how():
    """How PyTorch uses gpumem: "allocator", "hooks" (the pluggable allocator, with fewer features), or None if it does not."""
    return _how


def enable(*, fallback=True, **settings):
    """Makes gpumem PyTorch's allocator. Call it before the first use of a GPU.

    `settings` are gpumem's options in lower case: policy, limit, pools, trace and so on; a GPUMEM_* variable of the
    environment overrides them. Errors that need the GPU to detect, such as a limit above its memory, are raised at its
    first use. `expandable_segments:True` in PYTORCH_CUDA_ALLOC_CONF or PYTORCH_ALLOC_CONF selects the policy expandable
    if no policy is set; a warning says so, and lists keys that have no effect. If the package has no allocator for the
    installed torch, the first use compiles one (a few seconds, then cached). If that fails, gpumem uses PyTorch's
    pluggable allocator and warns which features are missing; with `fallback=False` it raises an error. On failure raises
    RuntimeError with the cause and the remedy, and PyTorch keeps its own allocator. Returns the value of `how()`.
    """
    global _how
    import torch

    if _how is not None:
        if settings:
            raise RuntimeError("gpumem is PyTorch's allocator already: its settings are those of the first enable()")
        return _how
    if not torch.backends.cuda.is_built() or torch.version.hip is not None:
        raise RuntimeError(f"torch {torch.__version__} was built without CUDA: gpumem serves CUDA's GPUs only")
    backend = torch.cuda.memory.get_allocator_backend()
    if backend not in ("native", "cudaMallocAsync"):
        raise RuntimeError(f"PyTorch has another allocator already ({backend}), which cannot be taken away from it: in a "
                           "new process call gpumem.torch.enable() in place of change_current_allocator()")
    if torch.cuda.is_initialized():
        raise RuntimeError(IN_USE)
    chosen, line = _settings.translate(os.environ, settings)
    with _native.settings(settings), _native.defaults(chosen):
        _how = _enable(torch, fallback)
    if line:
        warnings.warn(line, stacklevel=2)
    return _how


def _load(torch):
    ready, why = _build.prebuilt(torch), ""
    if ready is not None:
        try:
            return ctypes.CDLL(str(ready), mode=os.RTLD_NOW)
        except OSError as wrong:  # an older system, or another build of this torch version: compile one
            why = f"; the one that the package brings does not load: {wrong}"
    try:
        made = _build.build(torch)
        with contextlib.suppress(OSError):  # damaged: compile it again
            return ctypes.CDLL(str(made))
        return ctypes.CDLL(str(_build.build(torch, in_place_of=made)))
    except OSError as wrong:
        raise _build.BuildError(f"the extension that was compiled does not load: {wrong}{why}") from None
    except _build.BuildError as wrong:
        raise _build.BuildError(f"{wrong}{why}") from None


def _enable(torch, fallback):
    try:
        loaded = _load(torch)
    except _build.BuildError as wrong:
        if not fallback:
            raise RuntimeError(f"gpumem.torch: {wrong}") from None
        _hooks(torch)
        warnings.warn(f"gpumem.torch: {wrong}. PyTorch's pluggable allocator serves instead, without {LOST}", stacklevel=3)
        return "hooks"
    if ".".join(torch.__version__.split(".")[:2]) not in TESTED:
        warnings.warn(f"gpumem.torch: torch {torch.__version__} is not one of those tested ({', '.join(TESTED)}); the "
                      "allocator compiled against it", stacklevel=3)
    loaded.gpumem_torch_in_use.restype = ctypes.c_bool
    if loaded.gpumem_torch_in_use():
        raise RuntimeError(IN_USE)
    _native.check(_native.load().gpumem_check_environment())  # reports a bad GPUMEM_* now
    for name, error in ("gpumem_torch_read_settings", _RefusedByTorch), ("gpumem_torch_install", RuntimeError):
        step = loaded[name]
        step.restype = ctypes.c_char_p
        wrong = step()
        if wrong is not None:
            raise error(wrong.decode())
    _kept.append(loaded)
    _limit_memory_info(torch, loaded)
    return "allocator"


def _limit_memory_info(torch, loaded):
    """Applies the limit to torch.cuda.mem_get_info(); else servers would size their caches by the whole GPU."""
    limited = loaded.gpumem_torch_memory_info
    limited.restype = ctypes.c_bool
    of_driver = torch.cuda.mem_get_info

    @functools.wraps(of_driver)
    def mem_get_info(device=None):
        asked = of_driver(device)
        index = torch.cuda._utils._get_device_index(device, optional=True)
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        if not limited(ctypes.c_int(index), ctypes.byref(free), ctypes.byref(total)):
            return asked
        return free.value, total.value

    torch.cuda.mem_get_info = torch.cuda.memory.mem_get_info = mem_get_info


def _hooks(torch):
    path = str(library())
    if not os.path.isfile(path):
        raise RuntimeError(f"gpumem.torch: {path} does not exist: gpumem is not installed as a whole")
    loaded = _native.load()
    _native.check(loaded.gpumem_check_environment())
    pluggable = torch.cuda.memory.CUDAPluggableAllocator(path, "gpumem_torch_alloc", "gpumem_torch_free")
    it = pluggable.allocator()
    for setter, function in (("set_init_fn", "init"), ("set_reset_fn", "empty_cache"),
                             ("set_memory_fraction_fn", "memory_fraction"), ("set_base_alloc_fn", "base_alloc"),
                             ("set_record_stream_fn", "record_stream"),
                             ("set_end_allocate_to_pool_fn", "end_allocate_to_pool")):
        address = ctypes.cast(getattr(loaded, "gpumem_torch_" + function), ctypes.c_void_p).value
        getattr(it, setter)(address)
    try:
        torch.cuda.memory.change_current_allocator(pluggable)
    except RuntimeError as wrong:  # its only cause
        raise RuntimeError(IN_USE) from wrong
    _kept.extend([loaded, pluggable])


def _autoload():
    """torch's entry point for backends: GPUMEM_TORCH=1 enables it when torch is imported."""
    asked = os.environ.get("GPUMEM_TORCH", "0")
    if asked not in ("", "0", "1"):
        raise RuntimeError(f"GPUMEM_TORCH={asked}: expected 0 or 1")
    if asked == "1":
        try:
            enable()
        except _RefusedByTorch as wrong:  # do not fail `import torch`
            warnings.warn(f"gpumem.torch: not enabled: {wrong} PyTorch refuses this setting at the first use of a GPU",
                          stacklevel=2)
