"""Records of maps as a table for spreadsheets, and text that any file system's names fit in."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mslsq.replacing import write_text

COLUMNS = (
    "scene", "name", "status", "reference", "placed_on", "metric", "ncc", "detail_ncc", "lead", "overlap", "gain",
    "bias", "corner_sigma_px", "corner_error_px", "reason",
)  # fmt: skip


def write_csv(records: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """A row per map, of the records that `transforms.json` has; empty where there is no number. Returns the path."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(COLUMNS)
    rows.writerows([record.get(name) for name in COLUMNS] for record in records)
    write_text(path, storable(text.getvalue()))
    return path


def storable(text: str) -> str:
    """Names of files that are no Unicode (bytes of another encoding, as Python has them) as escapes: JSON reads them
    back."""
    return text.encode("utf-8", "backslashreplace").decode()
