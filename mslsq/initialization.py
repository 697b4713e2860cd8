"""Starts for pose graphs: poses from relative poses, where nothing better is known."""

from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mslsq.manifolds import SE2, SE3
from mslsq.manifolds.lie_group import LieGroup

__all__ = ["chordal", "spanning_tree"]

Pose = TypeVar("Pose", bound=LieGroup)


def spanning_tree(
    first: Int[Tensor, "edges"], second: Int[Tensor, "edges"], measured: Pose, count: int, root: int = 0
) -> Pose:
    """Poses by composing the measurements along a breadth-first spanning tree of the graph.

    Every pose is reached over as few edges as possible, so that errors add up as little as they can in one tree. Each
    connected part has a tree of its own, whose root (`root` in its part, elsewhere the pose of the lowest number) is
    the identity.

    The walk is pointer jumping (Hillis and Steele, "Data parallel algorithms", 1986): with p the parent of each pose
    and T its pose in the parent's frame, T ← T[p] T and p ← p[p] doubles the distance walked, so that a chain of
    100,000 poses takes 17 batched products. It is out-of-place and differentiable with respect to the measurements.

    Args:
        first, second: numbers of the poses that each edge joins, from 0 to `count` - 1.
        measured: the pose of `second` as seen from `first`, elements of a Lie group (edges,).
        count: number of poses.
        root: the pose that stays at the identity; other connected parts have roots of their own.

    Returns:
        Poses (count,), with the dtype and device of `measured`.

    Raises:
        ValueError: a number out of range, or lengths that differ.

    >>> start = spanning_tree(i, j, T_ij, count=2500)
    """
    i, j = _checked(first, second, measured.shape[0], count, root)
    parent, edge, forward = _tree(i, j, count, root)

    device = measured.storage.device
    parents, edges = torch.from_numpy(parent).to(device), torch.from_numpy(edge).to(device)
    reached = (edges >= 0)[:, None]
    identity = type(measured).identity(count, dtype=measured.storage.dtype, device=device)
    if not len(i):
        return identity
    step: Any = measured[edges.clamp(min=0)]
    step = step.normalized()
    ahead = torch.from_numpy(forward).to(device)[:, None]
    storage = torch.where(ahead, step.storage, step.inverse().storage)
    pose = type(measured)(torch.where(reached, storage, identity.storage))
    while bool((parents != parents[parents]).any()):
        pose = pose[parents] @ pose
        parents = parents[parents]
    return pose[parents] @ pose


def chordal(
    first: Int[Tensor, "edges"],
    second: Int[Tensor, "edges"],
    measured: Any,
    count: int,
    root: int = 0,
    information: Float[Tensor, "edges tangent tangent"] | None = None,
) -> Any:
    """Poses by two linear least squares: rotations as if they were any matrices, then positions.

    Minimises Σ w |R_j − R_i R_ij|² over matrices with R_root = 1, takes the nearest rotation to each, and then
    minimises Σ v |t_j − t_i − R_i t_ij|² (Martinec and Pajdla, "Robust rotation and translation estimation in multiview
    reconstruction", CVPR 2007; Carlone, Tron, Daniilidis, Dellaert, "Initialization techniques for 3D SLAM", ICRA
    2015). All edges take part, so that errors do not add up along the way as in `spanning_tree`; it costs about as
    much as a step of a solver. A start only: it carries no derivatives.

    Args:
        first, second: as in `spanning_tree`.
        measured: relative poses (edges,), on SE2 or SE3.
        count, root: as in `spanning_tree`.
        information: inverse covariances; w and v are the mean diagonal entries of their rotations and translations.
            None: all edges count the same.

    Returns:
        Poses (count,), with the dtype and device of `measured`; computed in float64 on the CPU.

    Raises:
        ValueError: a number out of range, lengths that differ, or weights that are not positive.
        TypeError: the measurements are not on SE2 or SE3.

    >>> start = chordal(i, j, T_ij, count=2500)
    """
    if not isinstance(measured, (SE2, SE3)):
        raise TypeError(f"chordal: measurements must be on SE2 or SE3, not {type(measured).__name__}")
    i, j = _checked(first, second, measured.shape[0], count, root)
    dim = 2 if isinstance(measured, SE2) else 3
    steps = type(measured)(measured.storage.detach().cpu().double()).normalized().matrix()
    rotation, translation = steps[:, :dim, :dim].numpy(), steps[:, :dim, dim].numpy()
    by_translation = by_rotation = np.ones(len(i))
    if information is not None:
        diagonal = information.detach().cpu().double().diagonal(dim1=-2, dim2=-1).numpy()
        by_translation, by_rotation = diagonal[:, :dim].mean(1), diagonal[:, dim:].mean(1)
        if not (by_translation > 0).all() or not (by_rotation > 0).all():
            raise ValueError("chordal: the information of every edge needs positive diagonal entries")
    parent, _, _ = _tree(i, j, count, root)
    held = parent == np.arange(count)

    # the transposes X_k = R_kᵀ stand in columns: X_j − R_ijᵀ X_i = 0
    rows = np.arange(len(i))
    turned = _blocks(rows, j, np.broadcast_to(np.eye(dim), rotation.shape), count) - _blocks(
        rows, i, rotation.transpose(0, 2, 1), count
    )
    at_root = np.tile(np.eye(dim), (count, 1))
    columns = _least_squares(
        turned, np.zeros((dim * len(i), dim)), np.repeat(by_rotation, dim), at_root, np.repeat(held, dim)
    )
    rotations = _nearest_rotations(torch.from_numpy(columns.reshape(count, dim, dim)).mT)

    ones = np.ones((len(i), 1, 1))
    offset = _blocks(rows, j, ones, count) - _blocks(rows, i, ones, count)
    seen = np.einsum("eab,eb->ea", rotations.numpy()[i], translation)
    positions = _least_squares(offset, seen, by_translation, np.zeros((count, dim)), held)
    poses = torch.cat([rotations, torch.from_numpy(positions)[:, :, None]], -1)
    corner = torch.zeros(count, 1, dim + 1, dtype=torch.float64, device="cpu")
    corner[:, :, dim] = 1
    storage = type(measured).from_matrix(torch.cat([poses, corner], -2)).storage
    return type(measured)(storage.to(measured.storage))


