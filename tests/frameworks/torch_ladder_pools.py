"""Steps of tests/frameworks/torch_ladder.py about what leaves a pool and when: MemPools with an allocator of their own, graphs that
outlive a pool, lending, limits, forks. Each but those named in GPUMEM_ONLY holds with PyTorch's own allocator as well."""
import ctypes
import gc
import os
import subprocess
import sys
import threading
import time

import torch

from ladder_steps import MIB, Steps, expect

STEPS = Steps()
step = STEPS.step
# PyTorch's own allocator holds its lock while it calls a MemPool's allocator: written in Python, that one waits for the
# interpreter, whose thread waits for the lock.
GPUMEM_ONLY = ("idle_pools_go_back_first", "callbacks_at_a_miss", "memory_within_a_limit", "limit_over_own_allocators")


def block(mebibytes, pool=None):
    if pool is None:
        return torch.empty(mebibytes * MIB, dtype=torch.uint8, device="cuda")
    with torch.cuda.use_mem_pool(pool):
        return torch.empty(mebibytes * MIB, dtype=torch.uint8, device="cuda")


def refused(call):
    try:
        call()
    except torch.OutOfMemoryError:
        return True
    return False


def emptied():
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved() // MIB


class own_allocator:
    """Takes segments from the driver in any capture mode, as ncclMemAlloc does, and notes them; `delay` seconds a call."""

    def __init__(self, delay=0):
        runtime = ctypes.CDLL("libcudart.so.13")
        self.taken, self.returned = [], []

        def relaxed(call):
            mode = ctypes.c_int(2)
            runtime.cudaThreadExchangeStreamCaptureMode(ctypes.byref(mode))
            call()
            runtime.cudaThreadExchangeStreamCaptureMode(ctypes.byref(mode))

        def take(size, _device, _stream):
            time.sleep(delay)
            at = ctypes.c_void_p()
            relaxed(lambda: runtime.cudaMalloc(ctypes.byref(at), ctypes.c_size_t(size)))
            self.taken.append(size // MIB)
            return at.value

        def give(at, size, _device, _stream):
            relaxed(lambda: runtime.cudaFree(ctypes.c_void_p(at)))
            self.returned.append(size // MIB)

        arguments = (ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
        self.functions = (ctypes.CFUNCTYPE(ctypes.c_void_p, *arguments)(take),
                          ctypes.CFUNCTYPE(None, ctypes.c_void_p, *arguments)(give))
        kept.append(self)

    def pool(self, **options):
        addresses = (ctypes.cast(each, ctypes.c_void_p).value for each in self.functions)
        return torch.cuda.MemPool(torch._C._cuda_customAllocator(*addresses), **options)


kept = []  # PyTorch calls these functions until the process ends


class limited:
    """A limit in MiB, while it is entered."""

    def __init__(self, mebibytes):
        self.fraction = mebibytes * MIB / torch.cuda.get_device_properties(0).total_memory

    def __enter__(self):
        torch.cuda.set_per_process_memory_fraction(self.fraction)

    def __exit__(self, *_):
        torch.cuda.set_per_process_memory_fraction(1.0)


def child(code, **variables):
    """The last line of what a program of its own prints."""
    ran = subprocess.run([sys.executable, "-W", "ignore", "-c", code], text=True, capture_output=True, check=False,
                         cwd=os.path.dirname(os.path.abspath(__file__)), env={**os.environ, **variables})
    assert ran.returncode == 0, f"status {ran.returncode}: {(ran.stdout + ran.stderr).strip().splitlines()[-1:]}"
    return ran.stdout.strip().splitlines()[-1]


# --- graphs -----------------------------------------------------------------------------------------------------------


@step
def one_slow_stream():
    """Blocks that a quick stream used come back while another stream is busy, and the host waits for neither."""
    slow, quick = torch.cuda.Stream(), torch.cuda.Stream()
    scratch = torch.empty(1024, device="cuda")
    use = ctypes.CDLL("libcuda.so.1").simcuda_use
    use.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64]
    emptied()
    before, waits = torch.cuda.memory_reserved(), torch.cuda.memory_stats()["num_sync_all_streams"]
    use(slow.cuda_stream, 20_000_000_000, scratch.data_ptr(), 512)
    for _ in range(100):
        used = block(64)
        with torch.cuda.stream(quick):
            used[:1024].add_(1)
        used.record_stream(quick)
        del used
        quick.synchronize()
    taken = (torch.cuda.memory_reserved() - before) // MIB
    expect("the slow stream is still busy", slow.query(), False)
    expect("waits of the host", torch.cuda.memory_stats()["num_sync_all_streams"] - waits, 0)
    assert taken <= 83, f"{taken} MiB reserved for blocks of 64 MiB, one alive at a time"
    slow.synchronize()
    return f"{taken} MiB for blocks of 64 MiB"


@step
def graph_outlives_its_pool():
    """What a living graph writes stays where it is, whoever dropped the MemPool."""
    holds_pools = hasattr(torch.cuda.CUDAGraph, "_retain_pool")  # not in 2.11
    for entered in (False, True) if holds_pools else (False,):
        own = own_allocator()
        pool, graph, stream = own.pool(), torch.cuda.CUDAGraph(), torch.cuda.Stream()
        static = torch.zeros(30 * MIB, dtype=torch.uint8, device="cuda")
        with torch.cuda.graph(graph, pool=None if entered else pool.id, stream=stream):
            inner = torch.cuda.use_mem_pool(pool) if entered else torch.cuda.stream(stream)
            with inner:
                first = static + 1
                static.copy_(first * 2)
        del first, pool
        emptied()
        expect("segments that went back while the graph lives", own.returned, [])
        graph.replay()
        torch.cuda.synchronize()
        del graph, inner, static
        emptied()
        expect("segments that went back", sorted(own.returned), sorted(own.taken))
        assert own.taken, "the graph took nothing from the pool's allocator"
    return "its memory goes back with the graph, not with the MemPool"


@step
def own_pool_in_captures():
    """Tensors of an own-allocator pool that a second stream used, before a capture and within it."""
    own = own_allocator()
    pool, side, stream = own.pool(), torch.cuda.Stream(), torch.cuda.Stream()
    emptied()

    def round_of_work(recorded):
        used = block(3, pool)
        used.zero_()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            used.add_(1)
        if recorded:
            used.record_stream(side)
        torch.cuda.current_stream().wait_stream(side)

    with torch.cuda.stream(stream):
        for _ in range(3):
            round_of_work(True)
    for recorded in (False, True):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            round_of_work(recorded)
            round_of_work(recorded)
        graph.replay()
        torch.cuda.synchronize()
        del graph
    before = emptied()
    del pool
    after = emptied()
    expect("segments that went back", sorted(own.returned), sorted(own.taken))
    expect("MiB that went back", before - after, sum(own.taken))
    return f"{len(own.taken)} segments, all of which went back"


@step
def tensor_ends_in_a_capture():
    """The last tensor of an own-allocator pool that has ended dies while a graph is captured."""
    own = own_allocator()
    pool = own.pool()
    last = [block(3, pool)]
    del pool
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        first = torch.ones(1000, device="cuda")
        last.clear()
        first.mul_(2)
        expect("segments that went back within the capture", own.returned, [])
    graph.replay()
    torch.cuda.synchronize()
    emptied()
    expect("segments that went back", own.returned, own.taken)
    return "captured and replayed; the segment went back at empty_cache"


# --- lending and giving back ------------------------------------------------------------------------------------------


@step
def lent_only_outside_pools():
    """`use_on_oom` serves requests outside every pool and capture, and no others."""
    emptied()
    with limited(2048):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            lender, own = torch.cuda.MemPool(use_on_oom=True), own_allocator()
            other = own.pool()
            at = block(1024, lender).data_ptr()
            rest = block(700)
            graph = torch.cuda.CUDAGraph()

            def captured():
                with torch.cuda.graph(graph, stream=stream):
                    block(600).fill_(7)

            if torch.cuda.get_allocator_backend() == "native":
                assert refused(captured), "a capture was lent 600 MiB"
                assert refused(lambda: block(600, other)), "a pool with an allocator of its own was lent 600 MiB"
            before = torch.cuda.memory_stats()["num_ooms"]
            lent = block(600)
            expect("where the lent block lies", lent.data_ptr(), at)
            expect("refusals", torch.cuda.memory_stats()["num_ooms"] - before, 0)
            assert refused(lambda: block(1500)), "1500 MiB beside 1300 of 2048"
            expect("refusals after one", torch.cuda.memory_stats()["num_ooms"] - before, 1)
            del lent, rest, graph, lender, other
    emptied()
    return "600 MiB outside; one refusal counts as one"


@step
def captures_are_lent_nothing():
    """A capture that runs out of memory never gets what a MemPool still hands out."""
    emptied()
    with limited(2048):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            lender = torch.cuda.MemPool(use_on_oom=True)
            held = block(1024, lender)
            begin, end = held.data_ptr(), held.data_ptr() + held.numel()
            del held
            rest, graph, written = block(700), torch.cuda.CUDAGraph(), []

            def captured():
                with torch.cuda.graph(graph, stream=stream):
                    temporary = block(600)
                    written.append(temporary.data_ptr())

            served = not refused(captured)
            again = [] if refused(lambda: block(600, lender)) else [block(600, lender)]
            for at in written:
                assert not any(at < b.data_ptr() + b.numel() and b.data_ptr() < at + 600 * MIB for b in again), (
                    f"a live tensor lies where the graph writes; the pool's block was {begin:#x} to {end:#x}")
            del again, rest, graph, lender
    emptied()
    return "served from memory that left the pool" if served else "refused"


@step
def idle_pools_go_back_first():
    """Before a request is refused, idle memory leaves MemPools into which no living graph captured."""
    emptied()
    seen = []
    with limited(2048):
        for made in (torch.cuda.MemPool, lambda: own_allocator().pool()):
            pool = made()
            block(1500, pool)
            seen += [block(1800, pool).numel() // MIB]  # within the pool
            pool_of_graph, graph = made(), torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool_of_graph.id):
                block(100)
            block(1700)  # outside
            expect("MiB that the graph keeps", sum(s["total_size"] for s in pool_of_graph.snapshot()) // MIB, 100)
            assert refused(lambda: block(2000)), "a graph's memory served another"
            graph.replay()
            del pool, pool_of_graph, graph
            emptied()
    expect("MiB served", seen, [1800, 1800])
    return "1800 MiB of 2048 after 1500 in the same pool; a graph's 100 MiB stay"


@step
def ended_pool_leaves_the_cache():
    """As much as a MemPool held idle leaves the cache when it ends."""
    emptied()
    before = torch.cuda.memory_reserved() // MIB
    pool = torch.cuda.MemPool()
    block(500, pool)
    expect("MiB of the idle pool", torch.cuda.memory_reserved() // MIB - before, 500)
    del pool
    gc.collect()
    expect("MiB of it when it has gone", torch.cuda.memory_reserved() // MIB - before, 0)
    emptied()
    return "500 MiB went with the pool"


# --- limits -----------------------------------------------------------------------------------------------------------


@step
def limit_over_own_allocators():
    """Six threads take from slow allocators at once."""
    emptied()
    pools, held, ready = [own_allocator(delay=0.005).pool() for _ in range(6)], [], threading.Barrier(6)

    def take(pool):
        ready.wait()
        refused(lambda: held.append(block(400, pool)))

    with limited(1000):
        threads = [threading.Thread(target=take, args=(pool,)) for pool in pools]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        reserved = torch.cuda.memory_reserved() // MIB
    expect("tensors of 400 MiB within 1000", len(held), 2)
    assert reserved <= 1000, f"{reserved} MiB are reserved, limit 1000"
    held.clear()
    pools.clear()
    emptied()
    return f"2 of 6 served, {reserved} MiB reserved"


WITHOUT_CACHES = """
import torch
MIB = 1 << 20
torch.cuda.set_per_process_memory_fraction(1030 * MIB / torch.cuda.get_device_properties(0).total_memory)
held = []
try:
    for _ in range(10):
        held.append(torch.empty(512 * MIB, dtype=torch.uint8, device="cuda"))
except torch.OutOfMemoryError:
    pass
print(len(held), torch.cuda.memory_reserved() // MIB)
"""


@step
def limit_without_caches():
    """PYTORCH_NO_CUDA_MEMORY_CACHING is a flag; limits hold with it, too (natively without it alone)."""
    expect("held and reserved with the flag 0", child(WITHOUT_CACHES, PYTORCH_NO_CUDA_MEMORY_CACHING="0"), "2 1024")
    if torch.cuda.get_allocator_backend() == "gpumem":
        expect("held and reserved with the flag 1", child(WITHOUT_CACHES, PYTORCH_NO_CUDA_MEMORY_CACHING="1"), "2 0")
    return "2 tensors of 512 MiB within 1030"


@step
def caching_off_for_a_while():
    """`caching_allocator_enable(False)`: each request is a driver call that no statistics count, within the limit."""
    emptied()
    reserved, free = torch.cuda.memory_reserved(), torch.cuda.mem_get_info()[0]
    torch.cuda.caching_allocator_enable(False)
    try:
        held = block(30)
        expect("reserved", torch.cuda.memory_reserved(), reserved)
        expect("MiB less free", (free - torch.cuda.mem_get_info()[0]) // MIB, 30)
        if torch.cuda.get_allocator_backend() == "gpumem":  # natively without a limit
            with limited(100):
                expect("80 MiB beside 30 within 100 are refused", refused(lambda: block(80)), True)
    finally:
        torch.cuda.caching_allocator_enable(True)
    del held
    expect("MiB less free in the end", (free - torch.cuda.mem_get_info()[0]) // MIB, 0)
    used = block(30)
    expect("reserved with caching", torch.cuda.memory_reserved() >= reserved + used.nbytes, True)
    return "30 MiB of the driver's, none reserved"


@step
def settings_while_running():
    """PyTorch's settings that gpumem has no use for are accepted, as natively, and memory is served."""
    torch.cuda.memory._set_allocator_settings("max_split_size_mb:64,pinned_use_background_threads:False")
    try:
        pool = torch.cuda.MemPool(no_split=True)
    except TypeError:  # of an older torch
        pool = torch.cuda.MemPool()
    held = block(3, pool), block(3)
    assert all(each.nbytes == 3 * MIB for each in held)
    told = torch.cuda.memory._snapshot()["allocator_settings"]
    torch.cuda.memory._set_allocator_settings("")
    return f"max_split_size is {told['max_split_size']}"


WITHIN_A_LIMIT = """
import torch
free, total = torch.cuda.mem_get_info()
held = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
later = torch.cuda.memory.mem_get_info(torch.device("cuda"))
asked = torch.accelerator.get_memory_info() if hasattr(torch.accelerator, "get_memory_info") else later
print(total >> 20, free >> 20, later[1] >> 20, later[0] >> 20, asked[1] >> 20, asked[0] >> 20)
"""
# As vLLM does before it serves: measures a forward pass, then gives the KV cache the rest of its share of the GPU's memory.
SERVED_WITHIN_A_LIMIT = """
import gc, torch
before, total = torch.cuda.mem_get_info()
weights = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
torch.cuda.reset_peak_memory_stats()
activations = torch.empty(300 << 20, dtype=torch.uint8, device="cuda")
del activations
gc.collect()
torch.cuda.empty_cache()
after, _ = torch.cuda.mem_get_info()
peak = torch.cuda.max_memory_allocated()
outside = (total - after) - torch.cuda.memory_reserved()
room = int(total * 0.92) - peak - outside
cache = torch.empty(room, dtype=torch.uint8, device="cuda")
assert torch.cuda.memory_reserved() + (300 << 20) <= total, "no room is left for activations"
activations = torch.empty(300 << 20, dtype=torch.uint8, device="cuda")
print(room >> 20)
"""


@step
def memory_within_a_limit():
    """What the GPU has for this program is GPUMEM_LIMIT, less what it holds."""
    expect("total and free MiB, before and with a tensor of 1 GiB",
           child(WITHIN_A_LIMIT, GPUMEM_LIMIT="3GiB", GPUMEM_POLICY="growth"), "3072 3072 3072 2048 3072 2048")
    expect("MiB of a KV cache", child(SERVED_WITHIN_A_LIMIT, GPUMEM_LIMIT="3GiB"), "1502")
    return "3 GiB, and 2 beside a tensor of 1; a KV cache of 1502 MiB"


# --- processes --------------------------------------------------------------------------------------------------------

FORKED_FIRST = """
import os, sys, torch
for _ in range(3):
    if os.fork() == 0:
        for _ in range(20):
            torch.empty(8 << 30, dtype=torch.uint8, device="cuda")
        torch.cuda.empty_cache()
        sys.exit(torch.cuda.memory_reserved() != 0)
    assert os.wait()[1] == 0, "a child did not end well"
print("ended")
"""
FORKED_LATER = """
import gc, os, sys, torch
pool, graph = torch.cuda.MemPool(), torch.cuda.CUDAGraph()
with torch.cuda.graph(graph, pool=pool.id):
    inside = torch.empty(100, device="cuda")
held = torch.empty(100, device="cuda")
if os.fork() == 0:
    del pool, graph, inside, held
    gc.collect()
    sys.exit(0)
assert os.wait()[1] == 0, "the child did not end well"
print("ended")
"""


@step
def forked_children():
    """A child that is forked before the first use of a GPU uses one as any process; later, what it inherits just ends."""
    for code in (FORKED_FIRST, FORKED_LATER):
        expect("the program", child(code), "ended")
    return "20 times 8 GiB on 80 in each of 3 children; an inherited tensor, pool and graph"


# --- what others see --------------------------------------------------------------------------------------------------


@step
def own_pool_in_the_history():
    """Segments of an own-allocator pool: in the history, the statistics, and as what other processes open."""
    emptied()
    own = own_allocator()
    torch.cuda.memory._record_memory_history(max_entries=1000)
    before = torch.cuda.memory_stats()["num_device_alloc"]
    pool = own.pool()
    held = block(30, pool)
    events = [(e["action"], e["size"] // MIB) for e in torch.cuda.memory._snapshot()["device_traces"][0]]
    assert ("segment_alloc", 30) in events, events
    expect("calls for memory", torch.cuda.memory_stats()["num_device_alloc"] - before, 1)
    del held, pool
    emptied()
    events = [(e["action"], e["size"] // MIB) for e in torch.cuda.memory._snapshot()["device_traces"][0]]
    torch.cuda.memory._record_memory_history(enabled=None)
    assert ("segment_free", 30) in events, events
    expect("segments that went back", own.returned, own.taken)
    return "a segment of 30 MiB came and went"


PROBE = r"""
#include <c10/cuda/CUDACachingAllocator.h>
#define SEEN extern "C" __attribute__((visibility("default")))
using namespace c10::cuda::CUDACachingAllocator;
static long asked = 0;
struct counting : c10::FreeMemoryCallback { bool Execute() override { ++asked; return false; } };
namespace c10 { REGISTER_FREE_MEMORY_CALLBACK("counts what is asked", counting) }
SEEN long callbacks_asked() { return asked; }
SEEN bool base_of(void* at, void** begin, std::size_t* bytes) try {
  *begin = get()->getBaseAllocation(at, bytes);
  return true;
} catch (const std::exception&) { return false; }
SEEN bool share(void* at) try { return !get()->shareIpcHandle(at).handle.empty(); } catch (const std::exception&) { return false; }
template <typename Segment>
static long counter_of(const Segment& s) {
  if constexpr (requires { s.registration_counter; }) return s.registration_counter;
  return 0;
}
/// The segments of a pool: how many have no number that says in which order they came.
SEEN long unnumbered(unsigned long long first, unsigned long long second) {
  long none = 0;
  for (const auto& s : snapshot({first, second}).segments) none += counter_of(s) < 0;
  return none;
}
"""


@step
def callbacks_at_a_miss():
    """The base of an own-allocator block; numbers of segments; what others gave back is collected before new memory."""
    import torch_ladder_users

    probe = torch_ladder_users.probe_in_cpp(PROBE)
    probe.base_of.restype = probe.share.restype = ctypes.c_bool
    probe.callbacks_asked.restype = probe.unnumbered.restype = ctypes.c_long
    pools = own_allocator().pool(), torch.cuda.MemPool()
    held = [block(3, pool) for pool in pools]
    begin, size = ctypes.c_void_p(), ctypes.c_size_t()
    for each in held:
        assert probe.base_of(ctypes.c_void_p(each.data_ptr()), ctypes.byref(begin), ctypes.byref(size)), "no base"
        assert begin.value <= each.data_ptr() < begin.value + size.value, (begin.value, each.data_ptr())
    for pool in pools:
        expect("segments without a number", probe.unnumbered(*map(ctypes.c_ulonglong, pool.id)), 0)
    emptied()
    held.append(block(1000))
    expect("callbacks asked before anything was shared", probe.callbacks_asked(), 0)
    assert probe.share(ctypes.c_void_p(held[0].data_ptr())), "a tensor of an own-allocator pool cannot be shared"
    held.append(block(2000))
    expect("callbacks asked for new memory", probe.callbacks_asked(), 1)
    del held[-1]
    held.append(block(2000))
    expect("callbacks asked for memory that is there", probe.callbacks_asked(), 1)
    return "a base for both kinds of pools; callbacks at a miss alone"


@step
def own_pool_on_two_cards():
    """A block of an own-allocator pool that a stream of another card uses."""
    own = own_allocator()
    pool, side = own.pool(), torch.cuda.Stream(device=1)
    used = block(3, pool)
    used.record_stream(side)
    del used
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)
    again = block(3, pool)
    del again, pool
    emptied()
    expect("segments that went back", own.returned, own.taken)
    return "freed behind the other card's stream"


@step
def random_pools():
    """Ten random programs (tests/frameworks/torch_pools_fuzz.py)."""
    import torch_pools_fuzz

    kinds = ("plain", "own", "lending", "own", "own", "lending", "plain", "own", "lending", "own")
    refusals = [torch_pools_fuzz.run(seed, 300, kind) for seed, kind in enumerate(kinds, 1)]
    return f"ten programs of 300 steps, {sum(refusals)} requests refused"


ONE_CARD = [name for name in STEPS if name != "own_pool_on_two_cards"]
