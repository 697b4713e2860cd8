"""The elimination of blocks in PyTorch's own operations: gather, batched products, `index_add`; out-of-place, on any
device.

The same numbers in the same places as the kernels of `schur.kernels`.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from mslsq.levels import kept_tensors
from mslsq.linear.schur.plan import SchurPlan
from mslsq.linear.schur.torch_operators import F64, Reduction, reduced_places


@dataclass(frozen=True, eq=False)
class _Pivots:
    source: Int[Tensor, "pivots k k"]
    column: Int[Tensor, "pivots k"]
    triangle: Int[Tensor, "pivots k k"]
    right: Int[Tensor, "pivots k"]


@dataclass(frozen=True, eq=False)
class _Edges:
    group: int
    """The group of pivots that these belong to."""
    pivot: Int[Tensor, "edges"]
    """Which of them."""
    source: Int[Tensor, "edges k a"]
    right: Int[Tensor, "edges k"]
    column: Int[Tensor, "edges a"]
    target: Int[Tensor, "edges k a"]


@dataclass(frozen=True, eq=False)
class _Pairs:
    left: Int[Tensor, "pairs k a"]
    right: Int[Tensor, "pairs k b"]
    target: Int[Tensor, "pairs a b"]


class SchurTensors:
    """A plan as index tensors on one device."""

    def __init__(self, plan: SchurPlan, dense: bool, device: torch.device):
        def on_device(array: np.ndarray) -> Tensor:
            return kept_tensors([array], device)[0]

        def grid(start: np.ndarray, height: int, width: int, by_row: int, by_column: int) -> np.ndarray:
            """start + i by_row + j by_column."""
            return start[:, None, None] + np.arange(height)[:, None] * by_row + np.arange(width) * by_column

        place, stride, self.matrix_size = reduced_places(plan, dense)
        self.plan = plan
        self.kept_unknowns = on_device(plan.kept_unknowns)
        self.pivots = [
            _Pivots(
                on_device(grid(p.source, p.size, p.size, p.size, 1)),
                on_device(p.column[:, None] + np.arange(p.size)),
                on_device(grid(p.triangle, p.size, p.size, p.size, 1)),
                on_device(p.right[:, None] + np.arange(p.size)),
            )
            for p in plan.pivots
        ]
        numbers = {p.size: n for n, p in enumerate(plan.pivots)}
        self.edges = [
            _Edges(
                numbers[e.size],
                on_device(np.searchsorted(plan.pivots[numbers[e.size]].triangle, e.triangle)),
                on_device(grid(e.source, e.size, e.kept_size, *((1, e.size) if e.transposed else (e.kept_size, 1)))),
                on_device(e.right[:, None] + np.arange(e.size)),
                on_device(e.column[:, None] + np.arange(e.kept_size)),
                on_device(grid(e.target, e.size, e.kept_size, e.kept_size, 1)),
            )
            for e in plan.edges
        ]
        self.pairs = []
        for p in plan.pairs:
            target = np.repeat(p.target, np.diff(p.start))
            rows = stride[target][:, None, None]
            self.pairs.append(
                _Pairs(
                    on_device(grid(p.left, p.size, p.height, p.height, 1)),
                    on_device(grid(p.right, p.size, p.width, p.width, 1)),
                    on_device(place[target][:, None, None] + np.arange(p.height)[:, None] * rows + np.arange(p.width)),
                )
            )
        self._place_kept(plan, place, stride, on_device)

    def _place_kept(self, plan: SchurPlan, place: np.ndarray, stride: np.ndarray, on_device) -> None:
        sources, targets = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        diagonal = np.zeros(0, np.int64)
        if plan.reduced is not None:
            reduced = plan.reduced
            heights = reduced.block_sizes[reduced.rows[plan.kept_target]]
            widths = reduced.block_sizes[reduced.cols[plan.kept_target]]
            for a, b in {(int(a), int(b)) for a, b in zip(heights, widths, strict=True)}:
                here = (heights == a) & (widths == b)
                at = plan.kept_target[here]
                row, col = np.arange(a)[:, None], np.arange(b)
                sources.append((plan.kept_source[here][:, None, None] + row * b + col).ravel())
                targets.append((place[at][:, None, None] + row * stride[at][:, None, None] + col).ravel())
            own = reduced.rows == reduced.cols
            sizes = reduced.block_sizes
            within = np.arange(reduced.num_unknowns) - np.repeat(reduced.starts[:-1], sizes)
            diagonal = np.repeat(place[own], sizes) + within * (np.repeat(stride[own], sizes) + 1)
        self.kept_source, self.kept_target = on_device(np.concatenate(sources)), on_device(np.concatenate(targets))
        self.diagonal = on_device(diagonal)

    def reduce(self, values: Tensor, shift: Tensor | None, rhs: Tensor) -> Reduction:
        """The first half: see `schur.torch_operators.reduce_by_kernels`."""
        values = values.to(F64)
        work = values.new_zeros(len(values), self.plan.work_size)
        regular = torch.ones(len(values), dtype=torch.bool, device=values.device)
        triangles = []
        for p in self.pivots:
            block = values[:, p.source]
            if shift is not None:
                block = block + torch.diag_embed(shift[:, p.column].to(F64))
            eye = torch.eye(block.shape[-1], dtype=F64, device=values.device)
            finite = torch.isfinite(block).all(-1).all(-1)
            triangle, info = torch.linalg.cholesky_ex(torch.where(finite[..., None, None], block, eye))
            good = finite & (info == 0)
            regular = regular & good.all(-1)
            triangles.append(torch.where(good[..., None, None], triangle, eye))
            work = _put(work, p.triangle, _inverted_diagonal(triangles[-1]))
        for e in self.edges:
            block = values[:, e.source]
            work = _put(
                work, e.target, torch.linalg.solve_triangular(triangles[e.group][:, e.pivot], block, upper=False)
            )
        carried, reduced_rhs = self.carry(work, rhs.to(F64))
        matrix = values.new_zeros(len(values), self.matrix_size)
        matrix = matrix.index_add(1, self.kept_target, values[:, self.kept_source])
        if shift is not None:
            matrix = matrix.index_add(1, self.diagonal, shift[:, self.kept_unknowns].to(F64))
        for q in self.pairs:
            matrix = _add(matrix, q.target, -(work[:, q.left].mT @ work[:, q.right]))
        alive = regular[:, None]
        work, carried, matrix, reduced_rhs = (torch.where(alive, x, 0) for x in (work, carried, matrix, reduced_rhs))
        return Reduction(work, carried, matrix, reduced_rhs, regular)

    def carry(self, work: Tensor, rhs: Tensor) -> tuple[Tensor, Tensor]:
        """L⁻¹c and b − Y L⁻¹c of a right-hand side."""
        carried = rhs.new_zeros(len(rhs), self.plan.num_eliminated)
        for p in self.pivots:
            triangle = _inverted_diagonal(work[:, p.triangle].tril())
            own = torch.linalg.solve_triangular(triangle, rhs[:, p.column][..., None], upper=False)
            carried = _put(carried, p.right, own[..., 0])
        kept = rhs[:, self.kept_unknowns]
        for e in self.edges:
            kept = _add(kept, e.column, -(work[:, e.target] * carried[:, e.right][..., None]).sum(-2))
        return carried, kept

    def back(self, work: Tensor, carried: Tensor, kept: Tensor) -> Tensor:
        """The second half: all unknowns from the kept ones."""
        for e in self.edges:
            carried = _add(carried, e.right, -(work[:, e.target] * kept[:, e.column][..., None, :]).sum(-1))
        solution = kept.new_zeros(len(kept), self.plan.structure.num_unknowns)
        solution = solution.index_copy(1, self.kept_unknowns, kept)
        for p in self.pivots:
            triangle = _inverted_diagonal(work[:, p.triangle].tril())
            right = carried[:, p.right][..., None]
            solution = _put(solution, p.column, torch.linalg.solve_triangular(triangle.mT, right, upper=True)[..., 0])
        return solution


def _inverted_diagonal(triangle: Tensor) -> Tensor:
    diagonal = triangle.diagonal(dim1=-2, dim2=-1)
    inverse = 1 / torch.where(diagonal == 0, 1, diagonal)
    return triangle + torch.diag_embed(inverse - diagonal)


def _put(flat: Tensor, index: Tensor, values: Tensor) -> Tensor:
    """`flat` with values at these places of its second axis."""
    return flat.index_copy(1, index.reshape(-1), values.flatten(1))


def _add(flat: Tensor, index: Tensor, values: Tensor) -> Tensor:
    return flat.index_add(1, index.reshape(-1), values.flatten(1))
