"""Compares what a plan has recorded with the user's own Python, at the start and at the solution of a solve.

A graph outlives what it was recorded from. The key of a plan holds all that is known to matter; what it cannot hold
(an attribute of an opaque object, a value read from a file) is caught here: on at most four lanes the residual is
evaluated without transforms, with one plain backward pass. At the start alone much hides: x0 = 0 multiplies what
changed by zero.
"""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.linalg import LinAlgError  # pyright: ignore[reportAttributeAccessIssue]

from mslsq.linearize import independent
from mslsq.linearize.agreement import NonDeterministicResidualError, check_deterministic
from mslsq.linearize.blocks import BlockTerm, Values
from mslsq.linearize.derivatives import Way
from mslsq.linearize.plan import Plan
from mslsq.linearize.sample import Sample, sample_of
from mslsq.linearize.trace import WITNESS
from mslsq.problem.system import Inputs
from mslsq.solvers.planning import Task
from mslsq.tracing.graph import TRANSFORM_LOCK

ROUNDING = 1e3
"""Two evaluations may differ by this many units in the last place of |J|·|x| plus the largest residual of the start."""
DERIVATIVE_ROUNDING = {torch.float64: 1e5, torch.float32: 1e4}
"""The same for uᵀJ, of |u|ᵀ|J|: inside of a derivative larger numbers may cancel."""


