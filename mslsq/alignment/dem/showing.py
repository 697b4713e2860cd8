"""`plot`, `report` and the table of a notebook: what the command line writes, of models in memory."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mslsq.alignment.dem.errors import CoregistrationError
from mslsq.alignment.dem.figures import differences_figure
from mslsq.alignment.dem.report import table_of, write_report
from mslsq.alignment.dem.result import Coregistration, elevations, on_grid
from mslsq.alignment.report.text import escaped
from mslsq.plotting import save_figure


def plot(found: Coregistration, reference: Any, dem: Any, path: Path | str | None) -> Any:
    """`Coregistration.plot`."""
    if not np.isfinite(found.shift[2]):
        raise CoregistrationError(f"Coregistration.plot: nothing was found to show. {found.reason}")
    fixed, given = elevations(reference), elevations(dem)
    before = on_grid(given, found.shape, found.offset) - fixed
    after = found.apply(given) - fixed.numpy()
    try:
        figure = differences_figure(before.numpy(), after, found)
    except ImportError as error:
        raise ImportError("Coregistration.plot needs matplotlib: pip install matplotlib, or mslsq[align].") from error
    if path is not None:
        save_figure(figure, Path(path))
    return figure


def report(
    found: Coregistration,
    path: Path | str,
    reference: Any,
    dem: Any,
    options: Mapping[str, Any] | None,
    title: str,
) -> Path:
    """`Coregistration.report`."""
    try:
        return write_report(found, reference, dem, Path(path), options=options, title=title)
    except ImportError as error:
        raise ImportError("Coregistration.report needs matplotlib and pillow: pip install mslsq[align].") from error


def table(found: Coregistration) -> str:
    """`Coregistration._repr_html_`."""
    return f"<p>{escaped(found.message())}</p>{table_of(found)}"
