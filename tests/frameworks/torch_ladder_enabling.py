"""Steps of tests/frameworks/torch_ladder.py about `gpumem.torch.enable()`: compiling the allocator, and what is refused."""
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import torch

from ladder_steps import Steps, expect

STEPS = Steps()
step = STEPS.step


@contextlib.contextmanager
def variables(**changed):
    before = dict(os.environ)
    os.environ.update(changed)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def files_are(exists):
    is_file = os.path.isfile
    os.path.isfile = lambda path: exists(str(path)) and is_file(path)
    try:
        yield
    finally:
        os.path.isfile = is_file


# --- compiling --------------------------------------------------------------------------------------------------------


def compiler_that_copies(folder):
    """A compiler that notes its command in the file `calls` and returns a copy of this process's extension: what happens
    around a compilation is tested without its seconds."""
    from gpumem.torch import _build

    made = _build.prebuilt(torch) or _build.build(torch)
    path = os.path.join(folder, "copies")
    with open(path, "w") as out:
        out.write(f"""#!/bin/sh
[ "$1" = --version ] && echo "a compiler" && exit
echo "$*" >>{folder}/calls
while [ "$1" != -o ]; do shift; done
sleep 0.2
cp {made} "$2"
""")
    os.chmod(path, 0o755)
    return path


@step
def eight_ranks_compile_once():
    """The allocator is compiled by one of eight processes that start at once with an empty cache."""
    from gpumem.torch import _build

    with tempfile.TemporaryDirectory() as folder:
        ranks = []
        with variables(XDG_CACHE_HOME=folder, CXX=compiler_that_copies(folder)):
            for _ in range(8):
                rank = os.fork()
                if rank == 0:
                    os._exit(0 if _build.build(torch).is_file() else 1)
                ranks.append(rank)
        ended = [os.waitpid(rank, 0)[1] for rank in ranks]
        expect("how they ended", ended, [0] * 8)
        with open(os.path.join(folder, "calls")) as of:
            expect("compilations", sum("-shared" in line for line in of), 1)
    return "one compilation for eight processes"


@step
def extension_exports_its_functions_alone():
    """Its copies of the C++ library's functions serve no other library."""
    from gpumem.torch import _build

    made = _build.prebuilt(torch) or _build.build(torch)
    told = subprocess.run(["nm", "-D", "--defined-only", "--format=posix", made], capture_output=True, text=True, check=True)
    names = [line.split()[0] for line in told.stdout.splitlines()]
    expect("other names", [name for name in names if not name.startswith("gpumem_torch_")], [])
    return f"{len(names)} functions"


@step
def compiled_with_tritons_headers():
    """Without a Toolkit and NVIDIA's wheels."""
    from gpumem.torch import _build

    with tempfile.TemporaryDirectory() as folder, variables(XDG_CACHE_HOME=folder), files_are(lambda path: "triton" in path):
        headers, made = _build.cuda_headers(), _build.build(torch)
        expect("where it lies", str(made).startswith(folder), True)
    return "headers of " + os.sep.join(headers.split(os.sep)[-4:])


# --- which cards ------------------------------------------------------------------------------------------------------

HIDING = """
import os, torch
os.environ["CUDA_VISIBLE_DEVICES"] = "1"
held = torch.ones(4, device="cuda")
print(torch.cuda.memory.get_allocator_backend(), torch.cuda.device_count(), torch.cuda.get_device_properties(0).uuid)
"""


@step
def card_hidden_after_the_import():
    """CUDA_VISIBLE_DEVICES set after `import torch` and before the first use of a GPU. On two cards."""
    told = subprocess.run([sys.executable, "-W", "ignore", "-c", HIDING], capture_output=True, text=True, check=True).stdout
    expect("allocator, cards and the first card", told.split(),
           [torch.cuda.memory.get_allocator_backend(), "1", str(torch.cuda.get_device_properties(1).uuid)])
    return "the second card alone"


# --- refusing ---------------------------------------------------------------------------------------------------------

