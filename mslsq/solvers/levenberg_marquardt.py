"""Levenberg–Marquardt: Gauss–Newton steps damped in the scaled variables, the damping steered by the gain ratio."""

import math
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from mslsq.elsewhere.calls import solver_knowing_words
from mslsq.linear import LinearSolver
from mslsq.linearize.linearizer import Linearization
from mslsq.solvers.solver import RESOLVED, Creep, Proposal, Solver, SolverOptionError
from mslsq.validation import number, one_of

FIRST_DAMPINGS = 1e-8, 1e-4, 1e-2
"""The first damping: the first of these whose step is short enough, else the last. Of 1024 exponential fits whose start
is far from the solution 390 fall into a worse minimum at 1e-3, none at 1e-2; in a large graph the softest modes are
shorter than the columns by the size of the graph, and damping relative to columns holds them still."""

SHORT = 0.02, 0.1
"""How long a step of the first two may be against the variables themselves, both in the scaled norm |D·|, for the
linear model to be taken for right about it. At 1e-8 first steps of pose graphs have 0.01 and less, those of bundle
adjustments 0.03 to 0.2, of very robust ones 0.012 to 0.016; at 1e-4 bundle adjustments have 0.018 and less. Exponential
fits that are led into a worse minimum have 0.7 and more, the regressions of Moré, Garbow and Hillstrom 0.15 to 5."""

SHRINK_NEAREST, SHRINK_NEAR, SHRINK_FAR = 0.1, 1 / 3, 0.2
"""Least share of the damping that one step leaves: where the least damping is the first, where the first step was
short, and where not. Nielsen's third (Ceres' too) is reached at a gain of 0.94 already, a tenth only at 0.98, where the
model predicts the decrease to two digits: parking-garage takes 10 steps instead of 12. Robust losses let the cost fall
faster than the model says, whatever the damping: gains of 2 to 80 say nothing of how far it holds. With a tenth two of
three steps of a bundle adjustment fail there; Huber and SoftL1 on Ladybug 49-7776 take 13 and 14 steps with it, 10 and
9 with a third. Among 1024 hard fits one is led into a worse minimum by a tenth."""

SHORTEST = 0.05
"""The least share of a step that is tried where the least damping is the first. The direction of such a step is worth
more than that of a more damped one: with damping alone a winding road of 400 poses is at a cost of 2641 after 120
steps, with shorter steps at 32. Where even so small a share fails, damping it is from then on: without that, Cauchy on
Ladybug 49-7776 is at 4244 after 40 steps, with it at 4098. Damping it is at once where a column of J has collapsed on
the way, or a number was not finite: one point of a street goes too far, and a share would hold back all others (17
steps where Ceres takes 3)."""

CUT = 0.1, 0.5
"""What a failure leaves at least and at most of the length."""

LENGTHEN = 0.5
"""The gain from which on the length doubles again."""

FORGETTING = 0.25
"""What one step leaves of the memory of longer columns where the first step was short. Never forgetting (Moré) damps a
bundle adjustment for ever by the lengths at its start: 13348.4 instead of 13344.3 after 30 steps. Where steps are long
nothing is forgotten: without its memory Brown and Dennis's problem takes more than 1000 steps instead of 342."""

INEXACT_DAMPING = 1e-4
"""The first damping of systems that are solved inexactly. Such steps leave the soft modes alone and so meet what
the model predicts, however little it is damped; their damping falls no faster than after long steps either (Ladybug
49-7776 after 30 steps: 13344.31, with the rules of exact steps 13351.63)."""


LITTLE, MUCH, BROKEN = 0.1, 0.5, 0.9
"""An accepted step is a sign of creeping where it lowers the cost by at most the first share of it, and by at most the
last one of what the model has promised: the bend of a valley holds it back. (At most the last one: of 144 pose graphs
with the worst noise 13 have ten such steps, of those that lower the cost by little 33.) A better gain takes one sign
back, a step that lowers the cost by more than the second share all of them."""

CREEPS = 10
"""Signs after which a problem creeps. With 20 the runs of NIST and of Moré, Garbow and Hillstrom on which this was
chosen take 1065 steps in all, with 10 1026, without 1316."""

BEND = 0.75
"""How much a step of a problem that creeps is bent at most, 2|Da|/|Dv|."""


WORTH = 0.05
"""A bend that wins less than that share of what a step promises shows that no valley holds the problem back: signs are
counted from zero again."""


class Damping(NamedTuple):
    factor: Tensor
    """(batch,) μ."""
    growth: Tensor
    """(batch,) ν, by which the next rejection multiplies μ."""
    scale: Tensor
    """(batch, columns) D², the squared column norms of J, with their larger past."""
    near: Tensor
    """(batch,) Is the step at the start short against the variables?"""
    nearest: Tensor
    """(batch,) Is it so with the least damping, and have shorter steps not failed yet?"""
    length: Tensor
    """(batch,) The share of the step that is tried."""
    slow: Tensor
    """(batch,) How many signs of creeping there are."""


