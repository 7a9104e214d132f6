#!/usr/bin/env python3
"""PyTorch on the simulated card, step by step, each with a result that is known beforehand.

    gpumem simulate --card h100 -- python3 tests/frameworks/torch_ladder.py [--list | STEP...]

`--list` prints each step with the lists that have it: usual, pools, native-pools, values.

One line a step: `pass STEP: what was seen`, or `FAIL STEP: reason`. Exit status 1 where a step fails. Steps that need
another environment (a second card, another allocator) are named with it in scripts/frameworks.
"""
import contextlib
import gc
import os
import sys
import time
import traceback

import torch
from torch import nn

import torch_ladder_enabling
import torch_ladder_pools
import torch_ladder_ranks
import torch_ladder_segments
import torch_ladder_throwing
import torch_ladder_users
import torch_ladder_values
from ladder_steps import MIB, Steps, expect

STEPS = Steps({**torch_ladder_users.STEPS, **torch_ladder_throwing.STEPS, **torch_ladder_enabling.STEPS,
               **torch_ladder_pools.STEPS, **torch_ladder_segments.STEPS, **torch_ladder_ranks.STEPS,
               **torch_ladder_values.STEPS})
step = STEPS.step


def rounded(tensors):
    """What PyTorch counts for them: each a multiple of 512 bytes."""
    return sum((t.numel() * t.element_size() + 511) // 512 * 512 for t in tensors)


def requested():
    """Bytes of all tensors on the card, by their own sizes."""
    return torch.cuda.memory_stats()["requested_bytes.all.current"]


def exact(tensors):
    return sum(t.numel() * t.element_size() for t in tensors)


def live_in(segments):
    """Sizes in MiB of the blocks that are held in these segments of a snapshot, without the smallest: torch 2.11 has a
    graph's random state there."""
    held = (b["size"] for s in segments for b in s["blocks"] if b["state"] == "active_allocated")
    return sorted(size // MIB for size in held if size >= MIB)


def nothing_left(workspaces=True):
    """`workspaces`: those of cuBLAS may stay; in torch 2.11 they are tensors, taken at the first product."""
    gc.collect()
    torch.cuda.synchronize()
    if not workspaces:
        torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


# --- one card, PyTorch's own allocator ------------------------------------------------------------------------------


@step
def available():
    assert torch.cuda.is_available(), "torch.cuda.is_available() is False"
    card = torch.cuda.get_device_properties(0)
    expect("compute capability", (card.major, card.minor), (9, 0))
    expect("multiprocessors", card.multi_processor_count, 132)
    free, total = torch.cuda.mem_get_info()
    assert free < total == card.total_memory, f"{free} free of {total}"
    return f"{card.name}, {total // MIB} MiB"


@step
def malloc_and_free():
    base = nothing_left()
    block = torch.empty(MIB, device="cuda")
    expect("allocated", torch.cuda.memory_allocated() - base, 4 * MIB)
    expect("reserved", torch.cuda.memory_reserved(), 20 * MIB)
    del block
    expect("allocated after the free", torch.cuda.memory_allocated(), base)
    torch.cuda.empty_cache()
    expect("reserved after empty_cache", torch.cuda.memory_reserved(), 0)
    return "4 MiB in a segment of 20 MiB, and back"


@step
def memory_allocated():
    base = nothing_left()
    asked = requested()
    blocks = [torch.empty(n, dtype=torch.uint8, device="cuda") for n in (1, 512, 513, 1 << 20, (1 << 20) + 1)]
    expect("allocated", torch.cuda.memory_allocated() - base, rounded(blocks))
    expect("requested", requested() - asked, sum(b.numel() for b in blocks))
    return f"{rounded(blocks)} bytes for five blocks"


@step
def copies():
    here = torch.arange(1000, dtype=torch.int64)
    there = here.cuda()
    expect("small copy and back", there.cpu().tolist(), here.tolist())
    pinned = torch.empty(1 << 20, dtype=torch.uint8).pin_memory()
    assert pinned.is_pinned(), "pin_memory() is not pinned"
    pinned.fill_(7)
    pinned.cuda(non_blocking=True)
    torch.cuda.synchronize()
    expect("pinned memory after the copy", int(pinned[-1]), 7)
    return "small values come back, pinned memory is real"


@step
def forward_of_linear_layers():
    nothing_left()
    layers, width, batch = 6, 1024, 512
    parts = []
    for _ in range(layers):
        parts += [nn.Linear(width, width), nn.ReLU()]
    model = nn.Sequential(*parts).cuda()
    # The libraries' handles and workspaces, of the thread of the backward pass, too.
    nn.Linear(width, width).cuda()(torch.zeros(batch, width, device="cuda", requires_grad=True)).sum().backward()
    x = torch.randn(batch, width, device="cuda")
    before = requested()
    y = model(x)
    # Of each pair of layers the activation behind the ReLU stays: it is the ReLU's result and the next layer's input.
    expect("activations", requested() - before, layers * batch * width * 4)
    y.sum().backward()
    del y
    gradients = exact(model.parameters())
    expect("gradients", requested() - before, gradients)
    return f"{layers * batch * width * 4 // MIB} MiB of activations, {gradients} bytes of gradients"


@step
def train_convolutions():
    nothing_left(workspaces=False)
    before = requested()
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    ).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        loss = nn.functional.cross_entropy(model(torch.randn(8, 3, 64, 64, device="cuda")),
                                           torch.zeros(8, dtype=torch.int64, device="cuda"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    del loss
    nothing_left(workspaces=False)
    parameters = list(model.parameters())
    wanted = 3 * exact(parameters) + exact(model.buffers())  # the gradient and the momentum of each
    expect("after two steps", requested() - before, wanted)
    return f"{wanted} bytes stay: parameters, gradients, momenta, running means"


class block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.before = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.between = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.before(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        a = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, c))
        return x + self.down(nn.functional.gelu(self.up(self.between(x))))


class gpt(nn.Module):
    def __init__(self, vocabulary=5000, context=128, width=256, heads=4, layers=3):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*[block(width, heads) for _ in range(layers)])
        self.last = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.last(self.blocks(x)))


