"""Scenes: the rasters that one run aligns with each other, from a user's files or cut from bundled real rasters."""

import glob
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.ndimage
import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.alignment.coordinates import Georeference
from mslsq.alignment.rasters import Kind, Raster, RasterError, read_raster
from mslsq.alignment.stacks import every_page, split
from mslsq.alignment.synthetic import BASE_SIGMA, MODELS, base_raster, random_transform, warp_from_base
from mslsq.validation import integer, number, one_of


@dataclass(frozen=True)
class Truth:
    """What is known about a map that was cut on purpose, in the conventions of `align`."""

    transform: Float[Tensor, "3 3"]
    gain: float
    bias: float


@dataclass(frozen=True)
class Scene:
    """Rasters of one place. An entry is None where its file could not be read, with the reason in `problems`."""

    name: str
    names: list[str]
    rasters: list[Raster | None]
    problems: dict[int, str] = field(default_factory=dict)
    truth: list[Truth] | None = None
    files: list[Path] = field(default_factory=list)
    """What was read, masks included: nothing of it may be written."""

    def to_align(self) -> dict[str, Any]:
        """`maps` and `masks` of `align`: pictures are aligned by luminance, other numbers of bands all together."""
        colours = {raster.values.shape[0] for raster in self.rasters if raster is not None}
        grey = colours <= {1, 3, 4} or len(colours) > 1
        maps = [raster and (raster.luminance() if grey else raster.values) for raster in self.rasters]
        return {"maps": maps, "masks": [raster and raster.mask for raster in self.rasters]}

    def headers(self) -> list[Georeference | None]:
        """Where the files say that the maps lie."""
        return [None if raster is None else raster.georeference for raster in self.rasters]


def files_of(paths: Sequence[str | Path]) -> list[str]:
    """Paths, what matches those that are patterns, and the pages of those that end in ":all".

    Raises:
        RasterError: a pattern matches nothing, or a stack cannot be read.
    """
    files: list[str] = []
    for path in map(str, paths):
        if glob.has_magic(path) and not Path(path).exists():
            matched = sorted(glob.glob(path, recursive=True))
            if not matched:
                raise RasterError(f"{path}: no file matches this pattern in {Path.cwd()}.")
            files += matched
        else:
            files += every_page(path)
    return files


def scene_from_files(paths: Sequence[str], masks: Sequence[str] = (), nodata: float | None = None) -> Scene:
    """Read files (or patterns with * and ?) as one scene; `masks` are rasters that are non-zero where a map holds data.

    `nodata` is a number for no data beside those that the files name. A file that cannot be read is left out with its
    reason; the others go on.

    Raises:
        RasterError: a pattern matches nothing, the numbers of masks and maps differ, or a mask cannot be read.
    """
    files = files_of(paths)
    if masks and len(masks) != len(files):
        raise RasterError(f"{len(masks)} masks for {len(files)} maps: give one mask per map, or none.")
    rasters: list[Raster | None] = []
    problems: dict[int, str] = {}
    for i, file in enumerate(files):
        try:
            raster = read_raster(file, nodata)
        except RasterError as error:
            problems[i] = str(error)
            rasters.append(None)
            continue
        if masks:
            known = read_raster(masks[i])
            if known.values.shape[1:] != raster.values.shape[1:]:
                raise RasterError(
                    f"{masks[i]}: the mask has {tuple(known.values.shape[1:])} rows and columns, "
                    f"its map {file} {tuple(raster.values.shape[1:])}."
                )
            _refuse_blurred(masks[i], known)
            known_pixels = raster.mask & known.mask & (known.values != 0).all(0)
            raster = replace(raster, mask=known_pixels)
        rasters.append(raster)
    read = [split(path)[0] for path in (*files, *masks)]
    read += [path for raster in rasters if raster is not None for path in raster.beside]
    names = distinct([Path(file).name or file for file in files])
    return Scene("maps", names, rasters, problems, files=[path.expanduser() for path in read])


def _refuse_blurred(path: str, mask: Raster) -> None:
    """JPEG blurs the edges of a mask: zeros beside data become 1 to 5, which would count as data."""
    values = mask.values
    faint = (values > 0) & (values < 0.5 * values.max())
    if mask.kind.suffix in (".jpg", ".jpeg") and bool(faint.any()):
        raise RasterError(
            f"{path}: a mask is zero where there are no data, and JPEG has blurred this one "
            f"({int(faint.sum())} numbers are neither zero nor white); save it as PNG."
        )


def distinct(names: Sequence[str]) -> list[str]:
    """Names by which maps are told apart: a number in front where two are the same."""
    given: list[str] = []
    for i, name in enumerate(names):
        while names.count(name) > 1 or name in given:
            name = f"{i}-{name}"
        given.append(name)
    return given


def scene_from_bundled(
    raster: str,
    count: int = 3,
    model: str = "sim2",
    size: int = 256,
    shift: float = 40.0,
    degrees: float = 20.0,
    noise: float = 0.01,
    seed: int = 0,
    name: str | None = None,
) -> Scene:
    """`count` overlapping maps of a raster that comes inside a wheel: the first is the reference, the others are
    warped by random members of `model`, with gain 0.7 to 1.3, bias ±0.15 and noise, all known. The scene's `name` is
    that of the raster.

    >>> scene_from_bundled("elevation", size=128).names
    ['elevation-0', 'elevation-1', 'elevation-2']
    """
    one_of("bundled.model", model, list(MODELS))
    for option, given, least in (("count", count, 2), ("size", size, 32), ("seed", seed, 0)):
        integer(f"bundled.{option}", given, least)
    number("bundled.degrees", degrees)
    for option, given in (("noise", noise), ("shift", shift)):
        number(f"bundled.{option}", given, least=0)
    scene = name or raster
    random = np.random.default_rng(seed)
    base = scipy.ndimage.gaussian_filter(base_raster(raster), BASE_SIGMA, mode="mirror")
    base = (base - base.min()) / (base.max() - base.min())
    height, width = base.shape
    size = min(size, height, width)
    corner = (width - size) // 2, (height - size) // 2
    rasters: list[Raster | None] = []
    truth = []
    for i in range(count):
        transform = np.eye(3) if i == 0 else random_transform(model, size, random, shift, degrees)
        gain = 1.0 if i == 0 else random.uniform(0.7, 1.3)
        bias = 0.0 if i == 0 else random.uniform(-0.15, 0.15)
        values = gain * warp_from_base(base, corner, transform, (size, size)) + bias
        values = values + noise * random.standard_normal(values.shape)
        # Scenery beyond the base would be mirrored there: it is no data.
        y, x = np.mgrid[0:size, 0:size].astype(np.float64)
        source = np.linalg.inv(transform) @ np.stack([x.ravel(), y.ravel(), np.ones(x.size)])
        sx, sy = source[0] / source[2] + corner[0], source[1] / source[2] + corner[1]
        known = ((sx >= 0) & (sy >= 0) & (sx <= width - 1) & (sy <= height - 1)).reshape(size, size)
        kind = Kind(".tif", np.dtype(np.float32))
        rasters.append(Raster(f"{scene}-{i}", torch.from_numpy(values)[None], torch.from_numpy(known), kind))
        truth.append(Truth(torch.from_numpy(transform), 1.0 / gain, -bias / gain))
    return Scene(scene, [f"{scene}-{i}" for i in range(count)], rasters, {}, truth)
