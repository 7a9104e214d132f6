"""Training of Llama 3.1 8B under FSDP as in torchtitan's tables: rank 0 of 8 or 128, batch 2, 8192 tokens, eager.

    sharded.py LABEL RANKS

Parameters in float32, computed in BF16, gradients reduced in float32, AdamW, selective checkpointing by operation. The
other ranks are assumed to send what this one sends.
"""
import sys
from collections import defaultdict

import torch
import torch.distributed as distributed
import torch.nn.functional as functional
from torch import nn
from torch.distributed._composable.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

import figure

DIM, LAYERS, HEADS, KV_HEADS, HIDDEN, VOCABULARY = 4096, 32, 32, 8, 14336, 128256
BATCH, LENGTH = 2, 8192
SAVED = {torch.ops.aten.mm.default, torch.ops.aten._scaled_dot_product_efficient_attention.default,
         torch.ops.aten._scaled_dot_product_flash_attention.default, torch.ops._c10d_functional.reduce_scatter_tensor.default}


class RMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(DIM))

    def forward(self, x):
        normed = x.float() * torch.rsqrt((x.float() * x.float()).mean(-1, keepdim=True) + 1e-5)
        return normed.type_as(x) * self.weight


def rotate(x, frequencies):
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * frequencies[None, :, None]).flatten(3).type_as(x)


def repeat(x):
    batch, length, heads, dim = x.shape
    return x[:, :, :, None, :].expand(batch, length, heads, HEADS // heads, dim).reshape(batch, length, HEADS, dim)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        head = DIM // HEADS
        self.wq, self.wo = nn.Linear(DIM, DIM, bias=False), nn.Linear(DIM, DIM, bias=False)
        self.wk, self.wv = (nn.Linear(DIM, KV_HEADS * head, bias=False) for _ in range(2))
        self.w1, self.w3 = (nn.Linear(DIM, HIDDEN, bias=False) for _ in range(2))
        self.w2 = nn.Linear(HIDDEN, DIM, bias=False)
        self.attention_norm, self.ffn_norm = RMSNorm(), RMSNorm()

    def attention(self, x, frequencies):
        batch, length, _ = x.shape
        q, k, v = (each(x).view(batch, length, -1, DIM // HEADS) for each in (self.wq, self.wk, self.wv))
        q, k = rotate(q, frequencies), rotate(k, frequencies)
        q, k, v = (each.transpose(1, 2) for each in (q, repeat(k), repeat(v)))
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(out.transpose(1, 2).contiguous().view(batch, length, -1))

    def feed_forward(self, x):
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))

    def forward(self, x, frequencies):
        hidden = x + self.attention(self.attention_norm(x), frequencies)
        return hidden + self.feed_forward(self.ffn_norm(hidden))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embeddings = nn.Embedding(VOCABULARY, DIM)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = RMSNorm()
        self.output = nn.Linear(DIM, VOCABULARY, bias=False)
        self.register_buffer("frequencies", torch.ones(LENGTH, DIM // HEADS // 2, dtype=torch.complex64), persistent=False)

    def forward(self, tokens):
        x = self.embeddings(tokens)
        for layer in self.layers:
            x = layer(x, self.frequencies)
        return self.output(self.norm(x))


def selective():
    """Keeps the results of attention and of every second product; the rest is computed again."""
    counts = defaultdict(int)

    def policy(context, function, *args, **kwargs):
        if function == torch.ops.aten.mm.default:
            counts[context.is_recompute] += 1
        second = function == torch.ops.aten.mm.default and counts[context.is_recompute] % 2 == 0
        return CheckpointPolicy.MUST_SAVE if function in SAVED and not second else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def make_model(ranks):
    with torch.device("meta"):
        model = Llama()
    for index, layer in enumerate(model.layers):
        model.layers[index] = checkpoint_wrapper(layer, context_fn=selective, preserve_rng_state=False)
    options = {"mesh": init_device_mesh("cuda", (ranks,)),
               "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}
    for index, layer in enumerate(model.layers):
        fully_shard(layer, **options, reshard_after_forward=index < LAYERS - 1)
    fully_shard(model, **options, reshard_after_forward=True)
    return model.to_empty(device="cuda")


def main(label, ranks):
    distributed.init_process_group("nccl", store=distributed.HashStore(), rank=0, world_size=int(ranks))
    model = make_model(int(ranks))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, foreach=True)
    for _ in range(3):
        tokens = torch.ones(BATCH, LENGTH + 1, dtype=torch.long).cuda()
        optimizer.zero_grad()
        logits = model(tokens[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten(0, 1))
        del logits
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
    figure.report(label, "reserved")
    distributed.destroy_process_group()


main(*sys.argv[1:])
