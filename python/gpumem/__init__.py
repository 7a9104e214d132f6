"""gpumem: a CUDA caching allocator with policies. `gpumem.torch` makes it PyTorch's; `library()` is the C library."""
import os
import pathlib
import sys

__all__ = ["include_folder", "library"]

_HERE = pathlib.Path(__file__).resolve().parent


def library() -> pathlib.Path:
    """The path of the shared library, libgpumem.so.0 (C interface: gpumem/gpumem.h)."""
    return _HERE / "lib" / "libgpumem.so.0"


def include_folder() -> pathlib.Path:
    """The folder of the C++ headers (gpumem/allocator.hpp and others)."""
    return _HERE / "include"


def _run(tool):
    program = _HERE / "bin" / tool
    if not program.is_file():
        sys.exit(f"{tool}: {program} does not exist: this package has the library alone; install the wheel file that "
                 "scripts/wheel of gpumem's sources makes, or build the sources with CMake")
    os.execv(program, [tool, *sys.argv[1:]])


def _run_gpumem():
    _run("gpumem")


def _run_gpumem_bench():
    _run("gpumem_bench")
