"""Training of vision transformers with torchao's optimisers: ViT-H, and ViT-g with recomputed activations.

    optimizers.py LABEL OPTIMIZER [compiled]         ViT-H, BF16 AMP, batch 8
    optimizers.py LABEL giant [compiled]             ViT-g, BF16, recomputed activations, batch 32
"""
import timm
import torch
import torch.nn.functional as functional

import figure


def make_optimizer(name, parameters):
    options = {"lr": 1e-4, "weight_decay": 0}
    if name == "Adam":
        return torch.optim.Adam(parameters, lr=1e-4)
    if name == "torch":
        return torch.optim.AdamW(parameters, fused=True, **options)
    if name == "bitsandbytes":
        import bitsandbytes

        return bitsandbytes.optim.AdamW8bit(parameters, **options)
    from torchao.prototype import low_bit_optim

    return getattr(low_bit_optim, name)(parameters, **options)


def main(label, name, *words):
    giant = name == "giant"
    batch = 32 if giant else 8
    torch.manual_seed(0)
    with torch.device("cuda"):
        if giant:  # with the images of the publication's program, 224 x 224
            torch.set_default_dtype(torch.bfloat16)
            model = timm.create_model("vit_giant_patch14_dinov2", num_classes=45, img_size=224)
            torch.set_default_dtype(torch.float32)
            model.set_grad_checkpointing()
        else:
            model = timm.create_model("vit_huge_patch14_224", num_classes=45)
    if "compiled" in words:
        model.compile(fullgraph=True)
    optimizer = make_optimizer("torch" if giant else name, model.parameters())
    model.train()
    for _ in range(3):
        images = torch.randn(batch, 3, 224, 224, dtype=torch.bfloat16 if giant else torch.float32)
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=not giant):
            loss = functional.cross_entropy(model(images.cuda()), torch.randint(45, (batch,)).cuda())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    figure.report(label)


figure.measure_each(main)
