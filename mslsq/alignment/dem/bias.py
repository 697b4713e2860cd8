"""What a vertical error may depend on beside the shift: columns that are linear in their coefficients.

The corrected elevation is C(x, y) = D(x - Δx, y - Δy) + Σ β_k A_k(x, y, h). The first column is 1, its coefficient Δz.
Columns in x and y are products of Legendre polynomials over the reference's rectangle, [-1, 1] along each side, so that
Δz is the mean correction over that rectangle. Columns in the elevation are powers of (h - h0) / unit, h0 the
reference's median elevation: there they are zero.

h is the corrected elevation smoothed by `ELEVATION_SIGMA`. A noisy elevation as a regressor would draw its coefficient
towards zero, and its noise is the residual's too: smoothing by 2 px divides both by 50 (4πσ²).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.alignment.dem.errors import CoregistrationError
from mslsq.validation import suggestion

ELEVATION_SIGMA = 2.0
"""Pixels by which the elevation is smoothed that a bias depends on."""

DEGREES = {"plane": 1, "quadratic": 2, "cubic": 3}
POWERS = {"scale": 1, "elevation": 3}
PARTS = (*DEGREES, *POWERS)

CANDIDATES = ("offset", "plane", "scale", "plane+scale", "quadratic", "elevation", "quadratic+elevation")
"""What `bias="auto"` chooses from, simplest first."""


@dataclass(frozen=True)
class Bias:
    """A bias model: polynomials of total degree `degree` in x and y, and up to `power` in the elevation.

    `Bias.named("plane+scale")` reads the words of `coregister`.
    """

    degree: int = 0
    power: int = 0

    @classmethod
    def named(cls, name: str) -> "Bias":
        """The model of a name: "offset", or parts joined by "+": plane, quadratic, cubic, scale, elevation.

        Raises:
            CoregistrationError: a part is none of these.
        """
        parts = [] if name == "offset" else name.split("+")
        for part in parts:
            if part not in PARTS:
                raise CoregistrationError(
                    f"coregister: bias={name!r} is 'auto', 'offset', or one or several of {', '.join(PARTS)} joined by "
                    f"'+'.{suggestion(part, (*PARTS, 'offset', 'auto'))}"
                )
        return cls(
            max([DEGREES[part] for part in parts if part in DEGREES], default=0),
            max([POWERS[part] for part in parts if part in POWERS], default=0),
        )

    @property
    def exponents(self) -> list[tuple[int, int]]:
        """Degrees in x and y of the columns in space, the constant first, then by total degree."""
        degrees = range(self.degree + 1)
        pairs = [(i, j) for i in degrees for j in degrees if i + j <= self.degree]
        return sorted(pairs, key=lambda pair: (sum(pair), -pair[0]))

    @property
    def names(self) -> list[str]:
        """Of the coefficients: "z", "x", "y", "x2", "xy", ..., then "h", "h2", "h3"."""
        power = lambda letter, n: "" if n == 0 else letter if n == 1 else f"{letter}{n}"  # noqa: E731
        space = [power("x", i) + power("y", j) or "z" for i, j in self.exponents]
        return space + [power("h", n) for n in range(1, self.power + 1)]

    @property
    def count(self) -> int:
        """How many coefficients, Δz among them."""
        return len(self.exponents) + self.power

    def within(self, other: "Bias") -> list[int]:
        """Where this model's coefficients stand among those of a larger one."""
        return [other.names.index(name) for name in self.names]

    def columns(
        self, points: Float[Tensor, "n 2"], elevation: Float[Tensor, " n"], frame: "Frame"
    ) -> Float[Tensor, "n columns"]:
        """A at reference pixels (column, row) with smoothed elevations h in metres."""
        x, y = (points[:, axis] / half - 1 for axis, half in enumerate(frame.half))
        along, down = legendre(x, self.degree), legendre(-y, self.degree)
        height = (elevation - frame.elevation) / frame.unit
        space = [along[i] * down[j] for i, j in self.exponents]
        return torch.stack(space + [height**n for n in range(1, self.power + 1)], -1)


@dataclass(frozen=True)
class Frame:
    """What coefficients refer to: `half` (2,), half the reference's last column and row; `elevation` h0 and `unit` in
    metres, the median of the reference and its spread."""

    half: Sequence[float]
    elevation: float
    unit: float


def legendre(t: Tensor, degree: int) -> list[Tensor]:
    """P_0 to P_degree at t, by their recurrence."""
    out = [torch.ones_like(t), t]
    for n in range(1, degree):
        out.append(((2 * n + 1) * t * out[n] - n * out[n - 1]) / (n + 1))
    return out[: degree + 1]
