"""The published tables: source, versions, the program that repeats them, and each figure with what explains it."""
from dataclasses import dataclass, field

GB, GIB, MIB = 1e9, 2**30, 2**20


@dataclass
class Figure:
    label: str
    words: str  # of the program, after its label
    published: float
    because: str = ""  # the reason, where the deviation exceeds 2 %
    fails: str = ""  # the reason, where the program is known to fail


@dataclass
class Table:
    name: str
    kind: str
    title: str
    source: str
    unit: float
    digits: int  # of the published figures
    torch: str
    wheels: str  # as well as torch
    card: str
    program: str
    figures: list
    notes: str = ""
    options: tuple = ()
    ranks: int = 1
    together: bool = False  # one process for all figures, whose words are labels
    single: bool = False  # a process for each figure
    values: int = 0  # of --values: 16 computes the constants that PyTorch's compiler reads back from the card
    environment: dict = field(default_factory=dict)


TORCHAO = "https://github.com/pytorch/ao/blob/v0.5.0/torchao"
LITGPT = "https://github.com/Lightning-AI/litgpt/blob/main/tutorials/resource-tables.md"
LITGPT_NOTE = (
    "Published with PyTorch 2.1.0 and LitGPT at 8641822, of October 2023. PyTorch before 2.4 needs cuDNN 8, which is not simulated; "
    "this LitGPT is not in the package index. Repeated with PyTorch 2.4.1 and LitGPT 0.4.2."
)
TORCHTUNE_WHEELS = (
    "torchtune==0.4.0 torchao==0.6.1 bitsandbytes==0.44.1 datasets==3.1.0 pandas==2.2.3 pyarrow==18.0.0 huggingface-hub==0.26.2 "
    "sentencepiece tiktoken blobfile omegaconf psutil"
)
LITGPT_WHEELS = "litgpt==0.4.2 lightning==2.3.3 lightning-utilities torchmetrics bitsandbytes==0.42.0"
NIGHTLY = (
    "The nightly is not simulated. Its attention in 16 bit returns its result ordered by example (`meta__scaled_dot_product_flash` in "
    "torch/_meta_registrations.py of 2.0.1 and 2.1.0), 2.4.1 in the order of its input, by token, in which the layer goes on. So it "
    "holds a copy more for each of 24 layers, 25.8 MB at batch 64; in 32 bit both versions hold it. With such a result "
    "(`attention-2.1` of vision.py): 18.21, 13.81 and 5.58, and 06 is 2.02; 2.4.1's memory-efficient kernel, which orders so, gives "
    "18.21, 13.82, 5.58 and 2.02. The last 0.11 of 04 are not isolated: its reserved memory moves by as much with a workspace of 30 to "
    "60 MB in the first convolution (5.68 to 5.70), whose size on the card is not known; 03 and 06 leave room for 60 and 12 MB."
)
ADAM = (
    "The nightly is not simulated. Its Adam holds two lists of the parameters' size (0.61 GB) during a step, 2.4.1 one "
    "(torch/optim/adam.py of 2.0.1 and of 2.1.0; [pytorch 97712](https://github.com/pytorch/pytorch/issues/97712), closed in July "
    "2023). With two (`adam-2.0` of vision.py): 3.91, and 02 to 04 as recorded. With the attention of 02 to 04 as well: 4.01, of "
    "which 3.67 are live; the rest is how PyTorch's segments are divided."
)
RANDOM = (
    "Under FSDP the gradients of all parameters stay whole between steps, so the peak is that of the longest batch after the first. The "
    "published program draws it at random; here the later ones of phi have 256 tokens. With one of 584 (x1) or 680 (x4): 4.86 and 5.88. "
    "The validation before is no peak: 7.0 at most for phi and stablelm."
)
RANK = (
    "Not the stated configuration: of rank 64, with AdamW, these live at once: weights 5.98 (QLoRA: 2.10), LoRA 0.17, its optimiser's "
    "states 0.34, rotary table 0.06, logits 1.96, the gradient of one chunk 0.24; LoRA takes 8.75 at least. Measured with rank 8: 8.47 "
    "and 4.58; with rank 16: 8.53 and 4.65."
)
WORKSPACE = (
    "cuDNN's choice for a convolution whose input has 2^32 elements. It is the simulated peak, the first one of the VAE's last block: the "
    "block's input 8, its own input 8, its output 4 and, by the rule for workspaces, 12 more. The published peak is 2.000 lower, so the "
    "card took 10 at most. At batch 8 its input has 2^31 elements, and the rule is met; the threads that it was taken from have fewer. "
    "What cuDNN does beyond is not published. If such convolutions took no workspace, or one for half the batch, or for the input or "
    "the output alone, the peak would be 59.548, of a later convolution; for the input and half of the output, 61.548, which nothing "
    "else confirms. It was no lack of memory: at batch 16 the six rows of quantised models with an eager VAE, up to 15.6 smaller, "
    "take 30.10 over their model, as this one does (30.11)."
)
UNCOMPILED = "The compiler of PyTorch 2.4.1 refuses timm's recomputed blocks as one graph, before it uses a card"
MODELS = {"phi": ("phi-1_5", 1044), "stablelm": ("stablelm-base-alpha-3b", 1034),
          "llama-7b": ("Llama-2-7b-hf", 1304), "llama-13b": ("Llama-2-13b-hf", 1304)}
