"""Variable projection: the amplitudes of a separable model eliminated, as a differentiable least-squares problem.

G. H. Golub, V. Pereyra, "The differentiation of pseudo-inverses and nonlinear least squares problems whose variables
separate" (SIAM J. Numer. Anal. 10, 1973). Their Jacobian of the projected residual comes from differentiating the
elimination itself, in elementary operations: exact, to any order, under every transform, and in native programs.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.problem.errors import ShapeError

DEPENDENT = 100.0
"""A column of which less is left than this many units in the last place depends on those before it, and gets the
amplitude 0."""


class Eliminated(NamedTuple):
    """A linear least-squares problem, solved."""

    residual: Float[Tensor, "points"]
    """columns · amplitudes − y."""
    amplitudes: Float[Tensor, "terms"]


def eliminated(columns: Float[Tensor, "points terms"], y: Float[Tensor, "points"]) -> Eliminated:
    """The amplitudes that bring columns · amplitudes closest to y, and what is left.

    By modified Gram–Schmidt with y as one more column, which is as accurate as Householder's QR (Å. Björck, 1967) and
    squares no condition number.
    """
    terms = columns.shape[-1]
    rest = torch.cat([columns, y[:, None]], 1)
    own = (columns * columns).sum(0)
    least = (DEPENDENT * torch.finfo(columns.dtype).eps) ** 2
    rows, lengths = [], []
    for term in range(terms):
        column = rest[:, 0]
        squared = (column * column).sum()
        independent = squared > least * own[term]
        length = torch.where(independent, squared, 1).sqrt()
        direction = torch.where(independent, column / length, 0)
        row = (direction[:, None] * rest[:, 1:]).sum(0)
        rest = rest[:, 1:] - direction[:, None] * row
        rows.append(row)
        lengths.append(length)
    amplitudes: list[Tensor] = []
    for term in reversed(range(terms)):
        known = rows[term][-1]
        for other, amplitude in enumerate(reversed(amplitudes)):
            known = known - rows[term][other] * amplitude
        amplitudes.append(known / lengths[term])
    return Eliminated(-rest[:, 0], torch.stack(amplitudes[::-1]))


def projected_residual_of(basis: Callable[[Any, Any], Tensor]) -> Callable[..., tuple[Tensor, Tensor]]:
    """The residual of the nonlinear parameters alone, and the amplitudes as what comes beside it."""

    def projected(
        p: Any, t: Any, y: Tensor, whitening: Tensor, used: Tensor, held: tuple[Tensor, ...]
    ) -> tuple[Float[Tensor, "points"], Float[Tensor, "terms"]]:
        columns = torch.where(used[..., None], checked_basis(basis(p, t), y), 0)
        measured = torch.where(used, y, 0)
        if whitening.ndim > y.ndim:
            columns, measured = (whitening[..., None] * columns).sum(1), (whitening * measured).sum(-1)
        else:
            columns, measured = whitening[..., None] * columns, whitening * measured
        return tuple(eliminated(columns.reshape(-1, columns.shape[-1]), measured.reshape(-1)))  # pyright: ignore[reportReturnType]

    return projected


def model_of(basis: Callable[[Any, Any], Tensor]) -> Callable[[Any, Any], Tensor]:
    """The model of both kinds of parameters."""

    def model(p: Any, t: Any) -> Tensor:
        return (basis(p["nonlinear"], t) * p["linear"]).sum(-1)

    return model


def checked_basis(columns: Any, y: Tensor) -> Tensor:
    """What a basis returned for one fit.

    Raises:
        ShapeError: it is no tensor (*points, terms).
    """
    if not isinstance(columns, Tensor) or columns.shape[:-1] != y.shape or columns.shape[-1] == 0:
        given = f"shape {tuple(columns.shape)}" if isinstance(columns, Tensor) else type(columns).__name__
        raise ShapeError(
            f"basis(p, t) returned {given}; y of one fit has shape {tuple(y.shape)}, so {(*y.shape, 'terms')} is "
            "expected: one column for each amplitude, as torch.stack([...], -1) makes them."
        )
    return columns
