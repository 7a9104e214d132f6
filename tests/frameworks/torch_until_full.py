#!/usr/bin/env python3
"""A PyTorch program that trains, takes memory until there is none, and trains on: for scripts/limit_check.

    scripts/limit_check --limit 8GiB -- python3 tests/frameworks/torch_until_full.py
"""
import sys

import torch

torch.manual_seed(1)
x = torch.randn(4096, 256, device="cuda")
y = x @ torch.randn(256, 1, device="cuda")
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1)).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def train(steps):
    for _ in range(steps):
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


first = train(1)
train(100)
held = []
try:
    while True:
        held.append(torch.empty(256 << 20, dtype=torch.uint8, device="cuda").fill_(1))
except torch.cuda.OutOfMemoryError:
    pass
taken_mib = len(held) * 256
held.clear()
last = train(100)
print(f"took {taken_mib} MiB, loss from {first:.4f} to {last:.4f}")
sys.exit(0 if held == [] and taken_mib > 0 and last < first / 2 else 1)
