"""One level of a pair of maps: the samples of the reference, and what is seen of the map under a warp."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.alignment import passes
from mslsq.alignment.grids import inside, pixel_grid
from mslsq.alignment.measures import centroid, ncc_and_detail, ncc_of, project, share_of
from mslsq.alignment.models import Frame
from mslsq.alignment.noise import NONE, Noise
from mslsq.alignment.pyramid import Level
from mslsq.alignment.sampling import sample_at
from mslsq.kernels import run_on

MAX_SAMPLES = 1 << 18
"""Of a larger level every k-th pixel is used: 262 144 samples place a map to thousandths of a pixel already."""

DETAIL_SIGMA = 3.0
"""Samples. Detail is what a Gaussian of this width takes away. Over wrong placements of real maps the correlation of
the whole reached 0.93 (two views of a street, one half sky), that of the detail 0.33; true ones had at least 0.57 in
detail."""

SPREAD_SAMPLES = 1 << 13
"""About as many residuals tell their spread: a sigma is then known to one and a half percent."""

THINNED = 1 << 14
"""Samples from which a level is worth to be thinned: a pass over fewer takes less than its call."""

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class PairLevel:
    """One level of a pair: the samples of the reference and the map that is sampled."""

    planes: Float[Tensor, "channels n"]
    """The reference's values at the samples."""
    known: Bool[Tensor, " n"]
    moving: Level
    to_level: Float[Tensor, "3"]
    size: tuple[int, int]
    grid: tuple[int, int]
    """Rows and columns of the samples."""
    stride: int
    frame: Frame
    factor: int
    index: int
    noise: Noise = NONE
    """Of the reference's values."""
    corner: tuple[float, float] = (0.0, 0.0)
    """The pixel (x, y) of the first sample: another than the first of a tile."""
    count: int | None = None
    """How many samples are known, if that is."""
    _last: dict[str, list[tuple[Tensor, Any]]] = field(default_factory=dict)

    @staticmethod
    def of(
        reference: Level,
        moving: Level,
        frame: Frame,
        index: int,
        most: int = MAX_SAMPLES,
        corner: tuple[float, float] = (0.0, 0.0),
        origin: tuple[float, float] = (0.0, 0.0),
    ) -> "PairLevel":
        """Of whole maps, or of parts of them: the first samples of the two are the pixels `corner` and `origin`."""
        height, width = reference.size
        stride = 1
        while -(-height // stride) * -(-width // stride) > most:
            stride += 1
        target = reference.raster[:, ::stride, ::stride]
        return PairLevel(
            planes=target.reshape(target.shape[0], -1).contiguous(),
            known=reference.mask[::stride, ::stride].reshape(-1),
            moving=moving,
            to_level=frame.centre.new_tensor(
                [frame.half / moving.factor]
                + [(middle - first) / moving.factor for middle, first in zip(frame.middle, origin, strict=True)]
            ),
            size=reference.size,
            grid=(target.shape[-2], target.shape[-1]),
            stride=stride,
            frame=frame,
            factor=reference.factor,
            index=index,
            noise=reference.noise,
            corner=corner,
            count=reference.valid_pixels if stride == 1 else None,
        )

    @cached_property
    def points(self) -> Float[Tensor, "n 2"]:
        """The samples in normalised coordinates, row by row."""
        pixels = pixel_grid(*self.grid, self.planes) * (self.stride * self.factor)
        return self.frame.normalise(pixels + pixels.new_tensor(self.corner))

    @property
    def target(self) -> Float[Tensor, "n channels"]:
        """The reference's values, sample by sample."""
        return self.planes.T

    @cached_property
    def geometry(self) -> Float[Tensor, "6"]:
        """Where the samples are, for `passes`: the first one's normalised coordinates, their step, and `to_level`."""
        numbers = [*self._places, *self.to_level.tolist()]
        return torch.tensor(numbers, dtype=torch.float64, device="cpu")

    @cached_property
    def _places(self) -> tuple[float, float, float]:
        """The first sample's normalised coordinates, and their step."""
        half = self.frame.half
        x, y = ((first - middle) / half for first, middle in zip(self.corner, self.frame.middle, strict=True))
        return x, y, self.stride * self.factor / half

    @property
    def thinned(self) -> "PairLevel":
        """Every second sample in both directions, where the prefilter has left hardly more than these tell; else the
        level itself.

        A sum over these samples is a quarter of that over all, and what the products of slopes and residuals have near
        half a turn per sample, along rows, columns or both. Behind a Gaussian of s samples both factors fall off as
        exp(-s²k²/2), so that at most exp(-s²π²/4) of an amplitude is left there: 0.085 of 1 px, 1.5 % of a variance.
        """
        # A level that kept itself would be freed by the collector of cycles alone.
        return self if self.noise.square < self.stride**2 or self.known.numel() < THINNED else self._thinned

    @cached_property
    def _thinned(self) -> "PairLevel":
        planes = self.planes.reshape(-1, *self.grid)[:, ::2, ::2]
        grid = planes.shape[1], planes.shape[2]
        planes, known = planes.reshape(len(planes), -1).contiguous(), self.thin(self.known)
        return replace(self, planes=planes, known=known, grid=grid, stride=2 * self.stride, count=None, _last={})

    def thin(self, of_samples: Bool[Tensor, " n"]) -> Bool[Tensor, " fewer"]:
        """What is known of every sample, for every second one in both directions."""
        return of_samples.reshape(self.grid)[::2, ::2].reshape(-1)

    def look(self, matrix: Float[Tensor, "3 3"]) -> tuple[Float[Tensor, "n channels"], Bool[Tensor, " n"]]:
        """The map's values at the warped samples, and which samples fall on data of both."""
        return self.kept("look", matrix, self._looked)

    def _looked(self, matrix: Float[Tensor, "3 3"]) -> tuple[Float[Tensor, "n channels"], Bool[Tensor, " n"]]:
        if run_on(self.planes.device):
            values, valid = passes.seen(self, matrix)
            return values.T, valid
        pixels = project(matrix, self.points) * self.to_level[0] + self.to_level[1:]
        valid = self.known & inside(pixels, self.moving.mask)
        return sample_at(self.moving.coefficients, torch.nan_to_num(pixels)).T, valid

    def glance(self, matrix: Float[Tensor, "3 3"]) -> tuple[Float[Tensor, "n channels"], Bool[Tensor, " n"]]:
        """`look`, where values of every `sparse`-th sample will do: the others are zero, unless they are known already.
        On a level of 256² half the time."""
        looked = any(known is matrix for known, _ in self._last.get("look", ()))
        if looked or self.sparse == 1 or not run_on(self.planes.device):
            return self.look(matrix)
        return self.kept("glance", matrix, self._glanced)

    def _glanced(self, matrix: Float[Tensor, "3 3"]) -> tuple[Float[Tensor, "n channels"], Bool[Tensor, " n"]]:
        values, valid = passes.seen(self, matrix, self.sparse)
        return values.T, valid

    def valid(self, matrix: Float[Tensor, "3 3"]) -> Bool[Tensor, " n"]:
        """Which samples fall on data of both, where no value is asked for."""
        for name in ("look", "glance"):
            for known, answer in self._last.get(name, ()):
                if known is matrix:
                    return answer[1]
        if not run_on(self.planes.device):
            return self.look(matrix)[1]
        return self.kept("valid", matrix, lambda at: passes.seen(self, at, self.known.numel())[1])

    @property
    def sparse(self) -> int:
        """One sample of this many tells the residuals' spread."""
        return -(-self.known.numel() // SPREAD_SAMPLES)

    def judgement(self, matrix: Float[Tensor, "3 3"]) -> dict[str, float]:
        """Correlations and overlap of a warp."""
        return self.kept("judgement", matrix, self._judged)

    def _judged(self, matrix: Float[Tensor, "3 3"]) -> dict[str, float]:
        sampled, valid = self.look(matrix)
        ncc, detail = correlations(sampled, valid, self)
        return {"ncc": ncc, "detail": detail, "overlap": self.share(valid, matrix)}

    def overlapping(self, matrix: Float[Tensor, "3 3"]) -> dict[str, float]:
        """Correlation and overlap of a warp."""
        sampled, valid = self.look(matrix)
        return {"ncc": ncc_of(sampled.T, self.planes, valid), "overlap": self.share(valid, matrix)}

    def kept(self, name: str, matrix: Float[Tensor, "3 3"], make: Callable[[Tensor], Answer]) -> Answer:
        """What `make` says of a warp. The last answers of this name are kept: an estimate is judged where a solve has
        ended, and the next begins there, or is compared with it. Of large levels one is kept, as they are large."""
        answers = self._last.setdefault(name, [])
        for place, (known, answer) in enumerate(answers):
            if known is matrix:
                answers.insert(0, answers.pop(place))
                return answer
        del answers[1 if self.known.numel() <= MAX_SAMPLES else 0 :]
        answer = make(matrix)
        answers.insert(0, (matrix, answer))
        return answer

    def data(self, valid: Bool[Tensor, "*batch n"], freedom: Float[Tensor, "2"]) -> dict[str, Tensor]:
        """What `objective.Photometric` is given of this level."""
        return {
            "point": self.points,
            "target": self.target.contiguous(),
            "valid": valid.to(self.points.dtype),
            "coefficients": self.moving.coefficients,
            "to_level": self.to_level,
            "freedom": freedom,
        }

    def share(self, valid: Bool[Tensor, " n"], matrix: Float[Tensor, "3 3"]) -> float:
        """Overlap under a warp, as a share of the smaller map's area of data."""
        count, rows, columns = centroid(valid.reshape(self.grid))
        if count == 0:
            return 0.0
        x, y, step = self._places
        middle = x + step * columns / count, y + step * rows / count
        per_sample = self.size[0] * self.size[1] / self.known.numel()
        factors = (self.moving.factor / self.factor) ** 2
        return share_of(matrix.tolist(), middle, count, self._data[0], factors * self._data[1] / per_sample)

    @cached_property
    def _data(self) -> tuple[int, int]:
        """Samples of the reference on data, pixels of the map on data."""
        return int(self.known.count_nonzero()) if self.count is None else self.count, self.moving.valid_pixels


def correlations(
    sampled: Float[Tensor, "n channels"], valid: Bool[Tensor, " n"], level: PairLevel
) -> tuple[float, float]:
    """Masked correlation of the samples with the reference, and that of their detail."""
    known = valid.reshape(level.grid)
    return ncc_and_detail(
        sampled.T.reshape(-1, *level.grid), level.planes.reshape(-1, *level.grid), known, DETAIL_SIGMA
    )
