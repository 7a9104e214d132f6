"""Steps of torch_ladder.py about values: small operations are computed on the simulated card (`gpumem simulate --values`).

    gpumem simulate -- python3 tests/frameworks/torch_ladder_values.py events | training    # what a step runs in a process of its own
"""
import ctypes
import gc
import os
import subprocess
import sys
import time

import torch
from torch import nn

import torch_operations
from ladder_steps import Steps, expect

STEPS = Steps()
step = STEPS.step

SEEDS = (1, 2, 3)
BOUND = 16384  # elements


def driver():
    return ctypes.CDLL(os.environ["SIMCUDA_DRIVER"])


def are_true(tensor):
    """Whether the simulated card has the values that a card would have."""
    at, size = tensor.data_ptr(), tensor.numel() * tensor.element_size()
    return driver().simcuda_values_are_true(ctypes.c_uint64(at), ctypes.c_uint64(size)) == 1


def as_bytes(tensor):
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def difference(name, operation, seed):
    """Between the card and the CPU; empty: there is none. Sums of products may be taken in another order."""
    wanted = operation(torch_operations.Inputs("cpu", seed))
    seen = operation(torch_operations.Inputs("cuda", seed))
    if seen.device.type != "cuda":
        return f"{name}: the result is on {seen.device}"
    if (seen.shape, seen.dtype) != (wanted.shape, wanted.dtype):
        return f"{name}: {tuple(seen.shape)} of {seen.dtype}, expected {tuple(wanted.shape)} of {wanted.dtype}"
    if as_bytes(seen) != as_bytes(wanted) and name not in ORDERED_OTHERWISE:
        return f"{name}: {seen.flatten()[:4].tolist()}, expected {wanted.flatten()[:4].tolist()}"
    if not torch.allclose(seen.cpu(), wanted, equal_nan=True):
        return f"{name}: {seen.flatten()[:4].tolist()}, expected about {wanted.flatten()[:4].tolist()}"
    return "" if are_true(seen) or seen.numel() == 0 else f"{name}: the result counts as untrue"


# PyTorch composes these of other operations on a card than on the CPU.
ORDERED_OTHERWISE = ()


