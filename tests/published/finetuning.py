"""Fine-tuning of Llama 3.2 3B as in torchtune's table: batch 2, packed to 4096 tokens, BF16.

    finetuning.py LABEL [compile] [chunked] [checkpointing] [in_backward] [offloading] [lora] [qlora] [8bit]

The recipes' parts come from torchtune: the model, the loss, and how each technique is applied.
"""
import contextlib
import sys

import torch
from torchtune import modules, training
from torchtune.data import padded_collate_packed
from torchtune.models import llama3_2
from torchtune.modules.loss import CEWithChunkedOutputLoss
from torchtune.modules.peft import get_adapter_params, set_trainable_params

import figure

BATCH, LENGTH, DOCUMENT = 2, 4096, 256


def make_model(words):
    with training.set_default_dtype(torch.bfloat16), torch.device("cuda"):
        if "lora" not in words and "qlora" not in words:
            return llama3_2.llama3_2_3b()
        make = llama3_2.qlora_llama3_2_3b if "qlora" in words else llama3_2.lora_llama3_2_3b
        model = make(lora_attn_modules=["q_proj", "v_proj", "output_proj"], apply_lora_to_mlp=True, lora_rank=64,
                     lora_alpha=128, lora_dropout=0.0)
    set_trainable_params(model, get_adapter_params(model))
    return model


def make_optimizer(words, parameters):
    if "8bit" in words:
        from torchao.prototype.low_bit_optim import AdamW8bit

        return AdamW8bit(parameters, lr=2e-5)
    return torch.optim.AdamW(parameters, lr=2e-5, fused=True)


def packed_batch():
    """Each pack holds documents of one length."""
    pack = {"tokens": torch.ones(LENGTH, dtype=torch.long), "labels": torch.ones(LENGTH, dtype=torch.long),
            "input_pos": torch.arange(DOCUMENT).repeat(LENGTH // DOCUMENT),
            "seq_lens": torch.full((LENGTH // DOCUMENT,), DOCUMENT)}
    return {key: value.to("cuda") for key, value in padded_collate_packed([pack] * BATCH).items()}


def loss_of(model, loss_function, batch, offload):
    labels = batch.pop("labels")
    with offload:
        logits = model(**batch)
    labels = torch.hstack((labels[..., 1:], torch.full((BATCH, 1), loss_function.ignore_index, device="cuda")))
    if not isinstance(logits, list):
        labels, logits = labels.reshape(-1), logits.reshape(-1, logits.size(-1))
    return loss_function(logits, labels)


def main(label, *words):
    torch.manual_seed(0)
    model = make_model(words)
    if "compile" in words:
        training.compile_model(model)
    if "checkpointing" in words:
        training.set_activation_checkpointing(model, auto_wrap_policy={modules.TransformerSelfAttentionLayer})
    offload = contextlib.nullcontext()
    if "offloading" in words:
        offload = training.get_act_offloading_ctx_manager(model, True)
    parameters = [each for each in model.parameters() if each.requires_grad]
    if "in_backward" in words:
        optimizers = {each: make_optimizer(words, [each]) for each in parameters}
        training.register_optim_in_bwd_hooks(model=model, optim_dict=optimizers)
    else:
        optimizer = make_optimizer(words, parameters)
    loss_function = CEWithChunkedOutputLoss() if "chunked" in words else torch.nn.CrossEntropyLoss()
    if "compile" in words:
        training.compile_loss(loss_function)
    if "chunked" in words:
        model.set_num_output_chunks(loss_function.num_output_chunks)
    torch.cuda.reset_peak_memory_stats()  # as after the recipes' setup; then the peak of all steps, also of the one that compiles
    for _ in range(3):
        batch = packed_batch()
        tokens = (batch["labels"] != -100).sum()
        loss = loss_of(model, loss_function, batch, offload) * tokens
        loss.backward()
        if "in_backward" not in words:
            training.scale_grads(model, 1 / tokens)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    figure.report(label, "active")


main(*sys.argv[1:])
