"""Starts for pose graphs: poses from relative poses, where nothing better is known."""

from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Int
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import breadth_first_order, connected_components
from torch import Tensor

from mslsq.manifolds.lie_group import LieGroup

__all__ = ["spanning_tree"]

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

    Returns:
        Poses (count,), with the dtype and device of `measured`.

    Raises:
        ValueError: a number out of range, or lengths that differ.

    >>> start = spanning_tree(i, j, T_ij, count=2500)
    """
    i, j = (np.asarray(index.detach().cpu(), dtype=np.int64) for index in (first, second))
    if not len(i) == len(j) == measured.shape[0]:
        raise ValueError(f"spanning_tree: {len(i)} firsts, {len(j)} seconds and {measured.shape[0]} measurements")
    if not 0 <= root < count:
        raise ValueError(f"spanning_tree: root={root} is none of the {count} poses")
    ends = np.concatenate([i, j])
    if len(ends) and not (ends.min() >= 0 and ends.max() < count):
        raise ValueError(f"spanning_tree: edges join poses {ends.min()} to {ends.max()}, but there are {count}")
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


def _tree(i: np.ndarray, j: np.ndarray, count: int, root: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Parent, edge (-1 of a root, which is its own parent) and whether the edge leads away from the parent."""
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
