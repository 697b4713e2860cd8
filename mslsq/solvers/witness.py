"""Compares what a plan has recorded with the user's own Python, at the start and at the solution of a solve.

A graph outlives what it was recorded from. The key of a plan holds all that is known to matter; what it cannot hold
(an attribute of an opaque object, a value read from a file) is caught here: on at most four lanes the residual is
evaluated without transforms, at the solution with one plain backward pass. At the start alone much hides: x0 = 0
multiplies what changed by zero. It is the solution that is stationary or not: its residual and derivative are what the
answer claims, so the derivative at the start, which took a third of the time, is not compared.

Code that is trusted is compared in turn (`front.trust`), what was compared before at the solution alone, on one block
of one problem: another in every turn, until all have been looked at.
"""

import dataclasses
from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.linearize import independent
from mslsq.linearize.agreement import NonDeterministicResidualError, check_deterministic
from mslsq.linearize.blocks import BlockTerm, Values
from mslsq.linearize.derivatives import Way
from mslsq.linearize.plan import Plan
from mslsq.linearize.rounding import Shaken
from mslsq.linearize.sample import Sample, one_of, pair_of, sample_of, spread
from mslsq.linearize.trace import WITNESS
from mslsq.problem.system import Inputs
from mslsq.solvers.task import Task
from mslsq.tracing.graph import TRANSFORM_LOCK

ROUNDING = 1e3
"""Two evaluations may differ by this many units in the last place of |J|·|x| plus the largest residual of the start."""
DERIVATIVE_ROUNDING = {torch.float64: 1e5, torch.float32: 1e4}
"""The same for uᵀJ, of |u|ᵀ|J|: inside of a derivative larger numbers may cancel."""
SHAKES, NOISE, MOST, MOST_OF_DERIVATIVES = 8, 30.0, 1e4, 1e6
"""Where they differ by more, `SHAKES` evaluations with every number rounded otherwise tell what rounding does: they may
differ by `NOISE` times that, but by no more than `MOST` times what is allowed otherwise (a whole number that jumps is
no rounding). A nearly singular matrix enters its inverse's derivative twice: its rounding is the larger one."""
SIDES = 2.0
"""At a kink (two numbers that are sorted and equal up to rounding, |x| at zero) rounding chooses the side whose
derivative it is, and either counts: derivatives may differ by this many times the jumps that these evaluations show."""

Expected = tuple[Float[Tensor, "outer numbers lanes"], Float[Tensor, "outer numbers lanes"], Float[Tensor, "rows"]]
"""Residual and uᵀJ (or J, where the user gives it) of every lane, what they may differ by, and u."""

Lane = tuple[int, int]
"""Of a sample: a problem, and a lane of it."""


