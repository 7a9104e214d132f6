#!/usr/bin/env python3
"""Training of models with random weights, as programs write it: what scripts/record_simulated_traces records.

    gpumem simulate --card a100-80gb --trace F -- python3 tests/frameworks/torch_models.py MODEL [--steps N] [--snapshot FILE]

Nothing is read and nothing depends on a value of the card: lengths, image sizes and the routing of experts are drawn
on the host from a seed, so that a simulated card asks for the same memory as a real one.
"""
import argparse
import contextlib
import copy
import random

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

MODELS = {}
bfloat16 = lambda: torch.autocast("cuda", torch.bfloat16)  # noqa: E731


def model(function):
    MODELS[function.__name__.replace("_", "-")] = function
    return function


# --- language models --------------------------------------------------------------------------------------------------


class attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c))


class gated(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class experts(nn.Module):
    """Each token goes to two of them; how many each gets is drawn on the host, anew at every call."""

    def __init__(self, width, inner, count, draw):
        super().__init__()
        self.router = nn.Linear(width, count, bias=False)
        self.each = nn.ModuleList(gated(width, inner) for _ in range(count))
        self.draw = draw

    def forward(self, x):
        tokens = x.view(-1, x.shape[-1])
        weights = self.router(tokens).softmax(-1)
        shares = [self.draw.random() + 0.1 for _ in self.each]
        total = 2 * tokens.shape[0]
        out = torch.zeros_like(tokens)
        for i, expert in enumerate(self.each):
            count = min(tokens.shape[0], int(total * shares[i] / sum(shares)))
            if count == 0:
                continue
            chosen = torch.tensor(sorted(self.draw.sample(range(tokens.shape[0]), count)), device=x.device)
            got = expert(tokens[chosen]) * weights[chosen, i : i + 1]
            out = out.index_add(0, chosen, got.to(out.dtype))
        return out.view_as(x)


class layer(nn.Module):
    def __init__(self, width, heads, inner):
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = attention(width, heads)
        self.inner = inner

    def forward(self, x):
        x = x + self.attention(self.before(x))
        return x + self.inner(self.between(x))


class language_model_of(nn.Module):
    def __init__(self, vocabulary, width, layers, heads, inner, checkpointed=False):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(layer(width, heads, inner()) for _ in range(layers))
        self.last = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.checkpointed = checkpointed

    def forward(self, ids):
        x = self.tokens(ids)
        for each in self.layers:
            x = checkpoint(each, x, use_reentrant=False) if self.checkpointed else each(x)
        return self.head(self.last(x))


def train_on_text(net, steps, draw, batch, longest, shortest=None, autocast=bfloat16):
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    for _ in range(steps):
        length = longest if shortest is None else draw.randrange(shortest, longest + 1, 8)
        ids = torch.zeros(batch, length, dtype=torch.int64, device="cuda")
        with autocast():
            logits = net(ids)
            loss = F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), ids.view(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


@model
def language_model(steps, draw):
    """A GPT of 124 million parameters, sequences of varying length, bfloat16 by autocast, AdamW."""
    net = language_model_of(50257, 768, 12, 12, lambda: gated(768, 2048)).cuda()
    train_on_text(net, steps or 8, draw, batch=8, longest=1024, shortest=256)


@model
def language_model_evaluated(steps, draw):
    """The same with four micro-batches a step, of one of four lengths, and an evaluation every fifth step."""
    net = language_model_of(50257, 768, 12, 12, lambda: gated(768, 2048)).cuda()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)

    def loss_of(batch, length):
        ids = torch.zeros(batch, length, dtype=torch.int64, device="cuda")
        with bfloat16():
            logits = net(ids)
            return F.cross_entropy(logits.view(-1, logits.shape[-1]), ids.view(-1))

    for step in range(steps or 14):
        length = draw.choice((256, 512, 768, 1024))
        for _ in range(4):
            loss_of(8, length).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 5 == 4:
            with torch.no_grad():
                for _ in range(3):
                    loss_of(16, 1024)


@model
def mixture_of_experts(steps, draw):
    """Eight experts in each of six layers, two for a token, so that sizes change at every call."""
    net = language_model_of(32000, 512, 6, 8, lambda: experts(512, 1408, 8, draw)).cuda()
    train_on_text(net, steps or 6, draw, batch=8, longest=512)


@model
def language_model_7b(steps, draw):
    """6.7 billion parameters in bfloat16 with AdamW, checkpointed layers, sequences of 2048."""
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        net = language_model_of(32000, 4096, 32, 32, lambda: gated(4096, 11008), checkpointed=True)
    train_on_text(net, steps or 2, draw, batch=1, longest=2048, autocast=contextlib.nullcontext)


