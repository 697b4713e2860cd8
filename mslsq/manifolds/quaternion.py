"""Unit quaternions (x, y, z, w), the storage of rotations in space.

Product and action are Hamilton's. The logarithm takes q and -q to the same rotation vector and, as the angle of a pair
(|v|, w), does not depend on the norm of q; so its derivatives are right however q was normalised.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.manifolds.components import cat, cross, stack
from mslsq.manifolds.lie_group import dot, normalized
from mslsq.manifolds.series import angle_ratios

Quaternion = Float[Tensor, "*batch 4"]
Vector = Float[Tensor, "*batch 3"]


def product(a: Quaternion, b: Quaternion) -> Quaternion:
    """The product ab, normalised: first the rotation b, then a."""
    av, aw, bv, bw = a[..., :3], a[..., 3:], b[..., :3], b[..., 3:]
    return normalized(cat([torch.addcmul(aw * bv, bw, av) + cross(av, bv), aw * bw - dot(av, bv)]))


def conjugate(q: Quaternion) -> Quaternion:
    """The inverse of a unit quaternion."""
    return cat([-q[..., :3], q[..., 3:]])


def rotate(q: Quaternion, p: Vector) -> Vector:
    """R(q) p = p + 2 w (v × p) + 2 v × (v × p)."""
    v, w = q[..., :3], q[..., 3:]
    turn = 2.0 * cross(v, p)
    return torch.addcmul(p, w, turn) + cross(v, turn)


def logarithm(q: Quaternion) -> tuple[Vector, Float[Tensor, "*batch 1"]]:
    """The rotation vector of q, and (1 - x cot x)/x² for half its length x, which translations need."""
    q = torch.where(q[..., 3:] < 0.0, -q, q)
    v = q[..., :3]
    ratio, remainder = angle_ratios(dot(v, v), q[..., 3:])
    return 2.0 * ratio * v, remainder


def matrix(q: Quaternion) -> Float[Tensor, "*batch 3 3"]:
    """The rotation matrix of a unit quaternion."""
    x, y, z, w = q.unbind(-1)
    xx, yy, zz, xy, xz, yz, wx, wy, wz = x * x, y * y, z * z, x * y, x * z, y * z, w * x, w * y, w * z
    entries = [
        1.0 - 2.0 * (yy + zz), 2.0 * (xy - wz), 2.0 * (xz + wy),
        2.0 * (xy + wz), 1.0 - 2.0 * (xx + zz), 2.0 * (yz - wx),
        2.0 * (xz - wy), 2.0 * (yz + wx), 1.0 - 2.0 * (xx + yy),
    ]  # fmt: skip
    return stack(entries, like=q).unflatten(-1, (3, 3))


def from_matrix(m: Float[Tensor, "*batch 3 3"]) -> Quaternion:
    """The unit quaternion of a rotation matrix, from the largest of its four components (Shepperd 1978)."""
    (a, b, c), (d, e, f), (g, h, i) = (row.unbind(-1) for row in m.unbind(-2))
    candidates = torch.stack(
        [
            torch.stack([1.0 + a - e - i, b + d, c + g, h - f], -1),
            torch.stack([b + d, 1.0 - a + e - i, f + h, c - g], -1),
            torch.stack([c + g, f + h, 1.0 - a - e + i, d - b], -1),
            torch.stack([h - f, c - g, d - b, 1.0 + a + e + i], -1),
        ],
        -2,
    )  # row k is 4 q_k q
    largest = torch.stack([a - e - i, e - a - i, i - a - e, a + e + i], -1).argmax(-1)
    index = largest[..., None, None].expand(*largest.shape, 1, 4)
    return normalized(candidates.gather(-2, index).squeeze(-2))
