"""What PyTorch of June 2023 allocates otherwise than 2.4: words of vision.py that say how much of a deviation that is.

Written from the sources of PyTorch 2.0.1 and 2.1.0, the releases around that nightly: shapes, order and lifetimes of tensors, no
values.
"""
import torch


class Attention(torch.autograd.Function):
    """Flash attention before version 2: it works on copies ordered by example and returns its result in that order, whatever the
    order of its inputs (meta__scaled_dot_product_flash in torch/_meta_registrations.py)."""

    @staticmethod
    def forward(context, query, key, value):
        batch, heads, length, width = query.shape
        ends = [torch.arange(0, (batch + 1) * length, length, device="cuda", dtype=torch.int32) for _ in range(2)]
        copies = by_example(query, key, value)
        attended = torch.empty_like(copies[0]).view(batch, length, heads, width).transpose(1, 2)
        sums = torch.empty(batch, heads, (length + 15) // 16 * 16, device="cuda")
        context.save_for_backward(query, key, value, attended, sums, *ends)
        return attended

    @staticmethod
    def backward(context, gradient):
        query, key, value, attended, sums, *_ = context.saved_tensors
        batch, heads, length, width = query.shape
        copies = by_example(query, key, value, gradient, attended)
        gradients = [torch.empty_like(each) for each in copies[:3]]
        gradients.append(torch.empty_like(sums))
        return tuple(each.view(batch, length, heads, width).transpose(1, 2) for each in gradients[:3])


def by_example(*tensors):
    return [each.transpose(1, 2).reshape(-1, each.shape[1], each.shape[3]) for each in tensors]


def attend(query, key, value, *rest, **named):
    """Attention of PyTorch 2.0 and 2.1 for training in 16 bit; 32 bit takes another kernel, which orders so in 2.4, too."""
    if query.requires_grad and query.dtype in (torch.float16, torch.bfloat16):
        return Attention.apply(query, key, value)
    return own_attention(query, key, value, *rest, **named)


def divide(parameters, averages, roots, *rest):
    """The end of a step of Adam of PyTorch 2.0: the denominators are a second list beside the roots that they are made from."""
    return own_division(parameters, averages, torch._foreach_add(roots, 0.0), *rest)


own_attention = torch.nn.functional.scaled_dot_product_attention
own_division = torch._foreach_addcdiv_


def use(words):
    """Puts in what the words name, and PyTorch's own back in place of the rest."""
    torch.nn.functional.scaled_dot_product_attention = attend if "attention-2.1" in words else own_attention
    torch._foreach_addcdiv_ = divide if "adam-2.0" in words else own_division
