"""What a solve returns: statuses that are sentences, and the solution as a pytree of tensors."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mslsq import pytree
from mslsq.elsewhere.options import ATTRIBUTES_OF_SOLUTIONS


class Status(IntEnum):
    """Why one problem of a batch stopped. The first three mean converged; `Status(3).sentence` is for people."""

    RUNNING = 0
    COST_TOLERANCE = 1
    GRADIENT_TOLERANCE = 2
    STEP_TOLERANCE = 3
    MAX_STEPS = 4
    SINGULAR = 5
    NON_FINITE = 6
    STALLED = 7
    INTERRUPTED = 8
    TIME_BUDGET = 9
    INFEASIBLE = 10

    @property
    def sentence(self) -> str:
        return _SENTENCES[self]

    @property
    def converged(self) -> bool:
        return self in CONVERGED


CONVERGED = (Status.COST_TOLERANCE, Status.GRADIENT_TOLERANCE, Status.STEP_TOLERANCE)

_SENTENCES = {
    Status.RUNNING: "The solver has not finished.",
    Status.COST_TOLERANCE: "Converged: the last step changed the cost by less than ftol times the cost.",
    Status.GRADIENT_TOLERANCE: (
        "Converged: no entry of the gradient exceeds gtol; by default: the residual is orthogonal to the Jacobian's "
        "columns (cosines at most 1e-12), or zero to rounding."
    ),
    Status.STEP_TOLERANCE: "Converged: the last step was shorter than xtol times the size of the variables.",
    Status.MAX_STEPS: "Not converged: max_steps were taken. Try more steps, a better start, or see history.cost.",
    Status.SINGULAR: (
        "Not converged: the normal equations are singular, some variable or combination of variables has no "
        "influence on "
        "the residuals. Fix a gauge, add a Prior, or use LevenbergMarquardt, which damps such directions."
    ),
    Status.NON_FINITE: (
        "Not converged: the residual or its Jacobian is NaN or infinite, or so large that its squares are, at the best "
        "point known, or at every step tried. Look at the data of this problem and at its start, and at their units. "
        "In a native program what an index reads outside of its tensor is NaN, too (an error with native='never')."
    ),
    Status.STALLED: (
        "Stopped: no step decreases the cost at this precision, but none of the tolerances is met either. "
        "See gradient_norm: where it is small this is a minimum and the tolerances are below what the dtype can "
        "resolve (seven digits where the residual computes in float32, whatever the variables are); where it is large "
        "the residual has a kink here (abs, max, relu, a bilinear field), or its Jacobian is wrong."
    ),
    Status.INTERRUPTED: (
        "Not converged: interrupted (Ctrl-C). This is the best point so far; give it as the start to go on."
    ),
    Status.TIME_BUDGET: (
        "Not converged: the time_budget of the solver is spent. This is the best point so far; give it as the start to "
        "go on."
    ),
    Status.INFEASIBLE: (
        "Not converged: the constraints contradict each other here. No small step brings this point nearer to meeting "
        "them all; solution.violation tells how far it is off. Look at the constraints, or try another start."
    ),
}


LATER = "_later"
"""What makes the fields that have not been read yet."""


class Completed:
    """A frozen dataclass some fields of which may be made when one of them is read first: making them takes longer than
    a small solve."""

    @classmethod
    def _completed_later(cls, rest: Callable[[], dict[str, Any]], **known: Any) -> Any:
        """With these fields, and the others from `rest`."""
        found = object.__new__(cls)
        found.__dict__.update(known, **{LATER: rest})
        return found

    def _complete(self, name: str) -> None:
        """Make the fields that were left for later, if this is the name of one."""
        own = self.__dict__
        rest = own.get(LATER)
        if rest is not None and name in type(self).__dataclass_fields__:  # type: ignore[attr-defined]
            own.update({known: x for known, x in rest().items() if known not in own})
            own.pop(LATER, None)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            self._complete(name)
            if name not in self.__dict__:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{self._hint(name)}")
            return self.__dict__[name]

    def _hint(self, name: str) -> str:
        """What to say of a name that is none of a field."""
        return ""

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in type(self).__dataclass_fields__}  # type: ignore[attr-defined]

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """In memory of its own. What carries derivatives still does, to the same inputs: PyTorch copies no such
        tensor deeply, as it cannot tell whether its graph is meant."""

        def copied(leaf: Any) -> Any:
            carries = isinstance(leaf, Tensor) and leaf.grad_fn is not None
            return leaf.clone() if carries else copy.deepcopy(leaf, memo)

        return type(self)(**{name: pytree.map_leaves(copied, x) for name, x in self.__getstate__().items()})


WITH_WHOLE_HISTORY = 8192
"""Problems of a solve whose history is padded to all steps: 33 KB of a problem with 1,000 steps, which take 2 KB
themselves."""


@dataclass(frozen=True)
class History(Completed):
    """One record per step, entry 0 the start; unused entries are NaN (False in `accepted`).

    All are (*batch, max_steps + 1); of more than 8,192 problems (*batch, n + 1), n the steps of the one that took most.
    `cost` and `gradient_norm` are those of the point kept after the step, `step_norm` is the length of the step tried,
    `damping` the solver's own (LM: damping; Dogleg: radius; GN: zero).
    """

    cost: Float[Tensor, "*batch steps"]
    gradient_norm: Float[Tensor, "*batch steps"]
    step_norm: Float[Tensor, "*batch steps"]
    damping: Float[Tensor, "*batch steps"]
    accepted: Bool[Tensor, "*batch steps"]

    @staticmethod
    def read_later(columns: Callable[[], Sequence[Tensor]], start_cost: Tensor, max_steps: int) -> "History":
        """Of a batch: `columns` are its fields in order, (batch, n + 1), called for and padded when one is read."""

        def rest() -> dict[str, Tensor]:
            found = columns()
            missing = max_steps + 1 - found[0].shape[1] if len(found[0]) <= WITH_WHOLE_HISTORY else 0
            return dict(zip(History.__dataclass_fields__, [padded(x, missing) for x in found], strict=True))

        return History._completed_later(rest, _start_cost=start_cost)

    @property
    def columns(self) -> list[Tensor]:
        """All five, in their order."""
        return [getattr(self, name) for name in History.__dataclass_fields__]

    @property
    def start_cost(self) -> Float[Tensor, "*batch"]:
        """The cost of the start."""
        known = vars(self).get("_start_cost")
        return self.cost[..., 0] if known is None else known


def padded(column: Tensor, missing: int) -> Tensor:
    """With that many columns more, of NaN or False."""
    if not missing:
        return column
    return torch.nn.functional.pad(column, (0, missing), value=torch.nan if column.is_floating_point() else False)


@dataclass(frozen=True)
class Solution(Completed):
    """The result of a solve: a pytree whose leaves are all tensors, one entry per problem of a batch.

    Only `value`, `cost` and `multipliers` carry derivatives.
    """

    value: Any
    cost: Float[Tensor, "*batch"]
    status: Int[Tensor, "*batch"]
    num_steps: Int[Tensor, "*batch"]
    num_evaluations: Int[Tensor, "*batch"]
    gradient_norm: Float[Tensor, "*batch"]
    differentiable: Bool[Tensor, "*batch"]
    history: History
    adjoint_residual: Float[Tensor, "*batch"]
    """How well the linear system behind derivatives was solved: a relative residual; NaN without derivatives, or
    where there is no such system."""
    active: Any = ()
    """In the form of `value`, per entry: -1 on the lower bound, 1 on the upper one, else 0 (for an element of a
    manifold by its tangent). `()` where no bounds were given."""
    weights: dict[str, Float[Tensor, "*batch blocks"]] = field(default_factory=dict)
    """By cost the weights of its blocks, of a solve by `GraduatedNonConvexity`: 1 of an inlier, 0 of an outlier. Empty
    of other solves."""
    multipliers: dict[str, Float[Tensor, "*batch blocks rows"]] = field(default_factory=dict)
    """By constraint the Lagrange multipliers of its residual: the gradient of the cost is −Σ λ ∇residual. Those of an
    `Inequality` are not negative, and zero where it holds nothing back. Empty without constraints."""
    violation: Any = ()
    """(*batch,) The largest violation of a constraint, in the units of its residual; `()` without constraints."""

    @staticmethod
    def completed_later(value: Any, rest: Callable[[], dict[str, Any]]) -> "Solution":
        """A solution whose other fields are made by `rest` when one of them is read first."""
        return Solution._completed_later(rest, value=value)

    def __getitem__(self, name: Any) -> Any:
        raise TypeError(f"A Solution takes no index. Here: solution.value[{name!r}], or another of its fields.")

    __iter__ = None  # type: ignore[assignment]

    def _hint(self, name: str) -> str:
        return f". Here: {ATTRIBUTES_OF_SOLUTIONS[name]}" if name in ATTRIBUTES_OF_SOLUTIONS else ""

    @property
    def converged(self) -> Bool[Tensor, "*batch"]:
        """Did the solver meet one of its tolerances?"""
        return (self.status >= Status.COST_TOLERANCE) & (self.status <= Status.STEP_TOLERANCE)

    def message(self) -> str:
        """In words: why the solve stopped; of a batch, how many entries stopped for which reason."""
        if self.status.ndim == 0:
            return Status(int(self.status)).sentence
        values, counts = torch.unique(self.status, return_counts=True)
        lines = [
            f"{int(n)} of {self.status.numel()}: {Status(int(v)).sentence}" for v, n in zip(values, counts, strict=True)
        ]
        return "\n".join(lines)

    def of_problem(self, number: int) -> "Solution":
        """One problem of a batch; of `value` and `active` as the engine has them, tuples of tensors."""
        history = History(*[column[number] for column in self.history.columns])
        tuples = {name: tuple([x[number] for x in getattr(self, name)]) for name in ("value", "active")}
        dicts = {
            name: {key: x[number] for key, x in getattr(self, name).items()} for name in ("weights", "multipliers")
        }
        figures: dict[str, Any] = {
            name: x[number]
            for name, x in vars(self).items()
            if isinstance(x, Tensor) and name not in (*tuples, *dicts, "history")
        }
        return Solution(history=history, **tuples, **dicts, **figures)


def _register(cls: type) -> None:
    names = [field.name for field in fields(cls)]

    def flatten(node: Any) -> tuple[list[Any], None]:
        return [getattr(node, name) for name in names], None

    def unflatten(children: Any, _context: None) -> Any:
        return cls(*children)

    pytree.register(cls, flatten, unflatten, lambda _node: names)


_register(History)
_register(Solution)
# Numbers with names and nothing else: `torch.load` makes them as it makes tensors, without `weights_only=False`.
torch.serialization.add_safe_globals([Status, History, Solution])