BEGIN = """
import os, torch, gpumem.torch
def tried(**settings):
    try:
        gpumem.torch.enable(**settings)
    except RuntimeError as refused:
        print(refused, flush=True)
        assert gpumem.torch.how() is None and "GPUMEM_POLICY" not in os.environ
"""
END = """
torch.empty(1, device="cuda")
print(torch.cuda.memory.get_allocator_backend(), flush=True)
"""
# Imports torch once; each program is then a child of its own, in which torch loads its backends as at the end of its import.
FORKING = """
import json, os, sys, torch, gpumem.torch
children = []
for out, code, changed in json.load(sys.stdin):
    children.append(os.fork())
    if children[-1] == 0:
        os.environ.update(changed)
        for number, suffix in ((1, ".out"), (2, ".err")):
            os.dup2(os.open(out + suffix, os.O_WRONLY | os.O_CREAT), number)
        if os.environ["GPUMEM_TORCH"] != "0":
            torch._import_device_backends()
        exec(code, globals())
        sys.exit()
for child in children:
    os.waitpid(child, 0)
"""
# The graph is whole afterwards. The child knows of no GPU in use, but its allocator is the parent's.
AFTER_A_GRAPH = """
x, graph = torch.zeros(4, device="cuda"), torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x + 1
tried(policy="caching")
graph.replay()
torch.cuda.synchronize()
child = os.fork()
if child == 0:
    tried(policy="caching")
    os._exit(gpumem.torch.how() is not None)
assert os.waitpid(child, 0)[1] == 0
"""
AFTER_PINNED_MEMORY = """
torch.empty(1).pin_memory()
tried(policy="caching")
os.environ.update(CXX="/none/such", XDG_CACHE_HOME="/none/such")
tried(policy="caching")
"""
AFTER_ANOTHER_ALLOCATOR = """
theirs = torch.cuda.memory.CUDAPluggableAllocator(str(gpumem.library()), "gpumem_torch_alloc", "gpumem_torch_free")
torch.cuda.memory.change_current_allocator(theirs)
tried(policy="caching")
"""
NO_COMPILER = """
tried(policy="caching", fallback=False)
assert torch.cuda.memory.get_allocator_backend() == "native"
tried()
"""
# To load a file that was cut off would kill the process. One of another machine is whole, and does not load.
DAMAGED = """
from gpumem.torch import _build, _compile
made = _build.build(torch)
made.write_bytes(made.read_bytes()[:100000])
assert len(_build.build(torch).read_bytes()) > 100000
whole = bytearray(made.read_bytes())
whole[18:20] = b"\\xff\\xfe"  # the machine in the header
made.write_bytes(whole)
_build.digest_file(made).write_text(_compile.digest(made))
gpumem.torch.enable()
assert made.read_bytes() != whole
"""
BAD_SETTINGS = """
tried(policy="none_such")
os.environ["GPUMEM_LIMIT"] = "abc"
tried()
"""
WITHOUT_CACHES = """
gpumem.torch.enable()
torch.empty(1 << 20, device="cuda")
assert torch.cuda.memory_reserved() == 0
"""
# Tensors that a child inherits end without a word, where CUDA does not work.
FORKED = """
gpumem.torch.enable()
inherited = [torch.empty(100, device="cuda") for _ in range(3)]
said, errors = os.pipe(), os.dup(2)
os.dup2(said[1], 2)
child = os.fork()
if child == 0:
    inherited.clear()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
os.dup2(errors, 2)
os.close(said[1])
assert os.read(said[0], 1000) == b""
"""
NOTHING_COMPILED = """
tried(policy="caching", fallback=False)
"""
ANOTHER_TORCH = """
torch.__version__ = type(torch.__version__)("9.9.0")
tried()
"""

# A torch whose headers have changed.
DOES_NOT_COMPILE = """
torch.__version__ = type(torch.__version__)("9.9.0")
tried(fallback=False)
tried()
assert gpumem.torch.how() == "hooks"
"""

