"""The solver as a layer of a network: an `nn.Module` without state between calls."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from mslsq.adjoint import Adjoint, Implicit
from mslsq.elsewhere.calls import call_knowing_words
from mslsq.front.exporting import exported_solve, is_being_exported
from mslsq.front.solve import solve
from mslsq.problem import Problem
from mslsq.solution import Solution
from mslsq.solvers import LevenbergMarquardt, Solver
from mslsq.solvers.outer import OuterSolver
from mslsq.validation import instance_of


class LeastSquaresLayer(nn.Module):
    """Solves a problem in the forward pass and passes derivatives to its data, weights, losses and modules.

    Args:
        problem: its parameters (learnable weights, loss scales, networks inside cost functions) are the layer's.
        solver: `LevenbergMarquardt()` by default.
        adjoint: `Implicit(failed="zero")` by default: a problem that did not converge adds nothing to the gradient,
            so that one bad sample does not spoil a training step. `solution.differentiable` tells which.
        project_start: start from the nearest point within the bounds of the variables, where a start is outside.

    A call keeps nothing: warm starts are explicit, pass the last `solution.value` as the next start. Solving happens
    in the dtype of the start; under `torch.autocast` the network before the layer may use lower precision, the solve
    does not: convert its input to the dtype of the start.

    >>> layer = mslsq.LeastSquaresLayer(problem, solver=mslsq.LevenbergMarquardt(max_steps=20))
    >>> solution = layer({"pose": T0}, data={"between": {"measured": network(images)}})
    >>> loss(solution.value["pose"]).backward()
    """

    @call_knowing_words(LevenbergMarquardt.__dataclass_fields__)
    def __init__(
        self,
        problem: Problem,
        solver: Solver | OuterSolver | None = None,
        adjoint: Adjoint | None = None,
        project_start: bool = False,
    ):
        super().__init__()
        instance_of("LeastSquaresLayer: problem", problem, Problem)
        if solver is not None and not isinstance(solver, OuterSolver):
            instance_of("LeastSquaresLayer: solver", solver, Solver, "Write solver=mslsq.LevenbergMarquardt(), say.")
        if adjoint is not None:
            instance_of("LeastSquaresLayer: adjoint", adjoint, Adjoint, "Write adjoint=mslsq.Implicit(), say.")
        self.problem = problem
        self.solver = LevenbergMarquardt() if solver is None else solver
        self.adjoint = Implicit(failed="zero") if adjoint is None else adjoint
        self.project_start = project_start

    @call_knowing_words(LevenbergMarquardt.__dataclass_fields__)
    def forward(
        self,
        values: Mapping[str, Any],
        data: Mapping[str, Mapping[str, Any]] | None = None,
        in_dims: Any = None,
    ) -> Solution:
        """As `mslsq.solve(problem, values, data, in_dims=in_dims)`."""
        if is_being_exported():
            return exported_solve(self.problem, values, data, in_dims, self.solver, self.project_start)
        # In a training loop a step of the optimizer with half a solution would follow.
        solver = self.solver.raising() if isinstance(self.solver, (Solver, OuterSolver)) else self.solver
        options = {"solver": solver, "adjoint": self.adjoint, "project_start": self.project_start}
        return solve(self.problem, values, data, in_dims=in_dims, **options)

    def extra_repr(self) -> str:
        return f"solver={self.solver}, adjoint={self.adjoint}"
