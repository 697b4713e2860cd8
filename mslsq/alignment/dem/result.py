"""What `coregister` answers: the shift in metres and how well it is known, the bias, a status with its reason."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.alignment.coordinates import Georeference
from mslsq.alignment.coordinates.systems import same_system
from mslsq.alignment.dem.bias import Bias, Frame
from mslsq.alignment.dem.errors import CoregistrationError
from mslsq.alignment.dem.statistics import ElevationStatistics
from mslsq.alignment.grids import inside, inside_moved, pixel_grid
from mslsq.alignment.pyramid import fill
from mslsq.alignment.sampling import sample_at, spline_coefficients

CONVENTION = (
    "shift = (east, north, up) in metres: add it to the coordinates of dem, and dem lies on the reference. Standard "
    "errors are one sigma. bias is added to dem's elevations after the shift; its first coefficient is shift[2]. Where "
    "the CRS counts in degrees, metres are those at the middle of the reference. shift_in_crs is the horizontal shift "
    "in units of the CRS; corrected_geotransform (GDAL's) is that of dem's own pixels, moved by it: gdal_edit.py -a_gt."
)

SUBSTITUTIONS = 5
"""Of C into b(C): a bias of a tenth of the elevation is exact to 1e-5 of it."""


class CoregistrationStatus(IntEnum):
    """What became of an elevation model; `message` says it in words."""

    COREGISTERED = 0
    Z_ONLY = 1
    NO_DATA = 2
    LITTLE_OVERLAP = 3
    AMBIGUOUS = 4
    NOT_CONVERGED = 5
    FAR_FROM_HEADER = 6

    @property
    def ok(self) -> bool:
        """Is the answer to be used, if only in z?"""
        return self in (CoregistrationStatus.COREGISTERED, CoregistrationStatus.Z_ONLY)

    @property
    def message(self) -> str:
        """A sentence."""
        return MESSAGES[self]


MESSAGES = {
    CoregistrationStatus.COREGISTERED: "Coregistered.",
    CoregistrationStatus.Z_ONLY: "Only the vertical shift is known: the terrain does not show a horizontal one.",
    CoregistrationStatus.NO_DATA: "No stable pixel has data in both models.",
    CoregistrationStatus.LITTLE_OVERLAP: "The models overlap too little.",
    CoregistrationStatus.AMBIGUOUS: "Several shifts fit nearly as well; the best is given.",
    CoregistrationStatus.NOT_CONVERGED: "The fit did not settle; its last values are given.",
    CoregistrationStatus.FAR_FROM_HEADER: "The models agree only far from where their georeferences put them.",
}


@dataclass(frozen=True, eq=False)
class Coregistration:
    """The place and height of an elevation model on a reference.

    Attributes:
        shift: (east, north, up) in metres. Add it to the coordinates of `dem` to lay it on the reference. NaN where it
            is not known.
        covariance: of `shift` (3, 3), m², from blocks; NaN where unknown.
        coefficients: of the bias by name, in metres: "z" is shift[2], "x", "y", "x2" ... Legendre polynomials over the
            reference's rectangle (x from west to east columns, y against the rows), "h", "h2", "h3" powers of
            (h - frame.elevation) / frame.unit.
        coefficient_errors: their standard errors.
        bias: the name of the bias model, chosen where "auto" was asked for.
        status, reason: what became of it, and why in words.
        overlap: compared pixels as a share of the smaller model's data.
        nmad_before, nmad: of the differences dem - reference on stable terrain, before and after, in metres.
        changed: (height, width), true where the residuals say that terrain changed; it was not used.
        correlation_length: metres, of the residuals; the blocks of the standard errors are twice as long.
        before, after: the statistics of the differences.
    """

    shift: Float[np.ndarray, "3"]
    covariance: Float[np.ndarray, "3 3"]
    coefficients: Mapping[str, float]
    coefficient_errors: Mapping[str, float]
    bias: str
    status: CoregistrationStatus
    reason: str
    overlap: float
    changed: Bool[np.ndarray, "height width"] = field(repr=False)
    correlation_length: float
    before: ElevationStatistics = field(repr=False)
    after: ElevationStatistics = field(repr=False)
    frame: Frame = field(repr=False)
    metres: Float[np.ndarray, "2 2"] = field(repr=False)
    offset: Float[np.ndarray, "2"] = field(repr=False)
    shape: tuple[int, int] = field(repr=False)
    header: Georeference | None = field(repr=False, default=None)
    """Of `dem`, as it was given."""
    own: Georeference | None = field(repr=False, default=None)
    """Of the file from which `dem` was resampled before, where it was."""

    @property
    def georeference(self) -> Georeference | None:
        """Of `dem`'s own pixels, moved by the shift: it lies on the reference without being resampled. None where it
        had none, or no horizontal shift is known, or a model in another CRS was resampled: there the shift is none."""
        if self.header is None or not np.isfinite(self.shift[:2]).all():
            return None
        own = self.header if self.own is None else self.own
        if not same_system(own.crs, self.header.crs):
            return None
        matrix = own.matrix.copy()
        matrix[:2, 2] += self._step(self.header)
        return Georeference(matrix, own.crs, own.source)

    def _step(self, header: Georeference) -> Float[np.ndarray, "2"]:
        """The horizontal shift in units of a header's CRS."""
        return header.matrix[:2, :2] @ np.linalg.solve(self.metres, self.shift[:2])

    @property
    def standard_errors(self) -> Float[np.ndarray, "3"]:
        """Of `shift`, one sigma, in metres."""
        return np.sqrt(np.diag(self.covariance))

    @property
    def nmad_before(self) -> float:
        """Of the differences before, in metres."""
        return self.before.whole["nmad"]

    @property
    def nmad(self) -> float:
        """Of the differences after, in metres."""
        return self.after.whole["nmad"]

    @property
    def changed_share(self) -> float:
        """Of the reference's pixels, those that were taken for changed terrain."""
        return float(self.changed.mean())

    @property
    def vertical_scale(self) -> float:
        """By which elevations about `frame.elevation` are stretched, from the coefficient "h"; 1 without."""
        return 1.0 / (1.0 - self.coefficients.get("h", 0.0) / self.frame.unit)

    def message(self) -> str:
        """The answer in a sentence or two."""
        if not np.isfinite(self.shift[2]):
            return self.reason
        east, north, up = self.shift
        of = self.standard_errors
        place = "" if np.isnan(east) else f"{east:+.3f} ± {of[0]:.3f} m east, {north:+.3f} ± {of[1]:.3f} m north, "
        return (
            f"{self.reason} Shift {place}{up:+.3f} ± {of[2]:.3f} m up, bias model {self.bias}; NMAD of the differences "
            f"{self.nmad_before:.3f} → {self.nmad:.3f} m."
        )

    def record(self) -> dict[str, Any]:
        """All numbers, as `metrics.json` holds them: None where there is none."""
        record = {
            "convention": CONVENTION,
            "status": self.status.name.lower(),
            "reason": self.reason,
            "shift_m": self.shift.tolist(),
            "standard_errors_m": self.standard_errors.tolist(),
            "covariance_m2": self.covariance.tolist(),
            **self._in_crs(),
            "bias": self.bias,
            "coefficients_m": dict(self.coefficients),
            "coefficient_errors_m": dict(self.coefficient_errors),
            "vertical_scale": self.vertical_scale,
            "overlap": self.overlap,
            "changed_share": self.changed_share,
            "correlation_length_m": self.correlation_length,
            "before": self.before.record(),
            "after": self.after.record(),
        }
        return {name: _plain(value) for name, value in record.items()}

    def plot(self, reference: Any, dem: Any, *, path: Path | str | None = None) -> Any:
        """The differences dem - reference before and after, with changed terrain outlined.

        Args:
            reference: as `coregister` was given it; the result does not hold it.
            dem: the same.
            path: of a PNG to write.

        Returns:
            The matplotlib figure.

        Raises:
            CoregistrationError: nothing was found that could be shown.
            ImportError: matplotlib is not installed.
        """
        from mslsq.alignment.dem.showing import plot

        return plot(self, reference, dem, path)

    def report(
        self,
        path: Path | str,
        reference: Any,
        dem: Any,
        *,
        options: Mapping[str, Any] | None = None,
        title: str = "Elevation model",
    ) -> Path:
        """Write the page that `scripts/align.py +experiment=dem` writes as `report.html`: one file without a network.

        Args:
            path: of the page.
            reference: as `coregister` was given it; the result does not hold it.
            dem: the same.
            options: to be listed, as those that `coregister` was called with.
            title: of the page.

        Returns:
            The path.

        Raises:
            NotWrittenError: the page cannot be written.
            ImportError: matplotlib or Pillow is not installed.
        """
        from mslsq.alignment.dem.showing import report

        return report(self, path, reference, dem, options, title)

    def _repr_html_(self) -> str:
        """The answer and the table of differences, for notebooks."""
        from mslsq.alignment.dem.showing import table

        return table(self)

    def _in_crs(self) -> dict[str, Any]:
        """What a user of coordinates needs: the shift in their units, and the corrected header."""
        if self.header is None or not np.isfinite(self.shift[:2]).all():
            return {}
        record, moved = {"crs": self.header.crs, "shift_in_crs": self._step(self.header).tolist()}, self.georeference
        return record if moved is None else record | {"corrected_geotransform": list(moved.geotransform)}

    def apply(self, dem: Any) -> Float[np.ndarray, "height width"]:
        """The model on the reference's grid, shifted and corrected; NaN where it has no data.

        Sampled by the cubic spline. A pixel has a value where all four pixels around its place have.

        Args:
            dem: (rows, columns), the grid that `coregister` was given. NaN are holes.

        Raises:
            CoregistrationError: the raster has no two axes, or nothing was found that could be applied.
        """
        values = elevations(dem)
        if values.ndim != 2:
            raise CoregistrationError(f"Coregistration.apply: dem must be (rows, columns), not {tuple(values.shape)}.")
        if not np.isfinite(self.shift[2]):
            raise CoregistrationError(f"Coregistration.apply: nothing was found to apply. {self.reason}")
        return corrected(self, shifted(self, values)).numpy()


