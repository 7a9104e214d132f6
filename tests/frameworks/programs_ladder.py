#!/usr/bin/env python3
"""Training and inference with the libraries that programs use on PyTorch, step by step, random weights and data.

    gpumem simulate --card h100 -- python3 tests/frameworks/programs_ladder.py STEP

The line is `pass STEP: what was seen` or `FAIL STEP: reason`. Steps for two ranks run under torchrun with --cards 2.
"""
import os
import sys
import tempfile

import torch

from ladder_steps import MIB, Steps

STEPS = Steps()
step = STEPS.step


def peak():
    return f"peak {torch.cuda.max_memory_allocated() / MIB:.1f} MiB live, {torch.cuda.max_memory_reserved() / MIB:.1f} reserved"


def small_llama(**options):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=4, vocab_size=1000)
    return LlamaForCausalLM(config, **options)


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        tokens = torch.randint(0, 1000, (128,))
        return {"input_ids": tokens, "labels": tokens}


def train_with_trainer(model, folder):
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(folder, per_device_train_batch_size=4, max_steps=4, bf16=True, report_to=[],
                                  save_strategy="no", logging_steps=1)
    Trainer(model, arguments, train_dataset=Tokens()).train()


@step
def trainer():
    with tempfile.TemporaryDirectory() as folder:
        train_with_trainer(small_llama(), folder)
    return peak()


@step
def generate_ends():
    model = small_llama().cuda()
    tokens = model.generate(torch.randint(0, 1000, (1, 8), device="cuda"), max_new_tokens=16, eos_token_id=[], pad_token_id=0)
    assert tokens.shape[1] == 24, f"{tokens.shape[1]} tokens; expected 24"
    return f"16 new tokens, {peak()}"


@step
def peft_lora():
    from peft import LoraConfig, get_peft_model

    with tempfile.TemporaryDirectory() as folder:
        train_with_trainer(get_peft_model(small_llama(), LoraConfig(r=8, target_modules=["q_proj", "v_proj"])), folder)
    return peak()


@step
def qlora():
    import bitsandbytes
    from peft import LoraConfig, get_peft_model

    model = small_llama()
    for layer in model.model.layers:
        for name in ("gate_proj", "up_proj", "down_proj"):
            old = getattr(layer.mlp, name)
            new = bitsandbytes.nn.Linear4bit(old.in_features, old.out_features, bias=False, compute_dtype=torch.bfloat16,
                                             quant_type="nf4")
            new.weight = bitsandbytes.nn.Params4bit(old.weight.data, requires_grad=False, quant_type="nf4")
            setattr(layer.mlp, name, new)
    model = get_peft_model(model, LoraConfig(r=8, target_modules=["down_proj", "q_proj"])).cuda()
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad])
    for _ in range(2):
        tokens = torch.randint(0, 1000, (2, 64), device="cuda")
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
    return peak()


@step
def trl_sft():
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer

    words = ["<pad>", "<eos>", "<unk>"] + [f"w{each}" for each in range(900)]
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    texts = Dataset.from_dict({"text": [" ".join(words[3:60]) for _ in range(16)]})
    with tempfile.TemporaryDirectory() as folder:
        options = SFTConfig(folder, per_device_train_batch_size=2, max_steps=3, report_to=[], save_strategy="no", bf16=True)
        SFTTrainer(small_llama(), args=options, train_dataset=texts, processing_class=fast).train()
    return peak()


def accelerated():
    from accelerate import Accelerator

    accelerator = Accelerator()
    model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.utils.data.TensorDataset(torch.randn(64, 512), torch.randint(10, (64,)))
    model, optimizer, loader = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(data, batch_size=8))
    for features, targets in loader:
        accelerator.backward(torch.nn.functional.cross_entropy(model(features), targets))
        optimizer.step()
        optimizer.zero_grad()
    return f"{accelerator.num_processes} ranks, {peak()}"


@step
def accelerate_one_rank():
    return accelerated()


@step
def accelerate_two_ranks():
    return accelerated()


@step
def lightning_ddp():
    import lightning

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(512, 10)

        def training_step(self, batch, index):
            return torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    data = torch.utils.data.TensorDataset(torch.randn(64, 512), torch.randint(10, (64,)))
    trainer = lightning.Trainer(accelerator="gpu", devices=2, strategy="ddp", max_steps=4, logger=False, enable_progress_bar=False,
                                enable_checkpointing=False, enable_model_summary=False)
    trainer.fit(Model(), torch.utils.data.DataLoader(data, batch_size=8))
    return f"{trainer.world_size} ranks, {peak()}"


@step
def fsdp2_eight_ranks():
    import torch.distributed as distributed
    from torch.distributed.fsdp import fully_shard

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    distributed.init_process_group("nccl")
    model = small_llama().cuda()
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        tokens = torch.randint(0, 1000, (2, 64), device="cuda")
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
    ranks = distributed.get_world_size()
    distributed.destroy_process_group()
    return f"{ranks} ranks, {peak()}"