@solver_knowing_words
@dataclass(frozen=True)
class LevenbergMarquardt(Solver):
    """Solves (JᵀJ + μD²) p = −Jᵀr, with D the column norms of J, and steers μ by the ratio of actual to predicted
    decrease.

    μ follows H. B. Nielsen, "Damping parameter in Marquardt's method" (IMM-REP-1999-05): on success
    μ ← μ max(s, 1 − (2ϱ − 1)³), ν ← 2, with s = 1/5 or 1/3; on failure μ ← μν, ν ← 2ν. The scaling is
    Marquardt's in the form of Moré ("The Levenberg–Marquardt algorithm: implementation and theory", 1978): D never
    shrinks, so the method does not depend on the units of the variables and a column that vanishes on the way does not
    set its variable free. One along which a step went beyond what it tells (`BEYOND` of `solvers.verdict`) takes its
    length from there.

    How nonlinear a problem is shows at its start, by how long a step is against the variables, |Dp| / |Dx|: the first μ
    is 1e-8 where that step is at most a fiftieth, else 1e-4 where that one is at most a tenth, else 1e-2. Where the
    step of 1e-4 is so short (pose graphs, bundle adjustment, fits from a good start), s = 1/3, and D² may shrink
    fourfold in a step. Where the first μ is 1e-8 (pose graphs, starts near the solution), a success divides μ by ten,
    and where a step has raised the cost a share of it is tried (to the least of a parabola, at least a twentieth)
    before μ grows; once a twentieth has failed, or a step has led to where a column of J has collapsed or a number is
    not finite, μ ≥ 1e-4 and the rule of Nielsen are taken up.

    Args:
        initial_damping: μ at the start, relative to the squared column norms, instead of the rule above (with inexact
            steps 1e-4).
        max_damping: beyond that μ no step is worth trying: the problem has stalled, or is singular.
        scaling: `"marquardt"` as above, `"identity"` for D = I (Levenberg's form).
        acceleration: bend every step v by the second derivative of the residual along it to v + ½a, a shortened to
            2|Da|/|Dv| of at most this number; 0.75 is customary. None takes straight steps. `"auto"` (the default)
            bends the steps of a problem that creeps, by at most 0.75. Helps in long curved valleys; a bent step costs
            about twice as much. See `docs/guide/far_starts.md`.
    """

    initial_damping: float | None = None
    max_damping: float = 1e32
    scaling: str = "marquardt"
    acceleration: float | Literal["auto"] | None = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        for option in ("initial_damping", "max_damping"):
            if getattr(self, option) is not None:
                number(f"LevenbergMarquardt: {option}", getattr(self, option), most=math.inf, error=SolverOptionError)
        if self.initial_damping is not None and not 0 < self.initial_damping < self.max_damping:
            raise SolverOptionError(
                f"LevenbergMarquardt: needs 0 < initial_damping < max_damping, got {self.initial_damping!r} and "
                f"{self.max_damping!r}."
            )
        if self.acceleration is not None and self.acceleration != "auto":
            number("LevenbergMarquardt: acceleration", self.acceleration, above=0, error=SolverOptionError)
        one_of("LevenbergMarquardt: scaling", self.scaling, ("marquardt", "identity"), SolverOptionError)

    @property
    def most_acceleration(self) -> float | None:
        return BEND if self.acceleration == "auto" else self.acceleration

    @property
    def creep(self) -> Creep | None:
        return Creep(Damping._fields.index("slow"), CREEPS) if self.acceleration == "auto" else None

    def bending_always(self) -> "LevenbergMarquardt":
        return replace(self, acceleration=self.most_acceleration)

    def start(self, model: Linearization, linear: LinearSolver, sizes: Tensor) -> Damping:
        scale = self._scale(model, linear)
        factor = torch.full_like(model.cost, self.initial_damping or INEXACT_DAMPING)
        near = torch.ones_like(factor, dtype=torch.bool)
        nearest = torch.zeros_like(near)
        if not linear.is_inexact:
            least, middle, most = FIRST_DAMPINGS
            if self.initial_damping is None:
                nearest = self._is_short(model, linear, scale, sizes, least, SHORT[0])
            # The more damping, the shorter the step: one that is short with the least is so with more.
            if linear.may_be_asked and bool(nearest.all()):
                near = nearest
            else:
                near = self._is_short(model, linear, scale, sizes, middle, SHORT[1])
            nearest = near & nearest
            if self.initial_damping is None:
                factor = torch.where(near, torch.full_like(factor, middle), most)
                factor = torch.where(nearest, least, factor)
        factor = factor.clamp(max=self.max_damping / 2)
        one = torch.ones_like(factor)
        return Damping(factor, 2 * one, scale, near, nearest, one, torch.zeros_like(factor))

    def _is_short(
        self, model: Linearization, linear: LinearSolver, scale: Tensor, sizes: Tensor, factor: float, short: float
    ) -> Tensor:
        """(batch,) Is the step of this damping at most that long against the variables, of these squared sizes?"""
        step, solved = linear.solve(model.matrix, model.rhs, factor * scale)
        return solved & ((scale * step * step).sum(-1) <= short**2 * (scale * sizes).sum(-1))

    def _scale(self, model: Linearization, linear: LinearSolver) -> Tensor:
        squared = linear.storage.diagonal(model.matrix)
        if self.scaling == "identity":
            return torch.ones_like(squared)
        # A variable without any influence: its column is zero, and so is its gradient; any positive scale keeps it
        # where it is.
        return torch.where(squared > 0, squared, 1)

    def propose(self, model: Linearization, state: Damping, linear: LinearSolver) -> Proposal:
        damping, t = state.factor[:, None] * state.scale, state.length[:, None]
        full, solved = linear.solve(model.matrix, model.rhs, damping)
        full = torch.where(solved[:, None], full, torch.nan)
        predicted = 0.5 * (full * (t * t * damping * full - t * (2 - t) * model.gradient)).sum(-1)
        resolved = (state.factor <= RESOLVED) & (state.length >= 1)
        return Proposal(t * full, predicted, solved, resolved, damping)

    def update(
        self,
        state: Damping,
        model: Linearization,
        proposal: Proposal,
        gain: Tensor,
        accepted: Tensor,
        linear: LinearSolver,
    ) -> Damping:
        near, nearest = state.near, state.nearest
        least = torch.full_like(gain, SHRINK_FAR)
        least = least if linear.is_inexact else torch.where(near, SHRINK_NEAR, least)
        shrink = torch.maximum(1 - (2 * gain.clamp(max=1e3) - 1) ** 3, least)
        shrink = torch.where(nearest, SHRINK_NEAREST, shrink)
        cut = self._cut(state.length, gain)
        rose = proposal.solved & (gain < 0)  # of a point that is not sound the gain is 0
        cuts = nearest & ~accepted & rose & (cut >= SHORTEST)
        leaves = nearest & ~accepted & ~cuts
        factor = state.factor * torch.where(accepted, shrink, torch.where(cuts, 1, state.growth))
        factor = torch.where(leaves, factor.clamp(min=FIRST_DAMPINGS[1]), factor)
        growth = torch.where(accepted, 2.0, torch.where(cuts, state.growth, state.growth * 2))
        longer = torch.where(gain >= LENGTHEN, 2 * state.length, state.length).clamp(max=1)
        length = torch.where(accepted, longer, torch.where(cuts, cut, 1))
        scale = state.scale
        if self.scaling == "marquardt":
            scale = torch.where((accepted & near)[:, None], FORGETTING * scale, scale)
            scale = torch.maximum(scale, linear.storage.diagonal(model.matrix))
            scale = scale if proposal.beyond is None else torch.maximum(scale, proposal.beyond)
        slow = torch.where(accepted, self._slow(state.slow, gain, gain * proposal.predicted, model.cost), state.slow)
        if proposal.worth is not None:
            slow = torch.where((state.slow >= CREEPS) & (proposal.worth < WORTH), 0, slow)
        return Damping(factor.clamp(min=1e-32), growth, scale, near, nearest & ~leaves, length, slow)

    @staticmethod
    def _slow(slow: Tensor, gain: Tensor, decrease: Tensor, cost: Tensor) -> Tensor:
        """The signs of creeping after an accepted step that has led to this cost. Who creeps does so until a step
        lowers the cost by much."""
        before = cost + decrease
        less = torch.where(slow < CREEPS, (slow - 1).clamp(min=0), slow)
        little = torch.where(gain <= BROKEN, slow + 1, less)
        return torch.where(decrease <= LITTLE * before, little, torch.where(decrease > MUCH * before, 0, slow))

    @staticmethod
    def _cut(length: Tensor, gain: Tensor) -> Tensor:
        """The length after a failure: the least of the parabola through the cost at both ends and its slope at the
        start (Dennis and Schnabel, Numerical Methods for Unconstrained Optimization, 1983, A6.3.1), within `CUT`. With
        m(t) = (t - t²/2) s of the undamped model the slope is s, and c(t) = c(0) - gain m(t)."""
        share = 0.5 / (1 - gain * (1 - 0.5 * length)).clamp(min=0.5)
        return length * share.clamp(*CUT)

    def exhausted(self, state: Damping) -> Tensor:
        return state.factor > self.max_damping

    def damping(self, state: Damping) -> Tensor:
        return state.factor
