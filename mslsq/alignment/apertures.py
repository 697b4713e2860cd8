"""How many blocks measure something of their own: what agrees because it had to is measured once.

Through a small window an edge is seen to move across itself alone (the aperture problem). And where it runs on into the
next window, what that shows was to be expected: any piece of a line lies on any other, once they have been laid on each
other in one place. Pictures of one line agreed by 0.85 to 0.96 in 8 to 31 blocks, where they were false. So does an
arc lie on any other that turns as fast, a circle on a circle.
"""

import numpy as np
from jaxtyping import Float, Int

from mslsq.kernels import Kernel, available

_INDEPENDENT_BLOCKS = Kernel("independent_blocks", "nddddd")

AHEAD = 0.71
"""Cosine of the angle between an edge and the way to a block around, if it runs on into it: within 45°. Of 590 true
placements (half "choose") one is lost whether it is 0.65 or 0.8; at 0.8 one skyline on another was believed."""

STEPS = np.array([(down, right) for down in (-1, 0, 1) for right in (-1, 0, 1) if (down, right) != (0, 0)])
"""To the eight blocks around."""

LENGTHS = np.hypot(*STEPS.T)[:, None]


def independent(
    slopes: Float[np.ndarray, "blocks 3"],
    at: Float[np.ndarray, "blocks 2"],
    agreement: Float[np.ndarray, " blocks"],
    arcs: bool = False,
) -> float:
    """The number of blocks that agree with what no other block has said. The first block of an edge counts as 1, those
    that it runs on into as far as it turns or ends there, a corner as 1.

    Args:
        slopes: the products of slopes of the two maps, in which noise has a mean of zero: xx, xy, yy of every block.
        at: row and column of every block.
        agreement: how well the two maps agree in every block, from 0 to 1.
        arcs: is an edge that turns evenly expected to run on, too? Not of blocks that were looked for in all of the map
            (`votes`), or that agree all but entirely (`consensus`): those say more than that they fit where they lie.

    >>> edge, corner, all_of_it = [1.0, 0.0, 0.0], [1.0, 0.0, 1.0], np.ones(3)
    >>> independent(np.array([edge, edge, edge]), np.array([[0.0, 0], [0, 1], [0, 2]]), all_of_it)  # side by side
    3.0
    >>> independent(np.array([edge, edge, edge]), np.array([[0.0, 0], [1, 0], [2, 0]]), all_of_it)  # from top to bottom
    1.0
    >>> independent(np.array([corner, corner, edge]), np.array([[0.0, 0], [1, 0], [2, 0]]), all_of_it)
    3.0
    """
    return independent_both(slopes, at, agreement)[arcs]


def independent_both(
    slopes: Float[np.ndarray, "blocks 3"], at: Float[np.ndarray, "blocks 2"], agreement: Float[np.ndarray, " blocks"]
) -> tuple[float, float]:
    """`independent` where the next piece of an arc says something of its own, and where it does not (`arcs`)."""
    if available() and all(array.dtype == np.float64 for array in (slopes, at, agreement)):
        found = np.empty(2)
        arrays = [np.ascontiguousarray(array) for array in (slopes, at, agreement)]
        _INDEPENDENT_BLOCKS(len(slopes), *arrays, np.array([AHEAD]), found)
        return float(found[0]), float(found[1])
    components, edges = _seen(slopes)
    counts = []
    for continued in _continued(edges, at):
        own = (components > 0) - continued + np.maximum(components - 1, 0)
        counts.append(float((agreement * np.minimum(own, 1)).sum()))
    return counts[0], counts[1]


def _seen(slopes: Float[np.ndarray, "blocks 3"]) -> tuple[Float[np.ndarray, " blocks"], Float[np.ndarray, "blocks 2"]]:
    """Of each block the components that it measures, (λ₁ + λ₂)² / (λ₁² + λ₂²) of its structure tensor, from 1 to 2, or
    0 where the maps have nothing in common; and how much of an edge it is, (λ₁ - λ₂) / (λ₁ + λ₂), towards twice the
    angle of its slope. Eigenvalues below zero count as zero.
    """
    xx, xy, yy = slopes.T
    middle, half = 0.5 * (xx + yy), np.hypot(0.5 * (xx - yy), xy)
    larger, smaller = np.maximum(middle + half, 0), np.maximum(middle - half, 0)
    ratio = smaller / np.maximum(larger, np.finfo(np.float64).tiny)
    components = np.where(larger > 0, (1 + ratio) ** 2 / (1 + ratio**2), 0.0)
    strength = np.where(larger > 0, (1 - ratio) / (1 + ratio), 0.0)
    twice = np.arctan2(xy, 0.5 * (xx - yy))
    return components, strength[:, None] * np.stack([np.cos(twice), np.sin(twice)], -1)


def _continued(
    edges: Float[np.ndarray, "blocks 2"], at: Float[np.ndarray, "blocks 2"]
) -> tuple[Float[np.ndarray, " blocks"], Float[np.ndarray, " blocks"]]:
    """How far each block shows the edge that another block shows, further on along it: 1 of one straight edge, 0 of
    edges at 45° to each other, of a corner, and of the last block. And the same of arcs, too: how far its direction is
    the one halfway between those of the blocks before and behind it."""
    place = at.astype(np.int64) + 1
    number = np.full(place.max(0, initial=0) + 2, -1)
    number[*place.T] = np.arange(len(place))
    # The edge is normal to its slope; of its two ways the one to the right, or down.
    angle = 0.5 * np.arctan2(edges[:, 1], edges[:, 0]) + 0.5 * np.pi
    way = np.stack([np.sin(angle), np.cos(angle)], -1)
    way *= np.where((way[:, 1] > 1e-9) | ((np.abs(way[:, 1]) <= 1e-9) & (way[:, 0] > 0)), 1.0, -1.0)[:, None]
    there = number[*(place[None] + STEPS[:, None]).transpose(2, 0, 1)]
    cosines = STEPS @ way.T / LENGTHS
    order = np.argsort(-cosines, 0)
    ahead, behind = (_seen_at(order[part], cosines, there, edges) for part in (slice(2), slice(-2, None)))
    alike = (edges * ahead).sum(-1).max(0)
    # Halfway between the two directions, and as much of an edge as the lesser of both.
    one, other = ahead[:, None], behind[None]
    strength = [np.linalg.norm(around, axis=-1, keepdims=True) for around in (one, other)]
    tiny = np.finfo(np.float64).tiny
    middle = one / np.maximum(strength[0], tiny) + other / np.maximum(strength[1], tiny)
    middle *= np.minimum(*strength) / np.maximum(np.linalg.norm(middle, axis=-1, keepdims=True), 1e-9)
    return np.maximum(alike, 0.0), np.maximum(np.maximum(alike, (edges * middle).sum(-1).max((0, 1))), 0.0)


def _seen_at(
    steps: Int[np.ndarray, "two blocks"],
    cosines: Float[np.ndarray, "eight blocks"],
    there: Int[np.ndarray, "eight blocks"],
    edges: Float[np.ndarray, "blocks 2"],
) -> Float[np.ndarray, "two blocks 2"]:
    """The edges of the blocks at these steps, 0 where there is none or where it does not lie along the way."""
    numbers = np.take_along_axis(there, steps, 0)
    along = np.abs(np.take_along_axis(cosines, steps, 0)) > AHEAD
    return np.where((along & (numbers >= 0))[..., None], edges[numbers], 0.0)