# --- images -----------------------------------------------------------------------------------------------------------


class bottleneck(nn.Module):
    def __init__(self, before, width, stride):
        super().__init__()
        after = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(before, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, after, 1, bias=False), nn.BatchNorm2d(after))
        self.aside = nn.Identity()
        if stride != 1 or before != after:
            self.aside = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x):
        return F.relu(self.body(x) + self.aside(x), inplace=True)


@model
def convolutional(steps, draw):
    """ResNet-50, image sizes that change from step to step, SGD with momentum, an evaluation every fourth step."""
    parts = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    before = 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for i in range(count):
            parts.append(bottleneck(before, width, stride if i == 0 else 1))
            before = 4 * width
    net = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 1000)).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    for step in range(steps or 10):
        side = draw.randrange(160, 257, 32)
        images = torch.randn(32, 3, side, side, device="cuda")
        labels = torch.zeros(32, dtype=torch.int64, device="cuda")
        with bfloat16():
            loss = F.cross_entropy(net(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 4 == 3:
            with torch.no_grad(), bfloat16():
                net.eval()(torch.randn(64, 3, 224, 224, device="cuda"))
                net.train()


class residual(nn.Module):
    def __init__(self, before, after, attends):
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(32, before), nn.SiLU(), nn.Conv2d(before, after, 3, padding=1))
        self.time = nn.Linear(512, after)
        self.second = nn.Sequential(nn.GroupNorm(32, after), nn.SiLU(), nn.Conv2d(after, after, 3, padding=1))
        self.aside = nn.Conv2d(before, after, 1) if before != after else nn.Identity()
        self.attention = attention(after, 8) if attends else None

    def forward(self, x, t):
        y = self.second(self.first(x) + self.time(t)[:, :, None, None]) + self.aside(x)
        if self.attention is not None:
            b, c, h, w = y.shape
            y = y + self.attention(y.flatten(2).transpose(1, 2)).transpose(1, 2).reshape(b, c, h, w)
        return y


class unet(nn.Module):
    def __init__(self, widths=(128, 256, 384, 512)):
        super().__init__()
        self.begin = nn.Conv2d(4, widths[0], 3, padding=1)
        self.time = nn.Sequential(nn.Linear(128, 512), nn.SiLU(), nn.Linear(512, 512))
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        before = widths[0]
        for level, width in enumerate(widths):
            self.down.append(residual(before, width, attends=level >= 2))
            before = width
        for level, width in reversed(list(enumerate(widths))):
            self.up.append(residual(before + width, width, attends=level >= 2))
            before = width
        self.end = nn.Conv2d(before, 4, 3, padding=1)

    def forward(self, x, t):
        t = self.time(t)
        x, kept = self.begin(x), []
        for i, each in enumerate(self.down):
            x = each(x, t)
            kept.append(x)
            if i + 1 < len(self.down):
                x = F.avg_pool2d(x, 2)
        for i, each in enumerate(self.up):
            x = each(torch.cat([x, kept.pop()], 1), t)
            if i + 1 < len(self.up):
                x = F.interpolate(x, scale_factor=2.0)
        return self.end(x)


@model
def diffusion(steps, draw):
    """A U-Net over latents of several sizes with attention, AdamW, an average of the weights, sampling in between."""
    net = unet().cuda()
    average = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    for step in range(steps or 12):
        side = draw.choice((32, 48, 64))
        batch = 8 * 64 // side
        x, t = torch.randn(batch, 4, side, side, device="cuda"), torch.randn(batch, 128, device="cuda")
        with bfloat16():
            loss = F.mse_loss(net(x, t), torch.randn_like(x))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            for mean, now in zip(average.parameters(), net.parameters()):
                mean.lerp_(now, 0.001)
            if step % 4 == 3:
                sample = torch.randn(4, 4, 64, 64, device="cuda")
                for _ in range(6):
                    with bfloat16():
                        sample = sample - 0.1 * average(sample, torch.randn(4, 128, device="cuda"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=sorted(MODELS))
    parser.add_argument("--steps", type=int, default=0, help="training steps; each model has its own count")
    parser.add_argument("--snapshot", metavar="FILE", help="writes PyTorch's memory snapshot of the whole run, for scripts/validate_simulation")
    options = parser.parse_args()
    torch.manual_seed(0)
    if options.snapshot:
        torch.cuda.memory._record_memory_history(context=None, max_entries=10**7)
    MODELS[options.model](options.steps, random.Random(0))
    torch.cuda.synchronize()
    if options.snapshot:
        torch.cuda.memory._dump_snapshot(options.snapshot)


if __name__ == "__main__":
    main()