# As without gpumem: `import torch` succeeds, and the first use of a GPU fails.
REFUSED_BY_TORCH = """
assert gpumem.torch.how() is None
try:
    torch.empty(1, device="cuda")
except ValueError as wrong:
    print(wrong, flush=True)
os._exit(0)
"""
# torch calls no backend: nothing can enable gpumem, nor say that it is not.
NOT_CALLED = """
assert gpumem.torch.how() is None
"""
# What only a GPU can refuse.
REFUSED_BY_THE_GPU = """
gpumem.torch.enable(limit=os.environ["LADDER_LIMIT"], devices=os.environ["LADDER_DEVICES"])
for _ in range(2):
    try:
        torch.empty(1, device="cuda")
        raise SystemExit("served")
    except RuntimeError as wrong:
        print(wrong, flush=True)
os._exit(0)
"""
# The choice is the process's own: a child may be another program, or name another policy in code.
NOT_INHERITED = """
gpumem.torch.enable()
torch.empty(1, device="cuda")
assert "policy=caching" in torch.cuda.memory._snapshot()["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"]
assert "GPUMEM_POLICY" not in os.environ
"""
EXPANDABLE_SEGMENTS = """
assert gpumem.torch.how() == "allocator"
torch.empty(1, device="cuda")
assert torch.cuda.memory._snapshot()["segments"][0]["is_expandable"]
"""


