"""Programs that show what an allocator keeps reserved and what its calls cost; scripts/torch_compared runs them.

    gpumem simulate --card h100 -- python3 tests/frameworks/torch_programs.py PROGRAM

A program returns figures by name; those in us are processor time. They are printed as a line of JSON.
"""
import concurrent.futures
import ctypes
import gc
import json
import sys
import time

import torch
from torch import nn

MIB = 1 << 20
LIVE = 20000
PROGRAMS = {}


def program(function):
    PROGRAMS[function.__name__.replace("_", "-")] = function
    return function


def tensor(mebibytes):
    return torch.empty(mebibytes * MIB, dtype=torch.uint8, device="cuda")


def reserved():
    return torch.cuda.memory_reserved() // MIB


def cost(call, seconds=0.3):
    """Microseconds of processor time, the least of five rounds."""
    call()
    least = float("inf")
    for _ in range(5):
        begun, calls = time.process_time(), 0
        while time.process_time() - begun < seconds / 5:
            call()
            calls += 1
        least = min(least, (time.process_time() - begun) / calls * 1e6)
    return round(least, 1)


# --- what calls cost --------------------------------------------------------------------------------------------------


def statistics_of(live, streams):
    kept = []
    for i in range(live):
        with torch.cuda.stream(streams[i % len(streams)]):
            kept.append(torch.empty(300, device="cuda"))

    def after_a_pair():
        torch.empty(300, device="cuda")
        torch.cuda.memory_allocated()

    def after_a_recorded_pair():
        torch.empty(300, device="cuda").record_stream(streams[-1])
        torch.cuda.memory_allocated()

    return {"memory_allocated, us": cost(torch.cuda.memory_allocated),
            "reset_peak_memory_stats, us": cost(torch.cuda.reset_peak_memory_stats),
            "after an allocation and a free, us": cost(after_a_pair),
            "after those of a tensor that another stream used, us": cost(after_a_recorded_pair)}


@program
def statistics():
    """Statistics beside 20,000 live blocks."""
    return statistics_of(LIVE, [torch.cuda.default_stream(), torch.cuda.Stream()])


@program
def statistics_beside_waiting_blocks():
    """The same, and 5,000 freed blocks wait for a stream."""
    slow = torch.cuda.Stream()
    scratch = torch.empty(1024, device="cuda")
    use = ctypes.CDLL("libcuda.so.1").simcuda_use
    use.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64]
    use(slow.cuda_stream, 10**15, scratch.data_ptr(), 512)
    waiting = [torch.empty(300, device="cuda") for _ in range(5000)]
    for each in waiting:
        each.record_stream(slow)
    del each
    waiting.clear()
    kept = [torch.empty(300, device="cuda") for _ in range(LIVE)]
    figures = {"memory_allocated, us": cost(torch.cuda.memory_allocated)}
    kept.clear()
    return figures


@program
def history():
    """A new segment while history is recorded, beside 20,000 live blocks."""
    kept = [torch.empty(300, device="cuda") for _ in range(LIVE)]
    torch.cuda.memory._record_memory_history(max_entries=1000, stacks="python", context=None)
    begun = time.process_time()
    kept += [tensor(30) for _ in range(300)]
    return {"a new segment, us": round((time.process_time() - begun) / 300 * 1e6, 1)}


# --- what stays reserved ----------------------------------------------------------------------------------------------


@program
def emptied_among_small_tensors():
    """Small tensors stay among the large ones of a step: kept by `empty_cache` in three rounds."""
    kept, figures = [], {}
    for turn in range(3):
        large = []
        for i in range(200):
            large.append(tensor(20))
            kept.append(torch.empty(4096, dtype=torch.uint8, device="cuda"))
            if i % 10 == 0:
                kept.append(tensor(2))
        del large
        torch.cuda.empty_cache()
        figures[f"round {turn + 1}, MiB"] = reserved()
    return figures


@program
def offloaded():
    """A model, its optimizer's state and its activations leave one after the other."""
    parts = {name: [tensor(size) for _ in range(64)]
             for name, size in (("the model", 64), ("the optimizer", 128), ("activations", 50))}
    figures = {}
    while parts:
        name, part = parts.popitem()
        part.clear()
        torch.cuda.empty_cache()
        figures[f"without {name}, MiB"] = reserved()
    return figures


