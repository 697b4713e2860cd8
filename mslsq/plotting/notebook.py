"""A figure that a notebook shows. Matplotlib's own is a line of text there until pyplot is imported."""

import io

from matplotlib.figure import Figure


class ShownFigure(Figure):
    """A figure with a picture of itself."""

    def _repr_png_(self) -> bytes:
        picture = io.BytesIO()
        self.savefig(picture, format="png")
        return picture.getvalue()
