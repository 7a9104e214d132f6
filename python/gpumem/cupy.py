"""gpumem as CuPy's allocator.

    import gpumem.cupy
    gpumem.cupy.enable(policy="expandable", limit="80%")

before the first array. An array belongs to the stream that is current at its creation, as with CuPy's own pool.
Out-of-memory raises CuPy's OutOfMemoryError, whose cause has gpumem's report.
"""
from . import _native

__all__ = ["TESTED", "enable"]

#: Prefixes of the tested versions of CuPy.
TESTED = ("14.",)

_enabled = None


def enable(**settings):
    """Makes gpumem CuPy's allocator. Call it before the first array; a second call does nothing.

    `settings` are gpumem's options in lower case; a GPUMEM_* variable of the environment overrides them. On failure
    raises RuntimeError or ImportError with the cause and the remedy, and CuPy keeps its own pool.
    """
    global _enabled
    try:
        import cupy
    except ImportError as why:
        raise ImportError(f"gpumem.cupy: CuPy cannot be imported ({why}); install it, such as `pip install cupy-cuda13x`") from why

    if _enabled is not None:
        if settings:
            raise RuntimeError("gpumem is CuPy's allocator already: its settings are those of the first enable()")
        return
    with _native.settings(settings):
        allocator = _native.Allocator()
        pool = cupy.get_default_memory_pool()
        if pool.total_bytes() > 0:
            raise RuntimeError(f"CuPy's own pool holds {pool.total_bytes()} bytes: call gpumem.cupy.enable() before the "
                               "first array, or delete all arrays and call cupy.get_default_memory_pool().free_all_blocks()")
    _native.warn_if_untested("CuPy", cupy.__version__, TESTED)
    _enabled = cupy.cuda.PythonFunctionAllocator(*_functions(cupy, allocator))
    cupy.cuda.set_allocator(_enabled.malloc)


def _functions(cupy, allocator):
    """Returns the functions for a PythonFunctionAllocator."""
    free_block = allocator.free

    def malloc(size, device):
        if size == 0:
            return 0
        try:
            return allocator.allocate(size, device, cupy.cuda.get_current_stream().ptr)
        except _native.OutOfMemory as report:
            live, _, limit = allocator.usage(device)
            raise cupy.cuda.memory.OutOfMemoryError(size, live, limit) from report

    def free(at, _device):
        if at:
            free_block(at)

    return malloc, free
