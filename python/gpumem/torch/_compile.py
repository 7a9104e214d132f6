"""Compiles an extension against the installed torch once and keeps it in a cache.

Processes that start together compile it once. If no folder is writable, each process compiles its own.
"""
import atexit
import contextlib
import fcntl
import hashlib
import os
import pathlib
import shutil
import subprocess
import tempfile


class BuildError(RuntimeError):
    """The extension cannot be built; the message has the cause and the remedy."""


def compiler():
    """Returns a C++ compiler and its version line."""
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


def key_of(parts):
    of = hashlib.sha256()
    for each in parts:
        of.update(each if isinstance(each, bytes) else str(each).encode())
        of.update(b"\0")
    return of.hexdigest()[:24]


def cache_folder():
    """Returns a writable folder that only this user can write, or None."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = pathlib.Path(base) / "gpumem" / "torch"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Loading a library that others can write is unsafe.
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
    """False if the file was truncated or changed; loading it could crash the process."""
    with contextlib.suppress(OSError):
        return digest_file(made).read_text() == digest(made)
    return False


def compile_into(folder, name, command, *, movable=False):
    """Compiles the library `name`. `command(out)` returns the compiler's command line for the file `out`."""
    done = folder / f"{name}.so"
    with tempfile.NamedTemporaryFile(dir=folder, suffix=".so", delete=False) as made:
        pass
    try:
        ran = subprocess.run(command(made.name), capture_output=True, text=True, check=False)
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


def identity(file):
    """Identifies the file's current content: changes when the file is replaced. None if there is no file."""
    with contextlib.suppress(OSError):
        of = os.stat(file)
        return of.st_ino, of.st_mtime_ns
    return None


def cached(key, command, in_place_of=None):
    """Returns the library with this key, compiled if needed. `in_place_of`: a file that fails to load, to replace."""
    folder = cache_folder()
    if folder is None:
        own = tempfile.mkdtemp(prefix="gpumem-torch-")
        atexit.register(shutil.rmtree, own, ignore_errors=True)
        return compile_into(pathlib.Path(own), key, command)
    done = folder / f"{key}.so"
    damaged = identity(in_place_of) if in_place_of is not None else None
    if identity(done) not in (None, damaged) and is_whole(done):
        return done
    with open(folder / f"{key}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if identity(done) not in (None, damaged) and is_whole(done):
            return done
        return compile_into(folder, key, command)
