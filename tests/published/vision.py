"""Fine-tuning of torchvision's ViT-L/16 as in the logs of pytorch-memory-optim: one epoch in short, then validation.

    vision.py LABEL plain|32-true|16-mixed|bf16-true BATCH [accumulate] [sgd] [attention-2.1] [adam-2.0]

The last two words take what older versions of PyTorch allocate (older.py); the recorded rows do without them.
"""
import torch
import torch.nn.functional as functional
import torchmetrics
from torchvision.models import vit_l_16

import figure
import older

ACCUMULATED = 4  # batches for one step


def make_model():
    with torch.device("meta"):
        model = vit_l_16()
        model.heads.head = torch.nn.Linear(in_features=1024, out_features=10)
    return model.to_empty(device="cpu")


def main(label, precision, batch, *words):
    batch = int(batch)
    older.use(words)
    model = make_model()
    if precision == "plain":
        model.cuda()
    make = torch.optim.SGD if "sgd" in words else torch.optim.Adam
    optimizer = make(model.parameters(), lr=5e-5)
    backward = torch.Tensor.backward
    if precision != "plain":
        from lightning import Fabric

        fabric = Fabric(accelerator="cuda", devices=1, precision=precision)
        fabric.launch()
        if precision != "32-true":
            torch.set_float32_matmul_precision("high")
        model, optimizer = fabric.setup(model, optimizer)
        backward = fabric.backward
    accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=10).cuda()
    train(model, optimizer, backward, accuracy, batch, "accumulate" in words)
    validate(model, batch)
    figure.report(label, "reserved")


def batch_of(size):
    return torch.randn(size, 3, 224, 224).cuda(), torch.randint(10, (size,)).cuda()


def train(model, optimizer, backward, accuracy, batch, accumulate):
    for index in range(2 * ACCUMULATED):
        model.train()
        features, targets = batch_of(batch)
        logits = model(features)
        loss = functional.cross_entropy(logits, targets)
        if accumulate:
            backward(loss / ACCUMULATED)
            if index % ACCUMULATED == 0:
                optimizer.step()
                optimizer.zero_grad()
        else:
            optimizer.zero_grad()
            backward(loss)
            optimizer.step()
        model.eval()
        with torch.no_grad():
            accuracy.update(torch.argmax(logits, 1), targets)


def validate(model, batch):
    """5000 images: full batches, and one of the rest."""
    model.eval()
    accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=10).cuda()
    with torch.no_grad():
        for size in (batch, batch, 5000 % batch):
            if size:
                features, targets = batch_of(size)
                accuracy.update(torch.argmax(model(features), 1), targets)


if __name__ == "__main__":
    figure.measure_each(main)