# Tokens of the longest batch after the first in `lora-ranks`, by microbatch. The publication draws its examples at random, by the same
# seed for all models, and does not state their lengths. These are inferred from phi's rows alone: the middle of the lengths with which
# phi's figure rounds to the published one, 567 to 600 (x1) and 678 to 682 (x4). phi-x2 names none: its peak is that of the first batch,
# and allows any up to 576. phi keeps 256, so that its rows, which set the lengths, do not count as met.
LATER = {1: 584, 4: 680}
LATER_NOTE = (
    "The publication draws the batches after the first at random, by the same seed for all models; their lengths are not stated. Phi and "
    "the rows x2 take 256 tokens. For the rows x1 and x4 of stablelm and llama-7b the longest later batch was inferred from phi's rows "
    "alone, and these four rows check it: 584 and 680 tokens, the middle of what gives phi's published figures, and a quarter more for "
    "llama-7b, as with the longest example. Phi-x2 allows any length up to 576, so nothing is inferred for x2; with 576, and 720 for "
    "llama-7b, these rows would be 12.93 and 22.46."
)


def lora(model, microbatch, published, quantization="", because="", later=0):
    name, length = MODELS[model]
    label = "-".join(each for each in (model, quantization, f"x{microbatch}") if each)
    return Figure(label, f"{name} {length} {microbatch} {quantization}" + (f" later={later}" if later else ""), published, because)


