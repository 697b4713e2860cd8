"""The five motion models as manifolds, nested: translation ⊂ se2 ⊂ sim2 ⊂ affine ⊂ homography.

An element is a matrix H acting on homogeneous *normalised* coordinates n = (u - centre) / half of the reference
(`Frame`), so that all tangent components are of one size and JᵀJ is well scaled. A step is taken on the right, H ← H ·
R(ξ) with R(ξ) = I + Σ ξ_k G_k + O(ξ²), and the generators are nested too. G_k n, the velocity of the point n = (x, y,
1), is

    k       0        1        2 rotation  3 log scale  4 stretch   5 shear    6        7
    G_k n   (1,0,0)  (0,1,0)  (-y,x,0)    (x,y,0)      (x,-y,0)    (y,x,0)    (0,0,x)  (0,0,y)

of which a model of k degrees of freedom has the first k. So an estimate of a smaller model is an element of every
larger one, and the same columns of the Jacobian and of the covariance mean the same thing in all of them.
"""

from typing import Any, ClassVar, Self

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq import Manifold

HORIZON = 1e-3
"""Points this near to the horizon of a homography (or behind it) are warped as if they lay there: finite, masked
elsewhere."""


_GENERATORS = torch.zeros(8, 3, 3, dtype=torch.float64, device="cpu")
for _k, _row, _column, _entry in (
    (0, 0, 2, 1), (1, 1, 2, 1), (2, 0, 1, -1), (2, 1, 0, 1), (3, 0, 0, 1), (3, 1, 1, 1), (4, 0, 0, 1), (4, 1, 1, -1),
    (5, 0, 1, 1), (5, 1, 0, 1), (6, 2, 0, 1), (7, 2, 1, 1),
):  # fmt: skip
    _GENERATORS[_k, _row, _column] = _entry


def velocities(point: Float[Tensor, "*batch 2"], count: int) -> Float[Tensor, "*batch 3 count"]:
    """G_k (x, y, 1) for the first `count` generators, as columns."""
    x, y = point.unbind(-1)
    homogeneous = torch.stack([x, y, torch.ones_like(x)], -1)
    return torch.einsum("kij,...j->...ik", _GENERATORS[:count].to(point), homogeneous)


