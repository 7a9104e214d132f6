"""A program of TensorFlow or JAX that takes memory as its arguments say, and reports its use.

    python3 framework_program.py tensorflow|jax MODE WORD...

MODE is `default`, `growth`, `fraction=0.3`, `limit=2048` or `limit=1024,1024` (MiB; TensorFlow's logical devices).
Words, in order: `hold=MIB` or `hold=MIB@DEVICE` keeps an array, `fill=MIB` keeps arrays of that size until one is
refused, `drop` frees all of them, `matmul` multiplies, `train` trains a small network, `note=LABEL` records the cards'
figures, `make=FILE` and `await=FILE` synchronise with another program. The last line of output is JSON.
"""
import ctypes
import gc
import importlib
import json
import os
import sys
import time

MIB = 1 << 20


class Cards:
    """NVML's figures of each card: bytes in use by all processes, and by this one if processes are reported."""

    class Memory(ctypes.Structure):
        _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]

    class Process(ctypes.Structure):
        _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("instances", ctypes.c_uint * 2)]

    def __init__(self):
        self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
        self.nvml.nvmlInit_v2()
        count = ctypes.c_uint()
        self.nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        self.handles = []
        for i in range(count.value):
            handle = ctypes.c_void_p()
            self.nvml.nvmlDeviceGetHandleByIndex_v2(i, ctypes.byref(handle))
            self.handles.append(handle)

    def look(self):
        out = {"total": [], "used": [], "own": []}
        for handle in self.handles:
            memory = self.Memory()
            self.nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
            found, count = (self.Process * 256)(), ctypes.c_uint(256)
            self.nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), found)
            out["total"].append(memory.total)
            out["used"].append(memory.used)
            out["own"].append(sum(each.used for each in found[:count.value] if each.pid == os.getpid()))
        return out


class TensorFlow:
    def __init__(self, mode, value):
        import tensorflow as tf

        self.tf = tf
        self.version = tf.__version__
        self.cards = tf.config.list_physical_devices("GPU")
        if mode == "growth":
            for card in self.cards:
                tf.config.experimental.set_memory_growth(card, True)
        if mode == "fraction":
            options = tf.compat.v1.GPUOptions(per_process_gpu_memory_fraction=float(value))
            # Set by a session, as documented; the card's allocator is created with it, once for the process.
            with tf.Graph().as_default():
                self.session = tf.compat.v1.Session(config=tf.compat.v1.ConfigProto(gpu_options=options))
        if mode == "limit":
            each = [tf.config.LogicalDeviceConfiguration(memory_limit=int(mib)) for mib in value.split(",")]
            tf.config.set_logical_device_configuration(self.cards[0], each)

    def devices(self):
        return [each.name for each in self.tf.config.list_logical_devices("GPU")]

    def hold(self, mib, device):
        with self.tf.device(f"GPU:{device}"):
            return self.tf.zeros((mib * MIB // 4,))

    def matmul(self):
        with self.tf.device("GPU:0"):
            return self.tf.linalg.matmul(self.tf.zeros((512, 512)), self.tf.zeros((512, 512)))

    def train(self):
        tf = self.tf
        model = tf.keras.Sequential([tf.keras.layers.Input((4096,)), tf.keras.layers.Dense(8192, activation="relu"),
                                     tf.keras.layers.Dense(8192, activation="relu"), tf.keras.layers.Dense(10)])
        model.compile(optimizer="adam", loss="mse")
        model.fit(tf.zeros((256, 4096)), tf.zeros((256, 10)), batch_size=128, epochs=1, verbose=0)
        return model

    def clear(self):
        self.tf.keras.backend.clear_session()


class Jax:
    def __init__(self, mode, value):
        if mode == "growth":
            os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
        if mode == "fraction":
            os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = value
        if mode == "limit":
            raise ValueError("JAX has no limit in bytes")
        # JAX checks for the driver's device files before it calls the driver.
        from jax._src import hardware_utils

        hardware_utils.has_visible_nvidia_gpu = lambda: True
        import jax

        self.jax = jax
        self.version = jax.__version__
        self.cards = [each for each in jax.devices() if each.platform == "gpu"]

    def devices(self):
        return [str(each) for each in self.cards]

    def hold(self, mib, device):
        with self.jax.default_device(self.cards[device]):
            return self.jax.numpy.zeros((mib * MIB // 4,)).block_until_ready()

    def matmul(self):
        ones = self.jax.numpy.zeros((512, 512))
        return (ones @ ones).block_until_ready()

    def train(self):
        np = self.jax.numpy
        weights = [np.zeros((4096, 8192)), np.zeros((8192, 8192)), np.zeros((8192, 10))]

        def loss(weights, x):
            for each in weights:
                x = self.jax.nn.relu(x @ each)
            return x.sum()

        step = self.jax.jit(lambda w, x: [a - 0.1 * g for a, g in zip(w, self.jax.grad(loss)(w, x))])
        return self.jax.block_until_ready(step(weights, np.zeros((128, 4096))))

    def clear(self):
        self.jax.clear_caches()


def await_file(path):
    for _ in range(30000):
        if os.path.exists(path):
            return
        time.sleep(0.01)
    raise TimeoutError(f"{path} did not come within 300 s")


def act(program, cards, word, kept, told):
    name, _, value = word.partition("=")
    if name == "hold":
        mib, _, device = value.partition("@")
        kept.append(program.hold(int(mib), int(device or 0)))
    elif name == "fill":
        try:
            while True:
                kept.append(program.hold(int(value), 0))
                told["filled"] = told.get("filled", 0) + int(value) * MIB
        except Exception as refused:
            told["refused"] = first_line(refused)
    elif name == "drop":
        kept.clear()
        gc.collect()
        program.clear()
    elif name == "note":
        told["notes"][value] = cards.look()
    elif name == "make":
        open(value, "w").close()
    elif name == "await":
        await_file(value)
    else:
        kept.append({"matmul": program.matmul, "train": program.train}[name]())


def first_line(error):
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"


def main(framework, mode, *words):
    # Autotuning runs kernels and reads their results; command buffers are graphs built node by node.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("XLA_FLAGS", "--xla_gpu_autotune_level=0 --xla_gpu_enable_command_buffer=")
    kind, _, value = mode.partition("=")
    told = {"notes": {}}
    try:
        importlib.import_module(framework)
        while words and words[0].startswith("await="):  # before it uses the card
            await_file(words[0][6:])
            words = words[1:]
        program = {"tensorflow": TensorFlow, "jax": Jax}[framework](kind, value)
        told["version"] = program.version
        told["cards"] = len(program.cards)
        told["devices"] = program.devices()
        cards, kept = Cards(), []
        for word in words:
            act(program, cards, word, kept, told)
        told["done"] = True
    except Exception as error:
        told["error"] = first_line(error)
    for word in words:  # releases programs that wait for this one
        if word.startswith("make="):
            open(word[5:], "w").close()
    print(json.dumps(told), flush=True)
    os._exit(0)  # a framework may hang in its destructors after a failure


if __name__ == "__main__":
    main(*sys.argv[1:])
