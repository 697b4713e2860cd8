"""The dense factor of normal equations, and the words for those that have none."""

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.diagnostics.located import Located, machine_epsilon
from mslsq.diagnostics.marginals import MOST_FREE
from mslsq.kernels import may_read

NOT_FINITE = (
    "covariance: the normal equations are not finite at this solution. See mslsq.explain(problem, solution.value)."
)


class SingularCovarianceError(ValueError):
    """The problem does not determine all its variables, so that their covariance is infinite."""


class _Scaled(NamedTuple):
    """Cholesky factor of normal equations scaled to a unit diagonal; the identity where they are singular."""

    factor: Tensor
    scale: Tensor
    usable: Tensor
    info: Tensor
    sound: Tensor
    """By column: whether the columns before it leave something of it."""

    @property
    def regular(self) -> Tensor:
        return self.usable & (self.info == 0) & self.sound.all(-1)


def _scaled(matrix: Tensor) -> _Scaled:
    diagonal = matrix.diagonal(dim1=-2, dim2=-1)
    usable = torch.isfinite(matrix).all(-1).all(-1)
    scale = torch.where(diagonal > 0, diagonal, 1).sqrt()
    scaled = matrix / (scale[..., :, None] * scale[..., None, :])
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    factor, info = torch.linalg.cholesky_ex(torch.where(usable[..., None, None], scaled, eye))
    # With a unit diagonal a pivot² is the share of a column that the columns before it do not explain.
    pivots = factor.diagonal(dim1=-2, dim2=-1)
    lowest = machine_epsilon(matrix) * max(matrix.shape[-1], 10) * 10
    sound = (pivots > lowest**0.5) & (diagonal > 0)
    found = _Scaled(factor, scale, usable, info, sound)
    return found._replace(factor=torch.where(found.regular[..., None, None], factor, eye))


def half_inverse(factor: Tensor, scale: Tensor) -> Tensor:
    """H with (JᵀJ)⁻¹ = HᵀH, of a factor of JᵀJ scaled to a unit diagonal."""
    eye = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    inverse = torch.linalg.solve_triangular(factor, eye.expand_as(factor), upper=False)
    return inverse / scale[..., None, :]


def covariance_of_normal(normal: Float[Tensor, "... n n"]) -> Float[Tensor, "... n n"]:
    """(JᵀJ)⁻¹ of dense normal equations JᵀJ that are at hand, as `mslsq.covariance` takes it of those of a problem.

    Args:
        normal: JᵀJ, symmetric; any axes in front are a batch.

    Returns:
        The inverse; NaN for an entry of the batch that is not finite, or singular: where the columns before a column
        explain all of it but rounding.
    """
    if normal.ndim == 2 and normal.dtype == torch.float64 and may_read(normal):
        return torch.from_numpy(_inverse_of_one(normal.numpy()))
    found = _scaled(normal)
    half = half_inverse(found.factor, found.scale)
    return torch.where(found.regular[..., None, None], half.mT @ half, torch.nan)


def _inverse_of_one(normal: Float[np.ndarray, "n n"]) -> Float[np.ndarray, "n n"]:
    """The same of one matrix on the CPU: of a few unknowns twenty calls of PyTorch take 0.26 ms, this 0.03."""
    diagonal, singular = normal.diagonal(), np.full_like(normal, np.nan)
    if not (np.isfinite(normal).all() and (diagonal > 0).all()):
        return singular
    scale = np.sqrt(diagonal)
    potrf, trtri = _of_lapack()
    factor, info = potrf(normal / np.outer(scale, scale), lower=1)
    lowest = np.finfo(np.float64).eps * max(len(normal), 10) * 10
    if info or not (factor.diagonal() > lowest**0.5).all():
        return singular
    half = trtri(factor, lower=1)[0] / scale
    return half.T @ half


@cache
def _of_lapack() -> Any:
    """Cholesky factors and inverses of triangles in float64."""
    from scipy.linalg import get_lapack_funcs  # 60 ms, which `import mslsq` need not take

    return get_lapack_funcs(("potrf", "trtri"), dtype=np.float64)


def factorised(point: Located, matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cholesky factor of JᵀJ scaled to a unit diagonal, the scale, and which entries of the batch are regular."""
    found = _scaled(matrix)
    regular = found.regular.all(-1)
    if not bool(regular.any()):
        raise SingularCovarianceError(_words(point, found.usable[0], found.info[0], found.sound[0]))
    return found.factor, found.scale, regular


def _words(point: Located, usable: Tensor, info: Tensor, sound: Tensor) -> str:
    if not bool(usable.all()):
        return NOT_FINITE
    size = point.structure.size
    failed = torch.where(info > 0, info - 1, torch.where(sound.all(-1), size, (~sound).to(torch.int8).argmax(-1)))
    component = int((failed < size).to(torch.int8).argmax())
    return _undetermined(point, component * size + int(failed[component]), int((~sound).sum()))


def _undetermined(point: Located, column: int, missing: int) -> str:
    where = "a variable"
    for name in point.problem.variables:
        found = (point.columns(name) == column).nonzero()
        if len(found):
            where = f"{name}[{int(found[0, 0])}], entry {int(found[0, 1])} of its tangent"
    counted = "at least" if missing >= MOST_FREE and point.pattern is not None else "about"
    free = f"{counted} {missing} of {point.structure.num_columns} directions are free"
    rank = free if missing > 1 else "it has no inverse"
    dtype = point.stated.values[0].dtype
    single = "" if dtype == torch.float64 else f" To the precision of {str(dtype).removeprefix('torch.')}: try float64."
    return (
        f"covariance: JᵀJ is singular ({rank}), so the covariance is infinite: {where}, is not determined (given those "
        f"before it).{single} Hold a gauge by variable.fixed([0]) or a Prior; mslsq.explain(problem, solution.value) "
        "says what is free."
    )


def singular(point: Located, missing: tuple[int, int]) -> SingularCovarianceError:
    count, column = missing
    return SingularCovarianceError(NOT_FINITE if count == 0 else _undetermined(point, column, count))