class Witness:
    """The comparison for one solve. Which lanes are looked at is fixed when it is made, and moves on from call to
    call."""

    def __init__(
        self,
        task: Task,
        plan: Plan,
        blocks: Sequence[BlockTerm],
        inputs: tuple[Inputs, ...],
        differentiated: bool = False,
    ):
        self._plan, self._inputs, self._differentiated = plan, inputs, differentiated
        self._wish, self._trust = task.solver.execution, task.trust
        self._stops_early = task.solver.early_stop
        # What is all the library's own changes with its inputs alone.
        self._terms = {n: term for n, term in enumerate(task.system.terms) if not term.is_of_library}
        self._blocks = {number: self._guarded(number, blocks[number]) for number in self._terms}
        self._call = plan.calls
        plan.calls += 1

    def _guarded(self, number: int, block: BlockTerm) -> BlockTerm:
        """The term with what stands for what was written of it."""
        if block.program is not None or number not in self._plan.guards:
            return block
        return dataclasses.replace(block, program=self._plan.guards[number])

    @property
    def is_needed(self) -> bool:
        """Has anything been recorded that could have gone stale?"""
        plan = self._plan
        written = plan.holds_programs or (self._differentiated and bool(plan.seconds))
        return bool(self._terms) and (bool(plan.execution.graphs) or plan.holds_residuals or written)

    def record(self, values: Values) -> None:
        """Record the linearization of the lanes; done before anything else is recorded."""
        samples = list(self._samples([values, values]).values())
        self._plan.execution.record(WITNESS, lambda tensors: _all_expected(samples, tensors), _tensors(samples))

    def disagrees(self, start: Values, solution: Values) -> Tensor | None:
        """Is there more than rounding between what is recorded and the user's Python, at the start or at the solution?
        The answer stays on the device; None where nothing is recorded, or where that needs no comparison."""
        if not self.is_needed:
            return None
        with torch.no_grad():
            # What a sparsity hangs on is data: code that is trusted may be given others.
            pinned = None if self._plan.compressed is None else self._plan.compressed.differs(self._inputs[0])
            if self._trust is not None and self._trust.is_given(self._plan):
                return pinned
            turn = None if self._trust is None else self._trust.turn(self._plan)
            samples = self._samples([start, solution], turn)
            graph = self._plan.execution.fastest(WITNESS, self._wish)
            if graph is not None:
                flat = iter(graph.flat(_tensors(samples.values())))
                recorded = list(zip(flat, flat, flat, strict=True))
            else:
                with TRANSFORM_LOCK:
                    recorded = [_expected(sample) for sample in samples.values()]
            differ = [
                self._differs(number, sample, expected, None if turn is None else [self._lane_of(number, turn)])
                for (number, sample), expected in zip(samples.items(), recorded, strict=True)
            ]
            found = differ[0] if len(differ) == 1 else torch.stack(differ).any()
            if self._trust is not None and self._plan.is_on_cpu and bool(found):
                self._trust.withdraw(self._plan)
        return found if pinned is None else found | pinned

    def check_deterministic(self, *points: Values) -> None:
        """Raises NonDeterministicResidualError where two evaluations of the user's Python at one point differ."""
        for number, sample in self._samples(points).items():
            check_deterministic(self._by_the_user(number, sample))

    def refuse(self) -> None:
        """What was recorded in this very call differs again from the user's Python.

        Raises:
            NonDeterministicResidualError: always.
        """
        names = ", ".join(repr(term.name) for term in self._terms.values())
        raise NonDeterministicResidualError(
            f"The residual of {names} changes while the solve runs, or does something that its graph does not hold. A "
            "residual must be a function of its inputs, and tell so: pass what it depends on in args (or as data of "
            "the cost), and write it out of place."
        )

    def _samples(self, points: Sequence[Values], turn: int | None = None) -> dict[int, Sample]:
        """Of every term the lanes that are looked at, or as many with the one that has its turn."""
        return {
            number: sample_of(block, points, self._inputs[number], *self._places(block, turn))
            for number, block in self._blocks.items()
        }

    def _places(self, block: BlockTerm, turn: int | None) -> tuple[list[int], list[int]]:
        """At most four lanes: problems and blocks. Two blocks of a single problem: they have their code in common, and
        with four of them the comparison took two thirds of a solve of 60 poses with a residual of the user's own."""
        problems, blocks = block.batch, block.term.num_blocks
        if turn is not None:
            (among_problems, _), (among_blocks, _) = _places_of_turn(block, turn)
            return among_problems, among_blocks
        if blocks == 1:
            return spread(problems, self._call), [0]
        return pair_of(problems, self._call), pair_of(blocks, self._call)

    def _lane_of(self, number: int, turn: int) -> Lane:
        """Where in the sample of a term stands what has its turn, at the solution."""
        block = self._blocks[number]
        (problems, problem), (_, lane) = _places_of_turn(block, turn)
        at_solution = problem + len(problems)
        return (0, at_solution) if block.lanes_are_batch else (at_solution, lane)

    def _by_the_user(self, number: int, sample: Sample) -> Sample:
        term, block = self._terms[number], sample.block
        if block.way.residual is None and block.program is None:
            return sample  # as written
        plain = BlockTerm(term, block.system, block.batch, block.batched, block.rows, block.pairs)
        return sample.going(plain)

    def _differs(self, number: int, sample: Sample, expected: Expected, lanes: list[Lane] | None) -> Tensor:
        """Of one term: do residuals or derivatives differ, in these lanes or in all?"""
        user, (*both, u) = self._by_the_user(number, sample), expected
        lanes = [(m, n) for m in range(user.block.outer) for n in range(user.block.lanes)] if lanes is None else lanes
        numbers, allowed = (_columns(x, lanes) for x in both)
        rewritten = sample.block.way.residual is not None
        now = _by_plain_python(user, lanes, numbers, u, rewritten)
        if now is None:
            return torch.ones((), dtype=torch.bool, device=numbers.device)
        known = self._plan.rounding
        # Reading a number of a CPU waits for nothing.
        if not self._plan.is_on_cpu or (number in known and not self._stops_early):
            return torch.as_tensor(_differ(numbers, now, known.get(number, 1.0) * allowed), device=numbers.device)
        differ, times = _differ(numbers, now, allowed, True), 1.0
        if differ:
            most = torch.full_like(allowed, MOST_OF_DERIVATIVES)
            most[: len(u)] = MOST
            jumps = _jumps(user, lanes, now, u, rewritten)
            more = (NOISE * jumps).minimum(most * allowed)
            differ, times = _differ(numbers, now, allowed + more, True), 1 + float((more / allowed).nan_to_num().amax())
            if differ:
                jumps[: len(u)] = 0  # the residual is continuous at a kink
                differ = _differ(numbers, now, allowed + more.maximum(SIDES * jumps), True)
        if not differ:
            known[number] = max(known.get(number, 1.0), times)
        return torch.as_tensor(differ, device=numbers.device)


