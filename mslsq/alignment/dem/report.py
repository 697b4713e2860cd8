"""`report.html` of a coregistration: the answer, before and after, statistics by terrain, how well it is known."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from mslsq.alignment.dem.figures import COLOURS, arrows_figure, ellipse_figure, statistics_figure
from mslsq.alignment.dem.local import LocalCoregistration
from mslsq.alignment.dem.result import Coregistration, elevations, on_grid
from mslsq.alignment.report.comparisons import (
    LARGEST_SIDE,
    SHARE_WITHIN,
    Sheet,
    Words,
    as_bytes,
    checkerboard,
    picture_grey,
    reduced,
    residuals_of,
)
from mslsq.alignment.report.encoding import svg_of
from mslsq.alignment.report.figures import coloured
from mslsq.alignment.report.frame import write_frame
from mslsq.alignment.report.text import escaped
from mslsq.alignment.report.views import comparison

PICTURE_BYTES = 600_000
"""Of each picture of the page."""

AZIMUTH, ALTITUDE = 315.0, 45.0
"""Degrees: where the light of a hillshade comes from."""

STEEP = 0.9
"""Share of the slopes that a hillshade shows as 45° or less: flat terrain is exaggerated, mountains are not."""

ELEVATIONS = Words(
    name="model",
    swipe="Model − reference",
    before="Before: model − reference in the given place, less its median.",
    after="After: the same colours.",
    grey="Hillshades of reference and model",
    checkerboard="Checkerboard of the hillshades of reference (reddish) and model (bluish)",
    difference="Model − reference after coregistration, red below, blue above",
    reference="The reference as a hillshade",
    moved="The corrected model as a hillshade",
    axis="model − reference, m",
    colours=COLOURS,
)


def write_report(
    found: Coregistration,
    reference: Any,
    dem: Any,
    path: Path,
    *,
    local: LocalCoregistration | None = None,
    moved: Any = None,
    options: Mapping[str, Any] | None = None,
    seconds: float | None = None,
    title: str = "Elevation model",
    note: str = "",
    view: Coregistration | None = None,
) -> Path:
    """Write the page. Returns its path.

    Args:
        found: the answer.
        reference: (height, width), as `coregister` was given it.
        dem: (rows, columns), the same.
        path: of the page.
        local: shifts of blocks, where they were looked for.
        moved: the corrected model on the reference's grid; made of `dem` without.
        options: to be listed.
        seconds: that it took.
        title: of the page.
        note: what was done to `dem` before.
        view: the answer in pixels of `reference` and `dem`, where these are smaller than those of `found`.
    """
    said = f'<p class="lead">{escaped(found.message())}</p>'
    if note:
        said += f"<p>{escaped(note)}</p>"
    parts = []
    if np.isfinite(found.shift[2]):
        parts.append(f"<h2>Shift</h2>{_answer(found)}")
    if np.isfinite(found.covariance[:2, :2]).all():
        parts.append(_drawing(ellipse_figure(found), "The horizontal shift; the ellipse holds 95 % of its error", 420))
    shown = sheet(found if view is None else view, reference, dem, moved, title)
    if shown is not None:
        words = "Spread by slope, and median by the direction that slopes face: a horizontal shift is a wave there"
        parts += [
            f"<h2>Before and after</h2>{comparison(shown, 'dem', PICTURE_BYTES, True)}",
            f"<h2>Differences by terrain</h2>{table_of(found)}",
            _drawing(statistics_figure(found, 9.0), words, 900, least=560),
        ]
    if local is not None:
        values = reduced_elevations(reference)
        figure = arrows_figure(replace(local, centres=local.centres / values[1]), values[0].numpy())
        parts.append(f"<h2>Blocks</h2><p>{escaped(local.message())}</p>")
        parts.append(_drawing(figure, "Shifts of blocks beside the whole's; a cross where terrain shows none", 640))
    return write_frame(Path(path), title, said, f"<section>{''.join(parts)}</section>", options, seconds)


def sheet(found: Coregistration, reference: Any, dem: Any, moved: Any, title: str) -> Sheet | None:
    """The pictures; None where nothing was found."""
    if not np.isfinite(found.shift[2]):
        return None
    fixed = elevations(reference)
    given = on_grid(elevations(dem), found.shape, found.offset)
    after = elevations(found.apply(dem) if moved is None else moved)
    metres = found.metres * reduced_elevations(fixed)[1]
    small = [reduced_elevations(values)[0] for values in (fixed, given, after)]
    known = [values.isfinite() for values in small]
    differences = [(values - small[0]).numpy() for values in small[1:]]
    centred = differences[0] - (np.nanmedian(differences[0]) if np.isfinite(differences[0]).any() else 0.0)
    limits = [_reach(centred), _reach(differences[1])]
    steepness = _steepness(small[0].numpy(), metres)
    shades = [torch.from_numpy(hillshade(values.numpy(), metres, steepness)) for values in (small[0], small[2])]
    lit = [shade.isfinite() for shade in shades]
    whole = [(values, values.isfinite()) for values in (given, after)]
    board = checkerboard(shades[0], lit[0], shades[1], lit[1], (0.0, 1.0))
    of = found.after.whole
    return Sheet(
        title=title,
        caption=f"median {of['median']:+.3f} m, NMAD {of['nmad']:.3f} m on stable terrain",
        unit="m",
        size=(fixed.shape[0], fixed.shape[1]),
        before=coloured(centred, limits[0], COLOURS),
        after=coloured(differences[1], limits[0], COLOURS),
        reference=_grey(shades[0], lit[0]),
        moved=_grey(shades[1], lit[1]),
        checkerboard=as_bytes(board),
        difference=np.where(known[0] & known[2], differences[1], np.nan),
        limit=limits[1],
        residuals=residuals_of(fixed, fixed.isfinite(), *whole),
        words=replace(ELEVATIONS, before=f"{ELEVATIONS.before[:-1]}, ± {limits[0]:.3g} m."),
    )


def hillshade(
    elevation: Float[np.ndarray, "h w"], metres: Float[np.ndarray, "2 2"], steepness: float
) -> Float[np.ndarray, "h w"]:
    """Lambert's shading of a surface lit from the north-west, in [0, 1]; NaN beside holes. Heights are divided by
    `steepness`."""
    east, north = _slopes(elevation, metres) / steepness
    light = np.radians([90 - AZIMUTH, ALTITUDE])
    towards = np.cos(light[1]) * np.cos(light[0]), np.cos(light[1]) * np.sin(light[0]), np.sin(light[1])
    shade = (towards[2] - east * towards[0] - north * towards[1]) / np.sqrt(1 + east**2 + north**2)
    return np.clip(shade, 0, 1)


def _slopes(elevation: Float[np.ndarray, "h w"], metres: Float[np.ndarray, "2 2"]) -> Float[np.ndarray, "2 h w"]:
    """Metres up per metre east and north."""
    down, along = np.gradient(elevation)
    return np.einsum("ij,jhw->ihw", np.linalg.inv(metres).T, np.stack([along, down]))


def _steepness(elevation: Float[np.ndarray, "h w"], metres: Float[np.ndarray, "2 2"]) -> float:
    slopes = np.hypot(*_slopes(elevation, metres))
    found = slopes[np.isfinite(slopes)]
    return float(np.clip(np.quantile(found, STEEP), 1e-6, 1.0)) if found.size else 1.0


def reduced_elevations(values: Any) -> tuple[Tensor, int]:
    """A raster as small as pictures are, NaN where it has no data, and how many pixels became one along a side."""
    raster = elevations(values)
    small, known = reduced(torch.nan_to_num(raster, posinf=0.0, neginf=0.0), raster.isfinite())
    factor = max(1, -(-max(raster.shape) // LARGEST_SIDE))
    return torch.where(known, small, torch.full_like(small, float("nan"))), factor


def _grey(shade: Tensor, known: Tensor) -> UInt8[np.ndarray, "h w 3"]:
    return picture_grey(shade, known, (0.0, 1.0))


def _reach(difference: Float[np.ndarray, "h w"]) -> float:
    found = np.abs(difference[np.isfinite(difference)])
    return float(np.quantile(found, SHARE_WITHIN)) or 1.0 if found.size else 1.0


def _drawing(figure: Any, words: str, width: int, least: int = 0) -> str:
    """A figure of `width` pixels, or as the page is; below `least` it is scrolled, so that its words can be read."""
    drawn, said = svg_of(figure, escaped(words)), escaped(words)
    if least:
        drawn = (
            f'<div class="scroll" tabindex="0" role="region" aria-label="{said}">'
            f'<div style="min-width:{least}px">{drawn}</div></div>'
        )
    return f'<figure style="max-width:{width}px">{drawn}<figcaption>{said}.</figcaption></figure>'


def _answer(found: Coregistration) -> str:
    """The shift and the coefficients, with their standard errors."""
    rows = [
        (f"shift {name}", value, error, "m")
        for name, value, error in zip(("east", "north", "up"), found.shift, found.standard_errors, strict=True)
    ]
    rows += [
        (f"bias {name}", found.coefficients[name], found.coefficient_errors[name], "m")
        for name in found.coefficients
        if name != "z"
    ]
    lines = [[name, f"{value:+.4f}", f"{error:.4f}", unit] for name, value, error, unit in rows if np.isfinite(value)]
    moved = found.georeference
    said = "Add the shift to the coordinates of the model, and it lies on the reference."
    if moved is not None:
        numbers = " ".join(f"{number:.10g}" for number in moved.geotransform)
        said += f" Without resampling: its geotransform becomes {numbers} ({moved.crs or 'no CRS'})."
    return _table(("", "value", "± (one sigma)", "unit"), lines) + f'<p class="soft">{escaped(said)}</p>'


def table_of(found: Coregistration) -> str:
    """The differences by class of terrain, as HTML."""
    rows = []
    for name, before, after in classes_of(found):
        if after["count"]:
            numbers = [
                f"{one[figure]:.3f}" for figure in ("median", "nmad", "rmse") for one in (before, after)
            ]  # fmt: skip
            rows.append([name, f"{int(after['count']):,}", *numbers])
    names = [f"{figure} {when}, m" for figure in ("median", "NMAD", "RMSE") for when in ("before", "after")]
    return _table(("terrain", "pixels", *names), rows)


def classes_of(found: Coregistration) -> Iterator[tuple[str, Mapping[str, float], Mapping[str, float]]]:
    """Every class of terrain with its differences before and after."""
    yield "all stable", found.before.whole, found.after.whole
    for kind, label in {"by_slope": "slope ", "by_aspect": "facing ", "by_mask": ""}.items():
        before, after = getattr(found.before, kind), getattr(found.after, kind)
        for name in after:
            if name != "stable":
                yield f"{label}{name}", before[name], after[name]


def _table(names: tuple[str, ...], rows: list[list[str]]) -> str:
    kinds = ["words name", *[""] * (len(names) - 1)]
    head = "".join(
        f'<th scope="col" class="{kind}">{escaped(name)}</th>' for kind, name in zip(kinds, names, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(f'<td class="{kind}">{escaped(cell)}</td>' for kind, cell in zip(kinds, row, strict=True))
        + "</tr>"
        for row in rows
    )
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Table">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )
