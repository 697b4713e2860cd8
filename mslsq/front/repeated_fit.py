"""A curve fit like the one before: what follows from the shapes of its arguments is not found out again.

Of a fit of 32 points SciPy's `curve_fit` takes 0.1 ms; the solve takes half of that here, and all that states a fit,
with its covariance operation by operation, took four times as long.
"""

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mslsq import pytree
from mslsq.adjoint import Adjoint
from mslsq.front import repeated_residual
from mslsq.front.answering_residuals import Answered, Known, ResidualCall, kind_of_leaf
from mslsq.front.direct import is_plain
from mslsq.front.fits.covariance import covariance_of_one, of_normal_equations
from mslsq.front.fits.fitted import Fitted, One, Recipe
from mslsq.front.fits.residual import residual_of
from mslsq.front.fits.result import CurveFit
from mslsq.front.measurements import Points, is_of_points
from mslsq.front.plans import kept_for_callable
from mslsq.linearize.baked import global_key
from mslsq.solvers.outer import OuterSolver
from mslsq.solvers.solver import Solver
from mslsq.tracing.reading.values import SCALARS, TENSORS

KNOWN = 8
"""Kinds of fits that are kept for the code of a model."""


class AnsweredFit(NamedTuple):
    """A fit that a program has answered."""

    fit: CurveFit
    has_covariance: bool


@dataclass(frozen=True, eq=False)
class FitCall:
    """A fit of one set of points, without bounds, a mask, a loss, or parameters that are held."""

    model: Callable[[Any, Any], Any]
    arguments: tuple[Any, Any, Any, Any]
    """t, y, the start, sigma."""
    absolute_sigma: bool
    solver: Solver | OuterSolver | None
    adjoint: Adjoint | None
    options: tuple[Hashable, ...]
    """All else that a fit depends on besides its model and its arguments."""

    @staticmethod
    def of(
        model: Any,
        arguments: tuple[Any, Any, Any, Any],
        absolute_sigma: bool,
        solver: Solver | OuterSolver | None,
        adjoint: Adjoint | None,
    ) -> "FitCall | None":
        """The call, where fits like it may be answered at once; None of others."""
        if not callable(model) or isinstance(solver, OuterSolver) or not is_plain():
            return None
        options = bool(absolute_sigma), solver, adjoint, global_key()
        return FitCall(model, arguments, absolute_sigma, solver, adjoint, options)

    def answered(self) -> "AnsweredFit | None":
        """The fit; None where such a call is not known, or where it takes more than the program of its solve."""
        for known in tuple(kept_for_callable(self.model).fits):
            points = known.points_of(self)
            if points is not None:
                return known.answer(self, points)
        return None

    def remember(self, found: CurveFit, ended: Any) -> None:
        """Keep what a fit has shown of calls like this one."""
        known = KnownFit.of(self, found, ended.known) if isinstance(ended, Answered) else None
        if known is not None:
            kept = kept_for_callable(self.model).fits
            kept[:] = [known, *(one for one in kept if one.points_of(self) is None)][:KNOWN]


