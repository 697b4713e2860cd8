"""`report.html`: one page that holds everything, reads without a network, and without scripts in a plainer form."""

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch

import mslsq
from mslsq.alignment.report.comparisons import Sheet
from mslsq.alignment.report.encoding import Picture, data_addresses, svg_of
from mslsq.alignment.report.figures import coloured, convergence, convergence_figure, mosaics, overlay
from mslsq.alignment.report.placements import graph_figure, links_of, outlines_figure, placements
from mslsq.alignment.report.summary import sentence_of, summary_html
from mslsq.alignment.report.text import escaped
from mslsq.alignment.result import Alignment, Stage
from mslsq.plotting import INK, figure_of
from mslsq.replacing import write_text

PICTURES_BYTES = 6_000_000
"""Of all pictures of a page: what mail programs send, and telephones open. More maps have smaller pictures."""

MOST_SHEETS = 40
"""Maps with pictures; of more than that, the least sure ones have some."""

MOST_CURVES, MOST_ROWS = 12, 12
"""Maps in a picture of convergence, and rows of `overlay.png`."""

BEFORE, AFTER = "#c0392b", "#1f6fb4"

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


@dataclass(frozen=True)
class Chapter:
    """One scene in a report."""

    title: str
    records: Sequence[Mapping[str, Any]]
    """Per map, as in `transforms.json`."""
    result: Alignment
    sheets: Sequence[Sheet] = ()
    mosaic: Picture | None = None
    seconds: float | None = None
    """That aligning took."""
    certainty: Mapping[str, float] = field(default_factory=dict)
    """Per sheet's title how sure its map is; the least sure are shown where there are too many."""

    @property
    def names(self) -> list[str]:
        """Of the maps."""
        return [record["name"] for record in self.records]

    @property
    def curves(self) -> list[tuple[str, list[Stage]]]:
        """The solves of every map that was placed."""
        stages = [(i, [stage for stage in self.result.stages if stage.map == i]) for i in self.result.aligned]
        return [(self.names[i], found) for i, found in stages if found]


def write_page(
    chapters: Sequence[Chapter],
    path: Path,
    options: Mapping[str, Any] | None = None,
    seconds: float | None = None,
    title: str = "Alignment report",
) -> Path:
    """The page for all scenes of a run; `seconds` are those of the whole run. Returns its path."""
    count = sum(min(len(chapter.sheets), MOST_SHEETS) for chapter in chapters)
    whole = sum(chapter.mosaic is not None for chapter in chapters)
    share = PICTURES_BYTES // max(1, 6 * count + 2 * whole)
    sections = "".join(
        _section(chapter, number, share, len(chapters) > 1) for number, chapter in enumerate(chapters, 1)
    )
    text = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<title>{escaped(title)}</title><style>{_asset('page.css')}</style></head><body>"
        f"<header><h1>{escaped(title)}</h1>{_contents(chapters)}</header>"
        f"<main>{sections}{_making(options, seconds)}</main>"
        f"<script>{_asset('page.js')}</script></body></html>\n"
    )
    write_text(path, text)
    return path


def write_pictures(chapters: Sequence[Chapter], folder: Path) -> list[Path]:
    """Of all scenes together: mosaics, placements, comparisons, convergence. Returns the paths."""
    shown = [(chapter, chapter.mosaic) for chapter in chapters if chapter.mosaic is not None]
    sheets = [sheet for chapter, _ in shown for sheet in chapter.sheets]
    written = []
    if shown:
        titled = [(f"{one.title}: mosaic of {len(one.result.aligned)} maps", mosaic) for one, mosaic in shown]
        written.append(mosaics(titled, folder / "mosaic.png"))
        written.append(placements([(one.title, one.result) for one, _ in shown], folder / "placements.png"))
    if sheets:
        series = [curve for one, _ in shown for curve in one.curves]
        written.append(overlay(sheets[:MOST_ROWS], folder / "overlay.png"))
        written.append(convergence(series, folder / "convergence.png"))
    return written


def _asset(name: str) -> str:
    return resources.files("mslsq.alignment.report").joinpath(name).read_text("utf-8")


