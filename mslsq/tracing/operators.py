"""Which PyTorch operators must not be differentiated or recorded as they are, and what stands for each.

Found by going through every differentiable operator of OpInfo under `vmap`, `jacfwd`, `jacrev`, their nestings and
`make_fx` (`benchmarks/operator_survey.py`, torch 2.13): some are silently wrong, some have no derivative in forward
mode or no second one, some end the process. A residual that calls one is captured, and the graph calls what is here.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from mslsq.private import is_lazy_zero
from mslsq.tracing.conventions import ignored_nan_has_no_slope
from mslsq.tracing.replacements import attention, distances, factorizations, formulas, powers, sampling, special

aten = torch.ops.aten


def overloads(table: dict[str, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """By operator, those that this version of PyTorch has (private names change)."""
    found = {}
    for name, replacement in table.items():
        packet, _, overload = name.partition(".")
        if hasattr(aten, packet) and hasattr(getattr(aten, packet), overload or "default"):
            found[getattr(getattr(aten, packet), overload or "default")] = replacement
    return found


WRONG = {
    "_linalg_solve_ex": factorizations.solve,
    "linalg_lu_solve": factorizations.lu_solve,
    "_linalg_slogdet": factorizations.slogdet,
    "_linalg_det": factorizations.det,
    "_cdist_forward": distances.cdist,
    "_prelu_kernel": formulas.prelu,
    "cholesky_inverse": factorizations.cholesky_inverse,
    "triangular_solve": factorizations.triangular_solve,
    "index_fill.int_Tensor": formulas.index_fill,
    "native_layer_norm": formulas.layer_norm,
    "scatter_reduce.two": formulas.scatter_reduce,
    "ldexp.Tensor": formulas.ldexp,
    **dict.fromkeys(("linspace.Tensor_Tensor", "linspace.Tensor_Scalar", "linspace.Scalar_Tensor"), formulas.linspace),
    **special.OPERATORS,
}
"""Silently wrong under some transform."""

INCOMPLETE = {
    "_euclidean_dist": distances.euclidean,
    "_pdist_forward": distances.pdist,
    "grid_sampler_2d": sampling.grid_sample,
    "grid_sampler_3d": sampling.grid_sample,
    "_scaled_dot_product_flash_attention_for_cpu": attention.flash_for_cpu,
    "cholesky": factorizations.cholesky,
    "mse_loss": formulas.mse_loss,
    "cumprod": formulas.cumprod,
    "huber_loss": formulas.huber_loss,
    "soft_margin_loss": formulas.soft_margin_loss,
    "multi_margin_loss": formulas.multi_margin_loss,
    "multilabel_margin_loss_forward": formulas.multilabel_margin_loss,
    "hardsigmoid": formulas.hardsigmoid,
    "rrelu_with_noise": formulas.rrelu,
    "rrelu_with_noise_functional": formulas.rrelu_functional,
    "max_unpool2d": formulas.max_unpool,
    "max_unpool3d": formulas.max_unpool3d,
}
"""Right, but without a derivative in forward mode or without a second one."""

RARELY_WRONG = {
    "roll": formulas.roll,
    "native_group_norm": formulas.group_norm,
    "pow.Tensor_Tensor": powers.power,
    "float_power.Tensor_Tensor": powers.float_power,
    "fmax": formulas.fmax,
    "fmin": formulas.fmin,
}
"""Wrong, or refused, in cases too rare to capture every residual that calls one: the check of a plan finds them. Those
of `fmax` and `fmin` with NaN come with some versions of PyTorch; there a residual that calls them is captured."""

REPLACEMENTS: dict[Any, Callable[..., Any]] = overloads(WRONG | INCOMPLETE | RARELY_WRONG)
"""By aten operator, a function with the operator's signature that every transform gets right."""

FUSED = ("_native_multi_head_attention", "_transformer_encoder_layer_fwd")
"""What attention modules call where nothing requires a gradient, which has no derivative at all: capturing calls the
parts instead (`without_fused_modules`)."""

