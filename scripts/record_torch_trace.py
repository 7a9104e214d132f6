#!/usr/bin/env python3
"""Records the allocations of a short PyTorch training, as PyTorch's own allocator saw them, in RMM's CSV format.

    python3 scripts/record_torch_trace.py OUT.csv.gz [STEPS]

A small transformer with sequences of varying length: forward, backward and AdamW, PyTorch's allocator as it comes. Each
row is one allocation or free that the program asked for; times are microseconds since the first.
"""
import gzip
import sys

import torch

STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 30
torch.manual_seed(1)
model = torch.nn.TransformerEncoder(
    torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True), num_layers=6
).cuda()
optimizer = torch.optim.AdamW(model.parameters())
torch.cuda.memory._record_memory_history(max_entries=2_000_000, stacks="python", context=None)
for step in range(STEPS):
    length = int(torch.randint(64, 512, (1,)))
    x = torch.randn(16, length, 512, device="cuda")
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.cuda.synchronize()
trace = torch.cuda.memory._snapshot()["device_traces"][0]

rows = 0
live = {}
start = trace[0].get("time_us", 0) if trace else 0
with gzip.open(sys.argv[1], "wt") as out:
    out.write("Thread,Time,Action,Pointer,Size,Stream\n")

    def write(action, address, size, stream, time_us):
        seconds, us = divmod(int(time_us - start), 1_000_000)
        minutes, seconds = divmod(seconds, 60)
        hours, minutes = divmod(minutes, 60)
        out.write(f"1,{hours:02}:{minutes:02}:{seconds:02}:{us:06},{action},{address:#x},{size},{stream}\n")

    for event in trace:
        time_us = event.get("time_us", start)
        if event["action"] == "alloc":
            live[event["addr"]] = event["size"]
            write("allocate", event["addr"], event["size"], event["stream"], time_us)
            rows += 1
        elif event["action"] == "free_requested" and event["addr"] in live:
            write("free", event["addr"], live.pop(event["addr"]), event["stream"], time_us)
            rows += 1
print(f"{rows} rows in {sys.argv[1]}, {len(live)} blocks live at the end")
sys.exit(0 if rows > 0 else 1)
