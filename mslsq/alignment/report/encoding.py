"""Pictures inside of a page: data addresses within a budget, and figures as SVG that follows its colours."""

import base64
import hashlib
import io
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import UInt8

from mslsq.plotting import INK

SIDES = (960, 720, 540, 400, 300, 220, 160)
"""Pixels along the longer side that are tried, the largest first."""

QUALITY = 82
"""Of JPEG: edges keep their colours, which is what red and cyan is about (no subsampling of colours)."""

Picture = UInt8[np.ndarray, "h w 3"]


def data_addresses(pictures: Sequence[Picture], budget: int) -> list[str]:
    """Pictures of one size as data addresses, which together take at most `budget` bytes if the smallest side allows
    it: JPEG, or PNG where that is smaller (drawings of few colours)."""
    for side in SIDES:
        found = [_address(picture, side) for picture in pictures]
        if sum(map(len, found)) <= budget:
            break
    return found


def _address(picture: Picture, side: int) -> str:
    from PIL import Image

    image = Image.fromarray(np.ascontiguousarray(picture))
    if max(image.size) > side:
        factor = side / max(image.size)
        image = image.resize([max(1, round(length * factor)) for length in image.size], Image.Resampling.BOX)
    best: tuple[str, bytes] | None = None
    for form, options in (("jpeg", {"quality": QUALITY, "subsampling": 0}), ("png", {"optimize": False})):
        stream = io.BytesIO()
        image.save(stream, form, **options)
        if best is None or len(stream.getvalue()) < len(best[1]):
            best = form, stream.getvalue()
    assert best is not None
    return f"data:image/{best[0]};base64,{base64.b64encode(best[1]).decode()}"


def svg_of(figure: Any, words: str) -> str:
    """A figure as an SVG element: its ink has the page's colour, its text is text, its names are its own.

    `words` (escaped) say what it shows to whom does not see it.
    """
    from matplotlib import rc_context

    figure.patch.set_alpha(0)
    for axis in figure.axes:
        axis.patch.set_alpha(0)
    stream = io.StringIO()
    salt = hashlib.sha256(words.encode()).hexdigest()[:8]
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": salt, "svg.id": f"figure-{salt}"}):
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = stream.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'id="(?!figure-)([\w.-]+)"', rf'id="\1-{salt}"', text)
    text = re.sub(r'(xlink:href="#|url\(#)([A-Za-z0-9_]+)', rf"\1\2-{salt}", text)
    for colour in (INK, "#000000", "black"):
        text = text.replace(f": {colour}", ": currentColor")
    text = text.replace('<text style="', '<text fill="currentColor" style="')
    text = text.replace(": white", ": none").replace("font: ", "font-family: inherit; font: ")
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', text)
    assert size is not None
    text = re.sub(
        r"<svg [^>]*>", f'<svg viewBox="0 0 {size[1]} {size[2]}" role="img" aria-label="{words}">', text, count=1
    )
    return text.replace("xlink:href", "href")
