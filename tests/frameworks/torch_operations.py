"""PyTorch operations on small random inputs, by name: each takes a device and a generator of inputs, and returns tensors.

The same call on the CPU says what is right. The inputs are made on the CPU and copied, so both devices have the same.
"""
import torch
import torch.nn.functional as F

UNARY = """abs neg sign sgn floor ceil trunc frac exp exp2 expm1 log log2 log10 log1p sqrt rsqrt square reciprocal sin cos tan
asin acos atan sinh cosh tanh asinh acosh atanh sigmoid logit erf erfc erfinv lgamma digamma i0 relu isnan isinf isfinite
signbit positive deg2rad rad2deg nan_to_num angle logical_not""".split()
BINARY = """add sub mul div true_divide floor_divide remainder fmod pow atan2 maximum minimum fmax fmin hypot copysign
nextafter eq ne lt le gt ge logical_and logical_or logical_xor xlogy logaddexp logaddexp2 heaviside dist""".split()
REDUCTIONS = "sum mean prod amax amin argmax argmin any all std var logsumexp median nansum norm max min".split()
ALONG = "cumsum cumprod logcumsumexp softmax log_softmax sort argsort flip".split()
ACTIVATIONS = """relu6 elu selu celu gelu silu mish softplus softsign tanhshrink hardtanh hardswish hardsigmoid leaky_relu
logsigmoid hardshrink softshrink""".split()


# Their results' sizes are values.
SIZED_BY_VALUES = {"nonzero", "argwhere", "nonzero as a tuple", "unique", "unique with counts", "unique of rows",
                   "unique_consecutive", "masked_select", "mask index", "mask index of rows", "mask index_put",
                   "repeat_interleave", "bincount", "combinations", "one_hot"}


class Inputs:
    """Random tensors of one device, the same for every device."""

    def __init__(self, device, seed):
        self.device, self.made = device, torch.Generator().manual_seed(seed)

    def real(self, *shape, dtype=torch.float32):
        return torch.rand(shape, generator=self.made).mul_(2).sub_(1).to(dtype).to(self.device)

    def positive(self, *shape):
        return torch.rand(shape, generator=self.made).add_(0.1).to(self.device)

    def whole(self, most, *shape):
        return torch.randint(most, shape, generator=self.made).to(self.device)

    def mask(self, *shape):
        return (torch.rand(shape, generator=self.made) < 0.4).to(self.device)


def changed(tensor, name, *values):
    """The tensor after an operation in place."""
    getattr(tensor, name)(*values)
    return tensor


def written(out, function, *values, **named):
    function(*values, out=out, **named)
    return out


def column(tensor):
    tensor[:, 1] = tensor[:, 0] * 2
    return tensor


def _shapes():
    return {
        "arange": lambda i: torch.arange(3, 90, 4, device=i.device),
        "linspace": lambda i: torch.linspace(0, 1, 17, device=i.device),
        "full": lambda i: torch.full((3, 4), 2.5, device=i.device),
        "eye": lambda i: torch.eye(5, device=i.device),
        "zeros": lambda i: torch.zeros(9, device=i.device),
        "ones_like": lambda i: torch.ones_like(i.real(4, 3)),
        "tril": lambda i: i.real(6, 6).tril(),
        "triu": lambda i: i.real(6, 6).triu(1),
        "tril_indices": lambda i: torch.tril_indices(5, 4, device=i.device),
        "cat": lambda i: torch.cat([i.real(3, 4), i.real(2, 4)]),
        "stack": lambda i: torch.stack([i.real(3), i.real(3)], 1),
        "repeat": lambda i: i.real(2, 3).repeat(3, 2),
        "roll": lambda i: i.real(4, 5).roll(2, 1),
        "rot90": lambda i: i.real(4, 5).rot90(),
        "contiguous": lambda i: i.real(4, 5).t().contiguous(),
        "clone of a column": lambda i: i.real(4, 5)[:, 2].clone(),
        "to double": lambda i: i.real(5).double(),
        "to half": lambda i: i.real(5).half(),
        "to long": lambda i: (i.real(5) * 9).long(),
        "bool of": lambda i: i.whole(2, 6).bool(),
        "constant_pad": lambda i: F.pad(i.real(2, 3), (1, 2)),
        "reflect pad": lambda i: F.pad(i.real(1, 2, 5), (2, 2), mode="reflect"),
        "unfold": lambda i: F.unfold(i.real(1, 2, 5, 5), 3),
        "diag_embed": lambda i: torch.diag_embed(i.real(4)),
        "kron": lambda i: torch.kron(i.real(2, 3), i.real(3, 2)),
        "meshgrid": lambda i: torch.stack(torch.meshgrid(i.real(3), i.real(4), indexing="ij")),
    }


