"""JᵀJ and Jᵀr of one term in block-sparse normal equations on a GPU, by sums over sorted segments.

What `normal_products` does by the kernels of a processor. In PyTorch's operations every product is written to memory,
and `index_add` adds them up in whatever order its threads come: some thirty launches for poses that are joined in
pairs, and other last bits in every run. Here all products of one size are one launch, and another where a place has
many: nothing but J is read, nothing but the sums is written, always in the same order.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from mslsq.kernels.build import CompilerError
from mslsq.linear.normal_products import NormalPlan
from mslsq.linear.operator_plan import OperatorPlan, on_device
from mslsq.linear.torch_operators import registered
from mslsq.native.cuda import segments

CHUNK = 64
"""Products that a thread adds up. A camera with 650 observations has eleven chunks, whose 891 rows of nine keep more
threads busy than its nine; poses that are joined in pairs have one. Not measured: no GPU has run either."""


@dataclass(frozen=True, eq=False)
class SumsPlan(OperatorPlan):
    """All products of one size, sorted by where they go."""

    height: int
    width: int
    stride: int
    """How far the rows of a sum lie apart."""
    lanes: Int[Tensor, "products"]
    firsts: Int[Tensor, "products"]
    """Where the factors begin in the joint tangent."""
    seconds: Int[Tensor, "products"]
    begins: Int[Tensor, "chunks+1"]
    """The first product of every chunk, and the end."""
    places: Int[Tensor, "chunks"]
    """Where its sum goes: to its place, or behind all places where there are several chunks."""
    first_chunk: int
    """Where those begin."""
    chunks: Int[Tensor, "sums+1"]
    """The first chunk of every place that has several, counted among such, and the end."""
    targets: Int[Tensor, "sums"]
    """These places."""

    def fill(self, kernels: segments.SegmentKernels, left: Tensor, right: Tensor, sums: Tensor) -> None:
        """Add up all products."""
        plan = self.lanes, self.firsts, self.seconds, self.begins, self.places
        kernels.add_products(self.width, left, right, plan, sums, self.height, self.stride)
        of_places = self.chunks, self.targets
        kernels.add_chunks(self.width, of_places, sums, self.first_chunk, self.height, self.stride)


@dataclass(frozen=True, eq=False)
class SegmentedPlan(OperatorPlan):
    """Where the products of a term's blocks go."""

    num_values: int
    num_columns: int
    room: int
    """Numbers of JᵀJ with the sums of chunks behind it..."""
    gradient_room: int
    """... and of Jᵀr."""
    matrix: tuple[SumsPlan, ...]
    gradient: tuple[SumsPlan, ...]

    @property
    def widths(self) -> set[int]:
        """Of all products."""
        return {sums.width for sums in (*self.matrix, *self.gradient)}


def segmented(plan: NormalPlan) -> SegmentedPlan:
    """The same plan as sorted segments, on its device."""
    found = [*plan.pairs, *plan.variables]
    device = found[0].lanes.device if found else torch.device("cpu")
    pairs: dict[tuple[int, int, int], list[np.ndarray]] = {}
    for p in plan.pairs:
        for begin in range(0, p.width, segments.WIDEST):
            width = min(segments.WIDEST, p.width - begin)
            products = _products(p.lanes, p.first, p.second + begin, p.offsets, begin)
            pairs.setdefault((p.height, width, p.width), []).append(products)
    variables: dict[tuple[int, int, int], list[np.ndarray]] = {}
    for v in plan.variables:
        variables.setdefault((v.height, 1, 1), []).append(_products(v.lanes, v.first, 0, v.columns, 0))
    matrix, room = _sorted(pairs, plan.num_values, device)
    gradient, gradient_room = _sorted(variables, plan.num_columns, device)
    return SegmentedPlan(plan.num_values, plan.num_columns, room, gradient_room, matrix, gradient)


