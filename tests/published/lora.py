"""LoRA and QLoRA fine-tuning, and generation, as in LitGPT's resource tables: BF16, the longest example of Alpaca.

    lora.py LABEL MODEL LENGTH MICROBATCH [QUANTIZATION] [later=TOKENS] [inference]

Rank 8, alpha 16, dropout 0.05, on queries and values. Under torchrun the ranks use FSDP as the table's several cards do. The first
batch has LENGTH tokens, as the publication makes sure; the later ones, which it draws at random, are short but for one of TOKENS.
"""
import os

import torch
from lightning import Fabric
from lightning.fabric.plugins import BitsandbytesPrecision
from lightning.fabric.strategies import FSDPStrategy
from litgpt.lora import GPT, Block, Config, mark_only_lora_as_trainable
from litgpt.utils import chunked_cross_entropy

import figure

USUAL = 256  # tokens
RANKS = int(os.environ.get("WORLD_SIZE", "1"))


def make_fabric(quantization):
    if quantization:
        plugin = BitsandbytesPrecision(quantization, torch.bfloat16)
        return Fabric(accelerator="cuda", devices=1, plugins=plugin)
    strategy = "auto"
    if RANKS > 1:
        strategy = FSDPStrategy(auto_wrap_policy={Block}, activation_checkpointing_policy={Block},
                                state_dict_type="full", limit_all_gathers=True, cpu_offload=False)
    return Fabric(accelerator="cuda", devices=RANKS, strategy=strategy, precision="bf16-true")


def make_optimizer(fabric, parameters, quantization):
    if not quantization:
        return fabric.setup_optimizers(torch.optim.AdamW(parameters, lr=3e-4, weight_decay=0.01))
    import bitsandbytes

    return fabric.setup_optimizers(bitsandbytes.optim.PagedAdamW(parameters, lr=3e-4, weight_decay=0.01))


def train(fabric, model, quantization, length, microbatch, later):
    mark_only_lora_as_trainable(model)
    model = fabric.setup_module(model)
    optimizer = make_optimizer(fabric, [each for each in model.parameters() if each.requires_grad], quantization)
    model.max_seq_length = length
    lengths = [length, USUAL, later, USUAL] if later else [length, USUAL, USUAL]
    for step, now in enumerate(lengths, 1):
        tokens = fabric.to_device(torch.ones(microbatch, now, dtype=torch.int64))
        with fabric.no_backward_sync(model, enabled=step < len(lengths)):
            logits = model(tokens, lm_head_chunk_size=128)
            logits[-1] = logits[-1][..., :-1, :]
            loss = chunked_cross_entropy(logits, tokens[..., 1:])
            fabric.backward(loss / 3)
    optimizer.step()
    optimizer.zero_grad()


@torch.inference_mode()
def infer(fabric, model, length):
    """A prompt of a few tokens and 50 new ones; 4 are decoded, since each takes the memory of the one before."""
    model = fabric.setup_module(model)
    model.eval()
    model.max_seq_length = length
    with fabric.init_tensor():
        model.set_kv_cache(batch_size=1)
    tokens = torch.ones(1, length - 50, dtype=torch.int64, device=fabric.device)
    position = torch.arange(0, length - 50, device=fabric.device)
    for _ in range(5):
        logits = model(tokens, position)
        tokens = torch.argmax(logits[:, -1], dim=-1, keepdim=True)
        position = position[-1:] + 1


def main(label, name, length, microbatch, *words):
    quantization = next((word for word in words if word.startswith("nf4")), None)
    fabric = make_fabric(quantization)
    fabric.launch()
    config = Config.from_name(name, lora_r=8, lora_alpha=16, lora_dropout=0.05, lora_query=True, lora_value=True)
    with fabric.init_module(empty_init=True):
        model = GPT(config)
    if "inference" in words:
        infer(fabric, model, int(length))
    else:
        later = next((int(word.removeprefix("later=")) for word in words if word.startswith("later=")), 0)
        train(fabric, model, quantization, int(length), int(microbatch), later)
    if fabric.global_rank == 0:
        figure.report(label)


figure.measure_each(main)
