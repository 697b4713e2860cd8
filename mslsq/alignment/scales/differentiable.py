"""The logs of all cells as functions of ratios and weights: the derivatives of their robust minimum."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mslsq import CostFunction, Euclidean, GemanMcClure, Problem, Scale, Variable, solve
from mslsq.alignment.scales.graph import Graph


class LogRatio(CostFunction):
    """log m_i + log v − log m_j."""

    def residual(self, first: Tensor, second: Tensor, log_ratio: Tensor) -> Tensor:
        return first + log_ratio - second

    def jacobians(self, first: Tensor, second: Tensor, log_ratio: Tensor) -> tuple[Tensor, Tensor]:
        one = torch.ones_like(log_ratio).reshape(1, 1)
        return one, -one


class Held(CostFunction):
    """The gauge: log m_i = 0, where its weight is not zero."""

    def residual(self, log: Tensor) -> Tensor:
        return log

    def jacobians(self, log: Tensor) -> tuple[Tensor]:
        return (torch.ones_like(log).reshape(1, 1),)


def with_derivatives(
    graph: Graph,
    logs: Float[Tensor, "measurements cells"],
    trust: Float[Tensor, "measurements cells"],
    free: Float[Tensor, "maps cells"],
    scale: float,
    minimum: Float[Tensor, "maps cells"],
) -> tuple[Float[Tensor, "maps cells"], Int[Tensor, " cells"]]:
    """`mslsq.solve` from the minimum that is known, which attaches the implicit derivatives; and its statuses.

    The gauge may differ from cell to cell: one map of every component is held by a residual, which is zero at the
    minimum, so that it changes neither the differences of logs nor their derivatives.
    """
    first, second = graph.ends
    log = Variable("log", Euclidean(1), count=graph.maps)
    everyone = torch.arange(graph.maps, device=first.device)
    problem = Problem(
        LogRatio(
            log[first], log[second], log_ratio=torch.zeros_like(graph.sign),
            weight=Scale(torch.ones_like(graph.sign)), loss=GemanMcClure(scale),
        ),
        Held(log[everyone], weight=Scale(torch.ones_like(everyone, dtype=torch.float64))),
    )  # fmt: skip
    data = {"log_ratio": {"log_ratio": logs.T, "weight": trust.T}, "held": {"weight": 1 - free.T}}
    solution = solve(problem, {"log": minimum.T[..., None]}, data, in_dims=(0, 0))
    return solution.value["log"][..., 0].T, solution.status