def usable(plan: NormalPlan, dtype: torch.dtype) -> SegmentedPlan | None:
    """`segmented`, with its kernels compiled; None where they are not for its device, or cannot be compiled."""
    found = [*plan.pairs, *plan.variables]
    if not found or not segments.are_for(found[0].lanes.device):
        return None
    made = segmented(plan)
    try:
        for width in sorted(made.widths):
            segments.segment_kernels(found[0].lanes.device, dtype).module(width)
    except (CompilerError, OSError):
        return None
    return made


def _products(lanes: Tensor, first: int, second: int, targets: Tensor, begin: int) -> np.ndarray:
    """(4, products): lanes, firsts, seconds, places."""
    lane, target = lanes.cpu().numpy(), targets.cpu().numpy()
    return np.stack((lane, np.full_like(lane, first), np.full_like(lane, second), target + begin))


def _sorted(
    by_size: dict[tuple[int, int, int], list[np.ndarray]], room: int, device: torch.device
) -> tuple[tuple[SumsPlan, ...], int]:
    """The plans of all sizes, and how much room their sums take, those of chunks behind `room` numbers."""
    plans = []
    for (height, width, stride), parts in by_size.items():
        products = np.concatenate(parts, 1)
        products = products[:, np.argsort(products[3], kind="stable")]
        targets, firsts, counts = np.unique(products[3], return_index=True, return_counts=True)
        chunks = -(-counts // CHUNK)
        segment = np.repeat(np.arange(len(targets)), chunks)
        within = np.arange(len(segment)) - np.repeat(np.cumsum(chunks) - chunks, chunks)
        begins = np.append(firsts[segment] + within * CHUNK, products.shape[1])
        several = chunks > 1
        is_partial = several[segment]
        places = np.where(is_partial, room + (np.cumsum(is_partial) - 1) * height * stride, targets[segment])
        of_places = np.append(0, np.cumsum(chunks[several]))
        arrays = [*products[:3], begins, places, of_places, targets[several]]
        lanes, left, right, begin, place, chunk, target = (on_device(np.ascontiguousarray(x), device) for x in arrays)
        plans.append(SumsPlan(height, width, stride, lanes, left, right, begin, place, room, chunk, target))
        room += int(is_partial.sum()) * height * stride
    return tuple(plans), room


def _added(jacobian: Tensor, right: Tensor, plans: Iterable[SumsPlan], room: int, count: int) -> Tensor:
    sums = jacobian.new_zeros(len(jacobian), room)
    kernels = segments.segment_kernels(jacobian.device, jacobian.dtype)
    for plan in plans:
        plan.fill(kernels, jacobian, right, sums)
    return sums[:, :count].contiguous()


@registered("segmented_matrix")
def segmented_matrix(jacobian: Tensor, tensors: list[Tensor], numbers: list[int]) -> Tensor:
    """The stored blocks (batch, values) of JᵀJ, on the diagonal both triangles, of J (batch, rows, tangent, lanes)."""
    plan = SegmentedPlan.unpacked(tensors, numbers)
    return _added(jacobian, jacobian, plan.matrix, plan.room, plan.num_values)


@registered("segmented_gradient")
def segmented_gradient(jacobian: Tensor, residual: Tensor, tensors: list[Tensor], numbers: list[int]) -> Tensor:
    """Jᵀr (batch, columns), r (batch, rows, lanes)."""
    plan = SegmentedPlan.unpacked(tensors, numbers)
    return _added(jacobian, residual, plan.gradient, plan.gradient_room, plan.num_columns)


@segmented_matrix.register_fake
def _(jacobian: Tensor, tensors: list[Tensor], numbers: list[int]) -> Tensor:
    return jacobian.new_empty(len(jacobian), SegmentedPlan.unpacked(tensors, numbers).num_values)


@segmented_gradient.register_fake
def _(jacobian: Tensor, residual: Tensor, tensors: list[Tensor], numbers: list[int]) -> Tensor:
    return jacobian.new_empty(len(jacobian), SegmentedPlan.unpacked(tensors, numbers).num_columns)
