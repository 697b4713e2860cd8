"""Figures without a screen and without global state, written whole or not at all."""

from pathlib import Path
from typing import Any

from mslsq.replacing import replacing

INK, PAPER, ACCENT = "#1a1a1a", "white", "#1f6fb4"


def figure_of(width: float, height: float) -> Any:
    """A matplotlib figure in inches: no pyplot, so nothing to close and no backend to choose. A notebook shows it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    from mslsq.plotting.notebook import ShownFigure

    figure = ShownFigure(figsize=(width, height), dpi=110, facecolor=PAPER, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Any, path: Path) -> Path:
    """Write a PNG and return its path."""
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png")
    return path