def _contents(chapters: Sequence[Chapter]) -> str:
    """The sentence of the one scene, or a list of all with their links."""
    if len(chapters) == 1:
        return f'<p class="lead">{escaped(sentence_of(chapters[0].result, chapters[0].names))}</p>'
    lines = "".join(
        f'<li><a href="#scene-{number}">{escaped(chapter.title)}</a>: '
        f"{escaped(sentence_of(chapter.result, chapter.names))}</li>"
        for number, chapter in enumerate(chapters, 1)
    )
    return f"<nav aria-label='Scenes'><ul>{lines}</ul></nav>"


def _section(chapter: Chapter, number: int, share: int, several: bool) -> str:
    heading = f"<h2>{escaped(chapter.title)}</h2>" if several else "<h2>Maps</h2>"
    took = "" if chapter.seconds is None else f" Aligned in {chapter.seconds:.3g} s."
    lead = (
        f"<p>{escaped(sentence_of(chapter.result, chapter.names))}{took}</p>"
        if several
        else f'<p class="soft">{took}</p>'
    )
    table = summary_html(chapter.records)
    legend = "<p class='soft'>± px: standard error of the reference's corners. Reference ≈ gain · map + bias.</p>"
    scroll = f'<div class="scroll maps" tabindex="0" role="region" aria-label="Table of maps">{table}</div>'
    parts = [heading, lead if took or several else "", scroll, legend, _placements(chapter.result)]
    chosen = list(chapter.sheets)
    if len(chosen) > MOST_SHEETS:
        chosen = sorted(chosen, key=lambda sheet: chapter.certainty.get(sheet.title, 0.0))[:MOST_SHEETS]
        parts.append(
            f"<p>Pictures of {MOST_SHEETS} of {len(chapter.sheets)} maps: those whose detail correlates least.</p>"
        )
    if chosen:
        parts.append("<h3>Before and after</h3>")
    for position, sheet in enumerate(chosen):
        parts.append(_comparison(sheet, f"s{number}m{position}", share, is_open=position == 0 or len(chosen) <= 3))
    if chapter.mosaic is not None:
        address = data_addresses([chapter.mosaic], 2 * share)[0]
        parts.append(
            f'<h3>Mosaic</h3><figure style="max-width:720px"><img src="{address}" alt="The mean of all placed maps">'
            "<figcaption>The mean of all placed maps, in the reference's values.</figcaption></figure>"
        )
    parts.append(_convergence(chapter))
    return f'<section id="scene-{number}">{"".join(parts)}</section>'


def _placements(result: Alignment) -> str:
    if not result.sizes or (len(result.aligned) < 2 and not links_of(result)):
        return ""
    drawn = []
    for make in (outlines_figure, graph_figure):
        if make is outlines_figure and len(result.aligned) < 2:
            continue
        figure, words = make(result)
        words = escaped(words)
        drawn.append(f"<figure>{svg_of(figure, words)}<figcaption>{words}.</figcaption></figure>")
    return f'<h3>Where they lie, and what holds them</h3><div class="pair">{"".join(drawn)}</div>'