class Warp(Manifold):
    """A planar warp in normalised coordinates. Subclasses say what they store; all have the same face."""

    def matrix(self) -> Float[Tensor, "*batch 3 3"]:
        """The homogeneous matrix H."""
        raise NotImplementedError

    @classmethod
    def from_matrix(cls, matrix: Float[Tensor, "*batch 3 3"]) -> Self:
        """The element nearest in kind to a matrix: exact where the matrix belongs to the model, else its leading
        part."""
        raise NotImplementedError

    @classmethod
    def identity(
        cls, *batch_shape: Any, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> Self:
        """The warp that moves nothing."""
        shape = tuple(batch_shape[0]) if batch_shape and not isinstance(batch_shape[0], int) else batch_shape
        return cls.from_matrix(torch.eye(3, dtype=dtype, device=device).expand(*shape, 3, 3))

    def act(self, point: Float[Tensor, "*batch 2"]) -> Float[Tensor, "*batch 2"]:
        """H n, dehomogenised."""
        return self.act_and_depth(point)[0]

    def act_and_depth(
        self, point: Float[Tensor, "*batch 2"]
    ) -> tuple[Float[Tensor, "*batch 2"], Float[Tensor, "*batch"]]:
        """H n, dehomogenised, and the third coordinate it was divided by (bounded away from zero)."""
        m = self.matrix()
        x, y = point[..., 0], point[..., 1]
        h = [m[..., row, 0] * x + m[..., row, 1] * y + m[..., row, 2] for row in range(3)]
        depth = torch.where(h[2] > HORIZON, h[2], torch.full_like(h[2], HORIZON))
        return torch.stack([h[0] / depth, h[1] / depth], -1), depth

    def derivative(self, points: Float[Tensor, "n 2"]) -> Float[Tensor, "n 2 tangent"]:
        """∂(H R(ξ) n)/∂ξ at ξ = 0 for many points n: what `pull_back` multiplies with, all at once."""
        moved, depth = self.act_and_depth(points)
        columns = self.matrix() @ velocities(points, self.tangent_dim)
        return (columns[:, :2] - moved[..., None] * columns[:, 2:]) / depth[:, None, None]

    def pull_back(
        self,
        gradient: Float[Tensor, "channels 2"],
        point: Float[Tensor, "2"],
        seen: tuple[Float[Tensor, "2"], Float[Tensor, ""]] | None = None,
    ) -> Float[Tensor, "channels tangent"]:
        """The chain rule at ONE point n: `gradient` with respect to H n → derivative with respect to the tangent of
        `retract`. `seen` is `act_and_depth(point)`, where it is known already.

        ∂(H R(ξ) n)/∂ξ_k = P H G_k n with P the 2 x 3 derivative of the division. Multiplied from the left, so that
        nothing of size 2 x tangent is formed.
        """
        moved, depth = self.act_and_depth(point) if seen is None else seen
        gx, gy = gradient[:, 0], gradient[:, 1]
        row = torch.stack([gx, gy, -(gx * moved[0] + gy * moved[1])], -1) / depth
        m = self.matrix()
        r0, r1, r2 = (row[:, 0] * m[0, j] + row[:, 1] * m[1, j] + row[:, 2] * m[2, j] for j in range(3))
        x, y = point[0], point[1]
        columns = [r0, r1, x * r1 - y * r0, x * r0 + y * r1, x * r0 - y * r1, y * r0 + x * r1, x * r2, y * r2]
        return torch.stack(columns[: self.tangent_dim], -1)


def _rows(a: Tensor, b: Tensor, x: Tensor, c: Tensor, d: Tensor, y: Tensor) -> Float[Tensor, "*batch 3 3"]:
    zero, one = torch.zeros_like(x), torch.ones_like(x)
    entries = torch.stack(torch.broadcast_tensors(a, b, x, c, d, y, zero, zero, one), -1)
    return entries.unflatten(-1, (3, 3))


class Translation(Warp):
    """Storage (tx, ty)."""

    storage_dim = 2
    tangent_dim = 2

    def matrix(self) -> Float[Tensor, "*batch 3 3"]:
        x, y = self.storage.unbind(-1)
        one, zero = torch.ones_like(x), torch.zeros_like(x)
        return _rows(one, zero, x, zero, one, y)

    @classmethod
    def from_matrix(cls, matrix: Float[Tensor, "*batch 3 3"]) -> Self:
        return cls(matrix[..., :2, 2] / matrix[..., 2:, 2])

    def retract(self, delta: Float[Tensor, "*batch 2"]) -> Self:
        return type(self)(self.storage + delta)

    def local(self, other: Self) -> Float[Tensor, "*batch 2"]:
        return other.storage - self.storage


class Similarity(Warp):
    """Storage (tx, ty, s cos θ, s sin θ). A step: n → e^(λ + iθ) n + t first, then H."""

    storage_dim = 4
    tangent_dim = 4

    def matrix(self) -> Float[Tensor, "*batch 3 3"]:
        x, y, c, s = self.storage.unbind(-1)
        return _rows(c, -s, x, s, c, y)

    @classmethod
    def from_matrix(cls, matrix: Float[Tensor, "*batch 3 3"]) -> Self:
        m = matrix / matrix[..., 2:, 2:]
        c, s = (m[..., 0, 0] + m[..., 1, 1]) / 2, (m[..., 1, 0] - m[..., 0, 1]) / 2
        return cls(cls._scaled(torch.stack([m[..., 0, 2], m[..., 1, 2], c, s], -1)))

    @classmethod
    def _scaled(cls, storage: Float[Tensor, "*batch 4"]) -> Float[Tensor, "*batch 4"]:
        return storage

    def _log_scale(self, delta: Float[Tensor, "*batch tangent"]) -> Float[Tensor, "*batch"]:
        return delta[..., 3]

    def retract(self, delta: Float[Tensor, "*batch tangent"]) -> Self:
        x, y, c, s = self.storage.unbind(-1)
        dx, dy, angle = delta[..., 0], delta[..., 1], delta[..., 2]
        grown = self._log_scale(delta).exp()
        dc, ds = grown * angle.cos(), grown * angle.sin()
        moved = [x + c * dx - s * dy, y + s * dx + c * dy, c * dc - s * ds, s * dc + c * ds]
        return type(self)(self._scaled(torch.stack(moved, -1)))

    def local(self, other: Self) -> Float[Tensor, "*batch tangent"]:
        _, _, c, s = self.storage.unbind(-1)
        _, _, oc, os = other.storage.unbind(-1)
        x, y = (other.storage[..., :2] - self.storage[..., :2]).unbind(-1)
        size = c * c + s * s
        real, imaginary = (c * oc + s * os) / size, (c * os - s * oc) / size
        log_scale = 0.5 * (real * real + imaginary * imaginary).log()
        parts = [(c * x + s * y) / size, (c * y - s * x) / size, torch.atan2(imaginary, real), log_scale]
        return torch.stack(parts[: self.tangent_dim], -1)


class Rigid(Similarity):
    """Storage (tx, ty, cos θ, sin θ)."""

    storage_dim = 4
    tangent_dim = 3

    @classmethod
    def _scaled(cls, storage: Float[Tensor, "*batch 4"]) -> Float[Tensor, "*batch 4"]:
        turn = storage[..., 2:]
        return torch.cat([storage[..., :2], turn * (turn * turn).sum(-1, keepdim=True).rsqrt()], -1)

    def _log_scale(self, delta: Float[Tensor, "*batch tangent"]) -> Float[Tensor, "*batch"]:
        return torch.zeros_like(delta[..., 2])


class Affine(Warp):
    """Storage: the upper two rows of H, row by row. R(ξ) = I + Σ ξ_k G_k."""

    storage_dim = 6
    tangent_dim = 6

    def matrix(self) -> Float[Tensor, "*batch 3 3"]:
        return _rows(*self.storage.unbind(-1))

    @classmethod
    def from_matrix(cls, matrix: Float[Tensor, "*batch 3 3"]) -> Self:
        return cls((matrix / matrix[..., 2:, 2:])[..., :2, :].flatten(-2))

    def retract(self, delta: Float[Tensor, "*batch 6"]) -> Self:
        return self.from_matrix(self.matrix() @ _near_identity(delta))

    def local(self, other: Self) -> Float[Tensor, "*batch 6"]:
        return _from_near_identity(torch.linalg.inv_ex(self.matrix()).inverse @ other.matrix())[..., :6]


class Homography(Warp):
    """Storage: H row by row, of Frobenius norm √3 (its scale means nothing). R(ξ) = I + Σ ξ_k G_k."""

    storage_dim = 9
    tangent_dim = 8

    def matrix(self) -> Float[Tensor, "*batch 3 3"]:
        return self.storage.unflatten(-1, (3, 3))

    @classmethod
    def from_matrix(cls, matrix: Float[Tensor, "*batch 3 3"]) -> Self:
        entries = matrix.flatten(-2)
        return cls(entries * (3.0 / (entries * entries).sum(-1, keepdim=True)).sqrt())

    def retract(self, delta: Float[Tensor, "*batch 8"]) -> Self:
        return self.from_matrix(self.matrix() @ _near_identity(delta))

    def local(self, other: Self) -> Float[Tensor, "*batch 8"]:
        return _from_near_identity(torch.linalg.inv_ex(self.matrix()).inverse @ other.matrix())


def _near_identity(delta: Float[Tensor, "*batch tangent"]) -> Float[Tensor, "*batch 3 3"]:
    """I + Σ ξ_k G_k for six or eight components."""
    x, y, turn, grow, stretch, shear = delta[..., :6].unbind(-1)
    zero, one = torch.zeros_like(x), torch.ones_like(x)
    px, py = delta[..., 6:].unbind(-1) if delta.shape[-1] == 8 else (zero, zero)
    entries = [1 + grow + stretch, shear - turn, x, shear + turn, 1 + grow - stretch, y, px, py, one]
    return torch.stack(entries, -1).unflatten(-1, (3, 3))


def _from_near_identity(m: Float[Tensor, "*batch 3 3"]) -> Float[Tensor, "*batch 8"]:
    m = m / m[..., 2:, 2:]
    a, b, c, d = m[..., 0, 0], m[..., 0, 1], m[..., 1, 0], m[..., 1, 1]
    parts = [
        m[..., 0, 2],
        m[..., 1, 2],
        (c - b) / 2,
        (a + d) / 2 - 1,
        (a - d) / 2,
        (b + c) / 2,
        m[..., 2, 0],
        m[..., 2, 1],
    ]
    return torch.stack(parts, -1)


MODELS: dict[str, type[Warp]] = {
    "translation": Translation,
    "se2": Rigid,
    "sim2": Similarity,
    "affine": Affine,
    "homography": Homography,
}
"""By name, in the order in which degrees of freedom grow."""


class Frame:
    """The normalised coordinates of a reference of some height and width: n = (u - centre) / half, half the longer
    half-side.

    >>> frame = Frame(100, 200, like=torch.zeros((), dtype=torch.float64))
    >>> frame.normalise(torch.tensor([[199.0, 49.5]], dtype=torch.float64)).tolist()
    [[1.0, 0.0]]
    """

    unit: ClassVar[str] = "half of the reference's longer side"

    def __init__(self, height: int, width: int, like: Tensor):
        x, y = (width - 1) / 2, (height - 1) / 2
        self.middle = x, y
        self.centre = like.new_tensor(self.middle)
        self.half = max(height - 1, width - 1, 1) / 2
        self._to_pixels = like.new_tensor([[self.half, 0, x], [0, self.half, y], [0, 0, 1]])
        self._from_pixels = like.new_tensor([[1, 0, -x], [0, 1, -y], [0, 0, self.half]]) / self.half
        self._of_levels: dict[int, Tensor] = {}

    def normalise(self, pixels: Float[Tensor, "*n 2"]) -> Float[Tensor, "*n 2"]:
        """Pixels (x, y) of level 0 in normalised coordinates."""
        return (pixels - self.centre) / self.half

    def to_pixels(self, matrix: Float[Tensor, "*batch 3 3"], factor: int = 1) -> Float[Tensor, "*batch 3 3"]:
        """A normalised matrix as one from reference pixels to map pixels, with lower right entry 1; those of a level
        with this factor."""
        pixel = self._to_pixels @ matrix @ self._from_pixels
        pixel = pixel / pixel[..., 2:, 2:]
        if factor == 1:
            return pixel
        if factor not in self._of_levels:
            along = [1, 1, 1 / factor]
            self._of_levels[factor] = pixel.new_tensor([along, along, [factor, factor, 1]])
        return pixel * self._of_levels[factor]

    def from_pixels(self, matrix: Float[Tensor, "*batch 3 3"]) -> Float[Tensor, "*batch 3 3"]:
        """The inverse of `to_pixels`."""
        return self._from_pixels @ matrix @ self._to_pixels