def train(model, optimizer, steps, autocast=contextlib.nullcontext, scaler=None, vocabulary=5000, batch=4, length=128):
    for _ in range(steps):
        ids = torch.zeros(batch, length, dtype=torch.int64, device="cuda")
        with autocast():
            loss = nn.functional.cross_entropy(model(ids).view(-1, vocabulary).float(), ids.view(-1))
        optimizer.zero_grad()
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    torch.cuda.synchronize()


@step
def train_gpt_with_adamw():
    base = nothing_left(workspaces=False)
    before = requested()
    model = gpt().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, 2)
    wanted = 4 * exact(model.parameters())  # the gradient and two moments of each
    peak = torch.cuda.max_memory_allocated()
    nothing_left(workspaces=False)
    expect("after two steps", requested() - before, wanted)
    logits = 4 * 128 * 5000 * 4
    assert peak - base > wanted + 2 * logits, f"a peak of {peak} has no room for the logits and their gradient"
    return f"{wanted} bytes stay, peak {peak / MIB:.2f} MiB"


@step
def amp():
    nothing_left()
    model = gpt().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    train(model, optimizer, 2, lambda: torch.autocast("cuda", torch.bfloat16))
    bf16 = torch.cuda.max_memory_allocated()
    del model, optimizer
    nothing_left()
    model = gpt().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    train(model, optimizer, 2, lambda: torch.autocast("cuda", torch.float16), torch.amp.GradScaler("cuda"))
    fp16 = torch.cuda.max_memory_allocated()
    assert bf16 > 0 and fp16 > 0
    return f"bfloat16 peak {bf16 / MIB:.2f} MiB, float16 with GradScaler {fp16 / MIB:.2f} MiB"


@step
def checkpointing():
    from torch.utils.checkpoint import checkpoint_sequential

    def peak(checkpointed):
        nothing_left()
        model = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(12)]).cuda()
        x = torch.randn(2048, 512, device="cuda", requires_grad=True)
        y = checkpoint_sequential(model, 4, x, use_reentrant=False) if checkpointed else model(x)
        y.sum().backward()
        return torch.cuda.max_memory_allocated()

    without, with_it = peak(False), peak(True)
    assert with_it < 0.75 * without, f"{with_it} with checkpoints, {without} without"
    return f"{without // MIB} MiB without, {with_it // MIB} MiB with"


