"""The C interface (gpumem/gpumem.h) for the framework modules: one allocator for the whole process."""
import contextlib
import ctypes
import functools
import os
import warnings

from . import library

OUT_OF_MEMORY = 3  # gpumem_code


class Refused(RuntimeError):
    """A call that gpumem refused, with its message."""


class OutOfMemory(MemoryError):
    """Out of memory, with gpumem's whole report."""


# Each struct states its size, so the first fields are enough.
class _Stats(ctypes.Structure):
    _fields_ = [("struct_bytes", ctypes.c_size_t), ("reserved_bytes", ctypes.c_uint64), ("live_bytes", ctypes.c_uint64)]


class _Device(ctypes.Structure):
    _fields_ = [("struct_bytes", ctypes.c_size_t), ("ordinal", ctypes.c_int), ("physical_ordinal", ctypes.c_int),
                ("name", ctypes.c_char * 64), ("policy", ctypes.c_char * 64), ("total_bytes", ctypes.c_uint64)]


@functools.lru_cache(maxsize=None)
def load():
    """Returns the library, with its functions declared."""
    path = library()
    if not path.is_file():
        raise RuntimeError(f"{path} does not exist: gpumem is not installed as a whole; install its source folder or wheel file anew")
    loaded = ctypes.CDLL(str(path))
    address, number = ctypes.c_void_p, ctypes.c_int
    for name, arguments in (
        ("gpumem_default", [address]),
        ("gpumem_check_setting", [ctypes.c_char_p, ctypes.c_char_p]),
        ("gpumem_set_default", [ctypes.c_char_p, ctypes.c_char_p]),
        ("gpumem_check_environment", []),
        ("gpumem_allocate", [address, ctypes.c_size_t, number, address, address]),
        ("gpumem_free", [address, address]),
        ("gpumem_free_on", [address, address, address]),
        ("gpumem_get_stats", [address, number, address]),
        ("gpumem_device_count", [address, address]),
        ("gpumem_device_properties", [address, number, address]),
    ):
        function = getattr(loaded, name)
        function.argtypes, function.restype = arguments, number
    loaded.gpumem_last_message.restype = ctypes.c_char_p
    return loaded


def check(code):
    """Raises the error of the library call that returned `code`, if it failed."""
    if code != 0:
        message = load().gpumem_last_message().decode(errors="replace")
        raise OutOfMemory(message) if code == OUT_OF_MEMORY else Refused(message)


class Allocator:
    """The process's own allocator. Any thread."""

    def __init__(self):
        self._library = load()
        self._handle = ctypes.c_void_p()
        check(self._library.gpumem_default(ctypes.byref(self._handle)))
        # Looked up once, so that they also work while the interpreter shuts down.
        self._allocate, self._free, self._free_on = (getattr(self._library, "gpumem_" + name)
                                                     for name in ("allocate", "free", "free_on"))
        self._logical = self._devices()

    def _devices(self):
        count = ctypes.c_int()
        check(self._library.gpumem_device_count(self._handle, ctypes.byref(count)))
        first = {}
        for logical in range(count.value):
            first.setdefault(self._properties(logical).physical_ordinal, logical)
        return first

    def _properties(self, logical):
        found = _Device(struct_bytes=ctypes.sizeof(_Device))
        check(self._library.gpumem_device_properties(self._handle, logical, ctypes.byref(found)))
        return found

    def _logical_of(self, device):
        logical = self._logical.get(device)
        if logical is None:
            raise Refused(f"GPU {device} is not one of gpumem's ({sorted(self._logical)}): GPUMEM_DEVICES leaves it out")
        return logical

    def allocate(self, bytes_, device, stream):
        """Allocates for work on the stream. `device`: the driver's ordinal. Raises OutOfMemory or Refused."""
        block = ctypes.c_void_p()
        check(self._allocate(self._handle, bytes_, self._logical_of(device), stream, ctypes.byref(block)))
        return block.value

    def free(self, block):
        """Frees in the order of the block's own stream. Raises Refused on misuse."""
        check(self._free(self._handle, block))

    def free_on(self, block, stream):
        """Frees in the order of this stream. Raises Refused on misuse."""
        check(self._free_on(self._handle, block, stream))

    def usage(self, device):
        """Returns live bytes, reserved bytes and the limit."""
        now = _Stats(struct_bytes=ctypes.sizeof(_Stats))
        logical = self._logical_of(device)
        check(self._library.gpumem_get_stats(self._handle, logical, ctypes.byref(now)))
        return now.live_bytes, now.reserved_bytes, self._properties(logical).total_bytes


@contextlib.contextmanager
def settings(given):
    """Sets GPUMEM_* variables from the arguments of `enable`, except those already set; unsets them if enabling fails.
    Raises Refused for an unknown setting or a bad value."""
    for name, value in given.items():
        check(load().gpumem_check_setting(name.encode(), str(value).encode()))
    added = {"GPUMEM_" + name.upper(): str(value) for name, value in given.items()}
    added = {name: value for name, value in added.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    except BaseException:
        for name in added:
            os.environ.pop(name, None)
        raise


@contextlib.contextmanager
def defaults(chosen):
    """Sets options of this process's allocator that the environment leaves open; takes them back if enabling fails. Child
    processes do not inherit them. Raises Refused for an unknown setting or a bad value."""
    library_ = load() if chosen else None
    for name, value in chosen.items():
        check(library_.gpumem_set_default(name.encode(), value.encode()))
    try:
        yield
    except BaseException:
        for name in chosen:
            library_.gpumem_set_default(name.encode(), None)
        raise


def warn_if_untested(name, version, tested):
    if not version.startswith(tested):
        known = ", ".join(one.rstrip(".") for one in tested)
        warnings.warn(f"gpumem: {name} {version} is not one of those tested ({known})", stacklevel=3)