def _products():
    return {
        "mm": lambda i: i.real(5, 6) @ i.real(6, 7),
        "mv": lambda i: i.real(5, 6) @ i.real(6),
        "dot": lambda i: i.real(9).dot(i.real(9)),
        "bmm": lambda i: i.real(2, 5, 6) @ i.real(2, 6, 3),
        "addmm": lambda i: torch.addmm(i.real(7), i.real(5, 6), i.real(6, 7), beta=0.5),
        "baddbmm": lambda i: torch.baddbmm(i.real(2, 5, 3), i.real(2, 5, 6), i.real(2, 6, 3)),
        "linear": lambda i: F.linear(i.real(5, 6), i.real(4, 6), i.real(4)),
        "einsum": lambda i: torch.einsum("abc,cd->abd", i.real(2, 3, 4), i.real(4, 5)),
        "outer": lambda i: torch.outer(i.real(5), i.real(6)),
        "conv1d": lambda i: F.conv1d(i.real(1, 2, 9), i.real(3, 2, 3)),
        "conv2d": lambda i: F.conv2d(i.real(1, 2, 6, 6), i.real(3, 2, 3, 3), i.real(3), padding=1),
        "conv_transpose2d": lambda i: F.conv_transpose2d(i.real(1, 2, 4, 4), i.real(2, 3, 3, 3)),
        "layer_norm": lambda i: F.layer_norm(i.real(4, 8), (8,), i.real(8), i.real(8)),
        "group_norm": lambda i: F.group_norm(i.real(2, 4, 3), 2),
        "embedding": lambda i: F.embedding(i.whole(9, 4, 3), i.real(9, 5)),
        "cdist": lambda i: torch.cdist(i.real(4, 3), i.real(5, 3)),
        "avg_pool2d": lambda i: F.avg_pool2d(i.real(1, 2, 6, 6), 2),
        "max_pool2d": lambda i: F.max_pool2d(i.real(1, 2, 6, 6), 2),
        "adaptive_avg_pool2d": lambda i: F.adaptive_avg_pool2d(i.real(1, 2, 6, 6), 3),
        "interpolate nearest": lambda i: F.interpolate(i.real(1, 2, 4, 4), scale_factor=2),
        "interpolate bilinear": lambda i: F.interpolate(i.real(1, 2, 4, 4), size=7, mode="bilinear"),
        "grid_sample": lambda i: F.grid_sample(i.real(1, 2, 4, 4), i.real(1, 3, 3, 2), align_corners=False),
        "cross_entropy": lambda i: F.cross_entropy(i.real(6, 5), i.whole(5, 6)),
        "cross_entropy ignoring": lambda i: F.cross_entropy(i.real(6, 5), i.whole(5, 6) - 1, ignore_index=-1),
        "nll_loss": lambda i: F.nll_loss(i.real(6, 5), i.whole(5, 6)),
        "mse_loss": lambda i: F.mse_loss(i.real(6), i.real(6)),
        "l1_loss": lambda i: F.l1_loss(i.real(6), i.real(6)),
        "smooth_l1_loss": lambda i: F.smooth_l1_loss(i.real(6), i.real(6)),
        "huber_loss": lambda i: F.huber_loss(i.real(6), i.real(6)),
        "binary_cross_entropy": lambda i: F.binary_cross_entropy(i.real(6).sigmoid(), i.positive(6).clamp(0, 1)),
        "bce with logits": lambda i: F.binary_cross_entropy_with_logits(i.real(6), i.positive(6).clamp(0, 1)),
        "kl_div": lambda i: F.kl_div(i.real(4, 5).log_softmax(1), i.real(4, 5).softmax(1), reduction="batchmean"),
        "cosine_similarity": lambda i: F.cosine_similarity(i.real(4, 5), i.real(4, 5)),
        "cross": lambda i: torch.linalg.cross(i.real(4, 3), i.real(4, 3)),
        "glu": lambda i: F.glu(i.real(4, 6)),
        "prelu": lambda i: F.prelu(i.real(4, 3), i.positive(1)),
    }