@step
def reductions_follow_the_card():
    nothing_left()
    x = torch.empty(1 << 22, 32, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    x.sum(0)
    torch.cuda.synchronize()
    return f"sum over 4 million rows takes {(torch.cuda.max_memory_allocated() - before) / MIB:.2f} MiB beside its result"


@step
def streams_and_events():
    nothing_left()
    side = torch.cuda.Stream()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    x = torch.ones(MIB, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x * 2
        x.record_stream(side)
    torch.cuda.current_stream().wait_stream(side)
    end.record()
    end.synchronize()
    milliseconds = begin.elapsed_time(end)
    assert milliseconds > 0, f"{milliseconds} ms between two events with work between them"
    del x, y
    return f"{milliseconds:.3f} ms of simulated time"


@step
def snapshot():
    nothing_left(workspaces=False)
    torch.cuda.memory._record_memory_history(max_entries=10000, stacks="python")
    block_of = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    size = block_of.numel()
    del block_of
    seen = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(enabled=None)
    actions = [each["action"] for each in seen["device_traces"][0] if each.get("size") == size or "segment" in each["action"]]
    expect("trace", [a for a in actions if a in ("alloc", "free_requested", "free_completed")],
           ["alloc", "free_requested", "free_completed"])
    expect("segments", len(seen["segments"]), 1)
    return f"{len(seen['device_traces'][0])} events, one segment of {seen['segments'][0]['total_size'] // MIB} MiB"


@step
def out_of_memory():
    nothing_left()
    held = []
    try:
        while True:
            held.append(torch.empty(4 << 30, dtype=torch.uint8, device="cuda"))
    except torch.cuda.OutOfMemoryError:
        pass
    got = len(held)
    held.clear()
    nothing_left()
    expect("blocks of 4 GiB", got, torch.cuda.mem_get_info()[1] - (450 << 20) >> 32)
    torch.empty(4 << 30, dtype=torch.uint8, device="cuda")
    return f"{got} blocks of 4 GiB, then OutOfMemoryError, then 4 GiB again"


@step
def memory_fraction():
    nothing_left()
    torch.cuda.set_per_process_memory_fraction(0.25)
    gib = int(torch.cuda.get_device_properties(0).total_memory * 0.3) >> 30
    try:
        torch.empty(gib << 30, dtype=torch.uint8, device="cuda")
        raise AssertionError(f"{gib} GiB were given under a fraction of 0.25")
    except torch.cuda.OutOfMemoryError:
        pass
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    return f"{gib} GiB refused under 0.25"


@step
def graphs():
    nothing_left()
    x = torch.zeros(512, 512, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x @ x
    torch.cuda.current_stream().wait_stream(side)
    several = [torch.cuda.CUDAGraph() for _ in range(3)]
    pool = torch.cuda.graph_pool_handle()
    for graph in several:
        with torch.cuda.graph(graph, pool=pool):
            y = (x @ x).relu()
    for graph in several:
        graph.replay()
    torch.cuda.synchronize()
    del y
    model = nn.Linear(256, 256).cuda()
    graphed = torch.cuda.make_graphed_callables(model, (torch.randn(8, 256, device="cuda", requires_grad=True),))
    graphed(torch.randn(8, 256, device="cuda", requires_grad=True)).sum().backward()
    torch.cuda.synchronize()
    return f"three graphs in one pool, make_graphed_callables; {torch.cuda.memory_reserved() // MIB} MiB reserved"


@step
def graphs_behind_streams():
    """Graphs of one pool, each with a block that another stream used: once that is done, the next graph has it."""
    nothing_left()
    pool = torch.cuda.graph_pool_handle()
    capturing, beside = torch.cuda.Stream(), torch.cuda.Stream()
    made, seen = [], []
    for _ in range(4):
        made.append(torch.cuda.CUDAGraph())
        with torch.cuda.stream(capturing):
            made[-1].capture_begin(pool=pool)  # torch.cuda.graph would empty the cache first
            block = torch.empty(8 * MIB, dtype=torch.uint8, device="cuda")
            seen.append(block.data_ptr())
            beside.wait_stream(capturing)
            with torch.cuda.stream(beside):
                block.add_(1)
                block.record_stream(beside)
            capturing.wait_stream(beside)
            del block
            made[-1].capture_end()
        torch.cuda.synchronize()
        torch.empty(1, device="cuda")  # PyTorch's own asks for its events here
    expect("addresses of the four blocks", len(set(seen)), 1)
    made.clear()
    nothing_left()
    return "four graphs, one block"


@step
def mem_pool():
    nothing_left()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = torch.empty(8 * MIB, dtype=torch.uint8, device="cuda")
    of_pool = sum(s["total_size"] for s in pool.snapshot())
    assert of_pool >= 8 * MIB, f"{of_pool} bytes in the pool"
    del inside, pool
    return f"{of_pool // MIB} MiB in a pool of its own"


@step
def linear_algebra():
    refused = []
    square = torch.eye(64, device="cuda")
    for name, run in (("fft", lambda: torch.fft.fft(square)), ("inverse", lambda: torch.linalg.inv(square)),
                      ("cholesky", lambda: torch.linalg.cholesky(square))):
        try:
            run()
            torch.cuda.synchronize()
        except RuntimeError as wrong:
            refused.append(f"{name} ({str(wrong).splitlines()[0][:60]})")
    assert not any(each.startswith("fft") for each in refused), refused
    return "fft runs; refused: " + (", ".join(refused) or "none")


@step
def random_and_sampling():
    nothing_left()
    torch.cuda.manual_seed(1)
    torch.randn(1000, device="cuda").normal_().exponential_()
    nn.functional.dropout(torch.ones(1000, device="cuda"), 0.5)
    torch.randperm(1000, device="cuda")
    torch.multinomial(torch.ones(10, device="cuda"), 3)
    torch.cuda.synchronize()
    return "randn, dropout, randperm, multinomial"


@step
def jiterated():
    torch.linspace(-0.5, 0.5, 100, device="cuda").erfinv()
    torch.special.zeta(torch.full((4,), 2.0, device="cuda"), 1.0)
    torch.cuda.synchronize()
    return "kernels that NVRTC compiles"


@step
def recurrent():
    nothing_left()
    model = nn.LSTM(64, 128, 2, batch_first=True)
    try:
        model.cuda()
        raise AssertionError("cuDNN's recurrent layers are not simulated, and one was made")
    except RuntimeError as wrong:
        assert "NOT_SUPPORTED" in str(wrong), wrong
    with torch.backends.cudnn.flags(enabled=False):
        model = nn.LSTM(64, 128, 2, batch_first=True).cuda()
        model(torch.randn(4, 10, 64, device="cuda"))[0].sum().backward()
    torch.cuda.synchronize()
    return "an LSTM by PyTorch's own kernels; cuDNN's says not supported"


@step
def data_loader():
    from torch.utils.data import DataLoader, TensorDataset

    loader = DataLoader(TensorDataset(torch.randn(64, 16)), batch_size=16, pin_memory=True, num_workers=1)
    seen = sum(batch.cuda(non_blocking=True).shape[0] for (batch,) in loader)
    expect("rows", seen, 64)
    return "a worker process and pinned batches"


# --- other environments ---------------------------------------------------------------------------------------------


@step
def expandable_segments():
    base = nothing_left()
    held = [torch.empty(3 * MIB, dtype=torch.uint8, device="cuda") for _ in range(10)]
    expect("allocated", torch.cuda.memory_allocated() - base, 30 * MIB)
    segments = [s for s in torch.cuda.memory_snapshot() if s["total_size"] >= 3 * MIB]
    assert segments and all(s["is_expandable"] for s in segments), "the segments are not expandable"
    reserved = torch.cuda.memory_reserved()
    held.clear()
    torch.cuda.empty_cache()
    model = gpt().cuda()
    train(model, torch.optim.AdamW(model.parameters()), 1)
    return f"{reserved // MIB} MiB reserved for 30 MiB"


@step
def cuda_malloc_async():
    expect("backend", torch.cuda.memory.get_allocator_backend(), "cudaMallocAsync")
    base = torch.cuda.memory_allocated()
    held = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
    expect("allocated", torch.cuda.memory_allocated() - base, 30 * MIB)
    del held
    model = gpt().cuda()
    train(model, torch.optim.AdamW(model.parameters()), 1)
    return f"peak {torch.cuda.max_memory_allocated() / MIB:.2f} MiB"


@step
def two_cards():
    expect("cards", torch.cuda.device_count(), 2)
    first, second = nn.Linear(1024, 1024).to("cuda:0"), nn.Linear(1024, 1024).to("cuda:1")
    x = torch.randn(64, 1024, device="cuda:0", requires_grad=True)
    second(first(x).to("cuda:1")).sum().backward()
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)
    held = [torch.cuda.memory_allocated(i) for i in (0, 1)]
    assert all(h > 8 * MIB for h in held), held
    assert torch.cuda.can_device_access_peer(0, 1), "no peer access"
    pool = torch.cuda.MemPool()  # made on the first card
    with torch.cuda.use_mem_pool(pool, 1):
        inside = torch.empty(5 * MIB, dtype=torch.uint8, device="cuda:1")
    expect("MiB on the second card in a pool of the first", live_in(pool.snapshot()), [5])
    at = inside.data_ptr()
    del inside
    outside = torch.empty(5 * MIB, dtype=torch.uint8, device="cuda:1")
    assert outside.data_ptr() != at, "the pool's free memory went to another"
    with torch.cuda.device(1):
        torch.cuda.empty_cache()
    expect("segments of the pool, idle, after empty_cache", len(pool.snapshot()), 0)
    return f"{held[0]} and {held[1]} bytes; a pool of one card used on the other"


@step
def fsdp_as_one_rank():
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    ranks = 8
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=ranks, device_id=torch.device("cuda:0"))
    model = gpt(width=256, layers=4).cuda()
    whole = sum(p.numel() for p in model.parameters()) * 4
    for each in model.blocks:
        fully_shard(each)
    fully_shard(model)
    nothing_left()
    shards = sum(p.to_local().numel() for p in model.parameters()) * 4
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, 2)
    left = nothing_left(workspaces=False)
    assert left < whole, f"{left} bytes stay, the whole model has {whole}"
    dist.destroy_process_group()
    assert shards <= whole / ranks * 1.05, f"{shards} bytes of shards of {whole}"
    return f"{shards} of {whole} bytes here, {left} with gradients and moments"


