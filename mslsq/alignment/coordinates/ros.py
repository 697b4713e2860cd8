"""Maps of ROS: `map.yaml` beside a picture, read and written as map_server does.

A picture's grey x of 0 to 255 is an occupancy p = (255 - x) / 255, or x / 255 where `negate` is set. `trinary`:
occupied above `occupied_thresh`, free below `free_thresh`, else unknown; `scale`: the same with all numbers between,
unknown where alpha is 0; `raw`: x itself in percent, unknown above 100. The origin is the lower left corner of the
picture's lower left pixel, y goes up, and yaw turns the picture about it.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.alignment.coordinates.georeference import Georeference, GeoreferenceError
from mslsq.validation import suggestion

SOURCE = "map.yaml"
"""Of georeferences: their units are metres."""
MODES = ("trinary", "scale", "raw")
NEEDED = ("image", "resolution", "origin", "occupied_thresh", "free_thresh")
KNOWN = (*NEEDED, "negate", "mode")
USUAL_UNKNOWN = 205
"""The grey that map_saver writes for cells that were not seen."""
SQUARE = 1e-6
"""Relative: how far pixels may be from squares, and rows from a right angle to columns."""


@dataclass(frozen=True)
class RosMap:
    """How a picture's numbers are to be read as occupancy."""

    occupied_thresh: float
    free_thresh: float
    negate: bool = False
    mode: str = "trinary"

    def occupancy(self, grey: Float[np.ndarray, "h w"]) -> Float[np.ndarray, "h w"]:
        """From 0, free, to 1, occupied, of greys from 0 to 255; NaN where unknown (alpha is not asked here)."""
        if self.mode == "raw":
            return np.where(grey <= 100, grey / 100, np.nan)
        p = grey / 255 if self.negate else (255 - grey) / 255
        if self.mode == "scale":
            between = (p - self.free_thresh) / (self.occupied_thresh - self.free_thresh)
            return np.clip(between, 0, 1)
        return np.where(p > self.occupied_thresh, 1.0, np.where(p < self.free_thresh, 0.0, np.nan))

    def grey(self, occupancy: Float[np.ndarray, "h w"]) -> np.ndarray:
        """The picture that is read as this occupancy: bytes, `unknown` where it is NaN."""
        known = np.nan_to_num(occupancy)
        if self.mode == "raw":
            x = 100 * known
        else:
            p = known
            if self.mode == "scale":  # beyond the thresholds where it is sure, so that rounding does not matter
                inner = self.free_thresh + known * (self.occupied_thresh - self.free_thresh)
                p = np.where(known <= 0, 0.0, np.where(known >= 1, 1.0, inner))
            x = 255 * p if self.negate else 255 * (1 - p)
        return np.where(np.isnan(occupancy), self.unknown, np.rint(x)).astype(np.uint8)

    def walls_dark(self, grey: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """The greys of the same cells in a picture of 0 (occupied) to 255 (free)."""
        if self.mode == "raw":
            return 255 * (1 - grey.clamp(max=100) / 100)
        return 255 - grey if self.negate else grey

    @property
    def unknown(self) -> int:
        """A grey that is unknown to these thresholds; of `scale`, where alpha says it, any."""
        if self.mode == "raw":
            return 255
        middle = 255 * (self.free_thresh + self.occupied_thresh) / 2
        greys = (USUAL_UNKNOWN, round(middle if self.negate else 255 - middle))
        return next((x for x in greys if math.isnan(float(self.occupancy(np.array([[x]], float))[0, 0]))), greys[0])


@dataclass(frozen=True)
class RosFile:
    """What a `map.yaml` says."""

    image: Path
    ros: RosMap
    resolution: float
    origin: tuple[float, float, float]

    def georeference(self, height: int) -> Georeference:
        """Of a picture of this height: its own rows go down, the map's y up."""
        x, y, yaw = self.origin
        along = self.resolution * np.array([math.cos(yaw), math.sin(yaw)])
        up = self.resolution * np.array([-math.sin(yaw), math.cos(yaw)])
        first = np.array([x, y]) + 0.5 * along + (height - 0.5) * up
        matrix = np.array([[along[0], -up[0], first[0]], [along[1], -up[1], first[1]], [0, 0, 1]])
        return Georeference(matrix, None, SOURCE)


def read_yaml(path: Path) -> RosFile:
    """A `map.yaml`; the picture's path is relative to it.

    Raises:
        GeoreferenceError: it is no yaml, a key is missing, misspelt or has a value that makes no sense, or there is no
            such picture.
    """
    import yaml

    try:
        content = yaml.safe_load(path.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise GeoreferenceError(f"{path}: this is no yaml ({str(error).splitlines()[0]}).") from None
    if not isinstance(content, dict):
        raise GeoreferenceError(f"{path}: the yaml of a ROS map is expected, with {', '.join(NEEDED)}.")
    for key in content:
        if key not in KNOWN and (near := suggestion(key, KNOWN)):
            raise GeoreferenceError(f"{path}: map_server knows no key {key!r}.{near}")
    for key in NEEDED:
        if key not in content:
            raise GeoreferenceError(f"{path}: the key {key!r} is missing; a ROS map has {', '.join(NEEDED)}.")
    mode = content.get("mode", "trinary")
    if mode not in MODES:
        raise GeoreferenceError(f"{path}: mode is one of {', '.join(MODES)}, not {mode!r}.{suggestion(mode, MODES)}")
    occupied, free = (_number(path, content, key, 0, 1) for key in ("occupied_thresh", "free_thresh"))
    if free >= occupied:
        raise GeoreferenceError(f"{path}: free_thresh, {free:g}, must be below occupied_thresh, {occupied:g}.")
    image = path.parent / Path(str(content["image"])).expanduser()
    if not image.is_file():
        raise GeoreferenceError(f"{path}: its picture {image} is not there.")
    resolution = _number(path, content, "resolution", 0, math.inf)
    if resolution == 0:
        raise GeoreferenceError(f"{path}: resolution must be above 0 (metres per pixel).")
    origin = content["origin"]
    numbers = isinstance(origin, list) and len(origin) == 3 and all(isinstance(one, int | float) for one in origin)
    if not numbers or not all(math.isfinite(one) for one in origin):
        raise GeoreferenceError(f"{path}: origin is [x, y, yaw] (metres, radians), not {origin!r}.")
    x, y, yaw = map(float, origin)
    return RosFile(image, RosMap(occupied, free, bool(content.get("negate", False)), mode), resolution, (x, y, yaw))


def _number(path: Path, content: dict[str, Any], key: str, least: float, most: float) -> float:
    value = content[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most or value == math.inf:
        raise GeoreferenceError(f"{path}: {key} is a number from {least:g} to {most:g}, not {value!r}.")
    return float(value)


def decoded(
    bands: np.ndarray, alpha: Bool[np.ndarray, "h w"] | None, ros: RosMap
) -> tuple[np.ndarray, Bool[np.ndarray, "h w"]]:
    """One band of greys from 0 to 255, the mean of the colours as map_server has it, and which cells are known."""
    full = np.iinfo(bands.dtype).max if np.issubdtype(bands.dtype, np.integer) else 1.0
    grey = bands.astype(np.float64).mean(0) * (255 / full)
    known = ~np.isnan(ros.occupancy(grey))
    return grey[None], known if alpha is None else known & alpha


def yaml_of(image: str, height: int, georeference: Georeference, ros: RosMap) -> str:
    """The `map.yaml` of a picture.

    Raises:
        GeoreferenceError: the pixels are no squares, or y goes down: no yaml can say so.
    """
    (a, b, _), (c, d, _), _ = georeference.matrix.tolist()
    resolution = georeference.mean_pixel_size
    if abs(a + d) > SQUARE * resolution or abs(b - c) > SQUARE * resolution or a * d - b * c >= 0:
        raise GeoreferenceError(
            f"{image}: a map of ROS has square pixels and y upwards; this one's steps are ({a:g}, {c:g}) and "
            f"({b:g}, {d:g}). Align with model='se2' or 'sim2', or write it resampled."
        )
    (x, y), *_ = georeference.to_world([[-0.5, height - 0.5]]).tolist()
    yaw = math.atan2(c, a)
    origin = ", ".join(f"{number + 0.0:.12g}" for number in (x, y, yaw))
    lines = [
        f"image: {image}",
        f"resolution: {resolution:.12g}",
        f"origin: [{origin}]",
        f"negate: {int(ros.negate)}",
        f"occupied_thresh: {ros.occupied_thresh:g}",
        f"free_thresh: {ros.free_thresh:g}",
        f"mode: {ros.mode}",
    ]
    return "\n".join(lines) + "\n"
