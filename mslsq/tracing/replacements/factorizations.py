"""Linear solves and determinants that stay right under nested transforms.

Under `vmap(jacfwd)` PyTorch's `linalg.solve`, `det` and `slogdet` are silently wrong (torch 2.13, errors of 1e2 and
more; pytorch issues 192540, 196695), through nested `vmap` of `lu_solve`. QR and triangular solves are right in every
nesting, so captured graphs use these.
"""

from typing import Any

import torch
from jaxtyping import Inexact, Int
from torch import Tensor


def solve(
    A: Inexact[Tensor, "*batch n n"], B: Inexact[Tensor, "*batch n k"], *, left: bool = True, check_errors: bool = False
) -> tuple[Tensor, Any, Any, Any]:
    """The X of A X = B (or X A = B) as `aten._linalg_solve_ex` returns it, from A = QR: X = R⁻¹ Qᴴ B, B also a vector.

    A singular A gives infinities or NaN and no error, so that one block leaves its neighbours alone.
    """
    if B.ndim == 1 or (B.ndim == A.ndim - 1 and B.shape == A.shape[:-1]):
        return solve(A, B.unsqueeze(-1), left=left)[0].squeeze(-1), None, None, None
    if not left:
        return solve(A.mT, B.mT)[0].mT, None, None, None
    Q, R = torch.linalg.qr(A)
    return torch.linalg.solve_triangular(R, Q.mH @ B, upper=True), None, None, None


def slogdet(A: Inexact[Tensor, "*batch n n"]) -> tuple[Tensor, Tensor, Any, Any]:
    """Sign (or phase) and log |det A| as `aten._linalg_slogdet` returns them; a real sign has no derivative."""
    if A.is_complex():
        odd, diagonal = eliminated(A)
        magnitude = diagonal.abs()
        return odd * (diagonal / magnitude).prod(-1), magnitude.log().sum(-1), None, None
    magnitude = torch.linalg.qr(A)[1].diagonal(dim1=-2, dim2=-1).abs()
    return sign(A), magnitude.log().sum(-1), None, None


def det(A: Inexact[Tensor, "*batch n n"]) -> tuple[Tensor, Any, Any]:
    """det A as `aten._linalg_det` returns it: the product of |Rᵢᵢ| with its sign. No derivative where A is singular."""
    if A.is_complex():
        odd, diagonal = eliminated(A)
        return odd * diagonal.prod(-1), None, None
    magnitude = torch.linalg.qr(A)[1].diagonal(dim1=-2, dim2=-1).abs()
    return sign(A) * magnitude.prod(-1), None, None


def eliminated(A: Inexact[Tensor, "*batch n n"]) -> tuple[Tensor, Tensor]:
    """±1 and the diagonal of U of A = P L U: the phase of a complex determinant, which QR loses, has a derivative."""
    LU, pivots, _ = torch.linalg.lu_factor_ex(A)
    swaps = (pivots != torch.arange(1, A.shape[-1] + 1, device=A.device)).sum(-1)
    return 1 - 2 * (swaps % 2), LU.diagonal(dim1=-2, dim2=-1)


def sign(A: Inexact[Tensor, "*batch n n"]) -> Tensor:
    """The sign of a real det A, a constant: only values are taken, which are right under every `vmap`."""
    return torch.linalg.slogdet(A.detach())[0].detach()  # noqa: TID251


def lu_solve(
    LU: Inexact[Tensor, "*batch n n"],
    pivots: Tensor,
    B: Inexact[Tensor, "*batch n k"],
    *,
    left: bool = True,
    adjoint: bool = False,
) -> Tensor:
    """`torch.linalg.lu_solve` by two triangular solves: A = P L U, so X = U⁻¹ L⁻¹ Pᵀ B, and its variants."""
    if not left:  # X A = B is Aᴴ Xᴴ = Bᴴ
        return lu_solve(LU, pivots, B.mH, adjoint=not adjoint).mH.resolve_conj()
    P, L, U = torch.lu_unpack(LU, pivots)
    if adjoint:
        Y = torch.linalg.solve_triangular(U.mH, B, upper=False)
        return P @ torch.linalg.solve_triangular(L.mH, Y, upper=True, unitriangular=True)
    Y = torch.linalg.solve_triangular(L, P.mT @ B, upper=False, unitriangular=True)
    return torch.linalg.solve_triangular(U, Y, upper=True)


def where_factored(factor: Inexact[Tensor, "*batch n k"], info: Int[Tensor, "*batch"]) -> Inexact[Tensor, "*batch n k"]:
    """The factor (or inverse, or solution) where LAPACK's `info` says that it is one, else NaN."""
    sound = info == 0
    return torch.where(sound.reshape(*sound.shape, *[1] * (factor.ndim - sound.ndim)), factor, torch.nan)


def cholesky(A: Inexact[Tensor, "*batch n n"], upper: bool = False) -> Tensor:
    """`aten.cholesky`, the old name, which has no derivative in forward mode."""
    L = where_factored(*torch.linalg.cholesky_ex(A))
    return L.mH if upper else L


def cholesky_inverse(L: Inexact[Tensor, "*batch n n"], upper: bool = False) -> Tensor:
    """(L Lᴴ)⁻¹ of the triangle alone: the forward derivative of PyTorch's takes tangents of the other triangle too."""
    L = L.triu().mH if upper else L.tril()
    inverse = torch.linalg.solve_triangular(L, torch.eye(L.shape[-1], dtype=L.dtype, device=L.device), upper=False)
    return inverse.mH @ inverse


def triangular_solve(
    B: Inexact[Tensor, "*batch n k"],
    A: Inexact[Tensor, "*batch n n"],
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> tuple[Tensor, Tensor]:
    """`aten.triangular_solve`, the old name, whose second derivatives take the triangle that is not read."""
    T = A.triu() if upper else A.tril()
    if transpose:
        T, upper = T.mT, not upper
    return torch.linalg.solve_triangular(T, B, upper=upper, unitriangular=unitriangular), A.clone()