def ranked(model, microbatch, published):
    if model == "phi":
        return lora(model, microbatch, published, because=RANDOM)
    tokens = LATER.get(microbatch, 0)
    return lora(model, microbatch, published, later=tokens * 5 // 4 if model == "llama-7b" else tokens)


def inference(model, published, quantization="", because=""):
    label = "-".join(each for each in (model, quantization) if each)
    return Figure(label, f"{MODELS[model][0]} 56 1 inference {quantization}", published, because)


def operator(kernel, size, torch_mib, liger_mib):
    return [Figure(f"{kernel}/{provider}/{size}", "", published)
            for provider, published in (("torch", torch_mib), ("liger", liger_mib))]


def cached(tokens, plain, quantized, linear):
    words = f"Llama-3.1-8B bfloat16 cache={tokens}"
    return [Figure(f"llama-3.1-8b-cache-{tokens}", words, plain),
            Figure(f"llama-3.1-8b-cache-{tokens}-int8", words + " quantized", quantized),
            Figure(f"llama-3.1-8b-cache-{tokens}-int8-linear", words + " quantized linear", linear)]


TABLES = [
    Table(
        "optimizers", "optimisers", "ViT-H, BF16 AMP, compiled, batch 8: AdamW of PyTorch, bitsandbytes and torchao",
        TORCHAO + "/prototype/low_bit_optim/README.md", GB, 2, "2.4.1",
        "torchao==0.5.0 timm==1.0.9 torchvision==0.19.1 bitsandbytes==0.44.1", "rtx4090", "optimizers.py",
        [Figure("torch-fused", "torch compiled", 12.23), Figure("bitsandbytes-8bit", "bitsandbytes compiled", 8.32),
         Figure("torchao-8bit", "AdamW8bit compiled", 8.33), Figure("torchao-fp8", "AdamWFp8 compiled", 8.33),
         Figure("torchao-4bit", "AdamW4bit compiled", 7.72)],
        "On an RTX 4070 Ti SUPER, of the RTX 4090's capability. lpmm's rows are left out: it builds kernels at installation.",
        single=True, values=16,
    ),
    Table(
        "optimizers-eager", "optimisers", "ViT-H, BF16 AMP, eager, batch 8: Adam of PyTorch, bitsandbytes and torchao",
        "https://github.com/pytorch/ao/blob/v0.4.0/torchao/prototype/low_bit_optim/README.md", GB, 2, "2.4.1",
        "torchao==0.5.0 timm==1.0.9 torchvision==0.19.1 bitsandbytes==0.44.1", "rtx4090", "optimizers.py",
        [Figure("torch", "Adam", 12.94), Figure("bitsandbytes-8bit", "bitsandbytes", 8.31), Figure("torchao-8bit", "Adam8bit", 8.31),
         Figure("torchao-fp8", "AdamFp8", 8.32), Figure("torchao-4bit", "Adam4bit", 7.72)],
        "The table before the one above, without versions, and without a word on compiling, which its program leaves off.",
    ),
    Table(
        "giant", "optimisers", "ViT-g, BF16, recomputed activations, batch 32, AdamW on the card",
        TORCHAO + "/prototype/low_bit_optim/README.md", GB, 2, "2.4.1",
        "torchao==0.5.0 timm==1.0.9 torchvision==0.19.1 bitsandbytes==0.44.1", "rtx4090", "optimizers.py",
        [Figure("eager", "giant", 9.82), Figure("compiled", "giant compiled", 9.90, fails=UNCOMPILED)],
        "The rows with optimisers on the host are left out: their step computes 1.1 billion parameters on the host.",
        single=True, values=16,
    ),
    Table(
        "finetuning", "LLM training", "Llama 3.2 3B, batch 2, 4096 tokens packed, BF16",
        "https://github.com/pytorch/torchtune/blob/1814feb1/README.md", GIB, 1, "2.5.1",
        TORCHTUNE_WHEELS, "a100-80gb", "finetuning.py",
        [Figure("packed", "", 60.0), Figure("compile", "compile", 51.0), Figure("chunked-loss", "compile chunked", 42.9),
         Figure("checkpointing", "compile chunked checkpointing", 24.9),
         Figure("optimizer-in-backward", "compile chunked checkpointing in_backward", 23.1),
         Figure("offloading", "compile chunked checkpointing in_backward offloading", 21.8),
         Figure("8bit", "compile chunked checkpointing in_backward offloading 8bit", 17.6)],
        "AdamW is fused, as in the recipes' configurations that name it. The row without packing depends on the data's lengths. A figure "
        "is the peak of all steps; that of 8bit is in the first, which compiles the optimiser (later ones: 16.0).",
        single=True, values=16,
    ),
    Table(
        "finetuning-lora", "LoRA and QLoRA", "Llama 3.2 3B with LoRA and QLoRA, batch 2, 4096 tokens packed, BF16",
        "https://github.com/pytorch/torchtune/blob/1814feb1/README.md", GIB, 1, "2.5.1",
        TORCHTUNE_WHEELS, "a100-80gb", "finetuning.py",
        [Figure("lora", "compile chunked checkpointing offloading lora", 8.5, RANK),
         Figure("qlora", "compile chunked checkpointing offloading qlora", 4.6, RANK)],
        single=True, values=16,
    ),
    Table(
        "lora", "LoRA and QLoRA", "LoRA on one card, BF16, the longest example of Alpaca", LITGPT, GB, 2, "2.4.1", LITGPT_WHEELS,
        "a100-40gb", "lora.py",
        [lora("phi", 1, 4.82), lora("phi", 2, 6.76), lora("phi", 4, 10.68), lora("phi", 1, 3.78, "nf4"),
         lora("phi", 1, 3.72, "nf4-dq"), lora("stablelm", 1, 9.69), lora("stablelm", 2, 12.10), lora("stablelm", 4, 16.92),
         lora("stablelm", 1, 6.35, "nf4"), lora("stablelm", 1, 6.19, "nf4-dq"), lora("llama-7b", 1, 21.30),
         lora("llama-7b", 2, 29.07), lora("llama-7b", 1, 14.14, "nf4"), lora("llama-7b", 1, 13.84, "nf4-dq"),
         lora("llama-13b", 1, 38.12)],
        LITGPT_NOTE,
    ),
    Table(
        "lora-ranks", "several ranks", "LoRA with FSDP on two cards, BF16, the longest example of Alpaca", LITGPT, GB, 2, "2.4.1",
        LITGPT_WHEELS, "a100-40gb", "lora.py",
        [ranked(*each) for each in (
            ("phi", 1, 4.86), ("phi", 2, 5.05), ("phi", 4, 5.88), ("stablelm", 1, 12.75), ("stablelm", 2, 12.94), ("stablelm", 4, 13.45),
            ("llama-7b", 1, 22.18), ("llama-7b", 2, 22.47), ("llama-7b", 4, 23.39))],
        LITGPT_NOTE + " " + LATER_NOTE, ranks=2,
    ),
    Table(
        "sharded", "several ranks", "Llama 3.1 8B under FSDP on 8 and 128 cards, batch 2, 8192 tokens, eager",
        "https://github.com/pytorch/torchtitan/blob/main/benchmarks/llama3_h100_202412_torchtitan.md", GIB, 1, "2.6.0", "", "h200",
        "sharded.py", [Figure("8-ranks", "8", 82.4), Figure("128-ranks", "128", 67.0)], single=True,
        notes="Published with a nightly of December 2024 on H100 with 96 GB; the H200 has the same multiprocessors and more memory. One "
        "process is rank 0; NCCL's other ranks send the same.",
    ),
    Table(
        "generation", "serving", "Generation on one card, BF16 and 4 bit", LITGPT, GB, 2, "2.4.1", LITGPT_WHEELS, "a100-40gb", "lora.py",
        [inference("phi", 2.86), inference("phi", 1.39, "nf4"), inference("phi", 1.33, "nf4-dq"), inference("stablelm", 7.30),
         inference("stablelm", 3.20, "nf4"), inference("stablelm", 3.04, "nf4-dq"), inference("llama-7b", 13.52),
         inference("llama-7b", 4.57, "nf4"), inference("llama-7b", 4.26, "nf4-dq"), inference("llama-13b", 26.21)],
        LITGPT_NOTE,
    ),
    Table(
        "serving", "serving", "Generation of 200 tokens, eager, with a KV cache for them or for up to 131,072",
        TORCHAO + "/_models/llama/benchmark_results.txt", GB, 2, "2.5.1", "torchao==0.5.0", "a100-80gb", "serving.py",
        [Figure("llama-2-7b-float32", "7B float32", 27.23), Figure("llama-2-7b-bfloat16", "7B bfloat16", 13.64),
         Figure("llama-3-8b-float32", "Llama-3-8B float32", 32.34), Figure("llama-3-8b-bfloat16", "Llama-3-8B bfloat16", 16.19),
         *cached(8192, 17.86, 17.52, 17.47), *cached(16384, 19.81, 18.75, 18.48), *cached(32768, 23.83, 21.72, 20.64),
         *cached(65536, 33.50, 29.54, 25.24), *cached(131072, 59.27, 52.62, 34.18)],
        "Published with nightly builds of August 2024, before PyTorch 2.5.",
    ),
    Table(
        "vision", "vision", "ViT-L/16, fine-tuned on images of 224 x 224, batch 64, 16 or 4",
        "https://github.com/rasbt/pytorch-memory-optim/blob/main/logs.md", GB, 2, "2.4.1",
        "torchvision==0.19.1 lightning==2.4.0 lightning-utilities torchmetrics", "a100-80gb", "vision.py",
        [Figure("01", "plain 64", 26.79), Figure("01-2", "32-true 64", 26.84), Figure("02", "16-mixed 64", 18.21, NIGHTLY),
         Figure("03", "bf16-true 64", 13.82, NIGHTLY), Figure("04", "bf16-true 16", 5.69, NIGHTLY),
         Figure("05", "bf16-true 4 accumulate", 3.91, ADAM), Figure("06", "bf16-true 4 accumulate sgd", 2.02)],
        "Published with a nightly of PyTorch 2.1 for CUDA 11.8, of June 2023. Programs of CUDA 11 are not simulated.",
    ),
    Table(
        "images", "diffusion", "FLUX.1-dev, BF16, 1024 x 1024, batch 1, 4, 8 and 16",
        "https://github.com/sayakpaul/diffusers-torchao/blob/main/README.md", GIB, 3, "2.5.1",
        "diffusers==0.31.0 transformers==4.45.2 huggingface-hub==0.26.2 sentencepiece protobuf accelerate", "h100", "images.py",
        [Figure("model", "model", 31.438), Figure("batch-1", "1", 33.851), Figure("batch-4", "4", 39.490), Figure("batch-8", "8", 47.509),
         Figure("batch-16", "16", 61.548, WORKSPACE)],
        "Published with nightly builds of September 2024, before PyTorch 2.5. 16-bit convolutions: `--cudnn-workspace converted`.",
        options=("--cudnn-workspace", "converted"),
    ),
    Table(
        "operators", "losses and layers", "Losses and layers of language models, by PyTorch and by Liger-Kernel",
        "https://github.com/linkedin/Liger-Kernel/blob/main/benchmark/data/all_benchmark_data.csv", MIB, 2, "2.4.1",
        "liger-kernel==0.3.0 transformers==4.44.2", "a100-80gb", "operators.py",
        [*operator("cross_entropy", 131072, 40960.125, 8192.328), *operator("geglu", 8192, 12212.25, 8330.25),
         *operator("swiglu", 8192, 6372.25, 4474.25), *operator("rms_norm", 32768, 2560.383, 752.509),
         *operator("layer_norm", 16384, 1280.531, 1294.031)],
        "Rows of September 2024, with sources between Liger-Kernel 0.2.1 and 0.3.0, the largest size of each; the version of PyTorch is not stated.", together=True,
    ),
    Table(
        "operators-h100", "losses and layers", "Kullback-Leibler divergence, by PyTorch and by Liger-Kernel",
        "https://github.com/linkedin/Liger-Kernel/blob/main/benchmark/data/all_benchmark_data.csv", MIB, 2, "2.4.1",
        "liger-kernel==0.3.0 transformers==4.44.2", "h100-pcie", "operators.py", operator("kl_div", 131072, 57344, 49152),
        "As the table above.", together=True,
    ),
]
