#!/usr/bin/env python3
"""PyTorch programs of public reports that run out of memory, for refused_ladder.py.

    gpumem simulate --card 8GiB -- env GPUMEM_TORCH=1 python3 tests/frameworks/refused_programs.py scratch

They are those of tests/simulate/refused_program.cpp; `dumped`, which waits with its latest events; and `viewed`.
"""
import json
import os
import pickle
import sys

import torch

MIB = 1 << 20


def take(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def scratch():
    """A scratch tensor goes, outputs are made while it is free, and it comes again (httomo#667)."""
    block = take(4096 * MIB)
    del block
    outputs = [take(100 * MIB) for _ in range(30)]
    block = take(4096 * MIB)
    return outputs, block


def large_among_small():
    """A large tensor each step; small ones that stay are cut from its place (pytorch#35901)."""
    small = []
    for _ in range(6):
        block = take(11_643_387_904)
        del block
        small += [take(16_515_072) for _ in range(5)]


def two_then_one():
    """Two tensors go, and one of both sizes comes (DeepSpeed#1611)."""
    halves = [take(400 * MIB), take(400 * MIB)]
    del halves
    between = [take(30 * MIB) for _ in range(14)]
    return between, take(800 * MIB)


def replaced_layers():
    """Every layer is replaced by one that is 5 % larger, in a MemPool (vllm#49151)."""
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        small, layers = [], []
        for _ in range(48):
            loaded = take(190 * MIB)
            del loaded
            small.append(take(3 * MIB))
            layers.append(take(187 * MIB))
        for i in range(len(layers)):
            layers[i] = None
            layers[i] = take(197 * MIB)


def growing():
    """Keeps two of three tensors, for ever."""
    random, kept, count = 1, [], 0
    while True:
        random = (random * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        block = take(1000 * (1 + (random >> 33) % 50_000))
        if count % 3 != 0:
            kept.append(block)
        del block
        count += 1


def coming_and_going(count=0):
    """Operations on 64 tensors of random sizes; for ever without a number."""
    random, blocks, done = 1, [None] * 64, 0
    while count == 0 or done < count:
        random = (random * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        at = (random >> 20) % 64
        blocks[at] = take(1000 * (1 + (random >> 33) % 5000)) if blocks[at] is None else None
        done += 1
        if done == 20_000:
            print("going", flush=True)


def dumped():
    """Takes and frees tensors, prints its PID and the peak that PyTorch counts, and waits until its input ends."""
    coming_and_going(3000)
    largest = take(600 * MIB)
    print(os.getpid(), torch.cuda.max_memory_allocated(), flush=True)
    del largest
    sys.stdin.read()


def viewed(path):
    """Opens a snapshot in PyTorch's viewer, and prints the peak of its events and the sizes of what the viewer makes."""
    from torch.cuda import _memory_viz

    with open(path, "rb") as file:
        snapshot = pickle.load(file)
    page = _memory_viz.trace_plot(snapshot)
    text = _memory_viz.segsum(snapshot) + _memory_viz.trace(snapshot)
    # From the end backwards, because the first events free blocks from before the history.
    live = sum(b["size"] for s in snapshot["segments"] for b in s["blocks"] if b["state"] == "active_allocated")
    peak = live
    for event in reversed(snapshot["device_traces"][0]):
        size = (event["size"] + 511) // 512 * 512
        live += {"alloc": -size, "free_requested": size}.get(event["action"], 0)
        peak = max(peak, live)
    print(json.dumps({"peak": peak, "page": len(page), "lines": len(text.splitlines())}))


if __name__ == "__main__":
    globals()[sys.argv[1]](*(int(each) if each.isdigit() else each for each in sys.argv[2:]))
