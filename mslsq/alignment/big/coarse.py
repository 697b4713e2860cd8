"""The coarse stage: whole rasters, reduced until they fit, placed by `align` with all of its evidence."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.alignment.align import align
from mslsq.alignment.big.files import RasterFile, factor_for
from mslsq.alignment.coordinates.systems import same_system
from mslsq.alignment.kinds import RasterError
from mslsq.alignment.options import AlignmentOptionError
from mslsq.alignment.result import Alignment, Stage

PIXELS = 1 << 20
"""Of a reduced raster: `align` needs some 400 MB for two of them."""


@dataclass(frozen=True)
class Coarse:
    """Reduced rasters and where `align` puts them. Entries of files that cannot be read are None."""

    files: Sequence[RasterFile | None]
    factors: list[int]
    values: list[Float[Tensor, "1 height width"] | None]
    masks: list[Bool[Tensor, "height width"] | None]
    problems: dict[int, str]
    result: Alignment

    def enlarged(self, index: int) -> Float[Tensor, "3 3"]:
        """Pixels of a reduced raster to those of its file."""
        return enlarging(self.factors[index])

    def transform(self, index: int) -> Float[Tensor, "3 3"]:
        """Pixel of the reference's file to pixel of a map's."""
        found = self.result.transforms[index]
        moved = self.enlarged(index) @ found @ torch.linalg.inv(self.enlarged(self.result.reference))
        return moved / moved[2, 2]


def enlarging(factor: int) -> Float[Tensor, "3 3"]:
    """A reduced pixel is the mean of a block, whose middle is its place."""
    off = (factor - 1) / 2
    return torch.tensor([[factor, 0, off], [0, factor, off], [0, 0, 1]], dtype=torch.float64, device="cpu")


def factors_of(files: Sequence[RasterFile | None], most: int) -> list[int]:
    """By what powers of two the rasters are reduced: alike, or with georeferences to pixels of about one size."""
    usable = [file for file in files if file is not None]
    least = {file.path: factor_for(file.size, most) for file in usable}
    sizes = {file.path: file.georeference.mean_pixel_size for file in usable if file.georeference is not None}
    if len(sizes) < len(least):
        return [max(least.values(), default=1)] * len(files)
    coarsest = max((least[path] * size for path, size in sizes.items()), default=1.0)
    factors = []
    for file in files:
        near = 1 if file is None else 2 ** max(0, round(math.log2(coarsest / sizes[file.path])))
        factors.append(near if file is None else max(near, least[file.path]))
    return factors


def coarse_alignment(
    files: Sequence[RasterFile | None],
    problems: dict[int, str],
    reference: int,
    init: Any,
    progress: Callable[[Stage], None] | None,
    options: dict[str, Any],
) -> Coarse:
    """Read, reduce, align. A map whose file is damaged is left out with its reason.

    Raises:
        RasterError: the reference cannot be read.
        AlignmentOptionError: the maps are of several coordinate reference systems, or an option is not valid.
    """
    refuse_other_systems(files)
    factors = factors_of(files, PIXELS)
    files, problems = list(files), dict(problems)
    values, masks, headers = [], [], []
    for index, (file, factor) in enumerate(zip(files, factors, strict=True)):
        part = known = header = None
        try:
            if file is not None:
                part, known = file.grey(0, 0, *file.reduced(factor), factor)
                header = file.georeference and file.georeference.reduced(factor)
        except RasterError as error:
            files[index], problems[index] = None, str(error)
        values.append(part)
        masks.append(known)
        headers.append(header)
    if files[reference] is None:
        raise RasterError(f"the reference cannot be used: {problems[reference]}")
    if isinstance(init, Tensor):
        scales = [enlarging(factor) for factor in factors]
        init = torch.stack(
            [torch.linalg.inv(s) @ one.double() @ scales[reference] for s, one in zip(scales, init.cpu(), strict=True)]
        )
    found = align(
        values,
        masks=masks,
        reference=reference,
        init=init,
        georeferences=headers if any(headers) else None,
        progress=progress,
        **options,
    )
    reasons = [f"Left out: {problems[i]}" if i in problems else reason for i, reason in enumerate(found.reasons)]
    return Coarse(files, factors, values, masks, problems, replace(found, reasons=reasons))


def refuse_other_systems(files: Sequence[RasterFile | None]) -> None:
    """Between two CRS there is no matrix: over a large raster the error of the nearest one is many pixels."""
    headers = [(file.name, file.georeference) for file in files if file is not None and file.georeference is not None]
    for name, header in headers[1:]:
        first, base = headers[0]
        if not same_system(base.crs, header.crs):
            raise AlignmentOptionError(
                f"{name} is in another coordinate reference system ({str(header.crs)[:60]}) than {first} "
                f"({str(base.crs)[:60]}), and no matrix leads from one to the other over a large raster: reproject it "
                "first (gdalwarp -t_srs)."
            )
