"""Says what of this Python `gpumem simulate` can run: a line each, `ok`, `note`, or `MISSING` with what to type.

Imports no framework.

    python gpumem_doctor.py VERSIONS    the versions of CUDA whose runtime is simulated here: 13 or 12,13
Exit status: 0; 1 where something is missing.
"""
import importlib.metadata
import importlib.util
import os
import pathlib
import platform
import runpy
import sys

import gpumem_compile
import gpumem_values

CUDA_12 = "run `scripts/cuda_headers --cuda12` in gpumem's sources, type the line that it prints, and build again"
missing = 0


def say(word, what):
    global missing
    missing += word == "MISSING"
    print(f"{word + ':':<8} {what}")


def version_of(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def look_at_torch(simulated):
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        say("note", "no torch in this Python: PyTorch's own figures need one")
        return
    told = runpy.run_path(str(pathlib.Path(found.origin).parent / "version.py"))
    name, cuda = f"torch {told['__version__']}", told.get("cuda")
    if cuda is None:
        kind = "ROCm" if told.get("hip") else "the CPU"
        say("MISSING", f"a torch for CUDA: {name} is built for {kind}; install its build for CUDA {' or '.join(simulated)} in its place")
        return
    if cuda.split(".")[0] not in simulated:
        say("MISSING", f"CUDA {cuda} of {name}: simulated here is {' and '.join(simulated)}; "
            + (CUDA_12 if cuda.startswith("12.") else f"install its build for CUDA {' or '.join(simulated)}"))
        return
    say("ok", f"{name} for CUDA {cuda}")
    look_at_values(told)


def look_at_values(told):
    if gpumem_values.prebuilt(told["__version__"], told["git_version"]) is not None:
        say("ok", "values of small operations: prebuilt for this torch")
        return
    try:
        cxx = gpumem_compile.compiler()[0]
    except gpumem_compile.BuildError as wrong:
        say("MISSING", f"values of small operations (a loop that ends at a token): {wrong}; --values 0 does without them")
        return
    say("ok", f"values of small operations: {cxx} compiles them at the first run, once"
        + ("" if gpumem_compile.cache_folder() else "; no cache can be written, so in each run: set XDG_CACHE_HOME to a folder"))


def look_at_others(simulated):
    if version_of("jax"):
        plugins = [major for major in ("12", "13") if version_of(f"jax-cuda{major}-plugin")]
        if not plugins:
            say("MISSING", f"jax {version_of('jax')} has no plugin for CUDA and runs on the CPU: install jax-cuda12-plugin of its version")
        elif not set(plugins) & set(simulated):
            say("MISSING", f"CUDA {plugins[0]} of jax {version_of('jax')}: simulated here is {' and '.join(simulated)}")
        else:
            say("ok", f"jax {version_of('jax')} with its plugin for CUDA {plugins[0]}")
    if version_of("tensorflow"):
        known = "12" in simulated
        say("ok" if known else "MISSING", f"tensorflow {version_of('tensorflow')}, for CUDA 12"
            + ("" if known else f": {CUDA_12}"))


if __name__ == "__main__":
    say("ok", f"Python {platform.python_version()} ({sys.executable})")
    versions = sys.argv[1].split(",")
    look_at_torch(versions)
    look_at_others(versions)
    for folder in ("/dev/shm", os.environ.get("TMPDIR") or "/tmp"):
        if not os.access(folder, os.W_OK | os.X_OK):
            say("MISSING", f"a folder that can be written: {folder}; cards and records lie there"
                + ("" if folder == "/dev/shm" else " (set TMPDIR)"))
    sys.exit(1 if missing else 0)
