"""Steps of the ladder with several ranks over NCCL, each started by torchrun on simulated cards of its own.

As a program, one rank: `torch_ladder_ranks.py STEP`.
"""
import os
import pickle
import subprocess
import sys

import torch
from torch import nn

from ladder_steps import Steps, expect

STEPS = Steps()
step = STEPS.step


def run_ranks(name, ranks):
    """The line of the first rank. The cards are those of this process's run."""
    ran = subprocess.run([sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone",
                          f"--nproc_per_node={ranks}", os.path.abspath(__file__), name],
                         capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)
    lines = [line for line in ran.stdout.splitlines() if line.startswith("rank 0: ")]
    assert ran.returncode == 0 and len(lines) == 1, f"status {ran.returncode}: {ran.stdout} {ran.stderr[-2000:]}"
    return lines[0].removeprefix("rank 0: ")


@step
def ddp_of_two_ranks():
    """DDP compares its parameters' shapes between the ranks when it is made, and the ranks gather objects."""
    return run_ranks("ddp_of_two_ranks", 2)


@step
def fsdp_of_eight_ranks():
    return run_ranks("fsdp_of_eight_ranks", 8)


def layers():
    return nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256))


def train(model, steps=2):
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        model(torch.randn(8, 256, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def gather_objects(own):
    """An object of each rank, as PyTorch's all_gather_object does it, except that the host compares their sizes."""
    import torch.distributed as dist

    data = pickle.dumps(own)
    sizes = torch.empty(dist.get_world_size(), dtype=torch.long, device="cuda")
    dist.all_gather_into_tensor(sizes, torch.tensor([len(data)], device="cuda"))
    sizes = sizes.tolist()
    padded = torch.frombuffer(bytearray(data.ljust(max(sizes))), dtype=torch.uint8).cuda()
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded)
    return [pickle.loads(part.cpu().numpy().tobytes()[:size]) for part, size in zip(parts, sizes)]


def as_ddp(rank, ranks):
    import torch.distributed as dist

    objects = [{"rank": r, "name": "x" * (10 * r + 1)} for r in range(ranks)]
    expect("the gathered objects", gather_objects(objects[rank]), objects)
    how = "gathered as bytes"
    if int(torch.tensor([3, 7], device="cuda").max()) == 7:  # PyTorch finds the largest size of an object on the card
        gathered = [None] * ranks
        dist.all_gather_object(gathered, objects[rank])
        expect("the objects that PyTorch gathered", gathered, objects)
        told = [("from the first", 1) if rank == 0 else None]
        dist.broadcast_object_list(told, 0)
        expect("the object of the first rank", told, [("from the first", 1)])
        how = "gathered by PyTorch"
    own = torch.tensor([72, rank], device="cuda")
    all_own = [torch.empty_like(own) for _ in range(ranks)]
    dist.all_gather(all_own, own)
    expect("the gathered tensors", [each.tolist() for each in all_own], [[72, r] for r in range(ranks)])
    dist.all_reduce(own)
    expect("the sum", own.tolist(), [72 * ranks, sum(range(ranks))])
    got = torch.zeros(1, device="cuda")
    sent = torch.tensor([5.0 if rank == 0 else 7.0], device="cuda")
    exchange = [dist.P2POp(dist.irecv, got, 1 - rank), dist.P2POp(dist.isend, sent, 1 - rank)]
    for work in dist.batch_isend_irecv(exchange):
        work.wait()
    expect("the other rank's value", got.tolist(), [7.0 if rank == 0 else 5.0])
    model = nn.parallel.DistributedDataParallel(layers().cuda(), device_ids=[rank])
    train(model)
    return f"objects {how}, tensors, two steps; peak {torch.cuda.max_memory_allocated()} bytes"


def as_fsdp(rank, ranks):
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    model = layers().cuda()
    whole = sum(p.numel() for p in model.parameters())
    fully_shard(model)
    own = sum(p.to_local().numel() for p in model.parameters())
    parts = gather_objects(own)
    expect("the parameters in all shards", sum(parts), whole)
    train(model)
    expect("the rank", dist.get_rank(), rank)
    return f"{whole} parameters in {ranks} shards, two steps"


def be_a_rank(name):
    import torch.distributed as dist

    rank, ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    told = {"ddp_of_two_ranks": as_ddp, "fsdp_of_eight_ranks": as_fsdp}[name](rank, ranks)
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:  # lines of two processes may mix
        print(f"rank 0: {told}", flush=True)


if __name__ == "__main__":
    be_a_rank(sys.argv[1])
