"""Lets JAX and TensorFlow find and use the simulated cards, as they are: what their users would else have to set.

JAX looks for the driver's device files before it asks the driver. XLA's autotuning runs kernels and reads their results, and its
command buffers are graphs that are built node by node: neither is simulated, so both are switched off unless the user set them.
"""
import importlib.abc
import importlib.machinery
import os
import sys

_flags = {"--xla_gpu_autotune_level": "0", "--xla_gpu_enable_command_buffer": ""}
_told = False


def _set_flags():
    """Before XLA reads them, which it does once."""
    given = os.environ.get("XLA_FLAGS", "")
    kept = dict((*each.split("=", 1), "")[:2] for each in given.split())
    missing = [f"{name}={value}" for name, value in _flags.items() if name not in kept]
    if missing:
        os.environ["XLA_FLAGS"] = " ".join([given, *missing]).strip()
    _tell_of_autotuning(kept.get("--xla_gpu_autotune_level", "0"))


def _tell_of_autotuning(level):
    """Now, because a program that it makes fail may abort."""
    global _told
    if level == "0" or _told:
        return
    _told = True
    print(f"gpumem: XLA_FLAGS has --xla_gpu_autotune_level={level}: autotuning compares results of kernels, which do nothing on a "
          "simulated card. If the program fails, set --xla_gpu_autotune_level=0", file=sys.stderr, flush=True)


def _find_cards(module):
    if hasattr(module, "has_visible_nvidia_gpu"):
        module.has_visible_nvidia_gpu = lambda: True


def _set_flags_late(module):
    """The program may replace the flags between the import and JAX's first use of a backend, which reads them."""
    begin = getattr(module, "_init_backend", None)
    if begin is None:
        return

    def set_flags_and_begin(*values, **named):
        _set_flags()
        return begin(*values, **named)

    module._init_backend = set_flags_and_begin


_found = {"jax": None, "jaxlib": None, "tensorflow": None, "jax._src.hardware_utils": _find_cards,
          "jax._src.xla_bridge": _set_flags_late}


class _before_xla(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name not in _found:
            return None
        change = _found[name]
        if change is None:
            _set_flags()
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            change(module)

        spec.loader.exec_module = exec_module
        return spec


def watch():
    sys.meta_path.insert(0, _before_xla())
