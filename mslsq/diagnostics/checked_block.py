"""One block of a residual: its Jacobians against finite differences, its curvature against nested autodiff."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import hessian, jacfwd

from mslsq.diagnostics.ridders import central_differences
from mslsq.manifolds.space import Space
from mslsq.problem.errors import ShapeError
from mslsq.problem.system import residual_like, residual_vector
from mslsq.tracing.graph import TRANSFORM_LOCK

TOLERANCES = {torch.float64: 1e-5, torch.float32: 2e-2}
"""Relative: what extrapolated differences resolve with room to spare; they reach 1e-9 and 1e-4."""
NEGLIGIBLE = {torch.float64: 1e-4, torch.float32: 1e-2}
"""Entries that are a smaller share of the largest of their column are compared with that share."""


@dataclass(frozen=True)
class JacobianCheck:
    """The worst entry found. `bool(check)` is `check.ok`; `str(check)` says it in words."""

    ok: bool
    worst_error: float
    """|given − expected| relative to the larger of the two, what differences cannot resolve taken off."""
    tolerance: float
    name: str
    """Of the cost or residual."""
    source: str
    """Whose Jacobian it is: "jacobians" (or "jac") as written by the user, or "autodiff"; or the user's "curvature"."""
    variable: str
    block: int
    row: int
    column: int
    given: float
    expected: float
    """By finite differences."""
    num_blocks: int
    """How many blocks were checked."""

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        blocks = f"{self.num_blocks} blocks" if self.num_blocks > 1 else "one block"
        if self.ok:
            return (
                f"{self.name}: the Jacobian agrees with finite differences in {blocks}; "
                f"worst relative error {self.worst_error:.1e} of {self.tolerance:.0e} allowed ({self.source})."
            )
        hint = (
            "The formula is wrong there, or not with respect to the tangent of retract (a perturbation on the right)."
            if self.source != "autodiff"
            else "The residual is not smooth there, or hides a dependence (detach, rounding) from differentiation."
        )
        if self.source == "curvature":
            return (
                f"{self.name}: curvature is wrong in block {self.block}, row {self.row}, column {self.column} of "
                f"{self.variable}: it says {self.given:.8g}, nested autodiff says {self.expected:.8g} (relative error "
                f"{self.worst_error:.1e}, {self.tolerance:.0e} allowed). Its symmetric part must be Σ cotangentᵢ "
                "∇²residualᵢ of the residual before its weight, in the joint tangent of all variables."
            )
        return (
            f"{self.name}: the Jacobian by {self.source} is wrong in block {self.block}, with respect to "
            f"{self.variable}, row {self.row}, column {self.column}: it says {self.given:.8g}, finite differences say "
            f"{self.expected:.8g} (relative error {self.worst_error:.1e}, {self.tolerance:.0e} allowed). {hint}"
        )


def worst(checks: list[JacobianCheck]) -> JacobianCheck:
    """The one with the largest error."""
    return max(checks, key=lambda check: math.inf if math.isnan(check.worst_error) else check.worst_error)


