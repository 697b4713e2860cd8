"""Names of the files that a run writes: no two the same, none that of an input, all known before the work begins."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from mslsq.alignment.kinds import SUFFIXES
from mslsq.alignment.rasters import RasterError, writable
from mslsq.alignment.scenes import Scene
from mslsq.replacing import replaced, same_name

FOLDER = "aligned"
REPORTS = (
    "transforms.json",
    "metrics.json",
    "metrics.csv",
    "manifest.json",
    "report.html",
    "mosaic.png",
    "overlay.png",
    "placements.png",
    "convergence.png",
)
LONGEST = 150
"""Bytes of a stem: file systems take 255 for a name, to which suffixes add."""
FORBIDDEN = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f-\x9f\ud800-\udfff]')


class MapFiles(NamedTuple):
    """Names in the folder `aligned/`."""

    raster: str
    mask: str


def output_names(scenes: Sequence[Scene], references: Sequence[int]) -> list[list[MapFiles | None]]:
    """For every scene and map the files that it is written to; None for maps that could not be read.

    A map's own name without its suffix, where no other has the same: a.png and a.tif have the masks a.png.mask.png and
    a.tif.mask.png. Names that differ in nothing but capitals are the same, as they are to some file systems.
    """
    stems = Counter(same_name(_stem(name)) for scene in scenes for name in scene.names)
    taken: set[str] = set()
    planned: list[list[MapFiles | None]] = []
    for scene, reference in zip(scenes, references, strict=True):
        grid = scene.rasters[reference]
        files: list[MapFiles | None] = []
        for raster, name in zip(scene.rasters, scene.names, strict=True):
            if raster is None or grid is None:
                files.append(None)
                continue
            suffix = writable(raster.kind, *grid.mask.shape).suffix
            for key in _candidates(name, unique=stems[same_name(_stem(name))] == 1):
                file = MapFiles(key if key.lower().endswith(suffix) else key + suffix, f"{key}.mask.png")
                if not {same_name(part) for part in file} & taken and same_name(file.raster) != same_name(file.mask):
                    break
            taken |= {same_name(part) for part in file}
            files.append(file)
        planned.append(files)
    return planned


def mosaic_names(scenes: Sequence[Scene], references: Sequence[int]) -> list[str]:
    """For every scene the name of its mosaic in the values and the kind of the reference."""
    names = []
    for scene, reference in zip(scenes, references, strict=True):
        raster = scene.rasters[reference]
        suffix = ".tif" if raster is None else raster.kind.suffix
        names.append(f"mosaic{suffix}" if len(scenes) == 1 else f"mosaic-{FORBIDDEN.sub('_', scene.name)}{suffix}")
    return names


def refuse_to_overwrite_inputs(scenes: Sequence[Scene], references: Sequence[int], folder: Path) -> None:
    """Before the work begins: nothing that is read may be written.

    Raises:
        RasterError: an output would replace an input, which is named.
    """
    planned = [folder / name for name in (*REPORTS, *mosaic_names(scenes, references))]
    planned += [folder / FOLDER / part for files in output_names(scenes, references) for f in files if f for part in f]
    refuse_to_replace([file for scene in scenes for file in scene.files], planned, "hydra.run.dir")


def refuse_to_replace(inputs: Iterable[str | Path], outputs: Iterable[str | Path], choose: str) -> None:
    """The same of any files; `choose` names what says where the outputs go.

    Raises:
        RasterError: an output would replace an input, which is named.
    """
    found = replaced(inputs, outputs)
    if found is not None:
        raise RasterError(f"{found}: this input would be overwritten; choose another {choose}.")


def _candidates(name: str, unique: bool) -> Iterator[str]:
    """Stems of output files, the best first; they do not end."""
    name = FORBIDDEN.sub("_", name)
    stem = _short(_stem(name))
    if unique:
        yield stem
    yield name if len(name.encode()) <= LONGEST else stem
    number = 2
    while True:
        yield f"{stem}-{number}"
        number += 1


def _stem(name: str) -> str:
    """Without a suffix that says what kind of raster it is: of v1.2.tif the name is v1.2."""
    name = FORBIDDEN.sub("_", name)
    suffix = Path(name).suffix
    return name[: -len(suffix)] if suffix.lower() in SUFFIXES else name


def _short(stem: str) -> str:
    return stem.encode()[:LONGEST].decode(errors="ignore")
