"""Constraints: cost functions whose residual is to be zero, or not above zero, instead of small."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from mslsq.problem.cost import CostFunction
from mslsq.problem.errors import ProblemError
from mslsq.problem.system import TermKind
from mslsq.validation import instance_of


@dataclass(frozen=True, eq=False)
class Constraint:
    """Base of the two kinds."""

    cost: CostFunction
    kind: ClassVar[TermKind]

    def __post_init__(self) -> None:
        kind = type(self).__name__
        instance_of(f"{kind}: cost", self.cost, CostFunction, error=ProblemError)
        name = self.cost.name  # first: a cost that is not complete says so
        for option in ("loss", "weight"):
            if getattr(self.cost, option) is not None:
                raise ProblemError(
                    f"{kind}({name!r}): a constraint has no {option}, it is met or not. Leave it out; to "
                    "measure the violation in other units multiply the residual."
                )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.cost!r})"


class Equality(Constraint):
    """Every entry of the cost function's residual is zero at a solution.

    >>> problem = mslsq.Problem(reach, mslsq.Equality(Norm(direction)))
    """

    kind: ClassVar[TermKind] = TermKind.EQUALITY


class Inequality(Constraint):
    """No entry of the cost function's residual is above zero at a solution.

    >>> problem = mslsq.Problem(path, mslsq.Inequality(Clearance(pose, center=centers, radius=radii)))
    """

    kind: ClassVar[TermKind] = TermKind.INEQUALITY


def parts_of(costs: Iterable[CostFunction], kinds: Mapping[str, TermKind]) -> list[CostFunction | Constraint]:
    """Cost functions and constraints, from the cost functions and their kinds by name."""
    made: dict[TermKind, type[Constraint]] = {kind.kind: kind for kind in (Equality, Inequality)}
    return [made[kinds[cost.name]](cost) if kinds[cost.name] in made else cost for cost in costs]
