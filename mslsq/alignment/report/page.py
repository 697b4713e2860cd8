"""`report.html` of an alignment: what became of every map, in chapters. It reads without scripts in a plainer form."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mslsq.alignment.report.comparisons import Sheet
from mslsq.alignment.report.encoding import Picture, data_addresses, svg_of
from mslsq.alignment.report.figures import convergence, convergence_figure, mosaics, overlay
from mslsq.alignment.report.frame import write_frame
from mslsq.alignment.report.placements import graph_figure, links_of, outlines_figure, placements
from mslsq.alignment.report.summary import sentence_of, summary_html
from mslsq.alignment.report.text import escaped
from mslsq.alignment.report.views import comparison
from mslsq.alignment.result import Alignment, Stage

PICTURES_BYTES = 6_000_000
"""Of all pictures of a page: what mail programs send, and telephones open. More maps have smaller pictures."""

MOST_SHEETS = 40
"""Maps with pictures; of more than that, the least sure ones have some."""

MOST_CURVES, MOST_ROWS = 12, 12
"""Maps in a picture of convergence, and rows of `overlay.png`."""


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
    return write_frame(path, title, _contents(chapters), sections, options, seconds)


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
        parts.append(comparison(sheet, f"s{number}m{position}", share, is_open=position == 0 or len(chosen) <= 3))
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