def trained_by_deepspeed(stage):
    import deepspeed

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(8)])
    config = {"train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": True}, "zero_optimization": {"stage": stage},
              "zero_allow_untested_optimizer": True}
    engine = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(model.parameters()), config=config)[0]
    for _ in range(2):
        loss = engine(torch.randn(4, 512, device="cuda", dtype=torch.bfloat16)).float().pow(2).mean()
        engine.backward(loss)
        engine.step()
    return f"{torch.distributed.get_world_size()} ranks, {peak()}"


@step
def deepspeed_zero2():
    return trained_by_deepspeed(2)


@step
def deepspeed_zero3():
    return trained_by_deepspeed(3)


@step
def diffusers_training():
    from diffusers import DDPMScheduler, UNet2DModel

    model = UNet2DModel(sample_size=32, block_out_channels=(32, 64), down_block_types=("DownBlock2D", "AttnDownBlock2D"),
                        up_block_types=("AttnUpBlock2D", "UpBlock2D")).cuda()
    scheduler = DDPMScheduler()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        clean, noise = torch.randn(4, 3, 32, 32, device="cuda"), torch.randn(4, 3, 32, 32, device="cuda")
        times = torch.randint(0, 1000, (4,), device="cuda")
        loss = torch.nn.functional.mse_loss(model(scheduler.add_noise(clean, noise, times), times).sample, noise)
        loss.backward()
        optimizer.step()
    return peak()


@step
def timm_training():
    import timm

    model = timm.create_model("resnet18").cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        torch.nn.functional.cross_entropy(model(torch.randn(8, 3, 224, 224).cuda()), torch.randint(1000, (8,)).cuda()).backward()
        optimizer.step()
    return peak()


@step
def torch_geometric_training():
    from torch_geometric.nn import GCNConv

    layer = GCNConv(64, 16).cuda()
    out = layer(torch.randn(100, 64).cuda(), torch.randint(0, 100, (2, 400)).cuda())
    out.sum().backward()
    assert out.shape == (100, 16), out.shape
    return peak()


@step
def yolo_training():
    from ultralytics.nn.tasks import DetectionModel
    from ultralytics.utils import DEFAULT_CFG

    model = DetectionModel("yolo11n.yaml", verbose=False).cuda()
    model.args = DEFAULT_CFG
    batch = {"img": torch.rand(2, 3, 320, 320).cuda(), "cls": torch.zeros(4, 1).cuda(), "bboxes": torch.rand(4, 4).cuda() / 2 + 0.1,
             "batch_idx": torch.tensor([0.0, 0.0, 1.0, 1.0]).cuda()}
    loss = model(batch)[0]
    loss.sum().backward()
    return peak()


@step
def ppo_training():
    import gymnasium
    from stable_baselines3 import PPO

    PPO("MlpPolicy", gymnasium.make("CartPole-v1"), n_steps=64, batch_size=32, device="cuda").learn(128)
    return peak()


@step
def whisper_generates():
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2,
                           encoder_ffn_dim=128, decoder_ffn_dim=128)
    model = WhisperForConditionalGeneration(config).cuda()
    tokens = model.generate(torch.randn(1, 80, 3000).cuda(), max_new_tokens=8)
    return f"{tokens.shape[1]} tokens, {peak()}"


@step
def vllm_kv_cache():
    # The engine in this process: vLLM 0.8.5's shutdown of one in a process of its own waits for ever on a slow machine (its output
    # thread takes the socket's being writable for the signal, and closes it before the signal is sent).
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_NO_USAGE_STATS="1")
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, PreTrainedTokenizerFast
    from vllm import LLM, SamplingParams

    words = Tokenizer(models.WordLevel({"<unk>": 0, "<eos>": 1, "word": 2}, unk_token="<unk>"))
    with tempfile.TemporaryDirectory() as folder:  # the shape of Llama 3 8B
        LlamaConfig(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
                    vocab_size=128256, max_position_embeddings=8192, architectures=["LlamaForCausalLM"],
                    torch_dtype="bfloat16").save_pretrained(folder)
        PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", eos_token="<eos>").save_pretrained(folder)
        engine = LLM(folder, load_format="dummy", enforce_eager=True, max_model_len=1024)
    runner = engine.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
    cache = sum(each.nbytes for each in runner.kv_caches)
    options = SamplingParams(max_tokens=8, ignore_eos=True, detokenize=False)
    tokens = engine.generate([{"prompt_token_ids": [2, 2, 2]}], options, use_tqdm=False)[0].outputs[0].token_ids
    assert len(tokens) == 8, f"{len(tokens)} tokens; expected 8"
    return f"model {runner.model_memory_usage / 2**30:.2f} GiB, KV cache {cache / 2**30:.2f} GiB, 8 tokens, {peak()}"


def main():
    if len(sys.argv) != 2 or sys.argv[1] not in STEPS:
        print(f"programs_ladder.py: expected one of {', '.join(STEPS)}", file=sys.stderr)
        return 2
    name = sys.argv[1]
    try:
        line, status = f"pass {name}: {STEPS[name]()}", 0
    except Exception as wrong:
        reason = (str(wrong).strip().splitlines() or [""])[0]
        line, status = f"FAIL {name}: {type(wrong).__name__}: {reason}", 1
    if status or int(os.environ.get("LOCAL_RANK", "0")) == 0:
        print(line, flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
