"""Text generation as in torchao's table: the model of torchao 0.5, a prompt of 6 tokens, 200 new ones, eager.

    serving.py LABEL MODEL PRECISION [cache=TOKENS] [quantized] [linear]

A step of the decoder takes the same memory as the one before, so each of two samples decodes 4 tokens instead of 200,
with the caches of 200.
"""
import torch
from torchao._models.llama.model import Transformer

import figure

PROMPT, NEW = 6, 200


def sample(logits):
    logits = logits[:, -1] / 0.8
    values, _ = torch.topk(logits, 200)
    logits = torch.where(logits < values.select(-1, -1).unsqueeze(-1), -float("Inf"), logits)
    probabilities = torch.nn.functional.softmax(logits, dim=-1)
    noise = torch.empty_like(probabilities).exponential_(1)
    return torch.argmax(probabilities / noise, dim=-1, keepdim=True).to(dtype=torch.int)


@torch.no_grad()
def generate(model, prompt, cache, **options):
    sequence = torch.empty(PROMPT + NEW, dtype=prompt.dtype, device="cuda")
    sequence[:PROMPT] = prompt
    positions = torch.arange(PROMPT, device="cuda")
    with torch.device("cuda"):
        model.setup_caches(max_batch_size=1, max_seq_length=cache, prompt_length=PROMPT, **options)
    token = sample(model(prompt.view(1, -1), positions)).clone()
    position = torch.tensor([PROMPT], device="cuda", dtype=torch.int)
    for _ in range(4):
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            token = sample(model(token.view(1, -1), position)).clone()
        position += 1


def main(label, name, precision, *words):
    given = dict(word.partition("=")[::2] for word in words)
    torch.set_default_dtype(getattr(torch, precision))
    with torch.device("meta"):
        model = Transformer.from_name(name)
    model = model.to_empty(device="cuda").eval()
    torch.set_default_dtype(torch.float32)
    prompt = torch.ones(PROMPT, dtype=torch.int, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    for _ in range(2):
        generate(model, prompt, int(given.get("cache", PROMPT + NEW)),
                 kv_cache_quantization="quantized" in given, linear_causal_mask="linear" in given)
    figure.report(label, "reserved")


figure.measure_each(main)
