#!/usr/bin/env python3
"""PyTorch on gpumem with several streams and with CUDA graphs: every value is checked, and memory comes back.

    tests/frameworks/torch_streams.py LIBGPUMEM.SO [streams|graphs]...     all where none is named
"""
import ctypes
import sys

import torch

gpumem = torch.cuda.memory.CUDAPluggableAllocator(sys.argv[1], "gpumem_torch_alloc", "gpumem_torch_free")
library = ctypes.CDLL(sys.argv[1])
hook = lambda name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value
gpumem.allocator().set_record_stream_fn(hook("gpumem_torch_record_stream"))
gpumem.allocator().set_end_allocate_to_pool_fn(hook("gpumem_torch_end_allocate_to_pool"))
torch.cuda.memory.change_current_allocator(gpumem)

ELEMENTS = 8 << 20


def streams():
    """A tensor is made on one stream and read on another, and its name is gone before that one has read it."""
    side = [torch.cuda.Stream() for _ in range(4)]
    sums = []
    for step in range(200):
        tensor = torch.full((ELEMENTS,), step, dtype=torch.int64, device="cuda")
        reader = side[step % len(side)]
        reader.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(reader):
            torch.cuda._sleep(2_000_000)
            sums.append(tensor.sum())
        tensor.record_stream(reader)
        del tensor
        torch.full((ELEMENTS,), -1, dtype=torch.int64, device="cuda")  # would get its memory, were that not recorded
    torch.cuda.synchronize()
    wrong = [step for step, total in enumerate(sums) if total.item() != step * ELEMENTS]
    assert not wrong, f"steps {wrong[:5]} of {len(sums)} read what another tensor wrote"
    return f"{len(sums)} tensors over {len(side)} streams"


def graphs():
    """Graphs of one pool are replayed among other work; each keeps its memory until it is gone."""
    inputs = torch.zeros(ELEMENTS, dtype=torch.int64, device="cuda")
    made, pool = [], None
    for factor in range(1, 5):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            middle = inputs * factor
            outputs = middle + 1
            del middle
        pool = pool or graph.pool()
        made.append((factor, graph, outputs))
    for step in range(50):
        inputs.fill_(step)
        for factor, graph, outputs in made:
            graph.replay()
            noise = [torch.full((ELEMENTS // 4,), -7, dtype=torch.int64, device="cuda") for _ in range(4)]
            assert outputs.eq(step * factor + 1).all().item(), f"graph {factor} at step {step}: another's values"
            del noise
    before = torch.cuda.mem_get_info()[0]
    del made, graph, outputs
    torch.cuda.synchronize()
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    library.gpumem_torch_empty_cache()
    after = torch.cuda.mem_get_info()[0]
    return f"4 graphs, 200 replays; {(after - before) >> 20} MiB came back with them"


for name in sys.argv[2:] or ["streams", "graphs"]:
    print(f"{name}: {({'streams': streams, 'graphs': graphs}[name])()}")