@dataclass(frozen=True, eq=False)
class CheckedBlock:
    """A residual as a function of its variables, and the point at which it is differentiated in their joint tangent."""

    name: str
    """Of the cost or residual."""
    spaces: Sequence[Space]
    """Of each variable, as what follows."""
    variables: list[str]
    storages: list[Tensor]
    residual: Callable[[tuple[Any, ...]], Any]
    rtol: float | None

    def jacobians(self, source: str, by_user: Callable[[tuple[Any, ...]], list[Tensor]] | None) -> JacobianCheck:
        """The worst entry of the Jacobian by autodiff and, where there is one, by the user."""
        steps = torch.cat([_typical_step(s, x) for s, x in zip(self.spaces, self.storages, strict=True)])
        with torch.no_grad():
            expected, uncertainty = central_differences(self._vector, self._zero, steps)
        with TRANSFORM_LOCK:
            checks = [self._compared("autodiff", jacfwd(self._vector)(self._zero).detach(), expected, uncertainty)]
        if by_user is not None:
            with torch.no_grad():
                given = self._joined(by_user(self._values), expected.shape[0], source)
            checks.append(self._compared(source, given, expected, uncertainty))
        return worst(checks)

    def curvature(self, by_user: Callable[..., Tensor], inputs: Mapping[str, Tensor]) -> JacobianCheck:
        """Σ wᵢ ∇²rᵢ by `curvature`, against nested autodiff of wᵀr, for a w of many signs. (Autodiff itself is compared
        with finite differences beside this.)"""
        zero = self._zero
        with torch.no_grad():
            at = self._moved(zero)
            rows = len(residual_vector(at)[0])
            weights = torch.cos(1.0 + torch.arange(rows, dtype=zero.dtype, device=zero.device))
        with TRANSFORM_LOCK:
            expected = hessian(lambda delta: (self._vector(delta).to(zero.dtype) * weights).sum())(zero).detach()
            found = by_user(residual_like(at, weights), self._values, inputs).detach()
        if found.shape != expected.shape:
            raise ShapeError(
                f"{self.name}: curvature returned {tuple(found.shape)}; expected {tuple(expected.shape)}, a matrix in "
                "the joint tangent of all variables."
            )
        return self._compared("curvature", 0.5 * (found + found.mT), expected, torch.zeros_like(expected))

    @cached_property
    def _sizes(self) -> list[int]:
        return [space.tangent_dim for space in self.spaces]

    @cached_property
    def _zero(self) -> Float[Tensor, "tangent"]:
        return self.storages[0].new_zeros(sum(self._sizes))

    @property
    def _values(self) -> tuple[Any, ...]:
        return tuple(s.wrap(x) for s, x in zip(self.spaces, self.storages, strict=True))

    def _moved(self, delta: Float[Tensor, "tangent"]) -> Any:
        """The residual at the variables moved by a joint tangent."""
        pieces = delta.split(self._sizes)
        return self.residual(
            tuple(s.wrap(s.retract(x, d)) for s, x, d in zip(self.spaces, self.storages, pieces, strict=True))
        )

    def _vector(self, delta: Float[Tensor, "tangent"]) -> Float[Tensor, "rows"]:
        return residual_vector(self._moved(delta))[0]

    def _compared(
        self,
        source: str,
        given: Float[Tensor, "rows tangent"],
        expected: Float[Tensor, "rows tangent"],
        uncertainty: Float[Tensor, "rows tangent"],
    ) -> JacobianCheck:
        """The worst entry."""
        tolerance = TOLERANCES.get(self._zero.dtype, 2e-2) if self.rtol is None else self.rtol
        errors = _relative_errors(given, expected, uncertainty)
        row, column = divmod(int(errors.argmax()), errors.shape[1])
        labels = [(name, own) for name, size in zip(self.variables, self._sizes, strict=True) for own in range(size)]
        variable, own = labels[column]
        error, *both = (float(x[row, column]) for x in (errors, given, expected))
        return JacobianCheck(
            error <= tolerance, error, tolerance, self.name, source, variable, 0, row, own, *both, num_blocks=1
        )

    def _joined(self, parts: list[Tensor], rows: int, source: str) -> Float[Tensor, "rows tangent"]:
        real = [torch.stack((p.real, p.imag), 1).flatten(0, 1) if p.is_complex() else p for p in parts]
        wanted = [(rows, size) for size in self._sizes]
        if [tuple(part.shape) for part in real] != wanted:
            raise ShapeError(
                f"{self.name}: {source} returned {', '.join(str(tuple(part.shape)) for part in parts)}; "
                f"expected one (rows, tangent) per variable, {', '.join(map(str, wanted))}."
            )
        return torch.cat(real, -1)


def _relative_errors(given: Tensor, expected: Tensor, uncertainty: Tensor) -> Tensor:
    """|given − expected| beyond the uncertainty, relative to the entry, or to its column where it is negligible."""
    column = expected.abs().amax(0, keepdim=True)
    size = torch.maximum(torch.maximum(given.abs(), expected.abs()), NEGLIGIBLE.get(column.dtype, 1e-2) * column)
    difference = ((given - expected).abs() - uncertainty).clamp(min=0)
    error = torch.where(difference > 0, difference / torch.where(size > 0, size, 1), 0)
    return torch.where(torch.isfinite(given) & torch.isfinite(expected), error, torch.inf)


def _typical_step(space: Space, storage: Tensor) -> Tensor:
    """The first, largest step of the differences: a fraction of a Euclidean entry, of one elsewhere."""
    if space.is_euclidean:
        size = storage.abs()
        return 0.05 * torch.where(size > 0, size, 1)
    return 0.05 * storage.new_ones(space.tangent_dim)