def _indices():
    return {
        "gather": lambda i: i.real(4, 5).gather(1, i.whole(5, 4, 2)),
        "take_along_dim": lambda i: i.real(4, 5).take_along_dim(i.whole(4, 1, 5), 0),
        "take": lambda i: i.real(4, 5).take(i.whole(20, 7)),
        "index_select": lambda i: i.real(4, 5).index_select(1, i.whole(5, 3)),
        "index": lambda i: i.real(4, 5)[i.whole(4, 6)],
        "index of two": lambda i: i.real(4, 5)[i.whole(4, 6), i.whole(5, 6)],
        "index_put_": lambda i: changed(i.real(4), "index_put_", (i.whole(4, 9),), i.real(9), True),
        "index_add_": lambda i: changed(i.real(4, 3), "index_add_", 0, i.whole(4, 6), i.real(6, 3)),
        "index_copy_": lambda i: changed(i.real(4, 3), "index_copy_", 0, torch.tensor([2, 0], device=i.device), i.real(2, 3)),
        "index_fill_": lambda i: changed(i.real(4, 3), "index_fill_", 0, i.whole(4, 2), 7.0),
        "scatter_": lambda i: changed(i.real(4, 5), "scatter_", 1, i.whole(5, 4, 1), 3.0),
        "scatter_add_": lambda i: changed(i.real(4, 5), "scatter_add_", 1, i.whole(5, 4, 9), i.real(4, 9)),
        "scatter_reduce": lambda i: i.real(5).scatter_reduce(0, i.whole(5, 9), i.real(9), "amax"),
        "masked_fill": lambda i: i.real(4, 5).masked_fill(i.mask(4, 5), -1.0),
        "masked_scatter": lambda i: i.real(4, 5).masked_scatter(i.mask(4, 5), i.real(20)),
        "where": lambda i: torch.where(i.mask(4, 5), i.real(4, 5), i.real(5)),
        "topk": lambda i: torch.cat([each.float() for each in i.real(4, 9).topk(3)]),
        "kthvalue": lambda i: i.real(4, 9).kthvalue(4).values,
        "searchsorted": lambda i: torch.searchsorted(i.real(9).sort().values, i.real(5)),
        "bucketize": lambda i: torch.bucketize(i.real(5), i.real(9).sort().values),
        "histc": lambda i: i.real(30).histc(5, -1, 1),
        "one_hot": lambda i: F.one_hot(i.whole(5, 7)),
        "isin": lambda i: torch.isin(i.whole(9, 7), i.whole(9, 3)),
        "cummax": lambda i: i.real(9).cummax(0).values,
        "mode of": lambda i: i.whole(3, 9).mode().values,
        "put_": lambda i: changed(i.real(4, 5), "put_", i.whole(20, 3), i.real(3), True),
        "embedding_bag": lambda i: F.embedding_bag(i.whole(9, 3, 4), i.real(9, 5)),
        "nonzero": lambda i: i.mask(4, 5).nonzero(),
        "argwhere": lambda i: torch.argwhere(i.whole(2, 3, 4)),
        "nonzero as a tuple": lambda i: torch.stack(i.mask(4, 5).nonzero(as_tuple=True)),
        "unique": lambda i: i.whole(9, 20).unique(),
        "unique with counts": lambda i: torch.cat(i.whole(9, 20).unique(return_inverse=True, return_counts=True)),
        "unique of rows": lambda i: i.whole(2, 9, 3).unique(dim=0),
        "unique_consecutive": lambda i: torch.cat(i.whole(2, 20).unique_consecutive(return_counts=True)),
        "masked_select": lambda i: i.real(4, 5).masked_select(i.mask(4, 5)),
        "mask index": lambda i: i.real(4, 5)[i.mask(4, 5)],
        "mask index of rows": lambda i: i.real(4, 5)[i.mask(4)],
        "mask index_put": lambda i: changed(i.real(4, 5), "__setitem__", i.mask(4, 5), 3.0),
        "repeat_interleave": lambda i: i.real(5).repeat_interleave(i.whole(4, 5)),
        "bincount": lambda i: i.whole(9, 20).bincount(),
        "combinations": lambda i: torch.combinations(i.real(5)),
    }


