"""Complex measurements of a curve fit: as pairs (real, imaginary) in a last axis, each a measurement by itself."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mslsq import pytree
from mslsq.problem.errors import DtypeError, ProblemError


class Pairs(NamedTuple):
    """The arguments of a fit, all real."""

    model: Any
    y: Any
    sigma: Any
    mask: Any
    in_dims: Any


def in_pairs(model: Any, y: Any, sigma: Any, mask: Any, in_dims: Any) -> Pairs:
    """The same fit of real numbers: what is complex has an axis (real, imaginary) behind its own.

    Raises:
        ProblemError: a covariance matrix, or a complex sigma, of complex y; a negative axis in `in_dims`.
    """
    leaves, structure = pytree.flatten(y)
    split = [isinstance(leaf, Tensor) and leaf.is_complex() for leaf in leaves]
    if not any(split):
        return Pairs(model, y, sigma, mask, in_dims)
    if any(isinstance(axis, int) and axis < 0 for axis in pytree.leaves(in_dims)):
        raise ProblemError(f"in_dims={in_dims!r}: of complex y give axes that are not negative.")

    def like_y(tree: Any, change: Callable[[Tensor, Tensor], Tensor]) -> Any:
        """A tree like y, changed where y is complex."""
        parts, own = pytree.flatten(tree)
        if len(parts) != len(leaves):
            return tree  # what does not fit is said later
        changed = [change(x, leaf) if apart else x for x, leaf, apart in zip(parts, leaves, split, strict=True)]
        return pytree.unflatten(changed, own)

    def of_both(x: Tensor, leaf: Tensor) -> Tensor:
        return x.unsqueeze(-1).expand(*x.shape, 2)

    def sigma_of_both(x: Any, leaf: Tensor) -> Any:
        if not isinstance(x, Tensor) or x.ndim == 0:
            return x
        if x.is_complex():
            raise DtypeError("sigma must be real: the standard deviation of the real and of the imaginary part.")
        if _points(x, in_dims, 3) > _points(leaf, in_dims, 1):
            raise ProblemError(
                "sigma is a covariance matrix, which complex y does not have here: give the standard deviation of the "
                "real and of the imaginary part of each point."
            )
        return of_both(x, leaf)

    return Pairs(
        predicting(model, tuple(split)),
        pytree.unflatten(
            [measured(leaf) if apart else leaf for leaf, apart in zip(leaves, split, strict=True)], structure
        ),
        like_y(sigma, sigma_of_both),
        mask if mask is None else like_y(mask, of_both),
        in_dims,
    )


def predicting(model: Callable[[Any, Any], Any], split: tuple[bool, ...]) -> Callable[[Any, Any], Any]:
    """The model, in pairs where the measurements are."""

    def predicted(p: Any, t: Any) -> Any:
        parts, structure = pytree.flatten(model(p, t))
        if len(parts) != len(split):
            return pytree.unflatten(parts, structure)  # said later
        pairs = [as_pair(x) if apart else x for x, apart in zip(parts, split, strict=True)]
        return pytree.unflatten(pairs, structure)

    return predicted


def measured(y: Tensor) -> Tensor:
    """Measurements as pairs. NaN put into a complex tensor is NaN + 0i: of what is missing no part was measured."""
    return torch.where(torch.isnan(y)[..., None], torch.nan, as_pair(y))


def as_pair(x: Tensor) -> Tensor:
    """(..., 2): real and imaginary part; of a real tensor the latter is zero."""
    return torch.stack((x.real, x.imag) if x.is_complex() else (x, torch.zeros_like(x)), -1)


def _points(x: Tensor, in_dims: Any, place: int) -> int:
    """The dimensions of one fit; `in_dims` is over (t, y, p0, sigma)."""
    mapped = isinstance(in_dims, int) or (
        isinstance(in_dims, (tuple, list)) and len(in_dims) > place and in_dims[place] is not None
    )
    return x.ndim - mapped