@step
def ddp_as_one_rank():
    """The gradients lie in buckets of DDP's own. Without init_sync: the check of the other ranks' parameters, which
    torch 2.11 passes here, reads zeros in 2.15."""
    import torch.distributed as dist

    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=8, device_id=torch.device("cuda:0"))
    model = gpt(width=256, layers=4).cuda()
    base = nothing_left(workspaces=False)
    before = requested()
    parallel = nn.parallel.DistributedDataParallel(model, device_ids=[0], init_sync=False, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    whole = sum(p.numel() for p in model.parameters()) * 4
    train(parallel, optimizer, 2)
    peak = torch.cuda.max_memory_allocated() - base
    for _ in range(8):  # the second step has new buckets; in torch 2.11 the first ones may stay for some steps
        nothing_left(workspaces=False)
        left = requested() - before
        if left <= whole * 1.05:
            break
        train(parallel, optimizer, 1)
    dist.destroy_process_group()
    assert whole <= left <= whole * 1.05, f"{left} bytes stay; expected the gradients' {whole} in buckets"
    return f"{left} bytes of buckets for {whole} of gradients, peak {peak / MIB:.2f} MiB above the model"


@step
def compiled():
    nothing_left()
    model = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256)).cuda()
    fast = torch.compile(model)
    fast(torch.randn(32, 256, device="cuda")).sum().backward()
    torch.cuda.synchronize()
    return "torch.compile with Triton, forward and backward"


# --- gpumem as PyTorch's allocator ------------------------------------------------------------------------------------


@step
def gpumem_enabled():
    import gpumem.torch

    expect("GPUMEM_TORCH=1 gives", gpumem.torch.how(), "allocator")
    expect("backend", torch.cuda.memory.get_allocator_backend(), "gpumem")
    model = gpt().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, 2)
    nothing_left(workspaces=False)
    expect("the gradient and two moments of each", requested(), 4 * exact(model.parameters()))
    return "a GPT's training, by the environment alone"


