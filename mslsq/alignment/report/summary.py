"""What became of every map, as an HTML table and in a sentence."""

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from mslsq.alignment.report.text import escaped
from mslsq.alignment.result import Alignment, MapStatus

COLUMNS = (
    ("map", "words name"),
    ("status", "words"),
    ("placed on", "words"),
    ("correlation", ""),
    ("detail", ""),
    ("overlap", ""),
    ("gain", ""),
    ("bias", ""),
    ("± px", ""),
)


def summary_html(records: Sequence[Mapping[str, Any]], caption: str = "") -> str:
    """A table with a row per map, of the records that `transforms.json` has. Names and reasons are escaped."""
    errors = any(record.get("corner_error_px") is not None for record in records)
    columns = [*COLUMNS, *([("error px", "")] if errors else []), ("reason", "words reason")]
    head = "".join(f'<th scope="col" role="columnheader" class="{kind}">{name}</th>' for name, kind in columns)
    rows = "".join(_row(number, record, errors) for number, record in enumerate(records))
    said = f"<caption>{escaped(caption)}</caption>" if caption else ""
    return f'<table role="table">{said}<thead><tr role="row">{head}</tr></thead><tbody>{rows}</tbody></table>'


def _row(number: int, record: Mapping[str, Any], errors: bool) -> str:
    ok = record["status"] in ("reference", "aligned")
    figures = [
        number_of(record["ncc"], ".4f"),
        number_of(record["detail_ncc"], ".4f"),
        number_of(record["overlap"], ".0%"),
        number_of(record["gain"], ".4g"),
        number_of(record["bias"], ".4g"),
        pixels(record["corner_sigma_px"]),
        *([pixels(record.get("corner_error_px"))] if errors else []),
    ]
    mark = "✓" if ok else "✗"
    status = f'<span class="badge {"ok" if ok else "out"}">{mark} {escaped(record["status"].replace("_", " "))}</span>'
    names = [name for name, _ in COLUMNS[3:]] + (["error px"] if errors else [])
    parent = "" if record["status"] == "reference" else record["placed_on"] or ""
    cells = [
        f'<th scope="row" role="rowheader" class="words name">{number} {escaped(record["name"])}</th>',
        f'<td role="cell" class="words">{status}</td>',
        f'<td role="cell" class="words name" data-label="placed on">{escaped(parent)}</td>',
        *(f'<td role="cell" data-label="{name}">{figure}</td>' for name, figure in zip(names, figures, strict=True)),
        f'<td role="cell" class="words reason">{escaped(record["reason"])}</td>',
    ]
    return f'<tr role="row">{"".join(cells)}</tr>'


def number_of(value: Any, form: str) -> str:
    """A number, or nothing where there is none."""
    return "" if value is None or not math.isfinite(value) else format(value, form)


def pixels(value: Any) -> str:
    """A length in pixels: four digits behind the point, or what is below them."""
    return number_of(value, ".4f" if value is None or value >= 1e-3 or value == 0 else ".1e")


def sentence_of(result: Alignment, names: Sequence[str]) -> str:
    """How many maps are placed, on which, and how surely."""
    moved = [i for i in range(len(names)) if i != result.reference]
    placed = [i for i in moved if MapStatus(int(result.status[i])).ok]
    said = f"{len(placed)} of {len(moved)} maps placed on {names[result.reference]} by the model {result.model}."
    sigmas = sorted(float(result.corner_sigma[i]) for i in placed)
    if sigmas and math.isfinite(sigmas[-1]):
        said += f" Standard error of the corners: {median(sigmas):.3g} px in the median, {sigmas[-1]:.3g} px at most."
    return said
