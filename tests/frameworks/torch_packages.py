#!/usr/bin/env python3
"""Programs of transformers, peft and torchvision with random weights, and one compiled by torch.compile.

    python3 tests/frameworks/torch_packages.py PROGRAM [--snapshot FILE]                              (on a card)
    gpumem simulate --card h100 -- python3 tests/frameworks/torch_packages.py PROGRAM [--snapshot FILE]

Nothing is downloaded, and no size depends on a value of the card. The last line has the peaks and the versions, as JSON.
"""
import argparse
import importlib.metadata
import json

import torch
from torch.nn import functional as F

PROGRAMS = {}
PACKAGES = ("torch", "transformers", "peft", "torchvision", "triton", "accelerate")
VOCABULARY = 32000


def program(function):
    PROGRAMS[function.__name__] = function
    return function


# --- language models --------------------------------------------------------------------------------------------------


def llama():
    """0.8 billion parameters in bfloat16: 16 layers, 32 heads that share 8 keys."""
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=2048, intermediate_size=5632, num_hidden_layers=16, num_attention_heads=32,
        num_key_value_heads=8, max_position_embeddings=4096)
    return transformers.LlamaForCausalLM(config).to(torch.bfloat16).cuda()


def train_on_text(net, batch, length, vocabulary=VOCABULARY):
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=1e-4)
    for _ in range(3):
        ids = torch.randint(0, vocabulary, (batch, length)).cuda()
        net(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


@program
def llama_train():
    train_on_text(llama(), batch=4, length=1024)


@program
def llama_checkpointed():
    """The same with twice the batch and checkpointed layers."""
    net = llama()
    net.gradient_checkpointing_enable()
    net.train()
    train_on_text(net, batch=8, length=1024)


@program
def llama_generate():
    """40 tokens after four prompts of 100, with a cache of keys and values that grows."""
    net = llama().eval()
    with torch.no_grad():
        net.generate(torch.randint(0, VOCABULARY, (4, 100)).cuda(), max_new_tokens=40, min_new_tokens=40, do_sample=False)


@program
def llama_lora():
    """Adapters of rank 16 beside the attention's four projections."""
    import peft

    adapters = peft.LoraConfig(
        r=16, lora_alpha=32, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"], task_type="CAUSAL_LM")
    train_on_text(peft.get_peft_model(llama(), adapters), batch=4, length=1024)


@program
def gpt2_train():
    """GPT-2 of 124 million parameters in float32."""
    import transformers

    train_on_text(transformers.GPT2LMHeadModel(transformers.GPT2Config()).cuda(), batch=8, length=512, vocabulary=50257)


# --- images, and a compiled model -------------------------------------------------------------------------------------


def loss_of(net):
    """The labels are made behind the forward pass, and nothing here keeps the images."""
    return F.cross_entropy(net(torch.randn(64, 3, 224, 224, device="cuda")), torch.zeros(64, dtype=torch.int64, device="cuda"))


@program
def resnet50():
    """torchvision's, in float32, SGD with momentum."""
    import torchvision

    net = torchvision.models.resnet50().cuda()
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    for _ in range(4):
        loss_of(net).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


@program
def vit_b16():
    """torchvision's, bfloat16 by autocast, AdamW."""
    import torchvision

    net = torchvision.models.vit_b_16().cuda()
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    for _ in range(3):
        with torch.autocast("cuda", torch.bfloat16):
            loss = loss_of(net)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


@program
def compiled():
    """Six linear layers with GELU by torch.compile, AdamW."""
    net = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(2048, 2048), torch.nn.GELU()) for _ in range(6)]).cuda()
    fast = torch.compile(net)
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(3):
        fast(torch.randn(512, 2048, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def versions():
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", choices=sorted(PROGRAMS))
    parser.add_argument("--snapshot", metavar="FILE", help="writes PyTorch's memory snapshot of the whole run, for scripts/validate_simulation")
    options = parser.parse_args()
    torch.manual_seed(0)
    if options.snapshot:
        torch.cuda.memory._record_memory_history(context=None, max_entries=10**7)
    PROGRAMS[options.program]()
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    if options.snapshot:
        torch.cuda.memory._dump_snapshot(options.snapshot)
    print(json.dumps({
        "program": options.program, "allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved(),
        "used_on_card": total - free, "total": total, "card": torch.cuda.get_device_name(), "versions": versions()}))


if __name__ == "__main__":
    main()
