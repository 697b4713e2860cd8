"""The comparison of `solvers.witness` for one problem of one block, with as little around it as there can be.

Of a fit of 32 points the user's Python takes 100 µs, with its backward pass; the way to it, which serves every other
solve, takes 350.
"""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.linearize.blocks import Values
from mslsq.linearize.independent import plain_python, pulled
from mslsq.linearize.plan import Plan
from mslsq.linearize.trace import WITNESS, Wish
from mslsq.private import without_saved_tensor_hooks
from mslsq.problem.system import Inputs

Storages = tuple[Tensor, ...]


def has_one_witness(plan: Plan) -> bool:
    """Can the solves of a plan be compared like this: are its residual and its derivative the user's own, as written,
    and is what was compared with its program the graph that is there now?"""
    way, graph = plan.ways.get(0), plan.execution.graphs.get(WITNESS)
    as_written = way is None or (way.residual is None and way.sparsity is None and not way.lane_by_lane)
    return as_written and graph is not None and plan.whole_witness is graph


def agrees(
    plan: Plan,
    wish: Wish,
    start: Values,
    solution: Values,
    inputs: Inputs,
    residual: Callable[[Storages], Float[Tensor, "rows"]],
    in_turn: bool = False,
) -> bool:
    """Is what is recorded the user's Python, at the start and at the solution of a solve, but for rounding?

    Args:
        start, solution: Euclidean, (1, 1, storage) of every unknown.
        residual: the user's own, of storages (storage,) in memory of their own.
        in_turn: it has been compared before, and is at the solution alone now (`solvers.witness`).
    """
    graph = plan.execution.fastest(WITNESS, wish) if has_one_witness(plan) else None
    if graph is None:
        return False
    with torch.no_grad():
        points = [torch.cat(both).view(2, -1) for both in zip(start, solution, strict=True)]
        numbers, allowed, u = graph.flat([*[x.T.contiguous() for x in points], *inputs.values()])
    with without_saved_tensor_hooks(), plain_python():
        try:
            first = None if in_turn else residual(tuple([x[0].clone() for x in points])).detach()
            at = [x[1].clone().requires_grad_() for x in points]
            last = residual(tuple(at))
            derivatives = pulled([last] if last.requires_grad else [], at, u)
        except RuntimeError:  # no derivative in reverse mode, or a matrix that cannot be factored
            return False
    rows = len(u)
    if (first is not None and len(first) != rows) or len(last) != rows:
        return False
    # By NumPy, of which a small operation takes a third of the time.
    was, room = numbers.numpy()[0], allowed.numpy()[0]
    now = np.concatenate([x.numpy() for x in (last.detach(), *derivatives)])
    differ = ~(np.abs(was[:, 1] - now) <= room[:, 1])  # also where they are no numbers
    if first is not None:
        differ[:rows] |= ~(np.abs(was[:rows, 0] - first.numpy()) <= room[:rows, 0])
    return not differ.any()
