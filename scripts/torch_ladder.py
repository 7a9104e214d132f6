#!/usr/bin/env python3
"""PyTorch on the simulated card, step by step, each with a result that is known beforehand.

    gpumem simulate --card h100 -- python3 scripts/torch_ladder.py [--list] [STEP...]

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

MIB = 1 << 20
STEPS = {}


def step(function):
    STEPS[function.__name__] = function
    return function


def expect(name, seen, wanted):
    assert seen == wanted, f"{name} is {seen}, expected {wanted}"


def rounded(tensors):
    """What PyTorch counts for them: each a multiple of 512 bytes."""
    return sum((t.numel() * t.element_size() + 511) // 512 * 512 for t in tensors)


def requested():
    """Bytes of all tensors on the card, by their own sizes."""
    return torch.cuda.memory_stats()["requested_bytes.all.current"]


def exact(tensors):
    return sum(t.numel() * t.element_size() for t in tensors)


def nothing_left():
    gc.collect()
    torch.cuda.synchronize()
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
    torch.zeros(8, 8, device="cuda") @ torch.zeros(8, 8, device="cuda")  # the library's handle is made
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
    nothing_left()
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
    torch.cuda.synchronize()
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
    base = nothing_left()
    before = requested()
    model = gpt().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, 2)
    wanted = 4 * exact(model.parameters())  # the gradient and two moments of each
    expect("after two steps", requested() - before, wanted)
    peak = torch.cuda.max_memory_allocated()
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
    nothing_left()
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
    try:
        torch.empty(24 << 30, dtype=torch.uint8, device="cuda")
        raise AssertionError("24 GiB were given under a fraction of 0.25")
    except torch.cuda.OutOfMemoryError:
        pass
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    return "24 GiB refused under 0.25"


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
    return f"{held[0]} and {held[1]} bytes"


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
    left = torch.cuda.memory_allocated()
    assert left < whole, f"{left} bytes stay, the whole model has {whole}"
    dist.destroy_process_group()
    assert shards <= whole / ranks * 1.05, f"{shards} bytes of shards of {whole}"
    return f"{shards} of {whole} bytes here, {left} with gradients and moments"


@step
def compiled():
    nothing_left()
    model = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256)).cuda()
    fast = torch.compile(model)
    fast(torch.randn(32, 256, device="cuda")).sum().backward()
    torch.cuda.synchronize()
    return "torch.compile with Triton, forward and backward"


@step
def gpumem_as_allocator():
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


OTHER_ENVIRONMENTS = ("expandable_segments", "cuda_malloc_async", "two_cards", "fsdp_as_one_rank", "compiled",
                      "gpumem_as_allocator", "gpumem_in_front")


def main():
    names = sys.argv[1:] or [name for name in STEPS if name not in OTHER_ENVIRONMENTS]
    if names == ["--list"]:
        print("\n".join(STEPS))
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
