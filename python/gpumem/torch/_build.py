"""PyTorch's allocator extension: prebuilt in the package for this torch, or compiled against it and kept in a cache.

A wheel may contain extensions, each named after the torch that it was compiled against (`prebuild`). The cache key
(_compile.py) covers all inputs of an extension: torch's commit, the source, gpumem's headers, the compiler.
"""
import glob
import importlib.util
import os
import pathlib
import platform
import runpy
import sys

from .. import include_folder, library
from . import _compile
from ._compile import BuildError, cache_folder, compile_into, compiler, digest_file, identity, is_whole, key_of  # noqa: F401

SOURCE = pathlib.Path(__file__).resolve().parent / "csrc" / "allocator.cpp"
NEEDED = ("cuda_runtime_api.h", "crt/host_config.h")
PREBUILT = SOURCE.parent.parent / "prebuilt"


def cuda_headers():
    """Returns a folder with cuda_runtime.h and what it includes: in NVIDIA's wheels, the Toolkit, or Triton's package.

    The runtime's wheel for CUDA 13 leaves the folder crt to another wheel, which torch does not need."""
    folders = [os.path.join(p, "nvidia", "*", "include") for p in sys.path]
    folders += [os.path.join(os.environ[name], "include") for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    folders += ["/usr/local/cuda/include", "/opt/cuda/include"]
    folders += [os.path.join(p, "triton", "backends", "nvidia", "include") for p in sys.path]
    for pattern in folders:
        for folder in sorted(glob.glob(pattern), reverse=True):
            if all(os.path.isfile(os.path.join(folder, each)) for each in NEEDED):
                return folder
    raise BuildError(f"no folder with {' and '.join(NEEDED)} was found: set CUDA_HOME to a CUDA Toolkit, or install "
                     "the packages nvidia-cuda-runtime and nvidia-cuda-crt, or triton")


def command(torch_folder, abi, cxx, headers, out, *, movable=False):
    """Returns the compiler's command. `movable`, for another machine: finds libgpumem relative to itself and torch's
    libraries by name, and contains no path of this one."""
    torch_folder = pathlib.Path(torch_folder)
    paths = [f"-Wl,-rpath,{torch_folder / 'lib'}", f"-Wl,-rpath,{library().parent}"]
    if movable:
        shown = {torch_folder: "torch", torch_folder.resolve(): "torch", headers: "cuda", SOURCE.parent: "gpumem",
                 include_folder(): "include"}
        paths = ["-Wl,-rpath,$ORIGIN/../../lib", "-s", *(f"-ffile-prefix-map={at}={name}" for at, name in shown.items())]
    return [cxx, "-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-w",
            f"-D_GLIBCXX_USE_CXX11_ABI={int(abi)}",
            f"-I{include_folder()}", f"-isystem{torch_folder / 'include'}",
            f"-isystem{torch_folder / 'include' / 'torch' / 'csrc' / 'api' / 'include'}", f"-isystem{headers}",
            str(SOURCE), "-o", str(out), f"-Wl,--version-script={SOURCE.parent / 'exports.map'}",
            f"-L{torch_folder / 'lib'}", "-lc10_cuda", "-ltorch_cuda", "-lc10", str(library()), *paths]


def prebuilt_name(version, git_version, cuda, abi):
    """Names the extension of a build of torch: wheels of one commit differ in CUDA, own builds in the version."""
    return f"{git_version}-torch{version}-cuda{cuda}-abi{int(abi)}.so"


def prebuilt(torch):
    """Returns the package's extension for this torch, or None."""
    found = PREBUILT / prebuilt_name(torch.__version__, torch.version.git_version, torch.version.cuda,
                                     torch._C._GLIBCXX_USE_CXX11_ABI)
    return found if found.is_file() else None


def prebuild():
    """Compiles the extension for this Python's torch into the package, and returns its path. Does not import torch, which
    needs CUDA's libraries. Assumes the C++11 ABI, which torch's wheels have since 2.6."""
    found = importlib.util.find_spec("torch")
    if found is None:
        raise BuildError(f"{sys.executable} has no torch to compile the extension against")
    folder = pathlib.Path(found.origin).parent
    told = runpy.run_path(str(folder / "version.py"))
    if told["cuda"] is None:
        raise BuildError(f"torch {told['__version__']} in {folder} was built without CUDA")
    PREBUILT.mkdir(exist_ok=True)
    name = prebuilt_name(told["__version__"], told["git_version"], told["cuda"], True).removesuffix(".so")
    cxx, headers = compiler()[0], cuda_headers()
    return compile_into(PREBUILT, name, lambda out: command(folder, True, cxx, headers, out, movable=True), movable=True)


def build(torch, in_place_of=None):
    """Returns the extension for this torch, compiled if needed. `in_place_of`: a file that fails to load, to replace.
    Raises BuildError if it cannot be built."""
    torch_folder = os.path.dirname(os.path.abspath(torch.__file__))
    abi = torch._C._GLIBCXX_USE_CXX11_ABI
    if not library().is_file():
        raise BuildError(f"{library()} does not exist: gpumem is not installed as a whole")
    cxx, version = compiler()
    headers = cuda_headers()
    ours = sorted(include_folder().glob("gpumem/*.h*"))
    key = key_of([platform.machine(), platform.libc_ver(), torch.version.git_version, torch.__version__, torch_folder, abi, version,
                  headers, library(),
                  *(each.read_bytes() for each in (*sorted(SOURCE.parent.iterdir()), *ours))])
    return _compile.cached(key, lambda out: command(torch_folder, abi, cxx, headers, out), in_place_of)
