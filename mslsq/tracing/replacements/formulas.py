"""Operators as their formulas: activations and losses whose kernels lack a second derivative, or batch it wrongly.

At a kink each takes the side that PyTorch's kernel takes.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Inexact, Int
from torch import Tensor

from mslsq.tracing.conventions import ignored_nan_has_no_slope

NONE, MEAN, SUM = range(3)
"""`reduction` as aten has it."""


def reduced(loss: Tensor, reduction: int) -> Tensor:
    return loss if reduction == NONE else loss.mean() if reduction == MEAN else loss.sum()


def mse_loss(x: Tensor, target: Tensor, reduction: int = MEAN) -> Tensor:
    """(x − target)²; the kernel's second derivative of a mean is refused where one of the two is constant."""
    z = x - target
    return reduced(z * z, reduction)


def fmax(input: Tensor, other: Tensor) -> Tensor:
    """The larger, or the one that is not NaN: which has all of the derivative."""
    return _ignoring_nan(torch.ops.aten.fmax.default, input, other)


def fmin(input: Tensor, other: Tensor) -> Tensor:
    """The smaller, or the one that is not NaN: which has all of the derivative."""
    return _ignoring_nan(torch.ops.aten.fmin.default, input, other)


def _ignoring_nan(function: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor) -> Tensor:
    found = function(x, y)
    if ignored_nan_has_no_slope():
        return found
    return torch.where(y.isnan(), x, torch.where(x.isnan(), y, found))


def huber_loss(x: Tensor, target: Tensor, reduction: int = MEAN, delta: float = 1.0) -> Tensor:
    """½q² + δ(|z| − q) with z = x − target, q = min(|z|, δ): finite derivatives for gross errors too."""
    z = (x - target).abs()
    q = z.clamp(max=delta)
    return reduced(0.5 * q * q + delta * (z - q), reduction)


def soft_margin_loss(x: Tensor, target: Tensor, reduction: int = MEAN) -> Tensor:
    """log(1 + exp(−target x))."""
    z = -target * x
    return reduced(torch.logaddexp(z, torch.zeros_like(z)), reduction)


def multi_margin_loss(
    x: Float[Tensor, "*batch classes"],
    target: Int[Tensor, "*batch"],
    p: float = 1,
    margin: float = 1,
    weight: Float[Tensor, "classes"] | None = None,
    reduction: int = MEAN,
) -> Tensor:
    """Σ over the other classes of w max(0, margin − x[target] + x[i])ᵖ / classes."""
    classes = x.shape[-1] if x.ndim else 1
    rows, wanted = x.reshape(-1, classes), target.reshape(-1, 1)
    hinge = (margin - rows.gather(1, wanted) + rows).clamp(min=0)
    hinge = hinge if p == 1 else hinge * hinge
    if weight is not None:
        hinge = hinge * weight.index_select(0, wanted[:, 0])[:, None]
    others = torch.arange(classes, device=x.device) != wanted
    loss = torch.where(others, hinge, 0).sum(1) / classes
    return reduced(loss.reshape(target.shape), reduction)


def multilabel_margin_loss(
    x: Float[Tensor, "*batch classes"], target: Int[Tensor, "*batch classes"], reduction: int = MEAN
) -> tuple[Tensor, Tensor]:
    """Σ over targets j (up to the first −1) and others i of max(0, 1 − x[j] + x[i]) / classes; and the targets."""
    classes = x.shape[-1] if x.ndim else 1
    rows, wanted = x.reshape(-1, classes), target.reshape(-1, classes)
    named = (wanted < 0).to(torch.int64).cumsum(1) == 0
    places = torch.where(named, wanted, 0)
    among = (named[:, :, None] & (places[:, :, None] == torch.arange(classes, device=x.device))).any(1)
    hinge = (1 - rows.gather(1, places)[:, :, None] + rows[:, None, :]).clamp(min=0)
    loss = torch.where(named[:, :, None] & ~among[:, None, :], hinge, 0).sum((1, 2)) / classes
    loss = loss.reshape(target.shape[:-1]) if reduction == NONE else reduced(loss, reduction)
    return loss, among.to(x.dtype).reshape(target.shape)


def hardsigmoid(x: Tensor, inplace: bool = False) -> Tensor:
    """0 up to −3, 1 from 3, a line between, whose slope PyTorch's derivative rounds to float32 for float64 too."""
    y = torch.where(x <= -3, 0, torch.where(x >= 3, 1, (x + 3) / 6))
    return x.copy_(y) if inplace else y