@step
def gpumem_statistics():
    base = nothing_left(workspaces=False)
    torch.cuda.reset_accumulated_memory_stats()
    free_before = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved()
    blocks = [torch.empty(n, dtype=torch.uint8, device="cuda") for n in (1, 513, 3 * MIB, 40 * MIB)]
    held = rounded(blocks)
    expect("allocated", torch.cuda.memory_allocated() - base, held)
    del blocks[3]
    expect("the peak of allocated", torch.cuda.max_memory_allocated() - base, held)
    seen = torch.cuda.memory_stats()
    expect("blocks", (seen["allocation.all.allocated"], seen["allocation.all.freed"]), (4, 1))
    expect("max_split_size, which nobody set", seen["max_split_size"], -1)
    segments = torch.cuda.memory_snapshot()
    for name, field in (("allocated_bytes", "allocated_size"), ("reserved_bytes", "total_size"),
                        ("active_bytes", "active_size")):
        expect(f"{name} by the snapshot", sum(s[field] for s in segments), seen[f"{name}.all.current"])
    expect("free memory of the card", torch.cuda.mem_get_info()[0], free_before - torch.cuda.memory_reserved())
    expect("torch.accelerator's word for it", (torch.accelerator.memory_allocated(), torch.accelerator.memory_reserved()),
           (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()))
    blocks.clear()
    torch.accelerator.empty_cache()
    expect("reserved once torch.accelerator emptied the cache", torch.cuda.memory_reserved() < 40 * MIB, True)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    now = torch.cuda.memory_reserved()
    expect("the peak of reserved, begun anew", torch.cuda.max_memory_reserved(), now)
    after = torch.cuda.memory_stats()
    taken, returned = after["reserved_bytes.all.allocated"], after["reserved_bytes.all.freed"]
    assert taken >= 43 * MIB and after["segment.all.current"] <= len(segments), f"{taken} bytes taken"
    assert taken - returned <= now, f"{taken} taken, {returned} returned, {now} reserved"
    assert after["num_device_alloc"] > 0, "no call for memory was counted"
    torch.cuda.reset_accumulated_memory_stats()
    for name in ("num_device_alloc", "num_device_free", "num_sync_all_streams"):
        expect(f"{name}, begun anew", torch.cuda.memory_stats()[name], 0)
    return f"{held} bytes in four blocks, {len(segments)} segments; {taken // MIB} MiB taken, {returned // MIB} MiB returned"


@step
def gpumem_snapshot():
    from torch.cuda import _memory_viz

    nothing_left(workspaces=False)
    began = time.time() * 1e6 - MIB  # a second, by two clocks
    torch.cuda.memory._record_memory_history(max_entries=1000, stacks="python")

    def here(elements):
        return torch.empty(elements, dtype=torch.uint8, device="cuda")

    kept, gone = here(3 * MIB), here(600 * MIB)
    at = kept.data_ptr()
    del gone
    torch.cuda.empty_cache()
    seen = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(enabled=None)
    actions = [each["action"] for each in seen["device_traces"][0]]
    for name in ("segment_alloc", "alloc", "free_requested", "free_completed", "segment_free"):
        assert name in actions or name.replace("_alloc", "_map").replace("_free", "_unmap") in actions, actions
    assert actions.index("alloc") > 0, "the segment comes before its block"
    for each in seen["device_traces"][0]:
        if each["action"] != "snapshot":
            expect(f"the time of {each}", began <= each["time_us"] <= time.time() * 1e6 + MIB, True)
            assert any(f["name"] == "gpumem_snapshot" for f in each["frames"]), f"no frame of what led to {each}"
    told = seen["allocator_settings"]
    mapped = "expandable" in os.environ.get("GPUMEM_POLICY", "") or os.environ.get("GPUMEM_BACKING") == "mapped"
    expect("settings", [told[name] for name in ("expandable_segments", "garbage_collection_threshold",
                                                "pinned_num_register_threads", "release_lock_on_cudamalloc")],
           [mapped, 0, 1, False])
    (block,) = [b for s in seen["segments"] for b in s["blocks"] if b["address"] == at]
    expect("its size and state", (block["requested_size"], block["state"]), (3 * MIB, "active_allocated"))
    assert any(f["name"] == "here" for f in block["frames"]), "no frame of the function that allocated it"
    page = _memory_viz.trace_plot(seen)
    text = _memory_viz.segsum(seen) + _memory_viz.trace(seen)
    assert "memory_viz" in page.lower() or len(page) > 1000
    return f"{len(actions)} events, frames, {len(page) // 1024} KiB of page, {len(text.splitlines())} lines of text"


@step
def gpumem_out_of_memory():
    nothing_left(workspaces=False)
    total = torch.cuda.mem_get_info()[1]
    kept = torch.empty(MIB, dtype=torch.uint8, device="cuda")
    before = torch.cuda.memory_stats()["num_ooms"]
    try:
        torch.empty(total, dtype=torch.uint8, device="cuda")
        raise AssertionError("more than the card has was given")
    except torch.OutOfMemoryError as refused:
        text = str(refused)
    first, report = text.split("\n", 1)
    assert first.startswith("CUDA out of memory. Tried to allocate 79.18 GiB. GPU 0 has a total capacity of"), first
    assert "is allocated by PyTorch" in first, first
    assert "allowed" not in first and "private pools" not in first, first
    assert report.startswith("gpumem: out of memory on pool 0"), report
    expect("out of memory", torch.cuda.memory_stats()["num_ooms"] - before, 1)
    torch.cuda.set_per_process_memory_fraction(0.01)
    try:
        torch.empty(1024 * MIB, dtype=torch.uint8, device="cuda")
        raise AssertionError("more than the fraction was given")
    except torch.OutOfMemoryError as refused:
        assert str(refused).startswith("CUDA out of memory. Tried to allocate 1024.00 MiB."), refused
    torch.cuda.set_per_process_memory_fraction(1.0)
    del kept
    import importlib.util

    if importlib.util.find_spec("accelerate") is None:
        return "OutOfMemoryError; accelerate is not installed"
    from accelerate.utils import find_executable_batch_size

    tried = []

    @find_executable_batch_size(starting_batch_size=64)
    def run(batch):
        tried.append(batch)
        return torch.empty(batch * (3 << 30), dtype=torch.uint8, device="cuda").numel()

    run()
    assert tried[0] == 64 and 20 <= tried[-1] <= 26, tried
    return f"OutOfMemoryError; accelerate went from 64 to {tried[-1]} in {len(tried)} tries"


