#!/usr/bin/env python3
"""TensorFlow, JAX, Numba and CuPy over gpumem on the simulated card, step by step; frameworks_ladder.py has the steps
without gpumem.

    python3 tests/frameworks/over_gpumem_ladder.py GPUMEM STEP       GPUMEM: the path of the program gpumem
    python3 tests/frameworks/over_gpumem_ladder.py --steps FRAMEWORK

A step is this file again, under `gpumem simulate` with the step's options and environment. Numba and CuPy import the
Python package gpumem, which PYTHONPATH has to name. The line is `pass STEP: what was seen` or `FAIL STEP: reason`.
"""
import contextlib
import ctypes
import gc
import importlib.metadata
import importlib.util
import io
import json
import os
import subprocess
import sys
import tempfile

if importlib.util.find_spec("_numba_cuda_redirector"):
    import _numba_cuda_redirector  # noqa: F401  numba-cuda in front of Numba's own target, as its .pth file has it

from frameworks_ladder import MIB, jax_on_the_card, memory, tensorflow

STEPS = {}


def step(options="", served=None, most_mib=None, **environment):
    """`options` of `gpumem simulate`; a program with one of gpumem's settings there runs with gpumem in front, which then
    has to have served at least so many allocations and reserved at most so much."""

    def keep(function):
        STEPS[function.__name__] = (function, options.split(), served, most_mib, environment)
        return function

    return keep


def by_statistics(path, served, most_mib):
    """The end of the step's line, from what GPUMEM_STATS left; raises where it is not as expected."""
    with open(path) as of:
        pools = json.load(of)["devices"]
    count = sum(each["allocations"] for each in pools)
    reserved = sum(each["peak_reserved_bytes"] for each in pools) // MIB
    assert count >= served, f"gpumem served {count} allocations; expected {served} or more"
    assert reserved <= most_mib, f"gpumem reserved {reserved} MiB; expected at most {most_mib}"
    return f"; gpumem served {count} allocations from {reserved} MiB at most"


# --- TensorFlow: no hook. Preloaded, with each request at the driver or with its arena kept small ------------------------


