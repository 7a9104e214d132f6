"""The extension that is PyTorch's allocator: the package's own for this torch, or compiled against it and kept in a cache.

A wheel may bring extensions, each under the name of the torch that it was compiled against (`prebuild`). The key of the
cache covers all that goes into one: torch's commit, the source, gpumem's headers, the compiler. Several processes that
start at once compile it once; where no folder can be written, each compiles it for itself.
"""
import atexit
import contextlib
import fcntl
import glob
import hashlib
import importlib.util
import os
import pathlib
import platform
import runpy
import shutil
import subprocess
import sys
import tempfile

from .. import include_folder, library

SOURCE = pathlib.Path(__file__).resolve().parent / "csrc" / "allocator.cpp"
PREBUILT = SOURCE.parent.parent / "prebuilt"


class BuildError(RuntimeError):
    """Why there is no extension, and what to do."""


def cuda_headers():
    """The folder of cuda_runtime_api.h: of NVIDIA's wheels, the Toolkit, or Triton, which brings the headers along."""
    folders = [os.path.join(p, "nvidia", "*", "include") for p in sys.path]
    folders += [os.path.join(os.environ[name], "include") for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    folders += ["/usr/local/cuda/include", "/opt/cuda/include"]
    folders += [os.path.join(p, "triton", "backends", "nvidia", "include") for p in sys.path]
    for pattern in folders:
        for folder in sorted(glob.glob(pattern), reverse=True):
            if os.path.isfile(os.path.join(folder, "cuda_runtime_api.h")):
                return folder
    raise BuildError("no cuda_runtime_api.h was found: install the package nvidia-cuda-runtime, or set CUDA_HOME to a "
                     "CUDA Toolkit")


def compiler():
    """A C++ compiler and what it says of itself."""
    named = os.environ.get("CXX")
    for name in [named] if named else ["g++", "c++", "clang++"]:
        path = shutil.which(name)
        if path is None:
            continue
        told = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
        if told.returncode == 0:
            return path, told.stdout.splitlines()[0]
    raise BuildError(f"CXX={named} is no compiler that can be run" if named else
                     "no C++ compiler was found (g++, c++, clang++): install g++, or set CXX")


def command(torch_folder, abi, cxx, headers, out, *, movable=False):
    """A `movable` one finds libgpumem where a package has it, and torch's libraries by their names: they are loaded."""
    torch_folder = pathlib.Path(torch_folder)
    paths = ["-Wl,-rpath,$ORIGIN/../../lib", "-s"] if movable else [f"-Wl,-rpath,{torch_folder / 'lib'}",
                                                                   f"-Wl,-rpath,{library().parent}"]
    return [cxx, "-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-w",
            f"-D_GLIBCXX_USE_CXX11_ABI={int(abi)}",
            f"-I{include_folder()}", f"-isystem{torch_folder / 'include'}",
            f"-isystem{torch_folder / 'include' / 'torch' / 'csrc' / 'api' / 'include'}", f"-isystem{headers}",
            str(SOURCE), "-o", str(out),
            f"-L{torch_folder / 'lib'}", "-lc10_cuda", "-ltorch_cuda", "-lc10", str(library()), *paths]


def key_of(parts):
    of = hashlib.sha256()
    for each in parts:
        of.update(each if isinstance(each, bytes) else str(each).encode())
        of.update(b"\0")
    return of.hexdigest()[:24]


def cache_folder():
    """A folder of this user's own, or None where there is none that can be written."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = pathlib.Path(base) / "gpumem" / "torch"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # A library that others may write is nothing to load.
        of = folder.stat()
        if of.st_uid != os.getuid() or of.st_mode & 0o022 or not os.access(folder, os.W_OK):
            return None
    except OSError:
        return None
    return folder


def digest(file):
    return hashlib.sha256(pathlib.Path(file).read_bytes()).hexdigest()


def digest_file(made):
    return made.with_suffix(".sha256")


def is_whole(made):
    """False where the file was cut off or changed: to load such a one may kill the process."""
    with contextlib.suppress(OSError):
        return digest_file(made).read_text() == digest(made)
    return False


def compile_into(folder, name, torch_folder, abi, cxx, headers, *, movable=False):
    done = folder / f"{name}.so"
    with tempfile.NamedTemporaryFile(dir=folder, suffix=".so", delete=False) as made:
        pass
    try:
        line = command(torch_folder, abi, cxx, headers, made.name, movable=movable)
        ran = subprocess.run(line, capture_output=True, text=True, check=False)
        if ran.returncode != 0:
            wrong = [each for each in ran.stderr.splitlines() if "error" in each] or ran.stderr.splitlines()[-1:]
            raise BuildError("the extension does not compile against this torch: " + " | ".join(wrong[:3]))
        os.chmod(made.name, 0o755 if movable else 0o700)
        if not movable:
            digest_file(done).write_text(digest(made.name))
        os.rename(made.name, done)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(made.name)
        raise
    return done


def prebuilt_name(version, git_version, cuda, abi):
    """Of the extension for one build of torch: wheels of one commit differ in CUDA, and who builds torch names a version."""
    return f"{git_version}-torch{version}-cuda{cuda}-abi{int(abi)}.so"


def prebuilt(torch):
    """The package's own extension for this torch, or None."""
    found = PREBUILT / prebuilt_name(torch.__version__, torch.version.git_version, torch.version.cuda,
                                     torch._C._GLIBCXX_USE_CXX11_ABI)
    return found if found.is_file() else None


def prebuild():
    """Compiles the extension for this Python's torch into the package, and returns its path. Imports no torch, which needs
    CUDA's libraries; its wheels have the C++11 ABI since 2.6."""
    found = importlib.util.find_spec("torch")
    if found is None:
        raise BuildError(f"{sys.executable} has no torch to compile the extension against")
    folder = pathlib.Path(found.origin).parent
    told = runpy.run_path(str(folder / "version.py"))
    if told["cuda"] is None:
        raise BuildError(f"torch {told['__version__']} in {folder} was built without CUDA")
    PREBUILT.mkdir(exist_ok=True)
    name = prebuilt_name(told["__version__"], told["git_version"], told["cuda"], True).removesuffix(".so")
    return compile_into(PREBUILT, name, folder, True, compiler()[0], cuda_headers(), movable=True)


def identity(file):
    """Another one where the file was replaced; None where there is none."""
    with contextlib.suppress(OSError):
        of = os.stat(file)
        return of.st_ino, of.st_mtime_ns
    return None


def build(torch, in_place_of=None):
    """The path of an extension that is compiled for this torch, now or earlier. `in_place_of` is one that does not load.
    BuildError where it cannot be made."""
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
    folder = cache_folder()
    if folder is None:
        own = tempfile.mkdtemp(prefix="gpumem-torch-")
        atexit.register(shutil.rmtree, own, ignore_errors=True)
        return compile_into(pathlib.Path(own), key, torch_folder, abi, cxx, headers)
    done = folder / f"{key}.so"
    damaged = identity(in_place_of) if in_place_of is not None else None
    if identity(done) not in (None, damaged) and is_whole(done):
        return done
    with open(folder / f"{key}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if identity(done) not in (None, damaged) and is_whole(done):
            return done
        return compile_into(folder, key, torch_folder, abi, cxx, headers)