@step
def eight_graphs_in_one_pool():
    """One graph for each batch size, the largest first, as inference servers have them. Natively first: with
    LADDER_NATIVE, a file, that run notes what it reserved, and one with gpumem is held to 5 % more."""
    nothing_left(workspaces=False)
    before = torch.cuda.memory_reserved()
    pool, made = torch.cuda.graph_pool_handle(), []
    for batch in range(8, 0, -1):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            x = torch.empty(batch * 8 * MIB, device="cuda")
            for _ in range(4):
                x = x + 1
            made.append((graph, x[:16].clone()))
            del x
    reserved = torch.cuda.memory_reserved() - before
    outside = torch.empty(64 * MIB, device="cuda")
    for graph, output in made:
        graph.replay()
    torch.cuda.synchronize()
    del outside, graph, output
    made.clear()
    torch.cuda.synchronize()
    left = nothing_left(workspaces=False)
    assert torch.cuda.memory_reserved() <= before + 20 * MIB, f"{torch.cuda.memory_reserved()} bytes stay with no graph"
    note = os.environ.get("LADDER_NATIVE")
    if note and torch.cuda.memory.get_allocator_backend() == "native":
        with open(note, "w") as out:
            print(reserved, file=out)
    elif note:
        with open(note) as of:
            native = int(of.read())
        assert reserved <= native * 1.05, f"{reserved} bytes reserved, natively {native}"
        return f"{reserved // MIB} MiB, natively {native // MIB} MiB; {left} bytes left"
    return f"{reserved // MIB} MiB; {left} bytes left"


@step
def graphs_with_small_results():
    """What a graph leaves is small and lies in its pool, in nobody's way: three tensors are live at once in each graph.
    Natively the pool has them and 2 MiB for all that is small."""
    nothing_left(workspaces=False)
    x, pool, made = torch.empty(32 * MIB, dtype=torch.uint8, device="cuda"), torch.cuda.graph_pool_handle(), []
    for _ in range(8):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            y = x + 1
            z = y * 2
            w = z + y
            del y, z
            made.append((graph, w[:16].clone()))
            del w
    held = sum(s["total_size"] for s in torch.cuda.memory_snapshot(pool))
    assert 96 * MIB <= held <= 98 * 1.05 * MIB, f"the pool has {held} bytes"
    made.clear()
    del graph, x
    return f"{held / MIB:.1f} MiB in the pool of eight graphs; {nothing_left(workspaces=False)} bytes left"