@dataclass(frozen=True, eq=False)
class KnownFit:
    """What is known of fits like one before. Holds no tensor and no function of the user's."""

    form: pytree.Form
    kinds: list[Hashable]
    """What every leaf of the arguments has in common with those of such a fit."""
    options: tuple[Hashable, ...]
    moves: tuple[bool, ...]
    """Of each leaf of t whether it has an entry for each point."""
    tree_of_t: Callable[[list[Any]], Any]
    recipe: dict[str, Any]
    """But for the model."""
    known: Known
    """What is known of the solve: fits of all models have the code of their residual in common, by which it would be
    sought among others."""

    @staticmethod
    def of(call: FitCall, found: CurveFit, known: Known) -> "KnownFit | None":
        t, y, p0, sigma = call.arguments
        recipe, form = found.fitted.recipe, pytree.Form(call.arguments)
        if recipe.model is not call.model or recipe.batched or recipe.sigma == "matrix":
            return None  # of complex measurements, or of several sets
        if y.numel() < recipe.free.count or (isinstance(sigma, Tensor) and sigma.dtype != y.dtype):
            return None
        if not form.fits(call.arguments) or not all(type(leaf) in TENSORS for leaf in (y, *pytree.leaves(p0))):
            return None
        leaves, own = form.leaves(call.arguments), pytree.leaves(t)
        if not all(type(leaf) in TENSORS or type(leaf) in SCALARS for leaf in leaves):
            return None
        moves = tuple([isinstance(leaf, Tensor) and is_of_points(leaf, y) for leaf in own])
        fields = {**vars(recipe), "model": None}
        kinds = _kinds(leaves)
        made = KnownFit(form, kinds, call.options, moves, pytree.Form(t).tree, fields, known)
        points = made.points_of(call)
        # Points of one kind of arguments are of one kind: it need not be compared in every call.
        return None if points is None or known.leaves_of(made.solve_of(call, points)) is None else made

    def points_of(self, call: FitCall) -> Points | None:
        """The points of such a call, as if none was missing; None of another, or where sigma is none."""
        if not self.form.fits(call.arguments) or call.options != self.options:
            return None
        leaves = self.form.leaves(call.arguments)
        if _kinds(leaves) != self.kinds:
            return None
        _, y, _, sigma = call.arguments
        if torch.is_grad_enabled() and any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in leaves):
            return None
        if sigma is None:
            whitening = torch.ones_like(y)
        else:
            sigma = torch.as_tensor(sigma, dtype=y.dtype, device=y.device)
            if not 0 < sigma.min().item() < math.inf:  # NaN is neither
                return None
            whitening = sigma.reciprocal()  # what 1 / sigma comes to, by one operation instead of a call and two
            if whitening.shape != y.shape:
                whitening = whitening.expand(y.shape).clone()
        own = [leaf.clone() if moves else leaf for leaf, moves in zip(leaves, self.moves, strict=False)]
        used = torch.ones_like(y, dtype=torch.bool)
        return Points(self.tree_of_t(own), y.clone(), whitening, used)

    def solve_of(self, call: FitCall, points: Points) -> ResidualCall:
        """The solve of such a call."""
        residual, arguments = residual_of(call.model, None, "normal"), (call.arguments[2], (*points, ()))
        return ResidualCall(residual, arguments, call.solver, call.adjoint, None, self.known.options)

    def answer(self, call: FitCall, points: Points) -> "AnsweredFit | None":
        """The fit of such a call; None where it takes more than the program."""
        ended = repeated_residual.answered(self.solve_of(call, points), self.known)
        if ended is None:
            return None
        matrix = _covariance(ended, points, self.recipe["absolute_sigma"])
        if matrix is None:
            return None
        solution, recipe = ended.solution, object.__new__(Recipe)
        vars(recipe).update(self.recipe, model=call.model, solver=ended.solver, mode=ended.jacobian_mode)
        value, free, covariance = solution.value, recipe.free, torch.from_numpy(matrix)
        t = tuple([leaf for leaf in pytree.leaves(points.t) if isinstance(leaf, Tensor)])
        errors = torch.from_numpy(np.sqrt(matrix.diagonal()))
        if type(value) is Tensor and value.ndim == 1:
            vector = value.clone()
        else:
            vector, errors = free.vector(value), free.tree(errors)
        tensors = One(vector, covariance, t, points.y, points.whitening, points.used, ())
        fit = CurveFit(value, covariance, errors, solution, Fitted(tensors, recipe))
        return AnsweredFit(fit, math.isfinite(matrix.sum()))


def _kinds(leaves: list[Any]) -> list[Hashable]:
    """What leaves of arguments have in common with others; of the last, sigma, a number is told by its type alone."""
    *others, sigma = leaves
    kinds = list(map(kind_of_leaf, others))
    kinds.append(type(sigma) if type(sigma) in (int, float) else kind_of_leaf(sigma))
    return kinds


def _covariance(ended: Answered, points: Points, absolute_sigma: bool) -> np.ndarray | None:
    """That of the free parameters; None where the cost is not finite: a point may be missing, then."""
    normal = ended.normal_equations()
    cost = float(ended.solution.cost) if normal is None else normal[0]
    if not math.isfinite(cost):
        return None
    if normal is not None:
        matrix = normal[1]
        found = of_normal_equations(matrix, 2 * cost, points.y.numel() - len(matrix), absolute_sigma)
        if found is not None:
            return found
    r, jacobian = ended.residual_and_jacobian()
    return covariance_of_one(jacobian[0], r[0], points.used, None, absolute_sigma, None).numpy()