class Witness:
    """The comparison for one solve. Which lanes are looked at is fixed when it is made: the first, the last, and two
    that move on from call to call."""

    def __init__(self, task: Task, plan: Plan, blocks: Sequence[BlockTerm], inputs: tuple[Inputs, ...]):
        self._plan, self._inputs = plan, inputs
        # What is all the library's own changes with its inputs alone.
        self._terms = {n: term for n, term in enumerate(task.system.terms) if not term.is_of_library}
        self._blocks = {number: blocks[number] for number in self._terms}
        self._call = plan.calls
        plan.calls += 1
        self._scales: dict[int, Tensor] = {}

    @property
    def is_needed(self) -> bool:
        """Has anything been recorded that could have gone stale?"""
        plan = self._plan
        return bool(self._terms) and (bool(plan.execution.graphs) or plan.holds_residuals or plan.holds_programs)

    def record(self, values: Values) -> None:
        """Record the linearization of the lanes; done before anything else is recorded."""
        samples = list(self._samples(values).values())

        def linearizations(lanes: list[tuple[tuple[Tensor, ...], dict[str, Tensor]]]) -> list[tuple[Tensor, Tensor]]:
            return [
                sample.of(storages, inputs).linearizations()
                for sample, (storages, inputs) in zip(samples, lanes, strict=True)
            ]

        self._plan.execution.record(WITNESS, linearizations, self._lanes(samples))

    def disagrees(self, values: Values) -> Tensor | None:
        """Is there more than rounding between what is recorded and the user's Python at `values`? The answer stays on
        the device; None where nothing is recorded. The first call is that of the start."""
        if not self.is_needed:
            return None
        with torch.no_grad():
            numbered = self._samples(values)
            samples = list(numbered.values())
            graph = self._plan.execution.graphs.get(WITNESS)
            if graph is not None:
                recorded = graph(self._lanes(samples))
            else:
                with TRANSFORM_LOCK:
                    recorded = [sample.linearizations() for sample in samples]
            differ = [
                one
                for (number, sample), pair in zip(numbered.items(), recorded, strict=True)
                for one in self._differences(number, sample, *pair)
            ]
            pinned = None if self._plan.compressed is None else self._plan.compressed.differs(self._inputs[0])
            differ += [] if pinned is None else [pinned]
        return torch.stack(differ).any() if differ else None

    def check_deterministic(self, values: Values) -> None:
        """Raises NonDeterministicResidualError where two evaluations of the user's Python at one point differ."""
        for number, sample in self._samples(values).items():
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

    def _samples(self, values: Values) -> dict[int, Sample]:
        return {
            number: sample_of(block, values, self._inputs[number], *self._places(block))
            for number, block in self._blocks.items()
        }

    def _places(self, block: BlockTerm) -> tuple[list[int], list[int]]:
        """At most four lanes: problems and blocks."""
        problems, blocks = block.batch, block.term.num_blocks
        if problems == 1 or blocks == 1:
            several = _spread(max(problems, blocks), self._call)
            return (several, [0]) if blocks == 1 else ([0], several)
        return _pair(problems, self._call), _pair(blocks, self._call)

    @staticmethod
    def _lanes(samples: list[Sample]) -> list[tuple[tuple[Tensor, ...], dict[str, Tensor]]]:
        return [(sample.storages, sample.inputs) for sample in samples]

    def _by_the_user(self, number: int, sample: Sample) -> Sample:
        term, block = self._terms[number], sample.block
        plain = BlockTerm(term, block.system, block.batch, block.batched, block.rows, block.pairs)
        return sample.going(plain)

    def _differences(self, number: int, sample: Sample, residual: Tensor, jacobian: Tensor) -> list[Tensor]:
        """Of one term: do residuals and derivatives differ?"""
        user = self._by_the_user(number, sample)
        size = _times_size(sample, jacobian)
        if number not in self._scales:
            self._scales[number] = torch.where(torch.isfinite(residual), residual.abs(), 0).amax()
        eps = torch.finfo(residual.dtype).eps
        allowed = ROUNDING * eps * (size + self._scales[number])
        if user.block.term.jacobians is not None:
            # One block after the other: what writes in place cannot be mapped.
            one_by_one = dataclasses.replace(user.block, way=Way(lane_by_lane=True))
            with TRANSFORM_LOCK, independent.plain_python():
                now, derivative = user.going(one_by_one).linearizations()
            room = DERIVATIVE_ROUNDING[residual.dtype] * eps * (jacobian.abs() + jacobian.abs().amax())
            return [_differ(residual, now, allowed), _differ(jacobian, derivative, room)]
        u = independent.irregular(residual.shape[1], residual)
        pulled = sample.block.pulled(jacobian, u[None, :, None])
        room = sample.block.pulled(jacobian.abs(), u.abs()[None, :, None])
        room = DERIVATIVE_ROUNDING[residual.dtype] * eps * (room + room.amax(1, keepdim=True))
        differ, rewritten = [], sample.block.way.residual is not None
        for (problem, lane), storages, inputs in user.each():
            place = (problem, slice(None), lane)
            try:
                now, expected = independent.pullback(user.block, storages, inputs, u, rewritten)
            except LinAlgError:  # a matrix that cannot be factored: the graph has NaN there
                continue
            except RuntimeError:  # no derivative in reverse mode
                now, expected = independent.residual(user.block, storages, inputs), pulled[place]
            differ += [_differ(residual[place], now, allowed[place]), _differ(pulled[place], expected, room[place])]
        return differ


def _spread(count: int, call: int) -> list[int]:
    """The first, the last, and two others."""
    if count <= 4:
        return list(range(count))
    return [0, count - 1, 1 + (2 * call) % (count - 2), 1 + (2 * call + 1) % (count - 2)]


def _pair(count: int, call: int) -> list[int]:
    """The first or the last, and one other."""
    if count <= 2:
        return list(range(count))
    return [0 if call % 2 else count - 1, 1 + (call // 2) % (count - 2)]


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
    return block.pushed(jacobian.abs(), size)


def _differ(old: Tensor, new: Tensor, allowed: Tensor) -> Tensor:
    """Do they differ by more than is allowed? NaN equals NaN."""
    if old.shape != new.shape:
        return torch.ones((), dtype=torch.bool, device=new.device)
    same = ((old - new).abs() <= allowed) | (old == new) | (old.isnan() & new.isnan())
    return ~same.all()
