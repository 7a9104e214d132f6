"""Computes PyTorch's small operations on simulated cards: loads the library of ../values, prebuilt or compiled once.

SIMCUDA_VALUES: largest number of elements of a small tensor; 0 or unset: compute nothing.

    python gpumem_values.py    compiles the library for this Python's torch into ../prebuilt, for a package
"""
import ctypes
import importlib.util
import os
import pathlib
import platform
import runpy
import sys

import gpumem_compile

SOURCES = pathlib.Path(__file__).resolve().parent.parent / "values"
PREBUILT = SOURCES.parent / "prebuilt"
figures = {}  # for the run's report: {"elements", "operations"}, or {"error"}


def command(torch_folder, abi, cxx, out, *, movable=False):
    """Returns the compiler's command. `movable`: torch's libraries are those that the process has loaded."""
    torch_folder = pathlib.Path(torch_folder)
    return [cxx, "-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-w",
            f"-D_GLIBCXX_USE_CXX11_ABI={int(abi)}", f"-isystem{torch_folder / 'include'}",
            f"-isystem{torch_folder / 'include' / 'torch' / 'csrc' / 'api' / 'include'}",
            str(SOURCES / "values.cpp"), "-o", str(out),
            f"-L{torch_folder / 'lib'}", "-ltorch_cpu", "-lc10",
            *(["-s", f"-ffile-prefix-map={SOURCES}=values", f"-ffile-prefix-map={torch_folder}=torch",
               f"-ffile-prefix-map={torch_folder.resolve()}=torch"] if movable
              else [f"-Wl,-rpath,{torch_folder / 'lib'}"])]


def prebuilt_name(version, git_version):
    return f"values-{git_version}-torch{version}"


def prebuilt(version, git_version):
    """Returns the package's library for this build of torch, or None."""
    found = PREBUILT / f"{prebuilt_name(version, git_version)}.so"
    return found if found.is_file() else None


def prebuild():
    """Compiles the library for this Python's torch into the package, and returns its path. Does not import torch, which
    needs CUDA's libraries."""
    found = importlib.util.find_spec("torch")
    if found is None:
        raise gpumem_compile.BuildError(f"{sys.executable} has no torch to compile the library against")
    folder = pathlib.Path(found.origin).parent
    told = runpy.run_path(str(folder / "version.py"))
    PREBUILT.mkdir(exist_ok=True)
    cxx = gpumem_compile.compiler()[0]
    # The name of c10::Error's constructor tells whether std::string is that of the C++11 ABI: not in wheels before 2.7.
    abi = b"SourceLocationESs" not in (folder / "lib" / "libc10.so").read_bytes()
    return gpumem_compile.compile_into(PREBUILT, prebuilt_name(told["__version__"], told["git_version"]),
                                       lambda out: command(folder, abi, cxx, out, movable=True), movable=True)


def build(torch):
    """Returns the library for this torch, compiled if needed. Raises BuildError if it cannot be built."""
    torch_folder = os.path.dirname(os.path.abspath(torch.__file__))
    abi = torch._C._GLIBCXX_USE_CXX11_ABI
    cxx, version = gpumem_compile.compiler()
    key = gpumem_compile.key_of(["values", platform.machine(), platform.libc_ver(), torch.version.git_version, torch.__version__,
                                 torch_folder, abi, version,
                                 *(each.read_bytes() for each in sorted(SOURCES.iterdir()))])

    def told_command(out):  # asked for only where nothing is cached: the program waits meanwhile
        print(f"gpumem: compiling the values of small operations for torch {torch.__version__}, once (up to a minute)",
              file=sys.stderr, flush=True)
        return command(torch_folder, abi, cxx, out)

    return gpumem_compile.cached(f"values-{key}", told_command)


def load(torch):
    """Returns the library for this torch: the package's if it loads here, else the one compiled for this machine."""
    found = prebuilt(torch.__version__, torch.version.git_version)
    if found is not None:
        try:
            return ctypes.CDLL(str(found))
        except OSError:  # an older C++ library
            pass
    return ctypes.CDLL(str(build(torch)))


def compute(torch):
    """Computes operations from now on, in all threads. On failure adds the error to the report; the program runs on."""
    elements = os.environ.get("SIMCUDA_VALUES", "0")
    if not elements.isdigit() or int(elements) == 0:
        return
    try:
        library = load(torch)
        why = ctypes.create_string_buffer(512)
        library.gpumem_compute_values.argtypes = [ctypes.c_int64, ctypes.c_char_p, ctypes.c_size_t]
        operations = library.gpumem_compute_values(int(elements), why, len(why))
        if operations < 0:
            figures["error"] = why.value.decode(errors="replace")
        else:
            figures.update(elements=int(elements), operations=operations)
    except Exception as wrong:
        figures["error"] = str(wrong)


if __name__ == "__main__":
    try:
        print(prebuild())
    except gpumem_compile.BuildError as wrong:
        sys.exit(f"{sys.executable}: {wrong}")
