"""The robust logs of all cells: eight at a time in a compiled kernel, or all at once in PyTorch's operations.

Every cell minimises ½ Σ ρ((w r)²) with r = x_i + log v_ij − x_j and Geman and McClure's loss ρ(s) = s / (1 + s / c²).
It begins at the minimum of Σ |w r|, with no constant that the data would have to fit, and follows the loss from
16 c to c; reweighted least squares, then Newton's steps once they are short.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mslsq.alignment.scales.descent import descend
from mslsq.alignment.scales.graph import Graph
from mslsq.kernels import Kernel, in_parts, run_on

_LOG_SCALES = Kernel("log_scales", "nnnnnnnllldddddl")
LANES = 8
STARTING = 6
"""Steps of the start in absolute values. At two fifths of wrong ratios 96.9 % of the scales are within 5 % with one,
98.4 % with five, and no more with more."""
LIMIT = 300


def robust_logs(
    graph: Graph,
    logs: Float[Tensor, "measurements cells"],
    trust: Float[Tensor, "measurements cells"],
    free: Float[Tensor, "maps cells"],
    scale: Float[Tensor, " cells"],
    limit: int = LIMIT,
) -> tuple[Float[Tensor, "maps cells"], Int[Tensor, " cells"]]:
    """The logs that minimise the robust cost, zero where `free` is; and the steps taken, negative where the minimum was
    not reached. Everything is float64. With limit = 0 it stops at the start."""
    if not run_on(logs.device):
        return descend(graph, logs, trust, free, scale, STARTING, limit)
    cells = logs.shape[1]
    short = -cells % LANES
    padded = [torch.nn.functional.pad(rows, (0, short)).contiguous() for rows in (logs, trust, free)]
    width = torch.nn.functional.pad(scale, (0, short), value=1.0).contiguous()
    x = torch.empty(graph.maps, cells + short, dtype=torch.float64, device="cpu")
    steps = torch.empty(cells + short, dtype=torch.int64, device="cpu")

    def part(first: int, last: int) -> None:
        _LOG_SCALES(
            graph.maps, len(graph.first), cells + short, first, last, STARTING, limit,
            graph.first, graph.second, graph.start, *padded, width, x, steps,
        )  # fmt: skip

    in_parts(part, (cells + short) // LANES, torch.get_num_threads())
    return x[:, :cells], steps[:cells]


class _Minimum(torch.autograd.Function):
    """The logs at their minimum, as constants, whichever transforms are active."""

    @staticmethod
    def forward(graph: Graph, logs: Tensor, trust: Tensor, free: Tensor, scale: float, limit: int):
        return robust_logs(graph, logs, trust, free, torch.full_like(logs[0], scale), limit)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def backward(ctx, *gradients):
        return (None,) * 6

    @staticmethod
    def jvp(ctx, *tangents):
        return None, None

    @staticmethod
    def vmap(info, in_dims, graph: Graph, logs: Tensor, trust: Tensor, free: Tensor, scale: float, limit: int):
        """The mapped axis as one more axis of cells. (`jacfwd` maps, over tangents.)"""
        rows = [
            (part.movedim(dim, 1) if dim is not None else part[:, None].expand(-1, info.batch_size, -1)).flatten(1)
            for part, dim in zip((logs, trust, free), in_dims[1:4], strict=True)
        ]
        x, steps = _Minimum.apply(graph, *rows, scale, limit)
        return (x.unflatten(1, (info.batch_size, -1)), steps.unflatten(0, (info.batch_size, -1))), (1, 0)


def minimum_of(
    graph: Graph,
    logs: Float[Tensor, "measurements cells"],
    trust: Float[Tensor, "measurements cells"],
    free: Float[Tensor, "maps cells"],
    scale: float,
    limit: int,
) -> tuple[Float[Tensor, "maps cells"], Int[Tensor, " cells"]]:
    """`robust_logs` as constants, whichever derivatives are being taken."""
    x, steps = _Minimum.apply(graph, logs.detach(), trust.detach(), free, scale, limit)
    return x, steps
