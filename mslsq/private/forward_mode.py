"""Derivatives in forward mode, and `vmap`, without what PyTorch imports and looks at for them."""

import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch._functorch import eager_transforms
from torch._functorch import vmap as _vmap
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _disable_current_modes

from mslsq.private.compilers import spare_dynamo
from mslsq.private.levels import forward_level_is_open, forward_mode_again, is_wrapped
from mslsq.private.modes import is_tracing_or_dispatching


def load_forward_mode() -> None:
    """Import what PyTorch's first derivative in forward mode imports, where warnings are errors: it calls
    `torch.jit.script`, which warns that it is deprecated, and a derivative would fail by that. Elsewhere nothing
    happens: the import takes 0.2 s, and most solves do without it (`jvp`)."""
    if _OF_FORWARD_MODE not in sys.modules and any(action == "error" for action, *_ in warnings.filters):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _load_decompositions()


def jvp(function: Callable[..., Any], primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """`torch.func.jvp` of a pure function, which imports nothing where it need not."""
    return _forward_derivative(lambda: torch.func.jvp(function, primals, tangents))


def jacfwd(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """`torch.func.jacfwd` of a pure function of one vector, which imports nothing where it need not."""
    return lambda at: value_and_jacfwd(function, at)[1]


def value_and_jacfwd(function: Callable[[Tensor], Tensor], at: Tensor) -> tuple[Tensor, Tensor]:
    """The value of a pure function of one vector, and its Jacobian (*value, columns) as of `jacfwd`.

    The levels and wrappers are those of PyTorch, which takes apart and puts together pytrees at every one of them: 0.17
    of 0.28 ms for one column.
    """
    return _forward_derivative(lambda: _jacfwd(function, at))


def _jacfwd(function: Callable[[Tensor], Tensor], at: Tensor) -> tuple[Tensor, Tensor]:
    transforms = eager_transforms

    def push(tangent: Tensor) -> tuple[Tensor, Tensor]:
        outermost = transforms.JVP_NESTING == 0
        dual_level = forward_ad.dual_level() if outermost else nullcontext()
        with transforms.jvp_increment_nesting() as level, forward_mode_again(), dual_level:
            value, slope = forward_ad.unpack_dual(function(forward_ad.make_dual(at, tangent)))
            slope = torch.zeros_like(value) if slope is None else slope
            return _functorch._unwrap_for_grad(value, level), _functorch._unwrap_for_grad(slope, level)

    value, columns = vmapped(push, (torch.eye(len(at), dtype=at.dtype, device=at.device),), (0,))
    return value[0], columns.movedim(0, -1)


def vmapped(function: Callable[..., Any], tensors: Sequence[Tensor], dims: Sequence[int | None]) -> Any:
    """`torch.func.vmap` of a function of tensors, mapped along these dimensions, that returns a tensor or a tuple of
    tensors; the mapped axis of the results is the first.

    That of PyTorch takes 40 microseconds to look at pytrees and at the name of the function: as much as the residual of
    a small problem.
    """
    size = next((tensor.shape[dim] for tensor, dim in zip(tensors, dims, strict=True) if dim is not None), 0)
    if not size or is_tracing_or_dispatching():
        return torch.func.vmap(function, in_dims=tuple(dims))(*tensors)
    _load_batching_formulas()
    level = _functorch._vmap_increment_nesting(size, "error")
    try:
        inner = [
            tensor if dim is None else _functorch._add_batch_dim(tensor, dim % tensor.ndim, level)
            for tensor, dim in zip(tensors, dims, strict=True)
        ]
        output = function(*inner)
        if isinstance(output, tuple):
            return tuple([_functorch._remove_batch_dim(part, level, size, 0) for part in output])
        return _functorch._remove_batch_dim(output, level, size, 0)
    finally:
        _functorch._vmap_decrement_nesting()


_load_batching_formulas = getattr(_vmap, "lazy_load_decompositions", lambda: None)


def _forward_derivative(differentiate: Callable[[], Any]) -> Any:
    """What a pure function computes in forward mode, without PyTorch's formulas for operators that have none of their
    own (`trace`, `logsigmoid`, backward passes of normalizations): its first derivative in forward mode compiles them,
    which takes 0.2 s. An operator that needs one raises; then they are loaded, and the function is called again.
    """
    if _OF_FORWARD_MODE in sys.modules or _forward_mode.does_without:
        return differentiate()
    _forward_mode.does_without = True
    try:
        return differentiate()
    except NotImplementedError:
        _forward_mode.does_without = False
        _load_decompositions()
    finally:
        _forward_mode.does_without = False
    return differentiate()


class _ForwardMode(threading.local):
    does_without = False


_forward_mode = _ForwardMode()


_load_decompositions = getattr(forward_ad, "_maybe_load_decompositions", lambda: None)


def _load_decompositions_where_needed() -> None:
    if not _forward_mode.does_without:
        _load_decompositions()


if hasattr(forward_ad, "_maybe_load_decompositions"):  # elsewhere `forward_derivative` spares nothing
    forward_ad._maybe_load_decompositions = _load_decompositions_where_needed


_OF_FORWARD_MODE = "torch._decomp.decompositions_for_jvp"


_NO_CONTEXT = nullcontext()


# A sum or product of a tensor and something without a tangent: forward mode finds the shape of the zeros that stand for
# the missing tangent by these functions. Dynamo would be imported by the first `3 * x`, and sympy, which takes 0.15 s.
def _shape_without_sympy(a: Any, b: Any, /, *, alpha: Any = 1) -> Tensor | None:
    """The sum, product or quotient on the meta device of two plain tensors, at least one of them real or complex; None
    of others. Tensors are contiguous, or a tangent is being computed: forward mode asks for nothing but shape and
    dtype. Where sympy is there already this is as right, and takes a tenth of the time: a fifth of a small problem's
    derivative."""
    if not isinstance(alpha, (int, float)) or torch._C._get_tracing_state() is not None:
        return None
    for x in (a, b):
        if type(x) is not Tensor or x.device.type != "meta" or x.dtype == torch.bool:
            return None
        if x.requires_grad or is_wrapped(x) or not (x.is_contiguous() or forward_level_is_open()):
            return None
    if not any(x.is_floating_point() or x.is_complex() for x in (a, b)):
        return None
    has_modes = is_tracing_or_dispatching() or torch._ops._len_torch_dispatch_stack_pre_dispatch()
    with _disable_current_modes() if has_modes else _NO_CONTEXT:
        shape = a.shape if a.shape == b.shape else torch.broadcast_tensors(a, b)[0].shape
        dtype = a.dtype if a.dtype == b.dtype else torch.result_type(a, b)
        return torch.empty(shape, dtype=dtype, device="meta")


for _of_shapes in ("add", "sub", "mul", "true_divide"):
    spare_dynamo(getattr(getattr(torch, "_refs", None), _of_shapes, None), _shape_without_sympy)
