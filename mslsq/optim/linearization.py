"""A step's linearization: residual and Jacobian of the batch as plain least squares, and the system to solve."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.linear.iterative.allowance import Allowance
from mslsq.linearize.robust import LEAST_CURVATURE
from mslsq.losses import RobustLoss
from mslsq.optim.errors import ResidualError
from mslsq.optim.evaluation import Evaluated, broken
from mslsq.optim.jacobian import Block, Jacobian, irregular
from mslsq.optim.numbers import Numbers
from mslsq.optim.parameters import Active
from mslsq.optim.systems import Diagonals, Dual, Iterative, Normal, System

PROBES = 8
"""Vectors by which the mean squared column length of J is estimated, once: within a factor of 3, at rank one too."""


class SystemOptions(NamedTuple):
    system: str
    """"auto", "normal", "dual" or "cg"."""
    memory: int
    """Bytes for the matrices of a step."""
    cg_tolerance: float
    cg_max_iterations: int


def chosen_system(rows: int, columns: int, element_size: int, options: SystemOptions) -> str:
    """The smaller of the two dense systems if it fits into the memory, else conjugate gradients.

    Normal equations are n² numbers and their factor, the dual system J and an m × m matrix and its factor.
    """
    if options.system != "auto":
        return options.system
    if columns <= rows:
        return "normal" if 2 * columns**2 * element_size <= options.memory else "cg"
    return "dual" if (rows * columns + 2 * rows**2) * element_size <= options.memory else "cg"


class Rescaled(NamedTuple):
    """What robust losses make of a residual r and the rows of J, so that plain least squares sees them (Triggs)."""

    residual: Float[Tensor, "m"]
    rows: Float[Tensor, "m"] | None
    """By what each row of J is multiplied; None without a loss."""


def rescaled(evaluated: Evaluated, loss: RobustLoss | None) -> Rescaled:
    """The gradient ρ'(r²) r·∇r is exact; of the curvature ρ' + 2ρ''r² as much as `linearize.robust` keeps, for complex
    residuals ρ'."""
    residual = evaluated.vector().detach()
    if loss is None:
        return Rescaled(residual, None)
    squared = evaluated.squared()
    _, slope, curvature = (value.detach() for value in loss.derivatives(squared))
    positive = slope > 0
    kept = torch.where(positive, 1 + 2 * squared * curvature / torch.where(positive, slope, 1), 1)
    kept = torch.where((kept >= LEAST_CURVATURE) & ~evaluated.paired(), kept, 1).sqrt()
    root = slope.clamp(min=0).sqrt()
    return Rescaled(residual * root / kept, root * kept)


class Linearization:
    """J and r of one batch at the parameters where a step starts.

    Args:
        jacobian: of the residual as evaluated.
        plain: what the loss makes of it.
        active: the parameters, with options in the dtype of the linear algebra.
        numbers: of the step.
    """

    def __init__(self, jacobian: Jacobian, plain: Rescaled, active: Active, numbers: Numbers):
        self.jacobian, self.plain, self.active = jacobian, plain, active
        self.dtype = active.lr.dtype
        self.parameters = active.vector().to(self.dtype)
        self.residual = plain.residual.to(self.dtype)
        self.gradient = self.transposed(self.residual) + active.weight_decay * self.parameters
        self.way = "products"
        self.gradient_norm = numbers.later(self.gradient.abs().max())
        self._has_finite_residuals = numbers.later(jacobian.residual.isfinite().all())

    def check(self) -> None:
        """Raises ResidualError for residuals that are not finite, or a derivative where the residuals are."""
        if not self._has_finite_residuals.value:
            raise broken(self.jacobian.residual.detach(), self.active.tensors)
        if self.gradient_norm.value < math.inf:
            return
        sizes = [tensor.numel() for tensor in self.active.tensors]
        finite = [bool(part.isfinite().all()) for part in self.gradient.split(sizes)]
        first = finite.index(False)
        raise ResidualError(
            "LevenbergMarquardt: the residuals are finite, but their derivative is NaN or infinite in "
            f"{finite.count(False)} of {len(finite)} parameter tensors, the first of shape "
            f"{tuple(self.active.tensors[first].shape)}. A square root or a norm at zero has such a derivative, and so "
            "has torch.where around a branch that is not finite. Nothing was changed."
        )

    def transposed(self, u: Tensor) -> Tensor:
        """Jᵀu of the rescaled Jacobian."""
        narrow = u.to(self.plain.residual.dtype)
        return self.jacobian.transposed(narrow if self.plain.rows is None else narrow * self.plain.rows).to(self.dtype)

    def product(self, v: Tensor) -> Tensor:
        """J v of the rescaled Jacobian."""
        product = self.jacobian.product(v.to(self.plain.residual.dtype))
        return (product if self.plain.rows is None else product * self.plain.rows).to(self.dtype)

    def mean_squared_column(self) -> float:
        """|J|² / n in the Frobenius norm, estimated by |Jᵀu|² of vectors of independent normal numbers."""
        probes = irregular(self.plain.residual, PROBES)
        total = torch.stack([self.transposed(probe).square().sum() for probe in probes]).sum()
        return float(total) / (PROBES * self.active.size)

    def predicted_decrease(self, step: Tensor, system: System) -> Float[Tensor, ""]:
        """By how much the linearized loss falls: −gᵀp − ½|J p|² − ½λ|p|²."""
        decay = (self.active.weight_decay * step * step).sum()
        return -(self.gradient @ step) - 0.5 * (system.curvature(step) + decay)

    def system(self, options: SystemOptions, unit: float, allowance: Allowance | None) -> System:
        """
        Args:
            unit: of the damping, the mean squared column length of the first Jacobian.
            allowance: of conjugate gradients; None where they may look after each iteration.
        """
        rows, columns = self.jacobian.num_rows, self.jacobian.num_columns
        active = self.active
        diagonals = Diagonals(unit * active.relative_damping, active.weight_decay, active.decays, active.are_alike)
        name = chosen_system(rows, columns, self.residual.element_size(), options)
        if name == "cg":
            products, stop = (self.product, self.transposed), (options.cg_tolerance, options.cg_max_iterations)
            return Iterative(*products, self.gradient, diagonals, *stop, allowance)
        blocks = self._blocks(options.memory)
        if name == "dual":
            return Dual(blocks, self.residual, self.parameters, diagonals)
        return Normal(blocks, self.gradient, diagonals)

    def _blocks(self, memory: int) -> Iterator[Block]:
        self.way, blocks = self.jacobian.blocks(memory // 2)  # the other half for a copy in the system's dtype
        weights = self.plain.rows
        return ((which, block if weights is None else block * weights[which, None]) for which, block in blocks)