def _places_of_turn(block: BlockTerm, turn: int) -> tuple[tuple[list[int], int], tuple[list[int], int]]:
    """As many problems and blocks as are looked at otherwise, and which of each have this turn: all pairs in turn."""
    problems, blocks = block.batch, block.term.num_blocks
    if blocks == 1:
        return one_of(problems, 4, turn), ([0], 0)
    return one_of(problems, 2, turn + turn // blocks), one_of(blocks, 2, turn)


def _columns(numbers: Float[Tensor, "outer numbers lanes"], lanes: Sequence[Lane]) -> Float[Tensor, "numbers chosen"]:
    return torch.stack([numbers[problem, :, lane] for problem, lane in lanes], -1)


def _by_plain_python(
    user: Sample, lanes: Sequence[Lane], numbers: Float[Tensor, "numbers lanes"], u: Tensor, rewritten: bool
) -> Float[Tensor, "numbers lanes"] | None:
    """What the user's Python gives in these lanes, where a graph has these numbers; None where it has not as many."""
    if user.block.term.jacobians is not None:
        # One block after the other: what writes in place cannot be mapped.
        one_by_one = dataclasses.replace(user.block, way=Way(lane_by_lane=True))
        with TRANSFORM_LOCK, independent.plain_python():
            return _columns(_side_by_side(*user.going(one_by_one).linearizations()), lanes)
    rows = len(u)
    at_start = [_is_start(user.block, *lane) for lane in lanes]
    places = [user.lane(*lane) for lane in lanes]
    begins = [at for at, first in zip(places, at_start, strict=True) if first]
    ends = [at for at, first in zip(places, at_start, strict=True) if not first]
    starts = iter(independent.residuals(user.block, begins) if begins else ())
    pulled = iter(independent.pullbacks(user.block, ends, u, rewritten))
    columns = []
    for column, first in zip(numbers.unbind(-1), at_start, strict=True):
        residual, derivative = (next(starts), None) if first else next(pulled)
        # Of a matrix that cannot be factored the graph has NaN; and where there is no derivative it has none to
        # be compared with.
        residual = column[:rows] if residual is None else residual
        columns.append(torch.cat((residual, column[rows:] if derivative is None else derivative)))
    if any(len(column) != len(numbers) for column in columns):
        return None
    return torch.stack(columns, -1)


def _jumps(user: Sample, lanes: Sequence[Lane], now: Tensor, u: Tensor, rewritten: bool) -> Tensor:
    """By how much other rounding changes what the user's Python gives, which is more than its derivative tells where a
    matrix is nearly singular inside, and far more for derivatives at a kink.

    Nothing, where the same point does not have the same numbers again: then it is not rounding that changes them.
    """
    again = _by_plain_python(user, lanes, now, u, rewritten)
    jumps = torch.zeros_like(now)
    if again is None or not torch.equal(again.nan_to_num(), now.nan_to_num()):
        return jumps
    for seed in range(SHAKES):
        with Shaken(seed):
            there = _by_plain_python(user, lanes, now, u, rewritten)
        if there is not None:
            jumps = jumps.maximum((there - now).abs().nan_to_num(0.0, 0.0))
    return jumps


def _is_start(block: BlockTerm, problem: int, lane: int) -> bool:
    """Is a lane of a sample at the start of its solve? The first half is; the others are at the solution."""
    return lane < block.lanes // 2 if block.lanes_are_batch else problem < block.outer // 2


def _tensors(samples: Iterable[Sample]) -> list[Tensor]:
    """Everything that the numbers of these samples depend on."""
    return [tensor for sample in samples for tensor in (*sample.storages, *sample.inputs.values())]


def _all_expected(samples: Sequence[Sample], tensors: Sequence[Tensor]) -> list[Tensor]:
    """`_expected` of every sample around other tensors, in the order of `_tensors`."""
    rest, found = iter(tensors), []
    for sample in samples:
        storages = tuple(next(rest) for _ in sample.storages)
        inputs = {name: next(rest) for name in sample.inputs}
        found += _expected(sample.of(storages, inputs))
    return found


def _expected(sample: Sample) -> Expected:
    """What the user's Python should give, of lanes of which the first half is at the start."""
    block = sample.block
    residual, jacobian = sample.linearizations()
    eps = torch.finfo(residual.dtype).eps
    at_start = residual[..., : block.lanes // 2] if block.lanes_are_batch else residual[: block.outer // 2]
    scale = torch.where(torch.isfinite(at_start), at_start.abs(), 0).amax()
    # A variable that is not a number makes |J|·|x| none, also of rows that it has no part in.
    allowed = ROUNDING * eps * (_times_size(sample, jacobian).nan_to_num(nan=0.0) + scale)
    u = independent.irregular(residual.shape[1], residual)
    rounding = DERIVATIVE_ROUNDING[residual.dtype] * eps
    if block.term.jacobians is not None:
        sizes = jacobian.abs()
        room = rounding * (sizes + torch.where(torch.isfinite(sizes), sizes, 0).amax())
        return _side_by_side(residual, jacobian), _side_by_side(allowed, _unless_broken(residual, room)), u
    layout = block.way.layout
    room = layout.pulled(jacobian.abs(), u.abs()[None, :, None])
    room = _unless_broken(residual, rounding * (room + room.amax(1, keepdim=True)))
    return (
        torch.cat((residual, layout.pulled(jacobian, u[None, :, None])), 1),
        torch.cat((allowed, room), 1),
        u,
    )


def _unless_broken(residual: Tensor, room: Tensor) -> Tensor:
    """The room for derivatives; without limit in lanes with a residual that is not finite. There one mode has NaN for
    what another has a number for (a tangent of zero times NaN), and the solver stops whichever it gets."""
    is_finite = torch.isfinite(residual).all(1)
    return torch.where(is_finite.reshape(len(is_finite), *(1,) * (room.ndim - 2), -1), room, torch.inf)


def _side_by_side(residual: Tensor, jacobian: Tensor) -> Tensor:
    """Residual and Jacobian as one vector per lane."""
    return torch.cat((residual, jacobian.flatten(1, -2)), 1)


def _times_size(sample: Sample, jacobian: Tensor) -> Tensor:
    """|J|·|x|, (outer, rows, lanes)."""
    block = sample.block
    sizes = []
    for slot, x, dim in zip(block.term.slots, sample.storages, sample.dims, strict=True):
        space = block.system.unknowns[slot.unknown].space
        x = x.abs() if dim is not None else x.abs()[..., None]
        x = x if x.ndim == 3 else x[None]
        x = x if space.is_euclidean else x.amax(1, keepdim=True).expand(-1, space.tangent_dim, -1)
        sizes.append(x.expand(jacobian.shape[0], -1, jacobian.shape[-1]))
    size = torch.cat(sizes, 1)
    return block.way.layout.pushed(jacobian.abs(), size)


def _differ(old: Tensor, new: Tensor, allowed: Tensor, asks: bool = False) -> Tensor | bool:
    """Do they differ by more than is allowed? NaN equals NaN, and where anything is allowed all are equal. `asks` where
    a number may be read: the answer is one then."""
    if old.shape != new.shape:
        return True
    close = (old - new).abs() <= allowed
    if asks and bool(close.all()):
        return False
    # What is equal without being close is infinite, or not a number. A lane with such derivatives stops whichever mode
    # they are of: forward mode has NaN (zero times infinity) in columns where reverse mode has numbers.
    stops = ~(old.isfinite().all(0) | new.isfinite().all(0))
    broken = stops & ~(old.isfinite() & new.isfinite())
    differ = ~(close | (old == new) | broken | allowed.isinf()).all()
    return bool(differ) if asks else differ
