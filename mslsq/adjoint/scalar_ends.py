"""The end of a whole solve as scalars: the look at it that judges, and the pullback of a cotangent to inputs."""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from mslsq.adjoint.factor import Factorization
from mslsq.adjoint.look import Factored, Look
from mslsq.adjoint.minimum import Point
from mslsq.linear.dense import DenseSolver
from mslsq.linear.linear_solver import Matrix, Vector
from mslsq.linear.storage import DenseNormal, Storage
from mslsq.linearize.blocks import Values
from mslsq.linearize.linearizer import Linearizer, TermInputs
from mslsq.linearize.plan import Plan
from mslsq.native.arrays import Array, each
from mslsq.native.linearizing_text import Linearizing, Source
from mslsq.native.scalars import NotScalarError, Program
from mslsq.native.steps_text import Stepping, mapping_text
from mslsq.native.tables import Table
from mslsq.problem.system import Inputs
from mslsq.solvers.choices import linear_solver_of
from mslsq.solvers.scalar_calls import Answer, Callees, Function
from mslsq.solvers.scalar_curvature import ScalarCurvature, ScalarHessian, ScalarMixed
from mslsq.solvers.scalar_system import sizes_of_own
from mslsq.solvers.solver import Solver
from mslsq.solvers.task import Task
from mslsq.tracing.graph import TRANSFORM_LOCK

FLAGS = ("definite", "vanishes", "smooth", "solved", "near", "short", "settled", "weak")
"""What a look tells of each problem, yes or no."""

FACTOR, HESSIAN, GRADIENT, RESIDUAL, FLAGGED, IS_FINE = range(6)
"""What a look returns: the last but one are `FLAGS`, the last tells who has a derivative where it stopped. How many
these are is its sum over problems."""


class RecordedEnds(NamedTuple):
    """A program for the ends of solves, written down."""

    text: str
    table: Table
    own: list[tuple[int, str]]
    """Term and name of the inputs of which each problem has its own part..."""
    shared: list[tuple[int, str]]
    """... and of the others."""
    returned: list[tuple[int, str]]
    """Of a pullback the inputs that it leads to: those of each problem's own, then the shared ones."""


def recorded_look(
    name: str, task: Task, plan: Plan, values: Values, inputs: tuple[Inputs, ...], factorization: Factorization
) -> RecordedEnds:
    """The look at where a problem stopped: from its values, the matrix of its last linearization and its cost to the
    all that a look returns.

    Raises:
        NotScalarError: there is none; names the operation.
        DataDependentError, RuntimeError: no graph can be recorded.
    """
    linearizer = _of_one(task, plan, values)
    with TRANSFORM_LOCK, torch.no_grad():
        system = ScalarHessian(linearizer, values, inputs)
        functions = {"curve": f"{name}_linearize", "gradient": f"{name}_slope_linearize"}
        callees = _callees(system, values, functions)
        look = _looking(task.solver, factorization, linearizer)
        matrix = (
            torch.eye(system.sums.size, dtype=values[0].dtype, device="cpu")
            .expand(1, system.sums.components, -1, -1)
            .clone()
        )
        example = [
            *(torch.ones_like(x[:1]) for x in values),
            matrix,
            torch.ones(1, dtype=values[0].dtype, device="cpu"),
        ]
        stepping = _stepping(callees, look, example)
    square, columns = matrix.numel(), linearizer.structure.num_columns
    outputs = square, square, columns, 1, len(FLAGS), 1
    called = {name: system.form(), f"{name}_slope": system.form_of_gradient()}
    return _recorded(name, called, stepping, example, system, inputs, outputs, sums=1)


def recorded_pull(
    name: str, task: Task, plan: Plan, values: Values, inputs: tuple[Inputs, ...], wanted: dict[int, tuple[str, ...]]
) -> RecordedEnds:
    """The pullback: from values, factor and a cotangent in the tangent to inputs, by the number of a term their names.

    Raises:
        NotScalarError, DataDependentError, RuntimeError: as `recorded_look`.
    """
    linearizer = _of_one(task, plan, values)
    with TRANSFORM_LOCK, torch.no_grad():
        system = ScalarMixed(linearizer, values, inputs, wanted)
        callees = _callees(system, values, {"mixed": f"{name}_linearize"}, system.size)

        def pulled(given: list[Tensor], answer: Answer) -> list[Tensor]:
            *at, factor, towards = given
            (move,) = answer("inverse", (factor, -towards))
            return list(answer("mixed", (*at, move)))

        one = torch.ones(1, dtype=values[0].dtype, device="cpu")
        factor = torch.diag_embed(one.new_ones(1, system.sums.components, system.sums.size))
        towards = one.new_ones(1, linearizer.structure.num_columns)
        example = [*(torch.ones_like(x[:1]) for x in values), factor, towards]
        stepping = _stepping(callees, pulled, example)
    own = tuple(
        system.size_of(inputs[term][entry], True) for term, entry in system.places if entry in task.batched[term]
    )
    sums = system.size - sum(own)
    recorded = _recorded(name, {name: system.form()}, stepping, example, system, inputs, own, sums)
    return recorded._replace(returned=list(system.places))


