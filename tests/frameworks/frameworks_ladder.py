#!/usr/bin/env python3
"""TensorFlow, JAX, Flax, Numba and ONNX Runtime on the simulated card, step by step, each with a result that is known beforehand.

    gpumem simulate --card h100 -- python3 tests/frameworks/frameworks_ladder.py STEP

One step a process, since each has settings of its own; scripts/other_frameworks runs them all. The line is `pass STEP:
what was seen` or `FAIL STEP: reason`.
"""
import ctypes
import os
import sys

from ladder_steps import MIB, Steps

STEPS = Steps()
step = STEPS.step


def memory():
    """MiB in use on the card and its total, as the driver tells."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    error = ctypes.CDLL("libcuda.so.1").cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    assert error == 0, f"cuMemGetInfo is {error}; expected 0"
    return (total.value - free.value) // MIB, total.value // MIB


# --- TensorFlow -----------------------------------------------------------------------------------------------------


def tensorflow():
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    cards = tf.config.list_physical_devices("GPU")
    assert len(cards) == 1, f"{cards}; expected one card"
    return tf, cards[0]


@step
def tensorflow_lists_the_card():
    tf, card = tensorflow()
    details = tf.config.experimental.get_device_details(card)
    assert details["compute_capability"] == (9, 0), details
    return f"{details['device_name']}, TensorFlow {tf.__version__}"


@step
def tensorflow_takes_the_card():
    tf, _ = tensorflow()
    tf.zeros(1000)
    used, total = memory()
    assert used > 0.97 * total, f"{used} of {total} MiB; expected nearly all"
    return f"{used} of {total} MiB after one small tensor"


@step
def tensorflow_grows():
    tf, card = tensorflow()
    tf.config.experimental.set_memory_growth(card, True)
    seen = []
    for mib in (1, 64, 1024):
        held = tf.zeros(mib * MIB // 4)
        seen.append(memory()[0])
        del held
    after = memory()[0]
    assert seen[0] < 1000 and seen[-1] >= seen[0] + 1024, f"{seen} MiB"
    assert after == seen[-1], f"{after} MiB after the tensors died; expected {seen[-1]}, nothing given back"
    return f"{seen} MiB with 1, 64 and 1024 MiB of tensors, {after} when they are dead"


@step
def tensorflow_keeps_a_memory_limit():
    tf, card = tensorflow()
    tf.config.set_logical_device_configuration(card, [tf.config.LogicalDeviceConfiguration(memory_limit=2048)])
    held = tf.zeros(1024 * MIB // 4)
    try:
        more = tf.zeros(1536 * MIB // 4)
        raise AssertionError(f"{more.shape} fitted beside 1 GiB under 2 GiB")
    except tf.errors.ResourceExhaustedError:
        pass
    del held
    return f"1.5 GiB refused beside 1 GiB; {memory()[0]} MiB in use"


@step
def tensorflow_trains_convolutions():
    tf, card = tensorflow()
    tf.config.experimental.set_memory_growth(card, True)
    layers = tf.keras.layers
    model = tf.keras.Sequential([layers.Input((32, 32, 3)), layers.Conv2D(32, 3, activation="relu"),
                                 layers.MaxPool2D(), layers.Conv2D(64, 3, activation="relu"), layers.Flatten(),
                                 layers.Dense(10)])
    model.compile(optimizer="adam", loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(tf.zeros((128, 32, 32, 3)), tf.zeros(128), batch_size=32, epochs=2, verbose=0)
    peak = tf.config.experimental.get_memory_info("GPU:0")["peak"]
    least = 4 * 4 * model.count_params()  # parameters, gradients, two moments
    assert peak > least, f"a peak of {peak} bytes; expected more than {least}"
    return f"peak {peak / MIB:.2f} MiB for {model.count_params()} parameters with Adam"


# --- JAX --------------------------------------------------------------------------------------------------------------


def jax_on_the_card():
    import jax

    assert jax.devices()[0].platform == "gpu", jax.devices()
    return jax


@step
def jax_lists_the_card():
    jax = jax_on_the_card()
    assert len(jax.devices()) == 1, jax.devices()
    return f"{jax.devices()[0].device_kind}, JAX {jax.__version__}"


@step
def jax_takes_three_quarters():
    jax = jax_on_the_card()
    free_before = memory_before_jax_takes_it()
    jax.numpy.ones(1000).block_until_ready()
    used, total = memory()
    assert abs(used - 0.75 * total) < 0.02 * total, f"{used} of {total} MiB; expected three quarters"
    return f"{used} of {total} MiB after one small array, of {free_before} free"


def memory_before_jax_takes_it():
    return memory()[1] - memory()[0] if ctypes.CDLL("libcuda.so.1").cuInit(0) == 0 else 0


@step
def jax_grows_without_preallocation():
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    jax = jax_on_the_card()
    jax.numpy.ones(1000).block_until_ready()
    small = memory()[0]
    held = jax.numpy.ones((256, MIB)).block_until_ready()
    large = memory()[0]
    held.delete()
    assert small < 1000 and large >= small + 1024, f"{small}, then {large} MiB"
    assert memory()[0] == large, f"{memory()[0]} MiB after the array died; expected {large}"
    return f"{small} MiB, {large} with 1 GiB, as much when it is dead"


@step
def jax_keeps_a_fraction():
    os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = ".30"
    jax = jax_on_the_card()
    jax.numpy.ones(1000).block_until_ready()
    limit = jax.devices()[0].memory_stats()["bytes_limit"] // MIB
    used, total = memory()
    assert abs(limit - 0.3 * total) < 0.01 * total, f"a limit of {limit} of {total} MiB"
    return f"limit {limit} MiB, {used} of {total} MiB in use"


@step
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
    stats = jax.devices()[0].memory_stats()
    least = sum(w.nbytes for w in weights)
    assert stats["bytes_in_use"] >= least, f"{stats['bytes_in_use']} bytes; expected {least} of weights"
    return f"{stats['bytes_in_use'] / MIB:.2f} MiB in use, peak {stats['peak_bytes_in_use'] / MIB:.2f}"


# --- Flax -------------------------------------------------------------------------------------------------------------


@step
def flax_training():
    jax = jax_on_the_card()
    import flax
    import optax
    from flax import linen

    class Classifier(linen.Module):
        @linen.compact
        def __call__(self, x):
            for features in (32, 64):
                x = linen.avg_pool(linen.relu(linen.Conv(features, (3, 3))(x)), (2, 2), strides=(2, 2))
            return linen.Dense(10)(linen.relu(linen.Dense(2048)(x.reshape(x.shape[0], -1))))

    model = Classifier()
    images, labels = jax.numpy.zeros((64, 32, 32, 3)), jax.numpy.zeros(64, dtype="int32")
    parameters = model.init(jax.random.key(0), images)
    adam = optax.adam(1e-3)
    state = adam.init(parameters)

    def loss(parameters):
        return optax.softmax_cross_entropy_with_integer_labels(model.apply(parameters, images), labels).mean()

    @jax.jit
    def update(parameters, state):
        changes, state = adam.update(jax.grad(loss)(parameters), state, parameters)
        return optax.apply_updates(parameters, changes), state

    for _ in range(3):
        parameters, state = update(parameters, state)
    jax.block_until_ready(parameters)
    stats = jax.devices()[0].memory_stats()
    least = 3 * sum(each.nbytes for each in jax.tree.leaves(parameters))  # parameters, two moments
    assert stats["bytes_in_use"] >= least, f"{stats['bytes_in_use']} bytes; expected {least} of parameters and moments"
    return (f"{stats['bytes_in_use'] / MIB:.2f} MiB in use, peak {stats['peak_bytes_in_use'] / MIB:.2f}, "
            f"{least / 3 / MIB:.2f} of them parameters; Flax {flax.__version__}")


# --- Numba ------------------------------------------------------------------------------------------------------------


@step
def numba_allocates():
    import numba
    import numpy
    from numba import cuda

    before = memory_of_numba(cuda)
    held = cuda.device_array(64 * MIB, numpy.uint8)
    assert memory()[0] - before == 64, f"{memory()[0] - before} MiB; expected 64"
    del held
    cuda.current_context().memory_manager.deallocations.clear()
    assert memory()[0] == before, f"{memory()[0]} MiB when the array is dead; expected {before}"
    return f"64 MiB and back, Numba {numba.__version__}"


def memory_of_numba(cuda):
    cuda.current_context()
    return memory()[0]


@step
def numba_copies():
    import numpy
    from numba import cuda

    here = numpy.arange(1000)
    assert (cuda.to_device(here).copy_to_host() == here).all(), "a small copy did not come back"
    return "small values come back"


@step
def numba_compiles_and_launches():
    import numpy
    from numba import cuda

    @cuda.jit
    def add(x):
        x[cuda.grid(1)] += 1

    stream = cuda.stream()
    there = cuda.to_device(numpy.zeros(1024), stream=stream)
    add[8, 128, stream](there)
    stream.synchronize()
    return "a kernel through NVVM and the driver's linker, on a stream of its own"


# --- ONNX Runtime -----------------------------------------------------------------------------------------------------


@step
def onnxruntime_multiplies():
    import numpy
    import onnxruntime
    from onnx import TensorProto, helper

    onnxruntime.set_default_logger_severity(3)
    side = 4096
    zeros = numpy.zeros((side, side), numpy.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["r"]),
         helper.make_node("MatMul", ["r", "w"], ["y"])], "layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, zeros.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, zeros.shape)],
        [helper.make_tensor("w", TensorProto.FLOAT, zeros.shape, zeros.tobytes(), raw=True)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CUDAExecutionProvider"])
    assert session.get_providers()[0] == "CUDAExecutionProvider", session.get_providers()
    before = memory()[0]
    session.run(None, {"x": zeros})
    after = memory()[0]
    each = zeros.nbytes // MIB
    assert after - before >= 2 * each, f"{after - before} MiB more; expected {2 * each} or more: the input and a result"
    return f"{before} MiB with {each} of weights, {after} after a run, ONNX Runtime {onnxruntime.__version__}"


# --- CuPy -------------------------------------------------------------------------------------------------------------


@step
def cupy_allocates():
    import cupy

    held = cupy.zeros(64 * MIB, cupy.uint8)
    return f"{held.nbytes} bytes, CuPy {cupy.__version__}"


def main():
    if len(sys.argv) != 2 or sys.argv[1] not in STEPS:
        print(f"frameworks_ladder.py: expected one of {', '.join(STEPS)}", file=sys.stderr)
        return 2
    name = sys.argv[1]
    try:
        print(f"pass {name}: {STEPS[name]()}", flush=True)
        return 0
    except Exception as wrong:
        reason = (str(wrong).strip().splitlines() or [""])[0]
        print(f"FAIL {name}: {type(wrong).__name__}: {reason}", flush=True)
        return 1


if __name__ == "__main__":
    sys.exit(main())
