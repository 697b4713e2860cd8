"""Graduated non-convexity: a solver around a solver that finds out which measurements are outliers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from mslsq.solvers.outer import OuterSolver
from mslsq.solvers.solver import Solver, SolverOptionError
from mslsq.solvers.surrogates import SURROGATES
from mslsq.validation import instance_of, integer, number, one_of


@dataclass(frozen=True, eq=False)
class GraduatedNonConvexity(OuterSolver):
    """Minimises a robust cost that a start far away does not lead astray, for data with up to half or more outliers.

    A loss that rejects outliers has a minimum wherever some measurements agree. So the solve begins with a loss that
    rejects nothing, and makes it less convex from round to round, a few steps of `solver` each, until every block is
    accepted or rejected. Then `solver` minimises the robust cost itself: that minimum is the solution, and derivatives
    are its own, by the implicit function theorem. Nothing guarantees that it is the best one.

    A block is what a robust loss counts: a block of a cost function with its whitened norm, of `mslsq.least_squares` a
    single entry of the residual. The loss of a norm r at the scale c is, in the cost ½Σρ,

    - `"truncated"`: ρ = min(r², c²), so that an inlier has weight 1, an outlier 0, and the solution is the least
      squares fit of the inliers. `solution.differentiable` is False where a residual lies on the truncation, as far as
      rounding and tolerances can tell.
    - `"geman_mcclure"`: ρ = r²/(1 + r²/c²), `mslsq.GemanMcClure(c)`, which has a derivative everywhere, also in c.

    Every problem of a batch has a schedule of its own and stops by itself. `solution.weights` has the weights ρ' by
    name of the cost, (blocks,); of `least_squares` under the name `"residual"`, one per entry (complex entries first).
    `num_steps` and `num_evaluations` count the rounds as well, `history` and a `callback` see the last solve alone. A
    `time_budget` of `solver` holds for everything. What it or an interrupt cuts short ends at the best point so far.

    Args:
        solver: for the solve after the rounds, and for the rounds.
        loss: see above.
        scale: c, the largest whitened residual of an inlier, such as 3σ: a number; a differentiable tensor (), or
            (batch,) with one per problem; a dict of them by cost. By default from the median absolute deviation of the
            residuals, per cost and problem: 99 % of Gaussian residuals are below it (for one row 3.8 times the median),
            and derivatives hold it constant.
        costs: names of the costs that may hold outliers, all by default. The others (odometry, priors) keep their own
            loss and are never rejected.
        rate: by how much the relaxation falls from one round to the next.
        steps_per_round: steps in a round. By default (None) one, and the relaxation falls as soon as a step changes the
            cost by less than a hundredth.
        max_rounds: rounds of a descent at most, before the solve with the robust cost itself.
        descents: how often it is done, from the same start. The first begins with a loss that rejects nothing; but the
            minimum of that may be far away (of circles with 50 % outliers it has twice their radius), so the others
            begin at powers of its relaxation that part its way evenly, and take half as many rounds. The solution is
            that of the least robust cost, per problem. Four take two to three times as long as one. With an estimated
            scale there is one, because costs of different scales cannot be compared.
        rounds: another solver for the rounds. Wrong loop closures of a large graph fill the factor of sparse Cholesky;
            `LevenbergMarquardt(linear_solver=linear.ConjugateGradient())` has none. (Blocks without weight are left
            out of a sparse system as the rounds go on, so that the last solve is fast all the same.)

    Raises:
        SolverOptionError (a ValueError): an option has a value that is not valid.

    Source: H. Yang, P. Antonante, V. Tzoumas, L. Carlone, "Graduated Non-Convexity for Robust Spatial Perception: From
    Non-Minimal Solvers to Global Outlier Rejection", IEEE RA-L 5 (2020). Each round takes `steps_per_round` steps with
    weights that follow the residuals, where theirs solves to the end with weights held.

    >>> robust = mslsq.GraduatedNonConvexity(scale=0.06)
    >>> solution = mslsq.least_squares(residual, x0, args=(t, y), solver=robust)
    >>> inliers = solution.weights["residual"] > 0
    """

    loss: Literal["truncated", "geman_mcclure"] = "truncated"
    scale: float | Tensor | Mapping[str, float | Tensor] | None = None
    costs: Sequence[str] | None = None
    rate: float = 1.4
    steps_per_round: int | None = None
    max_rounds: int = 200
    descents: int = 4
    rounds: Solver | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        if self.rounds is not None:
            instance_of(f"{name}: rounds", self.rounds, Solver)
            if self.rounds.time_budget is not None:
                raise SolverOptionError(
                    f"{name}: rounds has a time_budget of {self.rounds.time_budget} s, but all rounds share one: give "
                    "it to solver, as in solver=LevenbergMarquardt(time_budget=...)."
                )
        one_of(f"{name}: loss", self.loss, tuple(SURROGATES), SolverOptionError)
        number(f"{name}: rate", self.rate, above=1, error=SolverOptionError)
        if self.steps_per_round is not None:
            integer(f"{name}: steps_per_round", self.steps_per_round, 1, error=SolverOptionError)
        integer(f"{name}: max_rounds", self.max_rounds, error=SolverOptionError)
        integer(f"{name}: descents", self.descents, 1, error=SolverOptionError)
        if self.costs is not None:
            if isinstance(self.costs, str) or not all(isinstance(cost, str) for cost in self.costs) or not self.costs:
                raise SolverOptionError(
                    f"{name}: costs must be a list of names of costs, such as ['between'], not {self.costs!r}."
                )
            object.__setattr__(self, "costs", tuple(dict.fromkeys(self.costs)))
        scales = self.scale.values() if isinstance(self.scale, Mapping) else [self.scale]
        for scale in scales:
            if scale is not None and not isinstance(scale, Tensor):
                number(f"{name}: scale", scale, above=0, error=SolverOptionError)

    @property
    def in_rounds(self) -> Solver:
        """The solver of one round."""
        solver = self.solver if self.rounds is None else self.rounds
        return replace(solver, max_steps=self.steps_per_round or 1, callback=None, verbose=False)