def _comparison(sheet: Sheet, key: str, share: int, is_open: bool) -> str:
    pictures = [
        sheet.before, sheet.after, sheet.reference, sheet.moved, sheet.checkerboard,
        coloured(sheet.difference, sheet.limit),
    ]  # fmt: skip
    before, after, reference, moved, checkerboard, difference = data_addresses(pictures, 6 * share)
    name, unit = escaped(sheet.title), escaped(sheet.values)
    height, width = sheet.before.shape[:2]
    image = lambda address, alt, more="": (  # noqa: E731
        f'<img src="{address}" width="{width}" height="{height}" alt="{alt}"{more}>'
    )
    colours = f"Reference in red, {name} in cyan"
    swipe = (
        f'<div class="swipe" style="--ratio:{width / height:.4f}">'
        f"<figure>{image(before, f'{colours}, before alignment')}"
        f"<figcaption>Before: reference red, map cyan, grey where they agree.</figcaption></figure>"
        f"<figure>{image(after, f'{colours}, after alignment')}"
        f"<figcaption>After.</figcaption></figure>"
        f'<input type="range" min="0" max="100" value="50" aria-label="Swipe between before and after, {name}">'
        '<span class="tag left"></span><span class="tag right"></span><span class="bar"></span></div>'
        f'<div class="tools" data-reference="{key}r" data-map="{key}m">'
        '<button type="button" aria-pressed="false">Reference and map in grey</button>'
        '<button type="button" aria-pressed="false">Flicker</button></div>'
    )
    single = lambda address, words, more="": (  # noqa: E731
        f"<figure>{image(address, f'{words}, {name}', more)}<figcaption>{words}.</figcaption></figure>"
    )
    scale = f"Map − reference after alignment, red above, blue below; ± {sheet.limit:.3g} {unit} holds 99 %"
    views = "".join(
        [
            single(checkerboard, "Checkerboard of the reference (reddish) and the map (bluish)"),
            single(difference, scale),
            _histogram(sheet),
            single(reference, "The reference", f' id="{key}r"'),
            single(moved, "The map on the reference's grid", f' id="{key}m"'),
        ]
    )
    opened = " open" if is_open else ""
    return (
        f'<details{opened}><summary>{name} <span class="soft">{escaped(sheet.caption)}</span></summary>'
        f'<div>{swipe}<div class="views">{views}</div></div></details>'
    )


def _histogram(sheet: Sheet) -> str:
    """The residuals of all pixels, before and after."""
    found = sheet.residuals
    if found is None:
        return "<p>The two have no pixel in common.</p>"
    figure = figure_of(4.2, 3.0)
    axis = figure.subplots()
    edges = np.linspace(-found.limit, found.limit, len(found.after) + 1)
    axis.stairs(100 * found.after, edges, fill=True, color=AFTER, alpha=0.7, label="after")
    axis.stairs(100 * found.before, edges, color=BEFORE, linewidth=1.2, label="before")
    axis.set_xlabel("map − reference", fontsize=9)
    axis.set_ylabel("% of pixels", fontsize=9, color=INK)
    axis.tick_params(labelsize=8)
    axis.legend(fontsize=8, frameon=False)
    axis.spines[["top", "right"]].set_visible(False)
    words = (
        f"Differences {escaped(sheet.values)}: RMS {found.rms_before:.4g} before, {found.rms:.4g} after "
        f"(1.4826 MAD {found.spread:.4g})"
    )
    drawing = svg_of(figure, f"{words}, {escaped(sheet.title)}")
    return f"<figure>{drawing}<figcaption>{words}.</figcaption></figure>"


def _convergence(chapter: Chapter) -> str:
    series = chapter.curves
    if not series:
        return ""
    words = escaped(
        f"Root mean square residual after each step, level by level, of {chapter.title}"
        + (f", {MOST_CURVES} of {len(series)} maps" if len(series) > MOST_CURVES else "")
    )
    drawing = svg_of(convergence_figure(series[:MOST_CURVES]), words)
    return (
        f"<details><summary>Convergence</summary><div><div class='scroll' tabindex='0' role='region' "
        f"aria-label='Convergence'><figure style='min-width:560px'>{drawing}</figure></div>"
        f"<p class='soft'>{words}.</p></div></details>"
    )


def _making(options: Mapping[str, Any] | None, seconds: float | None) -> str:
    """Options, versions and times."""
    about = {
        "mslsq": mslsq.__version__,
        "PyTorch": torch.__version__,
        "NumPy": np.__version__,
        "Python": platform.python_version(),
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
    }
    if seconds is not None:
        about["seconds in all"] = f"{seconds:.3g}"
    listed = lambda pairs: "".join(f"<dt>{escaped(k)}</dt><dd>{escaped(v)}</dd>" for k, v in pairs.items())  # noqa: E731
    parts = [f"<h2>How it was made</h2><dl>{listed(about)}</dl>"]
    if options:
        given = {name: json.dumps(value, default=str, ensure_ascii=False) for name, value in options.items()}
        parts.append(f"<h3>Options</h3><dl>{listed(given)}</dl>")
    return f"<section>{''.join(parts)}</section>"
