"""Steps of tests/frameworks/torch_ladder.py about segments: who is told of them, when, and in which order. Each but those named in
GPUMEM_ONLY holds with PyTorch's own allocator as well."""
import ctypes
import os
import shutil
import subprocess
import tempfile

import torch

import torch_ladder_users
from ladder_steps import MIB, Steps, expect
from torch_ladder_pools import block, child, emptied

STEPS = Steps()
step = STEPS.step
# Those with a probe, which gpumem's package compiles.
GPUMEM_ONLY = ("trackers_know_the_segments", "segments_in_order")

PROBE = r"""
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>
#include <mutex>
#include <vector>
#define SEEN extern "C" __attribute__((visibility("default")))
using namespace c10::cuda::CUDACachingAllocator;
struct event { long came, bytes, there; };
static std::vector<event> seen;
static std::mutex one;
static bool is_there(std::size_t at) {
  cudaPointerAttributes found{};
  const cudaError_t asked = cudaPointerGetAttributes(&found, reinterpret_cast<void*>(at));
  static_cast<void>(cudaGetLastError());
  return asked == cudaSuccess && found.type == cudaMemoryTypeDevice;
}
SEEN void attach() {
  get()->attachAllocatorTraceTracker([](const TraceEntry& e) {
    const bool came = e.action_ == TraceEntry::SEGMENT_ALLOC || e.action_ == TraceEntry::SEGMENT_MAP;
    if (!came && e.action_ != TraceEntry::SEGMENT_FREE && e.action_ != TraceEntry::SEGMENT_UNMAP) return;
    const std::lock_guard lock{one};
    seen.push_back({came, static_cast<long>(e.size_), is_there(e.addr_)});
  });
}
SEEN long events(event* into, long most) {
  const std::lock_guard lock{one};
  long count = 0;
  for (const event& each : seen) if (count < most) into[count++] = each;
  seen.clear();
  return count;
}
template <typename Segment>
static long counter_of(const Segment& s) {
  if constexpr (requires { s.registration_counter; }) return s.registration_counter;
  return 0;
}
/// The numbers of a pool's segments, by address.
SEEN long numbers(unsigned long long first, unsigned long long second, long* into, long most) {
  long count = 0;
  for (const auto& s : snapshot({first, second}).segments) if (count < most) into[count++] = counter_of(s);
  return count;
}
"""
probes = []


def probe():
    """Compiled and attached once."""
    if not probes:
        made = torch_ladder_users.probe_in_cpp(PROBE)
        made.events.restype = made.numbers.restype = ctypes.c_long
        made.attach()
        probes.append(made)
    return probes[0]


class Event(ctypes.Structure):
    _fields_ = [("came", ctypes.c_long), ("bytes", ctypes.c_long), ("there", ctypes.c_long)]


def told():
    into = (Event * 1000)()
    return list(into[:probe().events(into, ctypes.c_long(1000))])


@step
def trackers_know_the_segments():
    """A tracker that registers segments, as NCCL's does, is told of each after it came and before it goes: also of those
    that go to make room for a request, at the same addresses as others."""
    emptied()
    probe()
    told()
    before = torch.cuda.memory_reserved()
    kept = block(3)
    for _ in range(2):
        held = [block(20000) for _ in range(3)]
        del held
        held = block(70000)  # segments go for it; a range of pages grows
        del held
    events = told()
    expect("bytes that came less those that went", sum(e.bytes if e.came else -e.bytes for e in events),
           torch.cuda.memory_reserved() - before)
    emptied()
    events += told()
    assert not all(e.came for e in events), f"nothing went: {len(events)} events"
    expect("segments that were told of without memory behind them", len([e for e in events if not e.there]), 0)
    expect("bytes known in the end", sum(e.bytes if e.came else -e.bytes for e in events),
           torch.cuda.memory_reserved() - before)
    del kept
    return f"{len([e for e in events if e.came])} came, {len([e for e in events if not e.came])} went, all with memory there"


SPY = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
static void note(const char* what, unsigned long bytes) {
  FILE* const out = fopen(getenv("LADDER_SPY"), "a");
  fprintf(out, "%s %lu\n", what, bytes >> 20);
  fclose(out);
}
int ncclCommRegister(void* of, void* at, unsigned long bytes, void** handle) {
  int (*const next)(void*, void*, unsigned long, void**) = dlsym(RTLD_NEXT, "ncclCommRegister");
  note("register", bytes);
  return next(of, at, bytes, handle);
}
int ncclCommDeregister(void* of, void* handle) {
  int (*const next)(void*, void*) = dlsym(RTLD_NEXT, "ncclCommDeregister");
  note("deregister", 0);
  return next(of, handle);
}
"""
REGISTERING = """
import torch, torch.distributed as dist
from torch_ladder_pools import block, emptied, own_allocator
torch.cuda.set_device(0)
dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=8, device_id=torch.device("cuda", 0))
group = dist.group.WORLD._get_backend(torch.device("cuda"))
pool = own_allocator().pool()
held = [block(30, pool)]
dist.all_reduce(held[0])
group.register_mem_pool(pool)
held.append(block(50, pool))
del held
torch.cuda.synchronize()
del pool
emptied()
print(torch.cuda.memory_reserved(), flush=True)
import os
os._exit(0)  # registrations that are left end with the group
"""


@step
def registered_with_nccl():
    """register_mem_pool: what comes later is registered, too, and all is deregistered before it goes."""
    compiler = shutil.which("cc") or shutil.which("g++")
    with tempfile.TemporaryDirectory() as folder:
        source, spy, lines = f"{folder}/spy.c", f"{folder}/spy.so", f"{folder}/lines"
        with open(source, "w") as out:
            out.write(SPY)
        subprocess.run([compiler, "-xc", "-shared", "-fPIC", "-w", source, "-o", spy, "-ldl"], check=True)
        child(REGISTERING, LADDER_SPY=lines, LD_PRELOAD=" ".join(filter(None, (spy, os.environ.get("LD_PRELOAD")))))
        with open(lines) as made:
            calls = made.read().splitlines()
    expect("registrations", [each for each in calls if each.startswith("register")], ["register 30", "register 50"])
    expect("deregistrations", len(calls), 4)
    return "30 and 50 MiB registered, both deregistered"


@step
def segments_in_order():
    """A pool's segments have numbers in the order in which they came, whatever their addresses: all ranks of a group
    register them in the same order."""
    emptied()
    hole, wall = block(1000), block(40)
    pool = torch.cuda.MemPool()
    held = [block(300, pool)]
    del hole
    emptied()
    held.append(block(900, pool))
    into = (ctypes.c_long * 100)()
    numbers = list(into[:probe().numbers(*map(ctypes.c_ulonglong, pool.id), into, ctypes.c_long(100))])
    assert sorted(numbers) == list(range(1, len(numbers) + 1)) and len(numbers) >= 1, numbers
    by_address = sorted(s["address"] for s in pool.snapshot())
    first = max(i for i, at in enumerate(by_address) if at <= held[0].data_ptr())
    expect("the number of the segment that came first", numbers[first], 1)
    del held, wall, pool
    emptied()
    return f"numbers by address: {numbers}"


ONE_CARD = list(STEPS)