def _in_place():
    return {
        "add_": lambda i: changed(i.real(5), "add_", i.real(5)),
        "mul_ by a number": lambda i: changed(i.real(5), "mul_", 3),
        "addcmul_": lambda i: changed(i.real(5), "addcmul_", i.real(5), i.real(5)),
        "addcdiv_": lambda i: changed(i.real(5), "addcdiv_", i.real(5), i.positive(5)),
        "lerp_": lambda i: changed(i.real(5), "lerp_", i.real(5), 0.3),
        "clamp_": lambda i: changed(i.real(5), "clamp_", -0.5, 0.5),
        "fill_": lambda i: changed(i.real(5), "fill_", 2),
        "zero_": lambda i: changed(i.real(5), "zero_"),
        "copy_ with another type": lambda i: changed(i.real(5), "copy_", i.whole(9, 5)),
        "copy_ transposed": lambda i: changed(i.real(4, 5), "copy_", i.real(5, 4).t()),
        "a column": lambda i: column(i.real(4, 3)),
        "masked_fill_": lambda i: changed(i.real(4, 5), "masked_fill_", i.mask(4, 5), 0),
        "fill_diagonal_": lambda i: changed(i.real(4, 4), "fill_diagonal_", 1),
        "add to out": lambda i: written(i.real(5), torch.add, i.real(5), i.real(5)),
        "mm to out": lambda i: written(i.real(3, 5), torch.mm, i.real(3, 4), i.real(4, 5)),
        "sum to an empty out": lambda i: written(torch.empty(0, device=i.device), torch.sum, i.real(3, 4), dim=1),
        "bitwise_and": lambda i: i.whole(99, 9) & i.whole(99, 9),
        "bitwise_xor_": lambda i: changed(i.whole(99, 9), "bitwise_xor_", i.whole(99, 9)),
        "shift": lambda i: i.whole(99, 9) << 2,
        "cumsum of whole numbers": lambda i: i.whole(9, 4, 5).cumsum(1),
        "clamp": lambda i: i.real(9).clamp(min=i.real(9)),
        "foreach add": lambda i: torch.cat(torch._foreach_add([i.real(3), i.real(4)], 2)),
        "foreach mul_": lambda i: torch.cat(_foreach(i, "_foreach_mul_", 3.0)),
        "foreach norm": lambda i: torch.stack(torch._foreach_norm([i.real(3), i.real(4)])),
        "clip_grad_norm_": lambda i: _clipped(i),
    }


def _foreach(inputs, name, value):
    tensors = [inputs.real(3), inputs.real(4)]
    getattr(torch, name)(tensors, value)
    return tensors


def _clipped(inputs):
    weight = torch.nn.Parameter(inputs.real(5))
    weight.grad = inputs.real(5) * 9
    torch.nn.utils.clip_grad_norm_([weight], 1.0)
    return weight.grad


def _gradients():
    def gradient(function, *shape):
        def run(inputs):
            value = inputs.real(*shape).requires_grad_()
            function(value, inputs).sum().backward()
            return value.grad

        return run

    return {
        "gradient of tanh": gradient(lambda v, i: v.tanh(), 9),
        "gradient of gelu": gradient(lambda v, i: F.gelu(v), 9),
        "gradient of softmax": gradient(lambda v, i: v.softmax(1) * i.real(4, 5), 4, 5),
        "gradient of layer_norm": gradient(lambda v, i: F.layer_norm(v, (5,)) * i.real(4, 5), 4, 5),
        "gradient of linear": gradient(lambda v, i: F.linear(v, i.real(3, 5)), 4, 5),
        "gradient of conv2d": gradient(lambda v, i: F.conv2d(v, i.real(3, 2, 3, 3)), 1, 2, 6, 6),
        "gradient of max_pool2d": gradient(lambda v, i: F.max_pool2d(v, 2) * 3, 1, 2, 6, 6),
        "gradient of index": gradient(lambda v, i: v[i.whole(4, 9)] * 2, 4, 5),
        "gradient of embedding": gradient(lambda v, i: F.embedding(i.whole(9, 6), v) * 2, 9, 4),
        "gradient of cross_entropy": gradient(lambda v, i: F.cross_entropy(v, i.whole(5, 4)), 4, 5),
        "gradient of cumsum": gradient(lambda v, i: v.cumsum(0) * i.real(9), 9),
        "gradient of norm": gradient(lambda v, i: v.norm(dim=1), 4, 5),
    }


def operations():
    """Functions of `Inputs`, by name."""
    found = {}
    for name in UNARY:
        found[name] = lambda i, name=name: getattr(torch, name)(i.positive(3, 4) * 0.8 if name != "acosh" else i.positive(4) + 1)
    for name in BINARY:
        found[name] = lambda i, name=name: getattr(torch, name)(i.positive(3, 4), i.positive(4))
    for name in REDUCTIONS:
        found[name] = lambda i, name=name: getattr(torch, name)(i.mask(3, 4) if name in ("any", "all") else i.real(3, 4))
        if name not in ("median", "norm", "max", "min"):
            found[f"{name} of rows"] = lambda i, name=name: getattr(torch, name)(
                i.mask(3, 4) if name in ("any", "all") else i.real(3, 4), dim=1)
    for name in ALONG:
        found[f"{name} along"] = lambda i, name=name: _first(getattr(torch, name)(i.real(3, 7), 1 if name != "flip" else [1]))
    for name in ACTIVATIONS:
        found[f"{name} of"] = lambda i, name=name: getattr(F, name)(i.real(9) * 3)
    for more in (_shapes(), _products(), _indices(), _in_place(), _gradients()):
        found.update(more)
    found["logsumexp"] = lambda i: i.real(3, 4).logsumexp(0)
    return found


def _first(result):
    return result if isinstance(result, torch.Tensor) else result[0]
