"""Losses and layers as in Liger-Kernel's table, each forward and backward ten times, with PyTorch's or Liger's kernels.

    operators.py KERNEL/PROVIDER/SIZE...
"""
import sys

import torch
from torch import nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm

import figure


def random(*shape, dtype=torch.float32, leaf=True):
    return torch.randn(*shape, dtype=dtype, device="cuda", requires_grad=leaf)


def cross_entropy(liger, size):
    from liger_kernel.transformers.cross_entropy import LigerCrossEntropyLoss

    loss = LigerCrossEntropyLoss() if liger else nn.CrossEntropyLoss()
    logits = random(8 * 2048, size)
    target = torch.randint(size, (8 * 2048,), device="cuda")
    return lambda: loss(logits, target).backward()


def kl_div(liger, size):
    from liger_kernel.transformers.kl_div import LigerKLDIVLoss

    loss = (LigerKLDIVLoss if liger else nn.KLDivLoss)(reduction="batchmean")
    logits = random(8 * 2048, size).log_softmax(dim=-1)
    target = random(8 * 2048, size, leaf=False).softmax(dim=-1)
    return lambda: loss(logits, target).backward(retain_graph=True)


def rms_norm(liger, size):
    from liger_kernel.transformers.rms_norm import LigerRMSNorm

    norms = LigerRMSNorm(hidden_size=size, eps=1e-6).to("cuda"), LlamaRMSNorm(hidden_size=size, eps=1e-6).to("cuda")
    x = random(2048, size, dtype=torch.bfloat16)
    gradient = torch.randn_like(x)
    return lambda: norms[0 if liger else 1](x).backward(gradient, retain_graph=True)


def layer_norm(liger, size):
    from liger_kernel.transformers.layer_norm import LigerLayerNorm

    norms = LigerLayerNorm(hidden_size=size).to("cuda"), nn.LayerNorm(size, eps=1e-6).to("cuda")
    x = random(4096, size)
    gradient = torch.randn_like(x)
    return lambda: norms[0 if liger else 1](x).backward(gradient, retain_graph=True)


def gated(liger, batch, size, activation, layer):
    config = LlamaConfig(hidden_size=4096, intermediate_size=11008, hidden_act=activation)
    x = random(batch, size, 4096, dtype=torch.bfloat16)
    layer = (layer if liger else LlamaMLP)(config=config).to("cuda").to(torch.bfloat16)

    def step():
        y = layer(x)
        y.backward(torch.randn_like(y), retain_graph=True)

    return step


def swiglu(liger, size):
    from liger_kernel.transformers.swiglu import LigerSwiGLUMLP

    return gated(liger, 4, size, "silu", LigerSwiGLUMLP)


def geglu(liger, size):
    from liger_kernel.transformers.geglu import LigerGEGLUMLP

    return gated(liger, 8, size, "gelu_pytorch_tanh", LigerGEGLUMLP)


KERNELS = {each.__name__: each for each in (cross_entropy, kl_div, rms_norm, layer_norm, swiglu, geglu)}

for word in sys.argv[1:]:
    kernel, provider, size = word.split("/")
    step = KERNELS[kernel](provider == "liger", int(size))
    for _ in range(10):
        torch.cuda.memory.reset_peak_memory_stats()
        step()
    figure.report(word)
    del step
    figure.clean()