def _of_one(task: Task, plan: Plan, values: Values) -> Linearizer:
    """The functions of one problem of a batch."""
    dtype = values[0].dtype
    if dtype not in (torch.float64, torch.float32):
        raise NotScalarError(f"programs are of float64 and float32, the variables are of {dtype}")
    return plan.linearizer(task.system, 1, task.batched, linear_solver_of(task, plan))


def _callees(system: ScalarCurvature, values: Values, functions: dict[str, str], size: int = 0) -> Callees:
    sizes = f"{system.sums.components}, {system.sums.size}"
    functions |= {"factor": f"factor_normal<{sizes}>", "inverse": f"solve_factored<{sizes}>"}
    return Callees(system.sums, values[0].dtype, functions, size)


@dataclass(frozen=True)
class _Factoring(DenseSolver):
    """Stands in for the linear solver while a look is recorded."""

    answer: Answer = field(default=lambda *_: [])

    @property
    def storage(self) -> Storage:
        return DenseNormal()

    def factored(self, matrix: Matrix) -> tuple[Matrix, Tensor]:
        factor, found = self.answer("factor", (matrix,))
        return factor, (found > 0)[:, None]

    def solve_factored(self, factor: Tensor, rhs: Vector) -> Vector:
        return self.answer("inverse", (factor, rhs))[0]


def _looking(solver: Solver, factorization: Factorization, linearizer: Linearizer) -> Function:
    """`Look.found` of one problem, whose linearizations and linear systems are calls."""
    of_nothing = replace(linearizer, system=replace(linearizer.system, terms=(), key=None), assemblies=())

    def looked(given: list[Tensor], answer: Answer) -> list[Tensor]:
        *at, matrix, cost = given
        point = Point(tuple(at), (), matrix, cost)
        look = Look(replace(of_nothing, linear_solver=_Factoring(answer)), factorization, solver)
        _, own, hessian = answer("curve", point.values)

        def gradient(values: Values, inputs: TermInputs) -> Tensor:
            return own if values is point.values else answer("gradient", values)[0]

        found = look.found(hessian, point, gradient)
        is_fine = look.is_fine(found)
        return [found.factor, hessian, own, found.residual, *_flags(found), is_fine, is_fine]

    return looked


def _flags(found: Factored) -> list[Tensor]:
    return [found.definite if name == "definite" else getattr(found.evidence, name) for name in FLAGS]


def _stepping(callees: Callees, function: Function, example: list[Tensor]) -> Stepping:
    """The function of the numbers in `example`, one behind the other."""
    program, arrays, first = Program(callees.dtype), [], 0
    for x in example:
        places = torch.arange(first, first + x.numel(), device="cpu").reshape(x.shape).numpy()
        arrays.append(Array(each(lambda place: program.input(0, int(place), "real"), places), x.dtype))
        first += x.numel()
    calls, outputs = callees.recorded(program, function, example, arrays)
    sources = {0: Source("s", 0, first)} | {1 + number: call.results for number, call in enumerate(calls)}
    record = tuple(x for array in outputs for x in array.reshape(-1))
    *before, last = calls
    results = [program.input(len(calls), place, "real").number for place in range(last.results.size)]
    if [x.number for x in record] == results:
        return Stepping(program, sources, tuple(before), (), (), last)
    return Stepping(program, sources, calls, (), record)


def _recorded(
    name: str,
    called: dict[str, Linearizing],
    stepping: Stepping,
    example: list[Tensor],
    system: ScalarCurvature,
    inputs: tuple[Inputs, ...],
    outputs: tuple[int, ...],
    sums: int = 0,
) -> RecordedEnds:
    reads = system.reads
    own = sizes_of_own(inputs, reads)
    table = Table((*((x.numel(), True) for x in example), *own), len(example), outputs, sums)
    return RecordedEnds(mapping_text(name, called, stepping, table), table, reads.own, reads.shared, [])