def refusals(folder):
    """By name: a program, its variables, what it says (as often as it stands here), its allocator in the end."""
    closed = os.path.join(folder, "file")
    os.mkdir(os.path.join(folder, "temporary"))
    open(closed, "w").close()
    in_use = "before the first use of a GPU"
    copies, failing = compiler_that_copies(folder), os.path.join(folder, "failing")
    with open(failing, "w") as out:
        out.write('#!/bin/sh\n[ "$1" = --version ] && echo "a compiler" && exit\n'
                  'echo "error: no member named init" >&2\nexit 1\n')
    os.chmod(failing, 0o755)
    return {
        "a captured graph, and a child": (AFTER_A_GRAPH, {}, [in_use, in_use], "native"),
        "pinned memory, which torch.cuda knows nothing of": (AFTER_PINNED_MEMORY, {}, [in_use, in_use], "native"),
        "another allocator": (AFTER_ANOTHER_ALLOCATOR, {}, ["in place of change_current_allocator()"], "pluggable"),
        "a bad policy": ("tried(policy='none_such')", {}, ["GPUMEM_POLICY=none_such"], "native"),
        "no compiler": (NO_COMPILER, {"CXX": "/none/such", "XDG_CACHE_HOME": folder},
                        ["CXX=/none/such", "CXX=/none/such", "without memory statistics"], "pluggable"),
        "another torch, no cache": (ANOTHER_TORCH, {"XDG_CACHE_HOME": closed, "HOME": closed, "CXX": copies,
                                                    "TMPDIR": os.path.join(folder, "temporary")},
                                    ["torch 9.9.0 is not one of those tested"], "gpumem"),
        "no such setting": ("tried(polcy='growth')", {}, ["polcy=growth: unknown option"], "native"),
        "another torch, whose headers do not fit": (
            DOES_NOT_COMPILE, {"CXX": failing, "XDG_CACHE_HOME": folder},
            2 * ["does not compile against this torch: error: no member named init"] + ["without memory statistics"],
            "pluggable"),
        "a damaged file in the cache, and one of another machine": (
            DAMAGED, {"XDG_CACHE_HOME": os.path.join(folder, "damaged"), "CXX": copies}, [], "gpumem"),
        "no caches": (WITHOUT_CACHES, {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, [], "gpumem"),
        "a child that frees, and a backend of PyTorch's": (FORKED, {"PYTORCH_CUDA_ALLOC_CONF": "backend:native"}, [], "gpumem"),
        "no compiler, and bad settings": (BAD_SETTINGS, {"CXX": "/none/such", "XDG_CACHE_HOME": folder},
                                          ["GPUMEM_POLICY=none_such", "GPUMEM_LIMIT=abc"], "native"),
        "a setting that PyTorch does not have": ("tried()\nos._exit(0)", {"PYTORCH_CUDA_ALLOC_CONF": "no_such:1"},
                                                 ["Unrecognized key 'no_such'"], None),
        "the same, with GPUMEM_TORCH=1": (REFUSED_BY_TORCH, {"PYTORCH_CUDA_ALLOC_CONF": "no_such:1", "GPUMEM_TORCH": "1"},
                                          ["gpumem.torch: not enabled"] + 2 * ["Unrecognized key 'no_such'"], None),
        "a value that PyTorch does not have": (
            REFUSED_BY_TORCH, {"PYTORCH_CUDA_ALLOC_CONF": "garbage_collection_threshold:7", "GPUMEM_TORCH": "1"},
            ["gpumem.torch: not enabled"] + 2 * ["garbage_collect_threshold is invalid"], None),
        "expandable segments": (EXPANDABLE_SEGMENTS, {"PYTORCH_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:64",
                                                      "GPUMEM_TORCH": "1"},
                                ["PYTORCH_ALLOC_CONF: expandable_segments:True selects the policy expandable",
                                 "no effect with gpumem: max_split_size_mb"], "gpumem"),
        "GPUMEM_TORCH=1 where torch loads no backend": (NOT_CALLED, {"GPUMEM_TORCH": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
                                                        [], "native"),
        "a limit above the GPU's memory": (REFUSED_BY_THE_GPU, {"LADDER_LIMIT": "9999GiB", "LADDER_DEVICES": "0"},
                                           2 * ["9999"], None),
        "a GPU that is not there": (REFUSED_BY_THE_GPU, {"LADDER_LIMIT": "1GiB", "LADDER_DEVICES": "7"},
                                    2 * ["GPUMEM_DEVICES=7: card 7 does not exist"], None),
        "a policy where none is named": (NOT_INHERITED, {}, [], "gpumem"),
        "a compiler that makes nothing": (NOTHING_COMPILED, {"CXX": shutil.which("true"), "XDG_CACHE_HOME":
                                                             os.path.join(folder, "nothing")}, ["does not load"], "native"),
        "GPUMEM_TORCH=yes": ("", {"GPUMEM_TORCH": "yes"}, ["GPUMEM_TORCH=yes: expected 0 or 1"], None),
    }


def all_ended(cases, folder):
    """By name: what each program wrote, (standard output, error)."""
    environment = {**os.environ, "GPUMEM_TORCH": "0", "PYTHONWARNINGS": "always"}
    forked, running, said = [], {}, {}
    for number, (name, (code, changed, _, _)) in enumerate(cases.items()):
        code = BEGIN + code + END
        if "TORCH_DEVICE_BACKEND_AUTOLOAD" in changed:  # torch reads it while it is imported
            running[name] = subprocess.Popen([sys.executable, "-c", code], env={**environment, **changed}, text=True,
                                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        else:
            forked.append((name, os.path.join(folder, f"said {number}"), code, changed))
    subprocess.run([sys.executable, "-c", FORKING], env=environment, text=True, check=True,
                   input=json.dumps([each[1:] for each in forked]))
    for name, out, _, _ in forked:
        said[name] = tuple(pathlib.Path(out + suffix).read_text() for suffix in (".out", ".err"))
    said.update({name: each.communicate() for name, each in running.items()})
    return said


@step
def enabling_refused():
    """What cannot be enabled says why, and leaves PyTorch's own allocator whole; each in a process of its own."""
    from gpumem.torch import _build

    torch.cuda.empty_cache()  # the processes below share the simulated card
    with tempfile.TemporaryDirectory() as folder:
        cases = refusals(folder)
        said = all_ended(cases, folder)
        for name, (_, _, words, backend) in cases.items():
            out, errors = said[name]
            end = (out + errors)[-300:]
            for each in set(words):
                expect(f"{name}: how often it says {each!r}, {end}", (out + errors).count(each), words.count(each))
            if backend is not None:
                expect(f"{name}: the allocator, {end}", out.split()[-1:], [backend])
        expect("what a process without a cache leaves", os.listdir(os.path.join(folder, "temporary")), [])
        with variables(XDG_CACHE_HOME=folder):
            assert _build.cache_folder() is not None
            os.chmod(os.path.join(folder, "gpumem", "torch"), 0o777)
            expect("the cache that others may write", _build.cache_folder(), None)
    with files_are(lambda path: False):
        try:
            _build.cuda_headers()
            raise AssertionError("CUDA's headers were found where there are none")
        except _build.BuildError as wrong:
            assert "nvidia-cuda-runtime" in str(wrong), wrong
    with tempfile.TemporaryDirectory() as folder:  # like a wheel for CUDA 13, without the folder crt
        headers = os.path.join(folder, "nvidia", "cu13", "include")
        os.makedirs(headers)
        with open(os.path.join(headers, "cuda_runtime_api.h"), "w"):
            pass
        sys.path.insert(0, folder)
        try:
            assert _build.cuda_headers() != headers, "headers were taken that do not compile"
        finally:
            sys.path.remove(folder)
    return "; ".join(cases) + "; no headers; headers without crt"