@step
def record_stream_and_referee():
    """The driver's double knows who may still touch which bytes: 4 threads with 3 streams each hand tensors from stream
    to stream, as FSDP does. With SIMCUDA_REFEREE=1."""
    import ctypes
    import random
    import threading

    double = ctypes.CDLL("libcuda.so.1")
    double.simcuda_hazards.restype = ctypes.c_uint64
    u64, pointer = ctypes.c_uint64, ctypes.c_void_p

    def hand_around(seed, records, rounds=150):
        dice = random.Random(seed)
        streams = [torch.cuda.Stream() for _ in range(3)]
        held = []
        for _ in range(rounds):
            maker, reader = dice.sample(streams, 2)
            with torch.cuda.stream(maker):
                block = torch.empty(dice.choice((1000, MIB, 5 * MIB)), dtype=torch.uint8, device="cuda")
            at, bytes_ = block.data_ptr(), block.numel()
            double.simcuda_handed_out(u64(at), u64(bytes_), pointer(maker.cuda_stream))
            double.simcuda_use(pointer(maker.cuda_stream), u64(20_000), u64(at), u64(bytes_))
            reader.wait_stream(maker)
            double.simcuda_use(pointer(reader.cuda_stream), u64(500_000), u64(at), u64(bytes_))
            if records:
                block.record_stream(reader)
            held.append(block)
            del block
            while len(held) > dice.randrange(4):
                gone = held.pop(0)
                double.simcuda_given_back(u64(gone.data_ptr()))
                del gone
        for gone in held:
            double.simcuda_given_back(u64(gone.data_ptr()))

    def hazards(records):
        before = double.simcuda_hazards()
        threads = [threading.Thread(target=hand_around, args=(seed, records)) for seed in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        torch.cuda.synchronize()
        return double.simcuda_hazards() - before

    expect("hazards", hazards(True), 0)
    without = hazards(False)
    assert without > 0, "the referee saw nothing where record_stream was left out"
    return f"none in 600 tensors; {without} where record_stream is left out"


@step
def referee_of_a_training():
    """`gpumem simulate --referee` on plain PyTorch: a step whose copies to the host have a stream of their own, with and
    without record_stream. Each hazard is at the line that makes the next block."""
    import ctypes

    double = ctypes.CDLL("libcuda.so.1")
    double.simcuda_hazards.restype = ctypes.c_uint64
    double.simcuda_hazard_place.restype = ctypes.c_char_p
    nothing_left()
    model = gpt(width=64, layers=2).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    side = torch.cuda.Stream()

    def offload(records):
        total = torch.zeros((), device=side.device)
        for _ in range(4):
            block = torch.ones(5 * MIB, dtype=torch.uint8, device="cuda")
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                total = block.sum()
            if records:
                block.record_stream(side)
            del block
        return total

    before = double.simcuda_hazards()
    train(model, optimizer, 2)
    offload(True)
    torch.cuda.synchronize()
    expect("hazards of a training and of recorded uses", double.simcuda_hazards() - before, 0)
    offload(False)
    torch.cuda.synchronize()
    found = double.simcuda_hazards() - before
    assert found == 3, f"{found} hazards without record_stream; expected one for each block but the first"
    line = offload.__code__.co_firstlineno + 3
    place = double.simcuda_hazard_place(ctypes.c_uint64(0)).decode()
    assert place.endswith(f"torch_ladder.py:{line} in offload"), f"{place}; expected line {line}"
    return f"none in a training and with record_stream; without it {found}, at torch_ladder.py:{line}"


@step
def pools_of_their_own():
    """MemPool: shared by name, released, with an allocator of its own, nested."""
    nothing_left(workspaces=False)
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        first = torch.empty(8 * MIB, dtype=torch.uint8, device="cuda")
        at = first.data_ptr()
        del first
        again = torch.empty(8 * MIB, dtype=torch.uint8, device="cuda")
        expect("the pool's memory serves it again", again.data_ptr(), at)
    outside = torch.empty(8 * MIB, dtype=torch.uint8, device="cuda")
    assert outside.data_ptr() != at
    expect("users of the pool", pool.use_count(), 1)
    del again
    after = torch.empty(8 * MIB, dtype=torch.uint8, device="cuda")
    assert after.data_ptr() != at, "the pool's free memory went to another"
    del pool, outside, after
    nothing_left(workspaces=False)
    expect("reserved with no pool", torch.cuda.memory_reserved(), 0)
    import gpumem

    own = torch.cuda.memory.CUDAPluggableAllocator(str(gpumem.library()), "gpumem_torch_alloc", "gpumem_torch_free")
    pool = torch.cuda.MemPool(own.allocator())
    with torch.cuda.use_mem_pool(pool):
        theirs = torch.empty(8 * MIB, dtype=torch.uint8, device="cuda")
    allocated = torch.cuda.memory_allocated()
    expect("allocated through the pool's own allocator", allocated, 8 * MIB)
    before, told = torch.cuda.memory_stats()["num_ooms"], []
    torch._C._cuda_attach_out_of_memory_observer(lambda *of, told=told: told.append(of[1]))
    torch.cuda.set_per_process_memory_fraction(0.01)
    try:
        with torch.cuda.use_mem_pool(pool):
            torch.empty(1000 * MIB, dtype=torch.uint8, device="cuda")
        raise AssertionError("the pool's own allocator gave more than the fraction")
    except torch.OutOfMemoryError as refused:
        assert "Tried to allocate 1000.00 MiB. GPU 0 has a total capacity of" in str(refused), refused
        assert "\ngpumem: out of memory on pool 0" in str(refused), refused
    torch.cuda.set_per_process_memory_fraction(1.0)
    expect("told of it", (told, torch.cuda.memory_stats()["num_ooms"] - before), ([1000 * MIB], 1))
    beside = torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")
    together = torch.cuda.memory_reserved()
    del theirs, pool, beside
    torch.cuda.empty_cache()
    expect("the peak of all that was reserved", torch.cuda.max_memory_reserved() >= together, True)
    nothing_left(workspaces=False)
    expect("left of it", (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()), (0, 0))

    def block(mebibytes):
        return torch.empty(mebibytes * MIB, dtype=torch.uint8, device="cuda")

    outer, inner, graph, kept = torch.cuda.MemPool(), torch.cuda.MemPool(), torch.cuda.CUDAGraph(), []
    with torch.cuda.use_mem_pool(outer):
        with torch.cuda.use_mem_pool(inner):
            kept.append(block(1))
        kept.append(block(3))
        with torch.cuda.graph(graph):
            kept.append(block(5))
    pools = {"inner": inner.id, "outer": outer.id, "graph": graph.pool()}
    seen = {name: live_in(torch.cuda.memory.memory_snapshot(of)) for name, of in pools.items()}
    expect("MiB in nested pools", seen, {"inner": [1], "outer": [3], "graph": [5]})
    try:
        block(200 << 10)
        raise AssertionError("200 GiB were given")
    except torch.OutOfMemoryError as refused:
        first = str(refused).split("\n")[0]
    held = sum(s["total_size"] for s in torch.cuda.memory_snapshot() if s["segment_pool_id"] != (0, 0))
    assert f"PyTorch, with {held / MIB:.2f} MiB allocated in private pools (e.g., CUDA Graphs), and " in first, first
    try:
        torch._C._cuda_getCheckpointState(0, (77, 1))
        raise AssertionError("a state of a pool that never was")
    except RuntimeError as refused:
        assert "Could not find pool of id" in str(refused), refused
    del graph, outer, inner
    kept.clear()
    nothing_left(workspaces=False)
    expect("reserved with no pool", torch.cuda.memory_reserved(), 0)
    if not torch.__version__.startswith("2.11."):  # it has no statistics by pool
        after = torch.cuda.memory_stats()
        by_pool = {name: [after[key] for key in after if f".{of[0]}_{of[1]}." in key and key.endswith("all.current")]
                   for name, of in pools.items()}
        expect("reserved by pools that are gone", by_pool, {name: [0] for name in pools})
    return "reuse inside, none outside, all returned; a pool with an allocator of its own; nested, with a graph inside"


@step
def exact_addresses():
    """A storage gives its memory up and takes it again where it was, as offloading does; in a MemPool and outside."""
    if not hasattr(torch.UntypedStorage, "_resize_with_addr_"):
        return "this torch has no _resize_with_addr_"
    import contextlib

    pool = torch.cuda.MemPool()

    def here():
        return torch.cuda.use_mem_pool(pool)

    for where in (here, contextlib.nullcontext):
        with where():
            held = [torch.empty(n, dtype=torch.uint8, device="cuda") for n in (4096, 4096, 3 * MIB, 40 * MIB)]
            stand = [(h.untyped_storage().data_ptr(), h.untyped_storage().nbytes()) for h in held]
            for h in reversed(held):
                h.untyped_storage().resize_(0)
            for h, (at, size) in zip(held, stand):
                h.untyped_storage()._resize_with_addr_(size, at)
                expect("the address", h.untyped_storage().data_ptr(), at)
            held[0].untyped_storage().resize_(0)
            for place, words in ((stand[1][0], "exact address"), (stand[0][0] + 1, "aligned")):
                allocated = torch.cuda.memory_allocated()
                try:
                    held[0].untyped_storage()._resize_with_addr_(4096, place)
                except RuntimeError as refused:
                    assert words in str(refused), refused
                else:
                    raise AssertionError(f"a block at {place:#x}, where none may be")
                expect("allocated after the refusal", torch.cuda.memory_allocated(), allocated)
            del held, h
    return "four sizes at their addresses in a MemPool and outside; an occupied and an odd address are refused"


@step
def compiled_with_graphs():
    """Graph trees: torch.compile(mode="reduce-overhead"), which puts its pool back to checkpoints."""
    nothing_left(workspaces=False)
    torch._inductor.config.triton.slow_path_cudagraph_asserts = True
    torch._inductor.config.triton.fast_path_cudagraph_asserts = True
    model = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256)).cuda()
    fast = torch.compile(model, mode="reduce-overhead")
    for batch in (32, 32, 32, 48, 48, 48, 32, 32):
        torch.compiler.cudagraph_mark_step_begin()
        model.zero_grad(set_to_none=True)
        fast(torch.randn(batch, 256, device="cuda")).sum().backward()
    with torch.no_grad():
        for batch in (32, 32, 48, 48, 32):
            torch.compiler.cudagraph_mark_step_begin()
            kept = fast(torch.randn(batch, 256, device="cuda"))
            fast(kept)  # a second graph behind the first
    torch.cuda.synchronize()
    trees = torch._inductor.cudagraph_trees
    made = trees.get_container(0).tree_manager.new_graph_id().id
    assert made > 3, f"{made} graphs were recorded"
    return f"{made} graphs in one tree's pool, forward, backward and two in a row"


