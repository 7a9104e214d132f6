#!/usr/bin/env python3
"""PyTorch with gpumem underneath: the lines that a training script adds, and a small training to prove it.

    GPUMEM_POLICY=growth GPUMEM_STATS=exit python3 examples/torch_allocator.py build/release/src/libgpumem.so
"""
import ctypes
import sys

import torch

# The lines: before the first use of the GPU. Without the first hook a tensor that another stream uses (FSDP, DDP,
# record_stream) may be given to somebody else while it is read; the second one is for CUDA graphs.
gpumem = torch.cuda.memory.CUDAPluggableAllocator(sys.argv[1], "gpumem_torch_alloc", "gpumem_torch_free")
library = ctypes.CDLL(sys.argv[1])
hook = lambda name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value
gpumem.allocator().set_record_stream_fn(hook("gpumem_torch_record_stream"))
gpumem.allocator().set_end_allocate_to_pool_fn(hook("gpumem_torch_end_allocate_to_pool"))
torch.cuda.memory.change_current_allocator(gpumem)

torch.manual_seed(1)
x = torch.randn(4096, 256, device="cuda")
y = x @ torch.randn(256, 1, device="cuda")
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1)).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
losses = []
for step in range(200):
    loss = torch.nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(f"loss from {losses[0]:.4f} to {losses[-1]:.4f}")
sys.exit(0 if losses[-1] < losses[0] / 2 else 1)
