"""Apply the transforms that `scripts/align.py` has found to other rasters of the same maps, and to points.

    python scripts/apply.py outputs/run/transforms.json --map b.tif --rasters b_classes.tif --nearest --out applied
    python scripts/apply.py outputs/run/transforms.json --map b.tif --points b_trees.csv --to reference --out applied

Rasters come onto the grid of the reference, in their own values and file type, georeferenced as the reference is, each
with a mask. They have the pixels of the map, or other ones where both have a georeference. Points are rows of a csv
file with columns x and y (pixels, the centre of the first one is 0, 0; or with --units world the coordinates of the
two files' own headers); all other columns stay as they are. A point that has no place gets "nan".

Exit codes: 0 done; 1 the map was left out of the alignment: nothing is written; 2 the command is not valid; 4 a file
could not be written (a full disk): what was written before it is whole; 130 interrupted (Ctrl-C, SIGTERM).
"""

import argparse
import csv
import io
import sys
from pathlib import Path

import numpy as np
import torch
from command_line import NOTHING_DONE, CommandError, console, ended_when_told, errors, in_words
from rich.markup import escape

from mslsq.alignment.coordinates.applying import FoundTransform, LeftOutError, applied, moved_points, read_transform
from mslsq.alignment.coordinates.writing import can_hold, georeferenced_copy, write_beside, write_yaml
from mslsq.alignment.outputs import MASK_KIND
from mslsq.alignment.rasters import read_raster, writable, write_raster
from mslsq.alignment.stacks import split
from mslsq.replacing import remove_unfinished, replaced, write_text

TIFFS = (".tif", ".tiff")


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    about, _, rest = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="apply.py", description=about, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("transforms", type=Path, help="the transforms.json of a run of align.py")
    parser.add_argument("--map", help="the map whose transform it is: name or number; needed where there are several")
    parser.add_argument("--scene", help="of a run on several bundled rasters: which one")
    parser.add_argument("--rasters", nargs="+", default=[], help="rasters of that map: masks, other bands, classes")
    parser.add_argument("--nodata", type=float, help="a number of the rasters for no data, beside what they say")
    parser.add_argument("--nearest", action="store_true", help="take the nearest pixel: for classes and masks")
    parser.add_argument("--values", action="store_true", help="apply the gain and the bias that were found, too")
    parser.add_argument("--points", nargs="+", type=Path, default=[], help="csv files with columns x and y")
    parser.add_argument(
        "--to", choices=["reference", "map"], default="reference", help="where points go (default: %(default)s)"
    )
    parser.add_argument(
        "--units", choices=["pixels", "world"], default="pixels", help="of the points, both ways (default: %(default)s)"
    )
    parser.add_argument("--columns", nargs=2, default=["x", "y"], metavar=("X", "Y"), help="their names in the csv")
    parser.add_argument("--out", type=Path, default=Path("outputs/apply"), help="the folder (default: %(default)s)")
    return parser


def check_outputs(inputs: list[Path], planned: list[Path]) -> None:
    """Nothing that is read is written, and nothing is written twice."""
    for number, path in enumerate(planned):
        if replaced([path], [*inputs, *planned[:number]]) is not None:
            raise CommandError(f"{path}: this would overwrite an input, or another output; choose another --out.")


def apply_to_raster(
    transform: FoundTransform, file: str, folder: Path, nearest: bool, values: bool, nodata: float | None
) -> list[Path]:
    """One raster on the reference's grid, and its mask."""
    raster = read_raster(file, nodata)
    if raster.note:
        errors.print(f"[yellow]{escape(raster.name)}:[/]", escape(raster.note))
    seen, known = applied(transform, raster, nearest, values)
    height, width = transform.reference.size
    kind, header = writable(raster.kind, height, width), transform.reference.georeference
    path = write_raster(folder / Path(raster.name), seen, known, kind)
    written = [path]
    if header is not None and kind.ros is not None:
        written.append(write_yaml(path, height, header, kind.ros))
    elif header is not None and can_hold(path):
        inside = path.suffix.lower() in TIFFS
        written += georeferenced_copy(path, path, header)[1:] if inside else write_beside(path, header)
    mask = 255.0 * known[None].double()
    written.append(write_raster(folder / f"{Path(raster.name).stem}.mask.png", mask, torch.ones_like(known), MASK_KIND))
    share = float(known.double().mean())
    console.print(f"{escape(raster.name)}: {share:.0%} of the reference's pixels are known")
    return written


def apply_to_points(
    transform: FoundTransform, file: Path, folder: Path, columns: list[str], to_map: bool, world: bool
) -> Path:
    """One csv file."""
    try:
        rows = list(csv.reader(io.StringIO(file.read_text("utf-8-sig"))))
    except OSError as error:
        raise CommandError(f"{file}: cannot be read ({error.strerror}).") from None
    except UnicodeDecodeError:
        raise CommandError(f"{file}: this is no text of UTF-8.") from None
    if not rows:
        raise CommandError(f"{file}: the file is empty; its first line names the columns.")
    names = [name.strip() for name in rows[0]]
    for column in columns:
        if names.count(column) != 1:
            raise CommandError(
                f"{file}: one column is to be named {column!r}; it has {', '.join(names)}. --columns names others."
            )
    places = [names.index(column) for column in columns]
    body = [(number, row) for number, row in enumerate(rows[1:], 2) if row]
    points = np.array([[_number(file, number, row, place) for place in places] for number, row in body])
    moved = moved_points(transform, points.reshape(-1, 2), to_map, world)
    for (_, row), point in zip(body, moved.tolist(), strict=True):
        for place, value in zip(places, point, strict=True):
            row[place] = repr(value)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([rows[0], *(row for _, row in body)])
    write_text(folder / file.name, text.getvalue())
    console.print(f"{escape(file.name)}: {len(body)} points")
    return folder / file.name


def _number(file: Path, line: int, row: list[str], place: int) -> float:
    text = row[place] if place < len(row) else ""
    try:
        return float(text)
    except ValueError:
        raise CommandError(f"{file}, line {line}: {text!r} is no number.") from None


def run(given: argparse.Namespace) -> int:
    """The whole command; returns the exit code."""
    if not given.rasters and not given.points:
        raise CommandError("neither --rasters nor --points are given: there is nothing to apply the transform to.")
    transform = read_transform(given.transforms, given.map, given.scene)
    named = [Path(split(file)[0].name) for file in given.rasters]
    inputs = [given.transforms, *map(Path, given.rasters), *given.points]
    planned = [given.out / name for name in named]
    planned += [given.out / f"{name.stem}.mask.png" for name in named] + [
        given.out / file.name for file in given.points
    ]
    check_outputs(inputs, planned)
    remove_unfinished(given.out)
    written = []
    for file in given.rasters:
        written += apply_to_raster(transform, file, given.out, given.nearest, given.values, given.nodata)
    for file in given.points:
        to_map, world = given.to == "map", given.units == "world"
        written.append(apply_to_points(transform, file, given.out, given.columns, to_map, world))
    console.print(f"{len(written)} files written to {escape(str(given.out))}")
    for path in written:
        console.print(f"  {escape(path.name)}")
    return 0


def main() -> int:
    """The exit code."""

    def attempted() -> int:
        try:
            return run(arguments().parse_args())
        except LeftOutError as error:
            errors.print("[red]nothing to apply:[/]", escape(str(error)))
            return NOTHING_DONE

    with ended_when_told():
        return in_words(attempted)


if __name__ == "__main__":
    sys.exit(main())