@step
def values_of_operations():
    found = torch_operations.operations()
    assert len(found) >= 200, f"{len(found)} operations, expected 200 at least"
    wrong = []
    for name, operation in found.items():
        for seed in SEEDS:
            try:
                told = difference(name, operation, seed)
            except Exception as raised:
                told = f"{name}: {type(raised).__name__}: {raised}"
            if told:
                wrong.append(told)
                break
    assert not wrong, f"{len(wrong)} of {len(found)} operations differ from the CPU: " + "; ".join(wrong)
    return f"{len(found)} operations on {len(SEEDS)} inputs each have the CPU's bytes"


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.attention(self.first(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = (each.transpose(1, 2) for each in parts.unbind(2))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


class Language(nn.Module):
    def __init__(self, vocabulary, width=768, layers=12, heads=12, length=256):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def train_once(model, optimizer, tokens):
    optimizer.zero_grad(set_to_none=True)
    logits = model(tokens[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss


def events_of_a_run():
    """Every allocation and free of operations whose results' sizes are no values, and of two training steps."""
    torch.cuda.memory._record_memory_history(max_entries=1 << 20, stacks="python", context=None)
    torch.manual_seed(1)
    for name, operation in torch_operations.operations().items():
        if name in torch_operations.SIZED_BY_VALUES:
            continue
        try:
            operation(torch_operations.Inputs("cuda", 1))
        except RuntimeError as raised:
            print(f"{name}: {raised}")
    model = Language(1000, 64, 2, 4, 64).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        train_once(model, optimizer, torch.randint(1000, (2, 33), device="cuda"))
    del model, optimizer
    gc.collect()
    return [(each["action"], each["size"]) for each in torch.cuda.memory._snapshot()["device_traces"][0]]


def in_a_process(what, elements):
    ran = subprocess.run([sys.executable, "-W", "ignore", os.path.abspath(__file__), what], capture_output=True, text=True,
                         env={**os.environ, "SIMCUDA_VALUES": str(elements)}, check=False)
    assert ran.returncode == 0, ran.stderr[-600:]
    return ran.stdout


@step
def values_change_no_allocation():
    without, with_values = in_a_process("events", 0), in_a_process("events", BOUND)
    seen, wanted = with_values.splitlines(), without.splitlines()
    for number, (one, other) in enumerate(zip(seen, wanted)):
        assert one == other, f"event {number} is {one}, without values {other}"
    expect("events", len(seen), len(wanted))
    assert len(seen) > 500, f"{len(seen)} events"
    return f"{len(seen)} events of PyTorch's allocator are equal with and without values"


@step
def values_have_marks():
    small = torch.arange(8, device="cuda") * 2
    assert are_true(small), "a computed tensor counts as untrue"
    large = torch.randn(BOUND * 8, device="cuda")
    assert not are_true(large), "a large tensor that nothing computed counts as true"
    expect("a part of it", large[:4].tolist(), [0.0] * 4)
    assert not are_true(large[:4] + 1), "a value of untrue ones counts as true"
    expect("one more", (large[:4] + 1).tolist(), [1.0] * 4)
    zeros = torch.zeros(BOUND * 8, device="cuda")
    assert are_true(zeros), "zeros count as untrue"
    kernels = driver()
    expect("a launch", kernels.cuLaunchKernel(None, 1, 1, 1, 1, 1, 1, 0, None, None, None), 0)
    assert not are_true(small), "behind a kernel that nobody knows, a tensor still counts as true"
    expect("its bytes", small.tolist(), list(range(0, 16, 2)))
    return "true where computed, zero and untrue where not, untrue behind an unknown kernel"


@step
def values_change_once():
    counter = torch.zeros(1, device="cuda")
    for _ in range(5):
        counter += 1
    expect("five additions", counter.item(), 5.0)
    table = torch.zeros(4, device="cuda")
    table.index_put_((torch.tensor([1, 1, 3], device="cuda"),), torch.ones(3, device="cuda"), accumulate=True)
    expect("accumulated", table.tolist(), [0.0, 2.0, 0.0, 1.0])
    steps = [torch.zeros((), device="cuda") for _ in range(3)]
    torch._foreach_add_(steps, 1)
    expect("a list's", [each.item() for each in steps], [1.0] * 3)
    mixed = [torch.zeros(3, device="cuda"), torch.zeros(BOUND * 2, device="cuda")]
    torch._foreach_add_(mixed, 2)
    expect("the small one of a list", mixed[0].tolist(), [2.0] * 3)
    pinned = torch.zeros(3, dtype=torch.int64).pin_memory()
    pinned.copy_(torch.arange(3, device="cuda") + 5, non_blocking=True)
    torch.cuda.synchronize()
    expect("pinned memory", pinned.tolist(), [5, 6, 7])
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        counter *= 3
    side.synchronize()
    expect("on another stream", counter.item(), 15.0)
    return "additions, lists, copies to pinned memory and other streams' work are done once"


@step
def values_of_random_operations():
    own = torch.random.get_rng_state()
    torch.cuda.manual_seed(7)
    first = [torch.rand(100, device="cuda"), torch.randn(100, device="cuda"), torch.randint(9, (100,), device="cuda"),
             torch.randperm(50, device="cuda"), torch.rand(100, device="cuda")]
    assert 0 <= first[0].min().item() < first[0].max().item() < 1, "rand is not between 0 and 1"
    assert first[1].std().item() > 0.5, "randn has no spread"
    expect("randint within", bool((first[2] < 9).all()), True)
    expect("randperm", sorted(first[3].tolist()), list(range(50)))
    assert not torch.equal(first[0], first[4]), "two random tensors are equal"
    torch.cuda.manual_seed(7)
    expect("rand with the same seed", torch.equal(torch.rand(100, device="cuda"), first[0]), True)
    weights = torch.tensor([0.0, 1.0, 0.0], device="cuda")
    expect("multinomial", torch.multinomial(weights, 4, replacement=True).tolist(), [1] * 4)
    kept = nn.functional.dropout(torch.ones(1000, device="cuda"), 0.25)
    assert 600 < int((kept != 0).sum()) < 900, f"dropout keeps {int((kept != 0).sum())} of 1000"
    assert torch.equal(torch.random.get_rng_state(), own), "the CPU's generator has moved"
    return "seeded from the card's generator; the CPU's does not move"


@step
def values_of_untrue_indices():
    untrue = torch.randn(BOUND * 8, device="cuda")[:4].long()
    table = torch.arange(5.0, device="cuda")
    found = table[untrue + 99]
    expect("beyond the end", found.tolist(), [4.0] * 4)
    assert not are_true(found), "what an untrue index finds counts as true"
    expect("gathered", table.gather(0, untrue - 7).tolist(), [0.0] * 4)
    try:
        table.cpu()[untrue.cpu() + 99]
    except IndexError:
        return "clamped to the table's ends; the CPU refuses them"
    raise AssertionError("the CPU accepts an index beyond the end: nothing is shown")


@step
def values_behind_graphs():
    given, kept = torch.ones(4, device="cuda"), torch.full((4,), 5.0, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = given * 2
    assert are_true(kept), "a capture makes other values untrue"
    graph.replay()
    assert not are_true(made), "a replayed kernel's result counts as true"
    assert not are_true(kept), "behind a replay, which may have written anywhere, a value counts as true"
    expect("other values", kept.tolist(), [5.0] * 4)
    expect("a sum from then on", (torch.ones(4, device="cuda") + 1).tolist(), [2.0] * 4)
    return "captured operations are not computed, and nothing is true behind a replay"


def generate(model, tokens, end, most):
    """As libraries generate: what has ended is filled up, and the loop looks at values of the card."""
    running = torch.ones(tokens.shape[0], dtype=torch.long, device=tokens.device)
    while True:
        following = model(tokens)[:, -1].argmax(-1)
        following = following * running + end * (1 - running)
        tokens = torch.cat([tokens, following[:, None]], 1)
        full = torch.full((tokens.shape[0],), tokens.shape[1] >= most, device=tokens.device)
        running = running & ~(torch.isin(following, end) | full)
        if running.max() == 0:
            return tokens


@step
def values_end_a_generation():
    torch.manual_seed(3)
    model = Language(50, 16, 1, 2, 64).eval()
    start = torch.randint(50, (2, 4))
    with torch.no_grad():
        wanted = generate(model, start, torch.tensor(7), 40)
        model, start = model.cuda(), start.cuda()
        seen = generate(model, start, torch.tensor(7, device="cuda"), 40)
    expect("tokens", seen.tolist(), wanted.tolist())
    with torch.no_grad():  # the logits are too large: what is generated is untrue, but the loop ends at the length
        large = Language(50257, 16, 1, 2, 64).cuda().eval()
        tokens = generate(large, torch.randint(50257, (2, 4), device="cuda"), torch.tensor(50256, device="cuda"), 40)
    expect("shape", tuple(tokens.shape), (2, 40))
    return f"{seen.shape[1]} tokens as on the CPU; 40 where the logits are not computed"


@step
def values_of_a_training():
    """A small model learns as on the CPU."""
    def losses(device):
        torch.manual_seed(5)
        model, inputs = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)), torch.randn(64, 8)
        model, inputs = model.to(device), inputs.to(device)
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)
        out = []
        for _ in range(20):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs).squeeze(1), inputs.sum(1))
            loss.backward()
            optimizer.step()
            out.append(loss.item())
        return out

    wanted, seen = losses("cpu"), losses("cuda")
    worst = max(abs(one - other) for one, other in zip(seen, wanted))
    assert worst < 1e-4 and seen[-1] < seen[0] / 2, f"losses {seen[0]}, {seen[-1]}; expected {wanted[0]}, {wanted[-1]}"
    return f"a loss falls from {seen[0]:.3f} to {seen[-1]:.3f}, as on the CPU"


def time_a_training():
    """Seconds of processor time for a step, without values and then with them, in one process."""
    import gpumem_values

    model = Language(50257).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(50257, (8, 257), device="cuda")

    def seconds():
        taken = []
        for _ in range(15):
            begin = time.process_time()
            train_once(model, optimizer, tokens)
            torch.cuda.synchronize()
            taken.append(time.process_time() - begin)
        return min(taken)  # the least disturbed one

    seconds()
    without = seconds()
    os.environ["SIMCUDA_VALUES"] = str(BOUND)
    gpumem_values.compute(torch)
    assert "operations" in gpumem_values.figures, gpumem_values.figures
    seconds()
    return without, seconds()


@step
def values_take_time():
    without, with_values = (float(each) for each in in_a_process("training", 0).split())
    assert with_values < 3 * without, f"{with_values / without:.1f} times the processor time of a step without values"
    return f"a step of GPT-2: {1000 * with_values:.0f} ms of processor time, {1000 * without:.0f} without values"


def main(what):
    if what == "events":
        for action, size in events_of_a_run():
            print(action, size)
    elif what == "training":
        print(*time_a_training())
    else:
        sys.exit(f"torch_ladder_values.py {what}: expected events or training")


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]))
