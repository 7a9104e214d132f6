"""Computes PyTorch's small operations on simulated cards: compiles and loads the library of ../values.

SIMCUDA_VALUES: largest number of elements of a small tensor; 0 or unset: compute nothing.
"""
import ctypes
import os
import pathlib
import platform

import gpumem_compile

SOURCES = pathlib.Path(__file__).resolve().parent.parent / "values"
figures = {}  # for the run's report: {"elements", "operations"}, or {"error"}


def command(torch_folder, abi, cxx, out):
    torch_folder = pathlib.Path(torch_folder)
    return [cxx, "-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-w",
            f"-D_GLIBCXX_USE_CXX11_ABI={int(abi)}", f"-isystem{torch_folder / 'include'}",
            f"-isystem{torch_folder / 'include' / 'torch' / 'csrc' / 'api' / 'include'}",
            str(SOURCES / "values.cpp"), "-o", str(out),
            f"-L{torch_folder / 'lib'}", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{torch_folder / 'lib'}"]


def build(torch):
    """Returns the library for this torch, compiled if needed. Raises BuildError if it cannot be built."""
    torch_folder = os.path.dirname(os.path.abspath(torch.__file__))
    abi = torch._C._GLIBCXX_USE_CXX11_ABI
    cxx, version = gpumem_compile.compiler()
    key = gpumem_compile.key_of(["values", platform.machine(), platform.libc_ver(), torch.version.git_version, torch.__version__,
                                 torch_folder, abi, version,
                                 *(each.read_bytes() for each in sorted(SOURCES.iterdir()))])
    return gpumem_compile.cached(f"values-{key}", lambda out: command(torch_folder, abi, cxx, out))


def compute(torch):
    """Computes operations from now on, in all threads. On failure adds the error to the report; the program runs on."""
    elements = os.environ.get("SIMCUDA_VALUES", "0")
    if not elements.isdigit() or int(elements) == 0:
        return
    try:
        library = ctypes.CDLL(str(build(torch)))
        why = ctypes.create_string_buffer(512)
        library.gpumem_compute_values.argtypes = [ctypes.c_int64, ctypes.c_char_p, ctypes.c_size_t]
        operations = library.gpumem_compute_values(int(elements), why, len(why))
        if operations < 0:
            figures["error"] = why.value.decode(errors="replace")
        else:
            figures.update(elements=int(elements), operations=operations)
    except Exception as wrong:
        figures["error"] = str(wrong)