@step("--policy growth", served=17, most_mib=1024, TF_GPU_ALLOCATOR="cuda_malloc_async")
def tensorflow_each_tensor():
    tf, _ = tensorflow()
    tf.zeros(1000)
    small = memory()[0]
    held = [tf.zeros(64 * MIB // 4) for _ in range(8)]
    large = memory()[0]
    del held
    again = [tf.zeros(64 * MIB // 4) for _ in range(8)]
    assert small < 1000, f"{small} MiB after one small tensor; expected no arena"
    assert large >= small + 512, f"{small}, then {large} MiB; expected 512 more"
    assert memory()[0] == large, f"{memory()[0]} MiB for the same tensors again; expected {large}: gpumem has their memory"
    return f"{small} MiB after one small tensor, {large} with 512 MiB of them, {memory()[0]} when made again ({len(again)})"


@step("--limit 2GiB --policy growth", served=2, most_mib=2048, TF_GPU_ALLOCATOR="cuda_malloc_async")
def tensorflow_limit():
    tf, _ = tensorflow()
    held = tf.zeros(1024 * MIB // 4)
    try:
        more = tf.zeros(1536 * MIB // 4)
        raise AssertionError(f"{more.shape} fitted beside 1 GiB under 2 GiB")
    except tf.errors.ResourceExhaustedError:
        pass
    small = tf.zeros(64 * MIB // 4)
    return f"1.5 GiB refused beside {held.shape[0] // MIB * 4} MiB under 2 GiB, {small.shape[0] // MIB * 4} MiB served"


@step("--limit 8GiB", TF_FORCE_GPU_ALLOW_GROWTH="true")
def tensorflow_arena_grows_under_a_limit():
    tf, _ = tensorflow()
    tf.zeros(1000)
    small, total = memory()
    held = tf.zeros(1024 * MIB // 4)
    large = memory()[0]
    assert total == 8192, f"a card of {total} MiB; expected the limit, 8192"
    assert small < 1000 and large < 4096, f"{small}, then {large} MiB with 1 GiB of tensors; expected a small arena"
    return f"{small} MiB, {large} with {held.shape[0] // MIB * 4} MiB of tensors, of {total}"


@step("--limit 8GiB")
def tensorflow_takes_its_share_of_the_limit():
    tf, _ = tensorflow()
    tf.zeros(1000)
    used, total = memory()
    assert total == 8192 and used < 8192, f"{used} of {total} MiB; expected the limit, 8192, as the card"
    return f"{used} of {total} MiB after one small tensor"


@step("--policy growth", served=50, most_mib=1024, TF_GPU_ALLOCATOR="cuda_malloc_async")
def tensorflow_trains():
    tf, _ = tensorflow()
    layers = tf.keras.layers
    model = tf.keras.Sequential([layers.Input((32, 32, 3)), layers.Conv2D(32, 3, activation="relu"),
                                 layers.MaxPool2D(), layers.Conv2D(64, 3, activation="relu"), layers.Flatten(),
                                 layers.Dense(10)])
    model.compile(optimizer="adam", loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(tf.zeros((128, 32, 32, 3)), tf.zeros(128), batch_size=32, epochs=2, verbose=0)
    return f"{memory()[0]} MiB in use for {model.count_params()} parameters with Adam"


# --- JAX: likewise ------------------------------------------------------------------------------------------------------

# Otherwise XLA asks for three quarters of the card once, and gives them back, to warm the driver's pool.
XLA = {"XLA_PYTHON_CLIENT_ALLOCATOR": "cuda_async", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


@step("--policy growth", served=17, most_mib=1024, **XLA)
def jax_each_buffer():
    jax = jax_on_the_card()
    jax.numpy.ones(1000).block_until_ready()
    small = memory()[0]
    held = [jax.numpy.ones((64, MIB // 4)).block_until_ready() for _ in range(8)]
    large = memory()[0]
    for each in held:
        each.delete()
    again = [jax.numpy.ones((64, MIB // 4)).block_until_ready() for _ in range(8)]
    assert small < 1000, f"{small} MiB after one small array; expected no arena"
    assert large >= small + 512, f"{small}, then {large} MiB; expected 512 more"
    assert memory()[0] == large, f"{memory()[0]} MiB for the same arrays again; expected {large}: gpumem has their memory"
    return f"{small} MiB after one small array, {large} with 512 MiB of them, {memory()[0]} when made again ({len(again)})"


@step("--limit 2GiB --policy growth", served=2, most_mib=2048, **XLA)
def jax_limit():
    jax = jax_on_the_card()
    held = jax.numpy.ones((1024, MIB // 4)).block_until_ready()
    try:
        more = jax.numpy.ones((1536, MIB // 4)).block_until_ready()
        raise AssertionError(f"{more.shape} fitted beside 1 GiB under 2 GiB")
    except Exception as refused:
        assert "RESOURCE_EXHAUSTED" in str(refused), f"{refused}; expected RESOURCE_EXHAUSTED"
    small = jax.numpy.ones((64, MIB // 4)).block_until_ready()
    return f"1.5 GiB refused beside {held.nbytes // MIB} MiB under 2 GiB, {small.nbytes // MIB} MiB served"


@step("--limit 2GiB", XLA_PYTHON_CLIENT_ALLOCATOR="platform")
def jax_platform_under_a_limit():
    """XLA maps pages of its own for each buffer then: counted under the limit, not served."""
    jax = jax_on_the_card()
    held = jax.numpy.ones((1024, MIB // 4)).block_until_ready()
    try:
        more = jax.numpy.ones((1536, MIB // 4)).block_until_ready()
        raise AssertionError(f"{more.shape} fitted beside 1 GiB under 2 GiB")
    except Exception as refused:
        assert "RESOURCE_EXHAUSTED" in str(refused), f"{refused}; expected RESOURCE_EXHAUSTED"
    return f"1.5 GiB refused beside {held.nbytes // MIB} MiB under 2 GiB"


@step("--policy growth", served=20, most_mib=1024, **XLA)
def jax_trains():
    jax = jax_on_the_card()
    np = jax.numpy
    sizes = (1024, 4096, 4096, 10)
    weights = [np.zeros(shape) for shape in zip(sizes, sizes[1:])]

    def loss(weights, x):
        for each in weights:
            x = jax.nn.relu(x @ each)
        return x.sum()

    update = jax.jit(lambda w, x: [a - 0.1 * g for a, g in zip(w, jax.grad(loss)(w, x))], donate_argnums=0)
    for _ in range(3):
        weights = update(weights, np.ones((256, 1024)))
    jax.block_until_ready(weights)
    return f"{memory()[0]} MiB in use with {sum(w.nbytes for w in weights) // MIB} MiB of weights"


@step("--limit 8GiB", XLA_PYTHON_CLIENT_PREALLOCATE="false")
def jax_arena_grows_under_a_limit():
    jax = jax_on_the_card()
    jax.numpy.ones(1000).block_until_ready()
    small, total = memory()
    held = jax.numpy.ones((1024, MIB // 4)).block_until_ready()
    large = memory()[0]
    assert total == 8192, f"a card of {total} MiB; expected the limit, 8192"
    assert small < 1000 and large < 4096, f"{small}, then {large} MiB with 1 GiB; expected a small arena"
    return f"{small} MiB, {large} with {held.nbytes // MIB} MiB of arrays, of {total}"


@step("--limit 8GiB")
def jax_takes_its_share_of_the_limit():
    jax = jax_on_the_card()
    jax.numpy.ones(1000).block_until_ready()
    used, total = memory()
    assert total == 8192 and used < 8192, f"{used} of {total} MiB; expected the limit, 8192, as the card"
    return f"{used} of {total} MiB after one small array"


# --- Numba: an external memory manager ------------------------------------------------------------------------------------

NUMBA = {"NUMBA_CUDA_MEMORY_MANAGER": "gpumem.numba", "SIMCUDA_REFEREE": "1"}


def numba_over_gpumem():
    import gpumem.numba
    from numba import cuda

    manager = cuda.current_context().memory_manager
    assert isinstance(manager, gpumem.numba.Manager), f"{manager}; expected gpumem's"
    return cuda, manager


def numba_version(cuda):
    name = "numba-cuda" if "/numba_cuda/" in cuda.__file__ else "numba"
    return f"{name} {importlib.metadata.version(name)}"


class referee:
    """Tells the double of the driver who uses which bytes."""

    def __init__(self):
        self.double = ctypes.CDLL("libcuda.so.1")
        self.double.simcuda_hazards.restype = ctypes.c_uint64
        self.double.simcuda_use.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64]
        self.double.simcuda_handed_out.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p]
        self.double.simcuda_given_back.argtypes = [ctypes.c_uint64]

    def hazards(self):
        return self.double.simcuda_hazards()


def address(array):
    return array.device_ctypes_pointer.value


@step(**NUMBA)
def numba_memory():
    import numpy

    cuda, manager = numba_over_gpumem()
    here = numpy.arange(1000, dtype=numpy.float32)  # small ones come back from a simulated card
    there = cuda.to_device(here)
    assert (there.copy_to_host() == here).all(), "values did not come back"
    part = there[10:20]
    del there
    assert manager._allocator.usage(0)[0] >= here.nbytes, "a view does not keep its array"
    del part
    assert manager._allocator.usage(0)[0] == 0, f"{manager._allocator.usage(0)[0]} bytes are live; expected none"
    free, total = cuda.current_context().get_memory_info()
    assert 0 < free <= total, f"{free} of {total} bytes are free"
    return f"{here.nbytes} bytes there and back, none live; {free // MIB} of {total // MIB} MiB free, {numba_version(cuda)}"


@step("--card 1GiB", **NUMBA)
def numba_out_of_memory():
    import numpy

    cuda, _ = numba_over_gpumem()
    held = []
    try:
        for _ in range(64):
            held.append(cuda.device_array(64 * MIB, numpy.uint8))
        raise AssertionError(f"{len(held)} x 64 MiB fitted on a card of 1 GiB")
    except cuda.cudadrv.driver.CudaAPIError as refused:
        text = str(refused)
        assert "CUDA_ERROR_OUT_OF_MEMORY" in text and "64.00 MiB" in text, f"{text}; expected gpumem's report"
        assert int(refused.code) == 2, refused.code
    count = len(held)
    held.clear()
    again = cuda.device_array(count * 64 * MIB, numpy.uint8)
    return f"CudaAPIError 2 with the report after {count} x 64 MiB; {again.size // MIB} MiB in one piece when they are freed"


@step("--card 1GiB", **NUMBA)
def numba_streams_and_referee():
    """Arrays that are dropped while a stream, blocking or not, still works on them, and made again for another one."""
    import threading

    import numpy

    cuda, _ = numba_over_gpumem()
    watch = referee()
    own = []
    for _ in range(2):  # non-blocking ones, of another library
        made = ctypes.c_void_p()
        assert watch.double.cuStreamCreate(ctypes.byref(made), 1) == 0
        own.append(made.value)
    streams = [cuda.stream() for _ in range(2)]
    handles = [getattr(each.handle, "value", None) or int(each.handle) for each in streams] + own
    before, reused, seen = watch.hazards(), [0], set()

    def work(offset):
        cuda.current_context()
        for turn in range(150):
            stream = handles[(turn + offset) % 4]
            array = cuda.device_array((1 + turn % 3) * 4 * MIB, numpy.uint8)
            at, size = address(array), array.nbytes
            reused[0] += at in seen
            seen.add(at)
            watch.double.simcuda_handed_out(at, size, stream)
            watch.double.simcuda_use(stream, 200_000, at, size)
            watch.double.simcuda_given_back(at)
            del array

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    gc.collect()
    found = watch.hazards() - before
    assert found == 0, f"{found} times an array was another stream's while that one still worked on it"
    assert reused[0] > 100, f"{reused[0]} of 600 arrays came from used memory; expected most, else nothing was tried"
    return f"600 arrays of 4 threads on 4 streams, {reused[0]} in memory that had been used, no hazard"


@step(**NUMBA)
def numba_pinned_deferred_reset():
    import numpy

    cuda, manager = numba_over_gpumem()
    pinned = cuda.pinned_array(1024, numpy.uint8)
    mapped = cuda.mapped_array(1024, numpy.uint8)
    pinned[:], mapped[:] = 7, 8
    with cuda.pinned(numpy.zeros(MIB, numpy.uint8)):
        there = cuda.to_device(pinned)
    assert (there.copy_to_host() == 7).all() and mapped[0] == 8
    with cuda.defer_cleanup():
        del there
        assert manager._allocator.usage(0)[0] == 1024, "freed inside defer_cleanup"
    assert manager._allocator.usage(0)[0] == 0, "not freed after defer_cleanup"
    held = cuda.device_array(MIB, numpy.uint8)
    context = cuda.current_context()
    context.reset()
    assert manager._allocator.usage(0)[0] == 0, "live after the context's reset"
    del held
    again = cuda.to_device(numpy.ones(8))
    assert again.copy_to_host().sum() == 8
    return "pinned, mapped and registered memory; frees wait for the end of defer_cleanup; reset frees everything"


@step(GPUMEM_STREAM_IDS="notify", **NUMBA)
def numba_stream_ids():
    from numba import cuda

    try:
        cuda.device_array(1000)
    except RuntimeError as refused:
        assert "expected query" in str(refused), refused
        return str(refused)
    raise AssertionError("GPUMEM_STREAM_IDS=notify was taken")


@step(GPUMEM_BACKING="plain", **NUMBA)
def numba_ipc_handle():
    import numpy

    cuda, _ = numba_over_gpumem()
    first = cuda.device_array(MIB, numpy.uint8)
    second = cuda.device_array(MIB, numpy.uint8)
    handles = [each.get_ipc_handle()._ipc_handle for each in (first, second)]
    assert handles[1].offset != handles[0].offset, "two blocks of one segment have one offset"
    assert all(each.size == MIB for each in handles)
    return f"two blocks of one segment at the offsets {handles[0].offset} and {handles[1].offset}"


@step(GPUMEM_POLICY="expandable", **NUMBA)
def numba_ipc_of_mapped_memory():
    import numpy

    cuda, _ = numba_over_gpumem()
    array = cuda.device_array(64 * MIB, numpy.uint8)
    try:
        array.get_ipc_handle()
    except cuda.cudadrv.driver.CudaAPIError as refused:
        assert "GPUMEM_BACKING=plain" in str(refused), f"{refused}; expected what to do"
        return "refused, and told to set GPUMEM_BACKING=plain"
    raise AssertionError("a handle of mapped memory, which the driver does not make")


@step(SIMCUDA_REFEREE="1")
def numba_enable():
    import gpumem.numba
    from numba import cuda

    gpumem.numba.enable(limit="1GiB")
    assert cuda.current_context().get_memory_info().total == 1 << 30, cuda.current_context().get_memory_info()
    gpumem.numba.enable()
    try:
        gpumem.numba.enable(limit="2GiB")
        raise AssertionError("other settings were taken")
    except RuntimeError as refused:
        return f"a limit of 1 GiB; then: {refused}"


@step()
def numba_enabled_too_late():
    import gpumem.numba
    from numba import cuda

    cuda.device_array(1000)
    try:
        gpumem.numba.enable()
        raise AssertionError("taken, after the first use of the card")
    except RuntimeError as refused:
        assert "NUMBA_CUDA_MEMORY_MANAGER" in str(refused), refused
        return str(refused)


@step(GPUMEM_LIMIT="much", **NUMBA)
def numba_bad_setting():
    from numba import cuda

    try:
        cuda.device_array(1000)
    except RuntimeError as refused:
        assert "GPUMEM_LIMIT" in str(refused), f"{refused}; expected the setting's name"
        return str(refused)
    raise AssertionError("GPUMEM_LIMIT=much was taken")


# --- several in one process ----------------------------------------------------------------------------------------------


@step(SIMCUDA_REFEREE="1")
def together_one_pool():
    sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "examples"))
    import one_pool

    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        status = one_pool.main(["torch", "numba"])
    lines = "; ".join(said.getvalue().splitlines())
    assert status == 0, f"status {status}: {lines}"
    return lines


# --- CuPy: its own runtime does not run on a simulated card; what is gpumem's does -----------------------------------------


@step()
def cupy_functions():
    """CuPy's own classes around gpumem's functions, which are called as PythonFunctionAllocator calls them."""
    import cupy
    import gpumem._native
    import gpumem.cupy

    class current:
        ptr = 0

    cupy.cuda.get_current_stream = lambda: current
    malloc, free = gpumem.cupy._functions(cupy, gpumem._native.Allocator())
    cupy.cuda.PythonFunctionAllocator(malloc, free)
    at = malloc(1 << 20, 0)
    free(at, 0)
    assert at % 512 == 0 and malloc(0, 0) == 0
    try:
        malloc(1 << 40, 0)
        raise AssertionError("1 TiB fitted")
    except cupy.cuda.memory.OutOfMemoryError as refused:
        assert "1.00 TiB" in str(refused.__cause__), f"{refused.__cause__}; expected gpumem's report"
        return f"CuPy {cupy.__version__}: {refused}"


def outside(gpumem_program, name):
    """Runs the step's process, passes on what it says, and adds what gpumem served."""
    _, options, served, most_mib, environment = STEPS[name]
    words = [gpumem_program, "simulate", "--quiet"]
    words += options if "--card" in options else ["--card", "h100", *options]
    with tempfile.TemporaryDirectory() as folder:
        stats = os.path.join(folder, "stats.json")
        if served is not None:
            environment = {**environment, "GPUMEM_STATS": stats}
        done = subprocess.run([*words, "--", sys.executable, "-W", "ignore", __file__, "--inside", name],
                              env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True, check=False)
        line = done.stdout.strip()
        if served is not None and line.startswith("pass "):
            try:
                line += by_statistics(stats, served, most_mib)
            except AssertionError as wrong:
                line = f"FAIL {name}: {wrong}"
    print(line)
    return done.returncode if line.startswith("pass ") else 1


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "--steps":
        print("\n".join(name for name in STEPS if name.startswith(sys.argv[2] + "_")))
        return 0
    if len(sys.argv) != 3 or sys.argv[2] not in STEPS:
        print("over_gpumem_ladder.py: expected the program gpumem and a step, or --steps and a framework", file=sys.stderr)
        return 2
    gpumem_program, name = sys.argv[1:]
    function = STEPS[name][0]
    if gpumem_program != "--inside":
        return outside(gpumem_program, name)
    try:
        print(f"pass {name}: {function()}", flush=True)
        return 0
    except Exception as wrong:
        reason = (str(wrong).strip().splitlines() or [""])[0]
        print(f"FAIL {name}: {type(wrong).__name__}: {reason}", flush=True)
        return 1


if __name__ == "__main__":
    sys.exit(main())