def elevations(values: Any) -> Float[Tensor, "height width"]:
    """A raster, or one of a single band, in float64: NaN where it is masked."""
    if isinstance(values, np.ma.MaskedArray):
        values = np.ma.filled(values.astype(np.float64), np.nan)
    raster = torch.as_tensor(values, device="cpu").detach().to(torch.float64)
    return raster[0] if raster.ndim == 3 and raster.shape[0] == 1 else raster


def _plain(value: Any) -> Any:
    """Numbers that are not finite as None: JSON has no NaN."""
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def corrected(
    result: Coregistration, moved: Float[Tensor, "height width"], first: tuple[int, int] = (0, 0)
) -> Float[Tensor, "height width"]:
    """A model that lies on the reference's grid, with the bias added; NaN stays. `first` is the pixel (column, row)
    of the reference at which it begins.

    A bias that depends on the elevation depends on the corrected one: C = D + b(C), by a few substitutions.
    """
    known = moved.isfinite()
    if not bool(known.any()):
        return moved
    height, width = moved.shape
    model = Bias.named(result.bias)
    grid = pixel_grid(height, width, moved) + moved.new_tensor(first)
    beta = torch.tensor([result.coefficients[name] for name in model.names], dtype=torch.float64, device="cpu")
    base = torch.where(known, moved, torch.full_like(moved, result.frame.elevation)).reshape(-1)
    out = base + beta[0]
    for _ in range(SUBSTITUTIONS if model.power else 1):
        out = base + model.columns(grid, out, result.frame) @ beta
    out = out.reshape(height, width)
    return torch.where(known, out, torch.full_like(out, float("nan")))