@step
def gpumem_by_hooks():
    library = os.environ["LADDER_GPUMEM"]
    allocator = torch.cuda.memory.CUDAPluggableAllocator(library, "gpumem_torch_alloc", "gpumem_torch_free")
    torch.cuda.memory.change_current_allocator(allocator)
    expect("backend", torch.cuda.memory.get_allocator_backend(), "pluggable")
    model = gpt().cuda()
    train(model, torch.optim.AdamW(model.parameters()), 2)
    return "a GPT's training over gpumem_torch_alloc"


@step
def gpumem_in_front():
    base = nothing_left()
    held = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
    expect("allocated", torch.cuda.memory_allocated() - base, 30 * MIB)
    del held
    model = gpt().cuda()
    train(model, torch.optim.AdamW(model.parameters()), 2)
    return f"peak {torch.cuda.max_memory_allocated() / MIB:.2f} MiB, segments served by gpumem"


OTHER_ENVIRONMENTS = ("expandable_segments", "cuda_malloc_async", "two_cards", "fsdp_as_one_rank", "ddp_as_one_rank",
                      "compiled", "gpumem_by_hooks", "gpumem_in_front", "gpumem_enabled", "gpumem_statistics",
                      "gpumem_snapshot", "gpumem_out_of_memory", "record_stream_and_referee", "referee_of_a_training",
                      "pools_of_their_own", "exact_addresses", "compiled_with_graphs",
                      *torch_ladder_users.STEPS, *torch_ladder_throwing.STEPS, *torch_ladder_enabling.STEPS,
                      *torch_ladder_pools.STEPS, *torch_ladder_segments.STEPS, *torch_ladder_ranks.STEPS,
                      *torch_ladder_values.STEPS)
POOLS = torch_ladder_pools.ONE_CARD + torch_ladder_segments.ONE_CARD
GPUMEM_ONLY = torch_ladder_pools.GPUMEM_ONLY + torch_ladder_segments.GPUMEM_ONLY


def main():
    names = sys.argv[1:] or [name for name in STEPS if name not in OTHER_ENVIRONMENTS]
    if names == ["--list"]:
        lists = {"usual": [name for name in STEPS if name not in OTHER_ENVIRONMENTS], "pools": POOLS,
                 "native-pools": [name for name in POOLS if name not in GPUMEM_ONLY], "values": torch_ladder_values.STEPS}
        for name in STEPS:
            print(name, *(each for each, members in lists.items() if name in members))
        return 0
    unknown = [name for name in names if name not in STEPS]
    if unknown:
        print(f"torch_ladder.py: no step {unknown[0]}; --list names them", file=sys.stderr)
        return 2
    failed = 0
    for name in names:
        begun = time.monotonic()
        try:
            seen = STEPS[name]()
            print(f"pass {name}: {seen} [{time.monotonic() - begun:.1f} s]", flush=True)
        except Exception as wrong:
            failed += 1
            reason = (str(wrong).splitlines() or [type(wrong).__name__])[0]
            print(f"FAIL {name}: {type(wrong).__name__}: {reason}", flush=True)
            if os.environ.get("LADDER_TRACEBACKS"):
                traceback.print_exc()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
