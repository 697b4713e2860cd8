"""Motions of the whole: shifts, turns and changes of scale that leave every residual as it is."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.diagnostics.located import Located
from mslsq.diagnostics.parts import Part
from mslsq.manifolds import SE2, SE3, SO2, SO3
from mslsq.manifolds.lie_group import hat
from mslsq.manifolds.space import ManifoldSpace, Space


def _dimension_of(spaces: list[Space]) -> int | None:
    """2 or 3, the dimension in which these variables move together; None where none of them says."""
    kinds = {space.manifold for space in spaces if isinstance(space, ManifoldSpace)}
    if kinds & {SE3, SO3}:
        return 3
    if kinds & {SE2, SO2}:
        return 2
    euclidean = {space.storage_dim for space in spaces if space.is_euclidean}
    return euclidean.pop() if len(euclidean) == 1 else None


def motions_without_effect(
    point: Located, part: Part, scaled: Tensor, lengths: Tensor, threshold: float
) -> dict[str, int]:
    """How many shifts, turns about some point, and changes of scale about some point have no effect."""
    unknowns = {unknown.name: unknown for unknown in point.stated.system.unknowns}
    values = dict(zip(unknowns, point.stated.values, strict=True))
    dim = _dimension_of([unknowns[name].space for name in part.blocks])
    counts = {"shift": 0, "turn": 0, "scale": 0}
    if dim is None:
        return counts
    moved = [motions(unknowns[name].space, values[name][0].cpu()[blocks], dim) for name, blocks in part.blocks.items()]
    shift, turn, scale = (torch.cat([m[k].flatten(0, 1) for m in moved]) for k in range(3))
    free = torch.cat([own.reshape(-1) for own in part.free.values()])
    before, basis = 0, scaled.new_zeros(len(free), 0)
    for kind, directions in zip(counts, (shift, turn, scale), strict=True):
        basis = torch.cat([basis, directions], 1)
        without = _nullity(scaled, lengths[:, None] * _of_free(basis, free), threshold)
        counts[kind], before = without - before, without
    return counts


def _of_free(basis: Float[Tensor, "all n"], free: Bool[Tensor, "all"]) -> Float[Tensor, "free m"]:
    """The combinations of motions that leave alone what is held, in the components that move."""
    if bool(free.all()):
        return basis
    _, s, directions = torch.linalg.svd(basis[~free])
    moving = int((s > 1e-9 * s.max().clamp(min=1e-300)).sum()) if len(s) else 0
    return basis[free] @ directions[moving:].mT


def _nullity(scaled: Tensor, basis: Tensor, threshold: float) -> int:
    """The dimension of what `basis` spans within the null space of `scaled`."""
    if basis.shape[1] == 0:
        return 0
    u, s, _ = torch.linalg.svd(basis, full_matrices=False)
    u = u[:, s > 1e-6 * s.max().clamp(min=1e-300)] if float(s.max()) > 0 else u[:, :0]
    # An orthonormal basis has null directions with eigenvalues as small as those of the whole.
    return int((torch.linalg.eigvalsh(u.mT @ scaled @ u) <= 10 * threshold).sum()) if u.shape[1] else 0


def motions(space: Space, storage: Float[Tensor, "blocks storage"], dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """(shift, turn, scale), each (blocks, tangent, directions): how a variable moves, in its tangent.

    The world moves by p → p + a + ω × p + s p. A pose (R, t) moves on the right by Rᵀ of that at t, and by Rᵀ ω; what
    does not live in the world (a focal length) does not move.
    """
    zero = storage.new_zeros(len(storage), space.tangent_dim, dim)
    turns = {2: 1, 3: 3}.get(dim, 0)
    no_turn, no_scale = zero.new_zeros(*zero.shape[:2], turns), zero[..., :1]
    kind: Any = space.manifold if isinstance(space, ManifoldSpace) else None
    if kind in (SE2, SE3):
        pose = kind(storage)
        seen = pose.inverse().adjoint()
        along = -pose.inverse().storage[:, :dim]
        return seen[..., :dim], seen[..., dim:], torch.nn.functional.pad(along, (0, turns))[..., None]
    if kind in (SO2, SO3):
        return zero, kind(storage).inverse().adjoint(), no_scale
    if space.is_euclidean and space.storage_dim == dim:
        shift = torch.eye(dim, dtype=storage.dtype, device=storage.device).expand(len(storage), dim, dim)
        if dim == 3:
            return shift, -hat(storage), storage[..., None]
        if dim == 2:
            return shift, torch.stack([-storage[:, 1], storage[:, 0]], -1)[..., None], storage[..., None]
        return shift, no_turn, storage[..., None]
    return zero, no_turn, no_scale