@program
def every_second_stays():
    kept = [tensor(30) for _ in range(100)][::2]
    torch.cuda.empty_cache()
    return {f"for {len(kept)} tensors of 30 MiB, MiB": reserved()}


@program
def graphs_of_17_sizes():
    """The graphs of an inference server's batch sizes, in one pool."""
    net = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(16)]).cuda().half()
    pool, graphs, stream = None, [], torch.cuda.Stream()
    with torch.no_grad():
        for rows in [*range(512, 0, -32), 1]:
            x = torch.zeros(rows, 2048, device="cuda", dtype=torch.half)
            with torch.cuda.stream(stream):
                net(x)
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=stream):
                out = net(x)
            pool = pool or graph.pool()
            graphs.append((graph, x, out))
    figures = {"with the graphs, MiB": reserved(), "peak, MiB": torch.cuda.max_memory_reserved() // MIB}
    del x, out, graph
    graphs.clear()
    gc.collect()
    torch.cuda.empty_cache()
    return {**figures, "without the graphs, MiB": reserved()}


@program
def ended_pool():
    """A MemPool that is dropped with 500 MiB of idle memory."""
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        used = tensor(500)
    del used, pool
    return {"reserved, MiB": reserved()}


@program
def one_slow_stream():
    """pytorch#71616: 200 tensors of 64 MiB, used on a quick stream while another one is busy."""
    slow, quick = torch.cuda.Stream(), torch.cuda.Stream()
    scratch = torch.empty(1024, device="cuda")
    use = ctypes.CDLL("libcuda.so.1").simcuda_use
    use.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64]
    use(slow.cuda_stream, 20_000_000_000, scratch.data_ptr(), 512)
    for _ in range(200):
        used = tensor(64)
        with torch.cuda.stream(quick):
            used[:1024].add_(1)
        used.record_stream(quick)
        del used
        quick.synchronize()
    assert not slow.query(), "the host waited for the slow stream"
    return {"reserved, MiB": reserved(), "waits of the host": torch.cuda.memory_stats()["num_sync_all_streams"]}


@program
def pool_beyond_its_card():
    """pytorch#159674: 60 GiB of a MemPool are dropped, and 70 GiB asked for there, on a card of 80."""
    pool, served = torch.cuda.MemPool(), 1
    with torch.cuda.use_mem_pool(pool):
        first = tensor(60 * 1024)
        del first
        try:
            second = tensor(70 * 1024)
            del second
        except torch.OutOfMemoryError:
            served = 0
    return {"requests refused": 1 - served}


def job(_):
    used = [tensor(500) for _ in range(20)]
    del used
    return reserved()


@program
def jobs_of_a_forked_worker():
    """Seven jobs of 10,000 MiB in a ProcessPoolExecutor, whose worker is forked before the first use of a GPU."""
    with concurrent.futures.ProcessPoolExecutor(1) as pool:
        return {"after seven jobs, MiB": list(pool.map(job, range(7)))[-1]}


def consume(sent, told, drop):
    held = []
    for _ in range(40):
        held.append(sent.get(timeout=120))
        told.put("got")
    drop.wait(120)
    held.clear()
    told.put("dropped")
    drop.clear()
    drop.wait(120)


@program
def dropped_by_another_process():
    """A consumer drops 4,000 MiB that it was sent; then the producer asks for as much, and for 6,000 MiB more."""
    ways = torch.multiprocessing.get_context("spawn")
    sent, told, drop = ways.Queue(), ways.Queue(), ways.Event()
    consumer = ways.Process(target=consume, args=(sent, told, drop))
    consumer.start()
    for _ in range(40):
        shared = tensor(100)
        sent.put(shared)
        told.get(timeout=120)
        del shared
    drop.set()
    told.get(timeout=120)
    kept = [tensor(100) for _ in range(40)]
    figures = {"as much, MiB": reserved()}
    kept += [tensor(300) for _ in range(20)]
    figures["and 6,000 more, MiB"] = reserved()
    drop.set()
    consumer.join()
    return figures


if __name__ == "__main__":
    found = PROGRAMS[sys.argv[1]]()
    print("figures", json.dumps({"allocator": torch.cuda.memory.get_allocator_backend(), **found}), flush=True)