def _checked(first: Tensor, second: Tensor, measured: int, count: int, root: int) -> tuple[np.ndarray, np.ndarray]:
    """The edges' ends as arrays."""
    i, j = (np.asarray(index.detach().cpu(), dtype=np.int64) for index in (first, second))
    if not len(i) == len(j) == measured:
        raise ValueError(f"a start from edges: {len(i)} firsts, {len(j)} seconds and {measured} measurements")
    if not 0 <= root < count:
        raise ValueError(f"a start from edges: root={root} is none of the {count} poses")
    ends = np.concatenate([i, j])
    if len(ends) and not (ends.min() >= 0 and ends.max() < count):
        raise ValueError(f"a start from edges: they join poses {ends.min()} to {ends.max()}, but there are {count}")
    return i, j


def _blocks(rows: np.ndarray, columns: np.ndarray, blocks: np.ndarray, count: int) -> Any:
    """A sparse matrix of one block per block row."""
    from scipy.sparse import csr_array  # takes longer to import than all of mslsq, and few make starts

    size = blocks.shape[-1]
    across = np.arange(size)
    at_row = np.broadcast_to(rows[:, None, None] * size + across[:, None], blocks.shape)
    at_column = np.broadcast_to(columns[:, None, None] * size + across, blocks.shape)
    entries = (blocks.reshape(-1), (at_row.reshape(-1), at_column.reshape(-1)))
    return csr_array(entries, shape=(size * len(rows), size * count))


def _least_squares(matrix: Any, rhs: np.ndarray, weight: np.ndarray, start: np.ndarray, held: np.ndarray) -> np.ndarray:
    """The minimiser of Σ weight |matrix x − rhs|² whose rows `held` are those of the start."""
    from scipy.sparse import diags_array
    from scipy.sparse.linalg import splu

    free = np.flatnonzero(~held)
    if not len(free):
        return start
    of_free = matrix[:, free]
    rest = rhs - matrix[:, np.flatnonzero(held)] @ start[held]
    weighted = of_free.T @ diags_array(weight)
    # symmetric and positive definite: every part has its root, so the diagonal may serve as pivots
    factor = splu(
        (weighted @ of_free).tocsc(),
        permc_spec="MMD_AT_PLUS_A",
        diag_pivot_thresh=0.0,
        options={"SymmetricMode": True},
    )
    solved = start.copy()
    solved[free] = factor.solve(weighted @ rest)
    return solved


def _nearest_rotations(matrices: Float[Tensor, "poses dim dim"]) -> Float[Tensor, "poses dim dim"]:
    """The rotations nearest in the Frobenius norm: U diag(1, ..., ±1) Vᵀ (Umeyama 1991)."""
    u, _, vh = torch.linalg.svd(matrices)
    product = u @ vh
    if matrices.shape[-1] == 2:
        sign = product[:, 0, 0] * product[:, 1, 1] - product[:, 0, 1] * product[:, 1, 0]
    else:
        sign = (torch.linalg.cross(product[:, 0], product[:, 1]) * product[:, 2]).sum(-1)
    signs = torch.ones_like(u[:, 0])
    signs[:, -1] = sign.sign()
    return (u * signs[:, None]) @ vh


def _tree(i: np.ndarray, j: np.ndarray, count: int, root: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Parent, edge (-1 of a root, which is its own parent) and whether the edge leads away from the parent."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import breadth_first_order, connected_components

    # one edge per pair of poses, the first in the list: an odometry edge where closures repeat it
    pair = np.minimum(i, j) * count + np.maximum(i, j)
    pairs, edge_of_pair = np.unique(pair, return_index=True)
    low, high = pairs // count, pairs % count
    graph = coo_matrix((np.ones(len(pairs)), (low, high)), shape=(count, count)).tocsr()
    _, part = connected_components(graph, directed=False)
    _, roots = np.unique(part, return_index=True)
    roots[part[root]] = root
    # one more node, joined to all roots, makes one tree of the forest
    tied = coo_matrix(
        (
            np.ones(len(pairs) + len(roots)),
            (np.append(low, np.full(len(roots), count)), np.append(high, roots)),
        ),
        shape=(count + 1, count + 1),
    ).tocsr()
    _, before = breadth_first_order(tied, count, directed=False)
    before = before[:count].astype(np.int64)
    own = np.arange(count)
    is_root = before == count
    parent = np.where(is_root, own, before)
    if not len(pairs):
        return parent, np.full(count, -1), np.zeros(count, dtype=bool)
    place = np.searchsorted(pairs, np.minimum(parent, own) * count + np.maximum(parent, own)).clip(max=len(pairs) - 1)
    edge = np.where(is_root, -1, edge_of_pair[place])
    return parent, edge, i[edge] == parent