COMPOSED: dict[Callable[..., Any], Callable[..., Any]] = {
    **dict.fromkeys(
        (torch.cosine_similarity, aten.cosine_similarity, aten.cosine_similarity.default), formulas.cosine_similarity
    ),
    **dict.fromkeys(
        (torch.nn.functional.hardsigmoid, aten.hardsigmoid, aten.hardsigmoid.default), formulas.hardsigmoid
    ),
    torch.nn.functional.batch_norm: formulas.batch_norm,
    torch.nn.functional.instance_norm: formulas.instance_norm,
    **dict.fromkeys((torch.ldexp, Tensor.ldexp, aten.ldexp, aten.ldexp.Tensor), formulas.ldexp),
    torch.linspace: formulas.linspace,
    **dict.fromkeys((torch.fmax, Tensor.fmax, aten.fmax, aten.fmax.default), formulas.fmax),
    **dict.fromkeys((torch.fmin, Tensor.fmin, aten.fmin, aten.fmin.default), formulas.fmin),
    **special.FUNCTIONS,
    **powers.FUNCTIONS,
}
"""Functions whose plain reverse mode is wrong in PyTorch, so that it is taken of these. Some are made of operators of
which PyTorch runs some without gradients: forward and reverse mode differ, and no operator is at fault. Batch
normalisation has no derivative in its statistics, which are inputs as all buffers are; the slope of `hardsigmoid` is
that of float32."""


def _is_right(function: Any, args: tuple[Any, ...], values: bool) -> bool:
    """Is PyTorch's own derivative of this call of a function in `COMPOSED` right? `values`: may numbers be looked at,
    without which powers, most of which are right, are all taken to be?"""
    if function in (torch.ldexp, Tensor.ldexp):
        return len(args) > 1 and args[1].is_floating_point()
    if function is torch.linspace:
        return not any(isinstance(x, Tensor) for x in args)
    if COMPOSED[function] in (formulas.fmax, formulas.fmin):
        return ignored_nan_has_no_slope()
    return function in powers.FUNCTIONS and not (values and powers.is_critical(*args[:2]))


class Composed(TorchFunctionMode):
    """While it is active, the functions of `COMPOSED` are computed by their formulas. `met` are the names of those that
    were called and that PyTorch's own derivatives are wrong of."""

    def __init__(self, values: bool = False) -> None:
        super().__init__()
        self.values = values
        self.met: set[str] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        formula = COMPOSED.get(func)
        if formula is None:
            return func(*args, **(kwargs or {}))
        if not _is_right(func, args, self.values):
            self.met.add(func.__name__)
        return formula(*args, **(kwargs or {}))


BY_PLACE = (
    "as_strided",
    "as_strided_copy",
    "select_scatter",
    "slice_scatter",
    "diagonal_scatter",
    "as_strided_scatter",
)
"""Rewritten by the shapes of the example (`rewrites.strided`, `rewrites.joined`): `as_strided` is silently wrong under
`vmap`, the others have wrong or no second derivatives."""

REWRITTEN: frozenset[Any] = frozenset(
    overloads(WRONG | INCOMPLETE | dict.fromkeys((*FUSED, *BY_PLACE), torch.Tensor.clone))
)
"""The operators that a residual must not be differentiated with as they are."""


def must_be_rewritten(operator: Any, args: tuple[Any, ...]) -> bool:
    """Must a residual that makes this call not be differentiated as it is written?"""
    if operator is aten.roll.default:
        return args[0].ndim == 0  # a scalar is rolled along the lanes; by their number, no check would see it
    if operator in (aten.fmax.default, aten.fmin.default):
        return not ignored_nan_has_no_slope()
    # One matrix that cannot be factored would stop all problems.
    return operator in REWRITTEN or operator is aten._linalg_check_errors.default


@contextmanager
def without_fused_modules() -> Iterator[None]:
    """Attention modules call the operators that they are made of."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def scaled(x: Tensor, factor: Any) -> Any:
    """`aten.mul.Scalar`, which a recording would compute with PyTorch's tensors of zeros too, that have no memory.

    The derivative of `add(x, y, alpha=2)`, `addcmul`, `addmm` and the like in x alone multiplies such a tangent of y:
    a segmentation fault (torch 2.13).
    """
    if is_lazy_zero(x):
        return torch.zeros(x.shape, dtype=torch.result_type(x, factor), device=x.device)
    return NotImplemented  # as usual


WHILE_RECORDING: dict[Any, Callable[..., Any]] = {aten.mul.Scalar: scaled}
"""What every recording calls in the place of an operator."""
