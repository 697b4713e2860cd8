"""The two halves of a Schur complement in PyTorch's own operations: gather, batched products, `index_add`.

Out-of-place, on any device. The same numbers as those of `by_kernels`; the work array has Y, too, behind all L.
"""

import torch
from jaxtyping import Int
from torch import Tensor

from mslsq.linear.schur.by_kernels import F64, Reduction
from mslsq.linear.schur.tables import Edges, SchurTables, factor_places


def reduce(values: Tensor, shift: Tensor | None, rhs: Tensor, plan: SchurTables) -> Reduction:
    """The first half: see `by_kernels.reduce`."""
    values = values.to(F64)
    work = values.new_zeros(len(values), plan.factor_size)
    regular = torch.ones(len(values), dtype=torch.bool, device=values.device)
    triangles = []
    for p in plan.pivots:
        block = values[:, _grid(p.source, p.size, p.size, p.size)]
        if shift is not None:
            block = block + torch.diag_embed(shift[:, _rows(p.column, p.size)].to(F64))
        eye = torch.eye(block.shape[-1], dtype=F64, device=values.device)
        finite = torch.isfinite(block).all(-1).all(-1)
        triangle, info = torch.linalg.cholesky_ex(torch.where(finite[..., None, None], block, eye))
        good = finite & (info == 0)
        regular = regular & good.all(-1)
        triangles.append(torch.where(good[..., None, None], triangle, eye))
        work = _put(work, _grid(p.triangle, p.size, p.size, p.size), _inverted_diagonal(triangles[-1]))
    for e in plan.edges:
        block = values[:, _grid(e.source, e.size, e.kept_size, e.by_row, e.by_column)]
        y = torch.linalg.solve_triangular(triangles[e.group][:, e.pivot], block, upper=False)
        work = _put(work, _places(e, plan), y)
    carried, reduced_rhs = carry(work, rhs.to(F64), plan)
    matrix = values.new_zeros(len(values), plan.matrix_size)
    for k in plan.kept:
        block = values[:, _grid(k.source, k.height, k.width, k.width)]
        if k.is_diagonal and shift is not None:
            block = block + torch.diag_embed(shift[:, _rows(k.column, k.height)].to(F64))
        matrix = _add(matrix, _grid(k.target, k.height, k.width, k.stride[:, None, None]), block)
    for q in (products for some in (*plan.pairs, *plan.alike) for products in some.products(plan.begin)):
        left, right = (
            work[:, factor_places(plan.num_triangles + at, q.depth, n, stride)]
            for at, n, stride in zip(q.factors, q.widths, q.strides, strict=True)
        )
        matrix = _add(matrix, _grid(q.target, *q.widths, q.distance[:, None, None]), -(left.mT @ right))
    alive = regular[:, None]
    work, carried, matrix, reduced_rhs = (torch.where(alive, x, 0) for x in (work, carried, matrix, reduced_rhs))
    return Reduction(work, carried, matrix, reduced_rhs, regular)


def carry(work: Tensor, rhs: Tensor, plan: SchurTables) -> tuple[Tensor, Tensor]:
    """L⁻¹c and b − Y L⁻¹c of a right-hand side."""
    carried = rhs.new_zeros(len(rhs), plan.num_eliminated)
    for p in plan.pivots:
        triangle = _inverted_diagonal(work[:, _grid(p.triangle, p.size, p.size, p.size)].tril())
        own = torch.linalg.solve_triangular(triangle, rhs[:, _rows(p.column, p.size)][..., None], upper=False)
        carried = _put(carried, _rows(p.right, p.size), own[..., 0])
    kept = rhs[:, plan.kept_unknowns]
    for e in plan.edges:
        y = work[:, _places(e, plan)]
        lost = (y * carried[:, _rows(e.right, e.size)][..., None]).sum(-2)
        kept = _add(kept, _rows(e.column, e.kept_size), -lost)
    return carried, kept


def back(work: Tensor, carried: Tensor, kept: Tensor, plan: SchurTables) -> Tensor:
    """The second half: all unknowns from the kept ones."""
    for e in plan.edges:
        y = work[:, _places(e, plan)]
        lost = (y * kept[:, _rows(e.column, e.kept_size)][..., None, :]).sum(-1)
        carried = _add(carried, _rows(e.right, e.size), -lost)
    solution = kept.new_zeros(len(kept), plan.num_unknowns)
    solution = solution.index_copy(1, plan.kept_unknowns, kept)
    for p in plan.pivots:
        triangle = _inverted_diagonal(work[:, _grid(p.triangle, p.size, p.size, p.size)].tril())
        right = carried[:, _rows(p.right, p.size)][..., None]
        own = torch.linalg.solve_triangular(triangle.mT, right, upper=True)[..., 0]
        solution = _put(solution, _rows(p.column, p.size), own)
    return solution


def _places(edges: Edges, plan: SchurTables) -> Int[Tensor, "edges size kept"]:
    """Where the work array has Yᵀ."""
    return plan.num_triangles + edges.places(plan.begin)


def _rows(start: Int[Tensor, "blocks"], count: int) -> Int[Tensor, "blocks count"]:
    """start + i."""
    return start[:, None] + torch.arange(count, device=start.device)


def _grid(
    start: Int[Tensor, "blocks"], height: int, width: int, by_row: int | Tensor, by_column: int = 1
) -> Int[Tensor, "blocks height width"]:
    """start + i by_row + j by_column."""
    row, column = (torch.arange(count, device=start.device) for count in (height, width))
    return start[:, None, None] + (row[:, None] * by_row + column * by_column)


def _inverted_diagonal(triangle: Tensor) -> Tensor:
    diagonal = triangle.diagonal(dim1=-2, dim2=-1)
    inverse = 1 / torch.where(diagonal == 0, 1, diagonal)
    return triangle + torch.diag_embed(inverse - diagonal)


def _put(flat: Tensor, index: Tensor, values: Tensor) -> Tensor:
    """`flat` with values at these places of its second axis."""
    return flat.index_copy(1, index.reshape(-1), values.flatten(1))


def _add(flat: Tensor, index: Tensor, values: Tensor) -> Tensor:
    return flat.index_add(1, index.reshape(-1), values.flatten(1))
