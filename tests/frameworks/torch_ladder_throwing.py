"""A step of tests/frameworks/torch_ladder.py: host memory runs out, at each request in turn, while a block is taken or freed.

What could not be taken is nowhere counted; what could not be freed is still the program's, and can be freed again. So
too for a block of a MemPool with an allocator of its own that another stream used: its free records an event.
"""
import ctypes
import os
import pathlib
import subprocess
import sys
import tempfile

import torch

import torch_ladder_users

from ladder_steps import MIB, Steps

STEPS = Steps()

# Loaded before all others, so that every library's `new` is this one, and events are counted.
FAILING = r"""
#include <dlfcn.h>
#include <cstddef>
#include <cstdlib>
#include <new>
static thread_local long left = 0;
static void* take(std::size_t bytes, std::size_t alignment) {
  void* at = nullptr;
  if (left > 0 && --left == 0) throw std::bad_alloc{};
  if (posix_memalign(&at, alignment < sizeof at ? sizeof at : alignment, bytes) != 0) throw std::bad_alloc{};
  return at;
}
void* operator new(std::size_t bytes) { return take(bytes, alignof(std::max_align_t)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return take(bytes, static_cast<std::size_t>(alignment));
}
extern "C" void fail_nth(long n) { left = n; }
static long events = 0;
static void* real(const char* name) { return dlsym(dlopen("libcudart.so.13", RTLD_LAZY), name); }
extern "C" int cudaEventCreateWithFlags(void** event, unsigned flags) {
  const int error = reinterpret_cast<int (*)(void**, unsigned)>(real("cudaEventCreateWithFlags"))(event, flags);
  if (error == 0) ++events;
  return error;
}
extern "C" int cudaEventDestroy(void* event) {
  --events;
  return reinterpret_cast<int (*)(void*)>(real("cudaEventDestroy"))(event);
}
extern "C" long events_alive() { return events; }
"""

# Null where the n-th request for host memory failed.
PROBE = r"""
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <exception>
#define SEEN extern "C" __attribute__((visibility("default")))
extern "C" void fail_nth(long n);
template <typename Call>
static bool done(long n, const Call& call) try {
  fail_nth(n);
  call();
  fail_nth(0);
  return true;
} catch (const std::exception&) {  // std::bad_alloc, or the error of a call of CUDA's that had no host memory
  fail_nth(0);
  return false;
}
SEEN void* take(long n, long bytes) {
  void* at = nullptr;
  return done(n, [&] { at = c10::cuda::CUDACachingAllocator::get()->raw_alloc(bytes); }) ? at : nullptr;
}
SEEN bool give(long n, void* at) {
  return done(n, [&] { c10::cuda::CUDACachingAllocator::get()->raw_delete(at); });
}
SEEN void use_elsewhere(void* at) {
  auto* const allocator = c10::cuda::CUDACachingAllocator::get();
  c10::DataPtr of{at, at, allocator->raw_deleter(), c10::Device{c10::kCUDA, 0}};
  allocator->recordStream(of, c10::cuda::getStreamFromPool());
  static_cast<void>(of.release_context());
}
"""


def compiled(folder):
    from gpumem.torch import _build

    cxx = _build.compiler()[0]
    for name, source in (("failing", FAILING), ("probe", PROBE)):
        (folder / f"{name}.cpp").write_text(source)
    subprocess.run([cxx, "-std=c++20", "-O1", "-fPIC", "-shared", str(folder / "failing.cpp"), "-o",
                    str(folder / "failing.so")], check=True)
    line = torch_ladder_users.probe_command(folder / "probe.cpp", folder / "probe.so")
    subprocess.run([*line, str(folder / "failing.so")], check=True)


def counted():
    """Bytes of the program's blocks: by PyTorch's statistics, and by gpumem's segments."""
    return torch.cuda.memory_allocated(), sum(s["allocated_size"] for s in torch.cuda.memory_snapshot())


def failures(probe, what, attempt):
    """Calls `attempt(n)` for n from 1 on, until no request for host memory fails; how many did."""
    n = 1
    while not attempt(n):
        n += 1
        assert n < 1000, f"{what}: the request {n} still fails"
    return n - 1


def inside(folder):
    import gpumem

    probe = ctypes.CDLL(str(folder / "probe.so"))
    probe.take.restype, probe.take.argtypes = ctypes.c_void_p, [ctypes.c_long, ctypes.c_long]
    probe.give.restype, probe.give.argtypes = ctypes.c_bool, [ctypes.c_long, ctypes.c_void_p]
    probe.use_elsewhere.restype, probe.use_elsewhere.argtypes = None, [ctypes.c_void_p]
    events = ctypes.CDLL(str(folder / "failing.so"))
    events.events_alive.restype = ctypes.c_long
    torch.empty(1, device="cuda")
    # Long enough that each entry of the history asks for memory.
    torch.cuda.memory._record_memory_history(max_entries=10000, context=None)
    torch.cuda.memory._set_memory_metadata("a part of the program " * 4)
    before = counted()

    def taken(n):
        at = probe.take(n, 3 * MIB)
        assert counted() == tuple(b + (3 * MIB if at else 0) for b in before), f"taking, {n}: {counted()}, before {before}"
        if at is not None:
            probe.give(0, at)
        return at is not None

    def freed(n):
        at = probe.take(0, 3 * MIB)
        done = probe.give(n, at)
        if not done:
            assert counted() == tuple(b + 3 * MIB for b in before), f"freeing, {n}: {counted()}, before {before}"
            assert probe.give(0, at), "the block cannot be freed again"
        assert counted() == before, f"freed, {n}: {counted()}, before {before}"
        return done

    def freed_behind(n):
        with torch.cuda.use_mem_pool(pool):
            at = probe.take(0, 3 * MIB)
        probe.use_elsewhere(at)
        torch.cuda.synchronize()  # so that the next request of the pool finds the event done, and destroys it
        alive = events.events_alive()
        done = probe.give(n, at)
        if not done:
            assert events.events_alive() == alive, f"freeing, {n}: an event is left"
            assert probe.give(0, at), "the block cannot be freed again"
        assert counted()[0] == before[0], f"freed, {n}: {counted()}, before {before}"
        return done

    own = torch.cuda.memory.CUDAPluggableAllocator(str(gpumem.library()), "gpumem_torch_alloc", "gpumem_torch_free")
    pool = torch.cuda.MemPool(own.allocator())
    print(failures(probe, "taking", taken), failures(probe, "freeing", freed),
          failures(probe, "freeing behind another stream", freed_behind))


@STEPS.step
def host_memory_runs_out():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        compiled(folder)
        loaded = " ".join(filter(None, (str(folder / "failing.so"), os.environ.get("LD_PRELOAD"))))
        ran = subprocess.run([sys.executable, "-W", "ignore", __file__, name], text=True, capture_output=True, check=False,
                             env={**os.environ, "LD_PRELOAD": loaded})
    assert ran.returncode == 0, (ran.stdout + ran.stderr).strip().splitlines()[-1:]
    taking, freeing, behind = map(int, ran.stdout.split())
    assert taking > 0 and freeing > 1 and behind > 1, (f"{taking} requests failed while a block was taken, {freeing} and "
                                                       f"{behind} while one was freed")
    return (f"each request for host memory failed once, {taking} of a block that is taken, {freeing} of one that is freed, "
            f"{behind} of one that another stream used")


if __name__ == "__main__":
    inside(pathlib.Path(sys.argv[1]))
