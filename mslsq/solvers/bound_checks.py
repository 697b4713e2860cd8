"""What is asked of bounds before a solve, and of a solution on them."""

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.linearize.blocks import Values
from mslsq.linearize.linearizer import Linearizer
from mslsq.manifolds.space import Space
from mslsq.native.choice import is_recorded_elsewhere
from mslsq.problem.errors import ProblemError
from mslsq.problem.leaf import LeafSpace
from mslsq.problem.system import Inputs, System
from mslsq.solvers.box import box_of, coordinates

WEAK = 10.0
"""A variable is weakly held by its bound where its gradient is below that many times √ε of what the cost resolves."""


def is_weakly_held(
    linearizer: Linearizer,
    values: Values,
    bounds: Inputs,
    gradient: Float[Tensor, "batch columns"],
    diagonal: Float[Tensor, "batch columns"],
    cost: Float[Tensor, "batch"],
    start_cost: Float[Tensor, "batch"],
) -> Bool[Tensor, "batch"]:
    """Has a problem a variable on a bound without a gradient that holds it there, or a free one all but on its bound?

    Then the least change of the data may free or hold it: the solution has a kink. Measured by the gradient that moves
    a cost by a share ε of itself, √(2 Hᵢᵢ ε cost), with ten times of room. Of a variable whose two bounds are equal
    none is asked.

    Args:
        gradient, diagonal: of the cost, exact, and of its Hessian, for all columns.
        start_cost: where the cost is zero, as little as ε of this is left by rounding.
    """
    box, x = box_of(linearizer, values, bounds), coordinates(linearizer, values)
    eps = torch.finfo(cost.dtype).eps
    diagonal = diagonal.clamp(min=0)
    least = WEAK * eps**0.5 * (diagonal * (cost + eps * start_cost)[:, None]).sqrt()
    on_bound = (x <= box.lower) | (x >= box.upper)
    distance = torch.minimum(x - box.lower, box.upper - x)
    near = distance * diagonal <= least
    weak = torch.where(on_bound, gradient.abs() <= least, near & torch.isfinite(distance))
    return (weak & (box.lower < box.upper)).any(-1)


def check_start(
    system: System, values: Values, bounds: Inputs, early_stop: bool = True
) -> Bool[Tensor, "batch"] | None:
    """Look whether bounds are a box with the start in it; not where something else records the solve for later.

    Returns:
        The problems of which they are none, where no number may be read: on another device than a CPU without an early
        stop. None elsewhere.

    Raises:
        ProblemError: they are none; names the entry, and the problem of a batch.
    """
    if is_recorded_elsewhere():
        return None
    inside = [_is_inside(*one) for one in _bounded(system, values, bounds)]
    if not early_stop and inside[0].device.type != "cpu":
        return ~torch.stack([one.flatten(1).all(1) for one in inside]).all(0)
    found = [one.all() for one in inside]
    if not bool(found[0] if len(found) == 1 else torch.stack(found).all()):
        _refuse(system, values, bounds)
    return None


def _bounded(system: System, values: Values, bounds: Inputs) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Start, lower and upper bound of every unknown that has some."""
    for unknown, x in zip(system.unknowns, values, strict=True):
        if unknown.is_bounded:
            lower, upper = (bounds[name].expand_as(x) for name in unknown.bounds)
            yield x, lower, upper


def _is_inside(x: Tensor, lower: Tensor, upper: Tensor) -> Bool[Tensor, "batch count tangent"]:
    """Is the lower bound not above the upper one, and the start not outside? (A start that is NaN is not; bounds that
    are NaN are none.)"""
    return (lower <= upper) & ~((x < lower) | (x > upper))


def _refuse(system: System, values: Values, bounds: Inputs) -> None:
    """Name the first entry that is not inside."""
    bounded = [unknown for unknown in system.unknowns if unknown.is_bounded]
    for unknown, (x, lower, upper) in zip(bounded, _bounded(system, values, bounds), strict=True):
        wrong = ~(lower <= upper)
        outside = (x < lower) | (x > upper)
        if not bool((wrong | outside).any()):
            continue
        is_wrong = bool(wrong.any())
        problem, block, entry = (wrong if is_wrong else outside).nonzero()[0].tolist()
        low, high, start = (float(tensor[problem, block, entry]) for tensor in (lower, upper, x))
        place = f"{unknown.name}{_place(unknown.space, block, entry)}{f' of problem {problem}' if len(x) > 1 else ''}"
        if is_wrong:
            raise ProblemError(
                f"The lower bound of {place} is {low:g}, its upper bound {high:g}: a lower bound must not be above the "
                "upper one, and neither may be NaN."
            )
        raise ProblemError(
            f"The start of {place} is {start:g}, outside of its bounds [{low:g}, {high:g}]. Start inside, or pass "
            "project_start=True to start from the nearest point inside."
        )


def _place(space: Space, block: int, entry: int) -> str:
    """The index of an entry as the user writes it."""
    if not isinstance(space, LeafSpace):
        return f"[{block}, {entry}]"
    index = []
    for size in reversed(space.shape):
        entry, place = divmod(entry, size)
        index.insert(0, place)
    return str(index) if index else ""
