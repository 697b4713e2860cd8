"""The augmented Lagrangian: a solver around Levenberg-Marquardt that meets constraints."""

from dataclasses import dataclass, field

from mslsq.linear import Cholesky, SparseCholesky
from mslsq.linear.dense import QR
from mslsq.solvers.levenberg_marquardt import LevenbergMarquardt
from mslsq.solvers.outer import OuterSolver
from mslsq.solvers.solver import SolverOptionError
from mslsq.validation import integer, number


@dataclass(frozen=True, eq=False)
class AugmentedLagrangian(OuterSolver):
    """Minimises a cost under constraints: `mslsq.Equality` and `mslsq.Inequality` of a `Problem`.

    In rounds: `solver` minimises the cost plus ½ρ(c + λ/ρ)² for every constraint c, then λ ← λ + ρc, and the penalty ρ
    of a constraint grows where its violation has not become much smaller. Each round is a least-squares problem of the
    same sparsity. Multipliers and penalties belong to one problem of a batch each, a penalty also to one constraint; a
    problem that is done does not move any more.

    This is what solves a problem with constraints, also where a plain `LevenbergMarquardt` is given; it is only needed
    by name for its options. A solution is feasible to `tolerance`, and a minimum to the tolerances of `solver`.
    `num_steps` counts the steps of all rounds; a `callback` sees them all; `history` is that of the last round, with
    the penalties in its cost.

    Args:
        solver: takes the steps, with a dense or a sparse Cholesky factor (or QR). Its `max_steps` is for all rounds
            together.
        tolerance: the largest violation that counts as none, in the units of the residuals of the constraints; by
            default 1e-8 in float64, 1e-3 in float32.
        penalty: ρ at the start, in units of cost per squared residual; by default what makes the columns of
            the constraint as long as those of the costs, in the median.
        max_rounds: rounds at most.
        steps_per_round: steps in a round, at most.

    Raises:
        SolverOptionError (a ValueError): an option has a value that is not valid.

    Source: J. Nocedal, S. J. Wright, "Numerical Optimization" (2006), chapter 17; the rule for penalties and the look
    for infeasibility as in E. G. Birgin, J. M. Martínez, "Practical Augmented Lagrangian Methods" (2014).

    >>> problem = mslsq.Problem(path, mslsq.Equality(ends), mslsq.Inequality(obstacles))
    >>> solution = mslsq.solve(problem, {"pose": start}, solver=mslsq.AugmentedLagrangian(tolerance=1e-6))
    >>> solution.violation, solution.multipliers["obstacles"]
    """

    solver: LevenbergMarquardt = field(default_factory=LevenbergMarquardt)
    tolerance: float | None = None
    penalty: float | None = None
    max_rounds: int = 60
    steps_per_round: int = 100

    def __post_init__(self) -> None:
        name = type(self).__name__
        super().__post_init__()
        if not isinstance(self.solver, LevenbergMarquardt):
            raise SolverOptionError(
                f"{name}: problems with constraints are solved by steps of LevenbergMarquardt, not of "
                f"{type(self.solver).__name__}: a constraint that is not met yet makes no step safe without damping."
            )
        linear = self.solver.linear_solver
        if linear != "auto" and not isinstance(linear, (Cholesky, SparseCholesky, QR)):
            raise SolverOptionError(
                f"{name}: {type(linear).__name__} does not take constraints, whose penalties couple what it keeps "
                "apart and make systems ill-conditioned: use linear_solver='auto', linear.SparseCholesky() or "
                "linear.Cholesky()."
            )
        if not self.solver.early_stop:
            raise SolverOptionError(f"{name}: early_stop=False is not possible: a round ends when it is seen to.")
        for option in ("tolerance", "penalty"):
            if getattr(self, option) is not None:
                number(f"{name}: {option}", getattr(self, option), above=0, error=SolverOptionError)
        integer(f"{name}: max_rounds", self.max_rounds, 1, error=SolverOptionError)
        integer(f"{name}: steps_per_round", self.steps_per_round, 1, error=SolverOptionError)