def shifted(result: Coregistration, values: Float[Tensor, "rows columns"]) -> Float[Tensor, "height width"]:
    """A model on the reference's grid after the horizontal shift alone (none where it is not known)."""
    pixels = np.linalg.solve(result.metres, np.nan_to_num(result.shift[:2]))
    return on_grid(values, result.shape, result.offset - pixels)


def on_grid(
    values: Float[Tensor, "rows columns"], size: tuple[int, int], step: Float[np.ndarray, "2"]
) -> Float[Tensor, "height width"]:
    """Values at pixel (column, row) + step of every pixel of a grid."""
    known, step = values.isfinite(), np.asarray(step)
    sampled = _through(values, known, pixel_grid(*size, values) + torch.from_numpy(step)).reshape(size)
    return torch.where(inside_moved(step, known, size), sampled, torch.full_like(sampled, float("nan")))


def sampled_at(values: Float[Tensor, "rows columns"], points: Float[Tensor, "n 2"]) -> Float[Tensor, " n"]:
    """The cubic spline through values, NaN where one of the four pixels around a point has none."""
    known = values.isfinite()
    sampled = _through(values, known, points)
    return torch.where(inside(points, known), sampled, torch.full_like(sampled, float("nan")))


def _through(
    values: Float[Tensor, "rows columns"], known: Bool[Tensor, "rows columns"], points: Float[Tensor, "n 2"]
) -> Float[Tensor, " n"]:
    filled = fill(torch.where(known, values, torch.zeros_like(values))[None], known)
    return sample_at(spline_coefficients(filled), points)[0]
