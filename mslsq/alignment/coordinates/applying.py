"""A found `transforms.json`, applied to other rasters of the same maps and to points."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.alignment.bends import Bend, warped
from mslsq.alignment.canvas import Canvas, resample
from mslsq.alignment.coordinates.georeference import Georeference, GeoreferenceError
from mslsq.alignment.coordinates.merging import nearest_on
from mslsq.alignment.coordinates.relating import relation
from mslsq.alignment.measures import project
from mslsq.alignment.rasters import Raster
from mslsq.validation import suggestion

ROUNDS, NEAR = 100, 1e-9
"""Of the fixed point that undoes a bend, and how near in pixels it must come."""


class TransformsError(ValueError):
    """A `transforms.json` that is none, or that does not say what is asked of it."""


class LeftOutError(TransformsError):
    """The map was left out of the alignment: there is no transform to apply."""


@dataclass(frozen=True)
class Grid:
    """The pixels of a map or of the reference."""

    name: str
    size: tuple[int, int]
    """Height and width."""
    georeference: Georeference | None


@dataclass(frozen=True)
class FoundTransform:
    """One map's place on the reference, as `transforms.json` has it.

    `matrix` takes a pixel (x, y, 1) of the reference to one of the map; `bend` is that of model="piecewise", or None;
    reference ≈ gain · map + bias.
    """

    reference: Grid
    map: Grid
    matrix: Float[Tensor, "3 3"]
    bend: Bend | None
    gain: float
    bias: float

    def to_map(self, points: Float[Tensor, "n 2"]) -> Float[Tensor, "n 2"]:
        """Pixels (x, y) of the reference in the map."""
        return warped(points, self.matrix, self.bend)

    def to_reference(self, points: Float[Tensor, "n 2"]) -> Float[Tensor, "n 2"]:
        """Pixels (x, y) of the map in the reference; NaN where there is none."""
        target = project(_facing(torch.linalg.inv(self.matrix), points), points)
        if self.bend is None:
            return target
        found = target
        for _ in range(ROUNDS):  # u + s(u) = target; s is flatter than 1 wherever the grid does not fold
            found = target - self.bend.at(found)
        off = (found + self.bend.at(found) - target).norm(dim=-1, keepdim=True)
        return torch.where(off <= NEAR * max(self.reference.size), found, torch.full_like(found, float("nan")))


def _facing(matrix: Float[Tensor, "3 3"], points: Float[Tensor, "n 2"]) -> Float[Tensor, "3 3"]:
    """A matrix and its negative are one homography: that of which most points lie ahead."""
    depth = points @ matrix[2, :2] + matrix[2, 2]
    return matrix if bool((depth > 0).double().mean() >= 0.5) or len(points) == 0 else -matrix


def read_transform(path: str | Path, name: str | int | None = None, scene: str | None = None) -> FoundTransform:
    """One map of a `transforms.json`.

    Args:
        path: of the file that `scripts/align.py` wrote.
        name: of the map, with its suffix or without, or its number; None means the only one beside the reference.
        scene: which one, of a run on several.

    Raises:
        TransformsError: it is no such file, or has no such map, or several.
        LeftOutError: the map has no transform.
    """
    path = Path(path)
    content = _content(path)
    records = [one for one in content["maps"] if scene is None or one.get("scene") == scene]
    record = _chosen(path, records, name)
    if record["matrix"] is None:
        raise LeftOutError(f"{path}: {record['name']} was left out of the alignment. {record['reason']}")
    reference = next((one for one in records if _is_reference_of(one, record)), None)
    if reference is None or not record.get("size") or not reference.get("size"):
        raise TransformsError(f"{path}: it does not say how large {record['name']} and its reference are; align again.")
    base, own = _grid(reference), _grid(record)
    matrix = torch.tensor(record["matrix"], dtype=torch.float64, device="cpu")
    bend = _bend(record["bend"], base.size) if record.get("bend") else None
    gain, bias = (float("nan") if record[key] is None else float(record[key]) for key in ("gain", "bias"))
    return FoundTransform(base, own, matrix, bend, gain, bias)


def _content(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise TransformsError(f"{path}: cannot be read ({error.strerror}).") from None
    except ValueError as error:
        raise TransformsError(f"{path}: this is no transforms.json ({error}).") from None
    if not isinstance(content, dict) or not isinstance(content.get("maps"), list):
        raise TransformsError(f"{path}: this is no transforms.json: it has no list of maps.")
    return content


def _is_reference_of(one: dict[str, Any], record: dict[str, Any]) -> bool:
    return one["name"] == record["reference"] and one.get("scene") == record.get("scene")


def _chosen(path: Path, records: list[dict[str, Any]], name: str | int | None) -> dict[str, Any]:
    names = [one["name"] for one in records]
    listed = ", ".join(f"{i} {one}" for i, one in enumerate(names))
    if name is None:
        others = [one for one in records if one["status"] != "reference"]
        if len(others) != 1:
            raise TransformsError(f"{path}: which map is meant? It has {listed}.")
        return others[0]
    if str(name).isdigit() and str(name) not in names:
        if int(name) < len(records):
            return records[int(name)]
        raise TransformsError(f"{path}: there is no map {name}; it has {listed}.")
    found = [one for one in records if name in (one["name"], Path(one["name"]).stem)]
    if len(found) == 1:
        return found[0]
    if found:
        raise TransformsError(f"{path}: {name!r} is the name of several maps: {listed}. Give its number.")
    raise TransformsError(f"{path}: there is no map {name!r}.{suggestion(name, names)} It has {listed}.")


def _grid(record: dict[str, Any]) -> Grid:
    width, height = record["size"]
    header = record.get("georeference")
    georeference = None
    if header is not None:
        georeference = Georeference.from_geotransform(header["geotransform"], header["crs"], header["source"])
    return Grid(record["name"], (int(height), int(width)), georeference)


def _bend(record: dict[str, Any], size: tuple[int, int]) -> Bend:
    shifts = torch.tensor(record["shifts"], dtype=torch.float64, device="cpu")
    nothing = shifts.new_full((shifts.numel(),) * 2, float("nan"))  # standard errors are not in the file
    return Bend(shifts, float(record["step"]), size, nothing)


def applied(
    transform: FoundTransform, raster: Raster, nearest: bool = False, values: bool = False
) -> tuple[Float[Tensor, "c h w"], Bool[Tensor, "h w"]]:
    """A raster of the map on the reference's grid, and where it is known.

    The raster has the map's pixels; or others, if both have a georeference: then those say where they lie on each
    other. `nearest` keeps numbers that stand for classes; `values` applies gain and bias.

    Raises:
        GeoreferenceError: it has another size, and nothing says where it lies in the map.
    """
    size = raster.mask.shape[0], raster.mask.shape[1]
    matrix, own = transform.matrix, transform.map
    if size != own.size:
        if raster.georeference is None or own.georeference is None:
            raise GeoreferenceError(
                f"{raster.name}: it has {size[1]} x {size[0]} pixels, and {own.name} has {own.size[1]} x "
                f"{own.size[0]}. Where both have a georeference it says where they lie on each other; here it is "
                f"missing in {raster.name if raster.georeference is None else own.name}."
            )
        found = relation(own.georeference, own.size, raster.georeference, size)
        if found is None:
            raise GeoreferenceError(f"{raster.name}: its georeference says nothing of where it lies in {own.name}.")
        matrix = torch.from_numpy(found.matrix) @ matrix
    height, width = transform.reference.size
    canvas = Canvas(0, 0, height, width)
    if nearest or raster.kind.ros is not None:
        seen, known = nearest_on(canvas, raster.values, raster.mask, matrix, transform.bend)
    else:
        if not bool(raster.mask.any()):
            return raster.values.new_zeros(raster.values.shape[0], height, width), raster.mask.new_zeros(height, width)
        seen, known = resample(raster.values, raster.mask, matrix, canvas, transform.bend)
    return (transform.gain * seen + transform.bias if values else seen), known


def moved_points(
    transform: FoundTransform, points: Float[np.ndarray, "n 2"], to_map: bool, world: bool
) -> Float[np.ndarray, "n 2"]:
    """Points of the reference in the map, or the other way: pixels (x, y), or with `world` coordinates (X, Y) as the
    headers of the two have them.

    Raises:
        GeoreferenceError: coordinates of the world, and one of the two has no georeference.
    """
    source, target = transform.reference, transform.map
    if not to_map:
        source, target = target, source
    if world:
        for grid in (source, target):
            if grid.georeference is None:
                raise GeoreferenceError(f"{grid.name} has no georeference: give points in pixels.")
        assert source.georeference is not None
        points = source.georeference.to_pixel(points)
    moved = (transform.to_map if to_map else transform.to_reference)(torch.from_numpy(points)).numpy()
    if world:
        assert target.georeference is not None
        moved = target.georeference.to_world(moved)
    return moved