def ldexp(input: Tensor, other: Tensor) -> Tensor:
    """x 2ᵉ. PyTorch's derivative in x takes 2ᵉ of integers among integers: zero where e is negative (torch 2.13)."""
    if not other.is_floating_point():
        real = input.real if input.is_complex() else input
        other = other.to(real.dtype if real.is_floating_point() else torch.get_default_dtype())
    return input * torch.exp2(other)


def prelu(x: Tensor, weight: Tensor) -> Tensor:
    """x where it is positive, else weight·x; the weight broadcasts."""
    return torch.where(x > 0, x, weight * x)


def rrelu(
    x: Tensor, noise: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, *rest: object
) -> Tensor:
    """`aten.rrelu_with_noise` outside of training, where the slope is the middle one."""
    if training:
        raise RuntimeError("rrelu in training is random: put the module into eval()")
    return torch.where(x > 0, x, (lower + upper) / 2 * x)


def rrelu_functional(x: Tensor, noise: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    """`aten.rrelu_with_noise_functional`, which is what capturing may make of it."""
    return rrelu(x, noise, *rest), noise


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """Σ x1 x2 / (n1 n2) with n = max(|x|, eps).

    PyTorch takes that maximum without gradients: its reverse derivative moves n where it rests at eps, which forward
    mode and differences do not.
    """

    def length(x: Tensor) -> Tensor:
        short = torch.linalg.vector_norm(x, dim=dim, keepdim=True) < eps
        # A vector of ones in place of a short one: the norm has no second derivative at zero.
        return torch.where(short, eps, torch.linalg.vector_norm(torch.where(short, 1, x), dim=dim, keepdim=True))

    x1, x2 = torch.broadcast_tensors(x1, x2)
    return (x1 / length(x1) * (x2 / length(x2))).sum(dim)


def batch_norm(
    x: Inexact[Tensor, "n c *size"],
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """`torch.nn.functional.batch_norm` by its formula, (x − mean) w / √(variance + eps) + b, where it writes nothing.

    PyTorch's refuses derivatives in given statistics, and `jacfwd(jacfwd)` of that with its own is silently wrong.
    """
    if training and running_mean is None and x.numel() > x.shape[1]:
        axes = [0, *range(2, x.ndim)]
        mean, variance = x.mean(axes), x.var(axes, correction=0)
    elif training or running_mean is None or running_var is None:
        return torch.nn.functional.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
    else:
        mean, variance = running_mean, running_var
    shape = [1, -1, *[1] * (x.ndim - 2)]
    return _normalized(x, mean.reshape(shape), variance.reshape(shape), weight, bias, eps)


def instance_norm(
    x: Inexact[Tensor, "n c *size"],
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """`torch.nn.functional.instance_norm`, as `batch_norm`: each sample by itself, or by given statistics."""
    if not use_input_stats:
        return batch_norm(x, running_mean, running_var, weight, bias, False, momentum, eps)
    axes = list(range(2, x.ndim))
    if running_mean is not None or x.numel() == math.prod(x.shape[:2]):
        given = x, running_mean, running_var, weight, bias
        return torch.nn.functional.instance_norm(*given, use_input_stats, momentum, eps)
    return _normalized(x, x.mean(axes, keepdim=True), x.var(axes, correction=0, keepdim=True), weight, bias, eps)


def _normalized(
    x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """(x − mean) w / √(variance + eps) + b, of every channel, the second axis."""
    shape = [1, -1, *[1] * (x.ndim - 2)]
    factor = (variance + eps).rsqrt()
    normalized = (x - mean) * (factor if weight is None else factor * weight.reshape(shape))
    return normalized if bias is None else normalized + bias.reshape(shape)


def group_norm(
    x: Inexact[Tensor, "n c *size"],
    weight: Tensor | None,
    bias: Tensor | None,
    n: int,
    channels: int,
    size: int,
    groups: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """`aten.native_group_norm`, which takes one layout in memory only: normalized, means, 1 / standard deviations."""
    normalized, mean, scale = standardized(x.reshape(n, groups, -1), [-1], eps)
    normalized = normalized.reshape(x.shape)
    shape = [1, channels, *[1] * (x.ndim - 2)]
    normalized = normalized if weight is None else normalized * weight.reshape(shape)
    normalized = normalized if bias is None else normalized + bias.reshape(shape)
    return normalized, mean.squeeze(-1), scale.squeeze(-1)


def layer_norm(
    x: Inexact[Tensor, "*shape"], size: list[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """`aten.native_layer_norm`: normalized, means, 1 / standard deviations. The derivative of its derivative in forward
    mode is silently wrong in PyTorch (torch 2.13: −160 in the place of −0.03)."""
    normalized, mean, scale = standardized(x, list(range(-len(size), 0)), eps)
    normalized = normalized if weight is None else normalized * weight
    return normalized if bias is None else normalized + bias, mean, scale


def standardized(x: Tensor, axes: list[int], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """(x − mean) / √(variance + eps) over some axes, the mean, and the factor; both keep their axes."""
    mean = x.mean(axes, keepdim=True)
    centred = x - mean
    factor = (centred.square().mean(axes, keepdim=True) + eps).rsqrt()
    return centred * factor, mean, factor


def max_unpool(x: Inexact[Tensor, "*planes h w"], indices: Int[Tensor, "*planes h w"], size: list[int]) -> Tensor:
    """`max_unpool2d`: each entry at its place of a plane of zeros."""
    kept = x.ndim - len(size)
    plane = x.new_zeros([*x.shape[:kept], math.prod(size)])
    return plane.scatter(-1, indices.flatten(kept), x.flatten(kept)).reshape([*x.shape[:kept], *size])


def max_unpool3d(x: Tensor, indices: Tensor, size: list[int], stride: list[int], padding: list[int]) -> Tensor:
    return max_unpool(x, indices, size)


def linspace(start: Any, end: Any, steps: int, *, out: Any = None, **options: Any) -> Tensor:
    """`linspace` between tensors, which PyTorch takes for constants: start + (end − start) k / (steps − 1)."""
    tensors = [x for x in (start, end) if isinstance(x, Tensor)]
    if not tensors or out is not None:
        return torch.linspace(start, end, steps, **({} if out is None else {"out": out}), **options)
    dtype = options.get("dtype") or torch.get_default_dtype()
    if not (dtype.is_floating_point or dtype.is_complex):
        return torch.linspace(start, end, steps, **options)
    start, end = (x.to(dtype) if isinstance(x, Tensor) else x for x in (start, end))
    share = torch.arange(steps, device=tensors[0].device, dtype=dtype) / max(steps - 1, 1)
    # From both ends, so that both are met to the bit.
    return torch.where(share < 0.5, start + (end - start) * share, end - (end - start) * (1 - share))


def roll(x: Tensor, shifts: list[int], dims: list[int] = []) -> Tensor:  # noqa: B006
    """`roll`, which under `vmap` rolls the batch of a tensor without axes."""
    return x if x.ndim == 0 else torch.roll(x, shifts, dims)


def index_fill(x: Tensor, dim: int, index: Int[Tensor, "k"], value: Tensor) -> Tensor:
    """`index_fill` with a tensor as value, whose tangent the forward derivative of PyTorch's forgets."""
    if x.ndim == 0:
        return value.to(x.dtype) if index.numel() else x
    filled = torch.zeros(x.shape[dim], dtype=torch.bool, device=x.device).index_fill(0, index.reshape(-1), True)
    shape = [1] * x.ndim
    shape[dim] = -1
    return torch.where(filled.reshape(shape), value.to(x.dtype), x)


def cumprod(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """`cumprod` by doubling: after k passes each entry is the product of the last 2ᵏ. Zeros are no special case.

    PyTorch's forward derivative treats them by a write in place, which `vmap` refuses.
    """
    x = x if dtype is None else x.to(dtype)
    if x.ndim == 0:
        return x
    product, step = x.movedim(dim, -1), 1
    while step < product.shape[-1]:
        product = torch.cat([product[..., :step], product[..., step:] * product[..., :-step]], -1)
        step *= 2
    return product.movedim(-1, dim)


def scatter_reduce(
    x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """`scatter_reduce`, whose forward derivative of products is silently wrong: each product over a mask."""
    if reduce != "prod":
        return torch.scatter_reduce(x, dim, index, src, reduce, include_self=include_self)
    if x.ndim == 0:
        return scatter_reduce(x[None], 0, index.reshape(1), src.reshape(1), reduce, include_self=include_self)[0]
    for axis, size in enumerate(index.shape):
        src = src.narrow(axis, 0, size)
    places = torch.arange(x.shape[dim], device=x.device)[:, None]
    here = index.movedim(dim, -1).unsqueeze(-2) == places
    factors = torch.where(here, src.movedim(dim, -1).unsqueeze(-2), 1).prod(-1)
    hit = here.any(-1)
    whole = x.movedim(dim, -1)
    missing = [(0, n - m) for n, m in zip(whole.shape, factors.shape, strict=True)]
    padding = [number for pair in reversed(missing) for number in pair]
    factors = torch.nn.functional.pad(factors, padding, value=1.0)
    hit = torch.nn.functional.pad(hit, padding, value=False)
    product = whole * factors if include_self else torch.where(hit, factors, whole)
    return product.movedim(-1, dim)
