"""One comparison of a report as HTML: before and after, a checkerboard, the difference, a histogram of residuals."""

import numpy as np

from mslsq.alignment.report.comparisons import Sheet
from mslsq.alignment.report.encoding import data_addresses, svg_of
from mslsq.alignment.report.figures import coloured
from mslsq.alignment.report.text import escaped, plain
from mslsq.plotting import INK, figure_of

BEFORE, AFTER = "#c0392b", "#1f6fb4"


def comparison(sheet: Sheet, key: str, share: int, is_open: bool) -> str:
    """What unfolds: a swipe between before and after, a checkerboard, the difference, the residuals.

    Args:
        sheet: what is shown.
        key: of the page's names for its pictures.
        share: bytes of a picture.
        is_open: unfolded from the start.
    """
    words = sheet.words
    pictures = [
        sheet.before, sheet.after, sheet.reference, sheet.moved, sheet.checkerboard,
        coloured(sheet.difference, sheet.limit, words.colours),
    ]  # fmt: skip
    before, after, reference, moved, checkerboard, difference = data_addresses(pictures, 6 * share)
    name, unit = escaped(sheet.title), escaped(sheet.values)
    height, width = sheet.before.shape[:2]
    image = lambda address, alt, more="": (  # noqa: E731
        f'<img src="{address}" width="{width}" height="{height}" alt="{alt}"{more}>'
    )
    said = {of: escaped(getattr(words, of)) for of in ("swipe", "before", "after", "grey", "name")}
    colours = f"{said['swipe']}, {name}"
    swipe = (
        f'<div class="swipe" style="--ratio:{width / height:.4f}">'
        f"<figure>{image(before, f'{colours}, before alignment')}"
        f"<figcaption>{said['before']}</figcaption></figure>"
        f"<figure>{image(after, f'{colours}, after alignment')}"
        f"<figcaption>{said['after']}</figcaption></figure>"
        f'<input type="range" min="0" max="100" value="50" aria-label="Swipe between before and after, {name}">'
        '<span class="tag left"></span><span class="tag right"></span><span class="bar"></span></div>'
        f'<div class="tools" data-reference="{key}r" data-map="{key}m" '
        f'data-name="{said["name"]}"><button type="button" aria-pressed="false">{said["grey"]}</button>'
        '<button type="button" aria-pressed="false">Flicker</button></div>'
    )
    single = lambda address, words, more="": (  # noqa: E731
        f"<figure>{image(address, f'{words}, {name}', more)}<figcaption>{words}.</figcaption></figure>"
    )
    scale = f"{escaped(words.difference)}; ± {sheet.limit:.3g} {unit} holds 99 %{of_means(sheet.means)}"
    views = "".join(
        [
            single(checkerboard, escaped(words.checkerboard)),
            single(difference, scale),
            _histogram(sheet),
            single(reference, escaped(words.reference), f' id="{key}r"'),
            single(moved, escaped(words.moved), f' id="{key}m"'),
        ]
    )
    opened = " open" if is_open else ""
    return (
        f'<details{opened}><summary>{name} <span class="soft">{escaped(sheet.caption)}</span></summary>'
        f'<div>{swipe}<div class="views">{views}</div></div></details>'
    )


def of_means(pixels: int) -> str:
    """What is to be said of colours that stand for means of `pixels` x `pixels` pixels."""
    if pixels == 1:
        return ""
    return f" of what is shown: means of {pixels} × {pixels} pixels, which have less noise than single ones"


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
    axis.set_xlabel(plain(sheet.words.axis), fontsize=9)
    axis.set_ylabel("% of pixels", fontsize=9, color=INK)
    axis.tick_params(labelsize=8)
    axis.legend(fontsize=8, frameon=False)
    axis.spines[["top", "right"]].set_visible(False)
    unit = escaped(f"in {sheet.unit}" if sheet.unit else sheet.values)
    words = (
        f"Differences {unit}: RMS {found.rms_before:.4g} before, {found.rms:.4g} after (1.4826 MAD {found.spread:.4g})"
        "; the bars at the ends hold what lies beyond them"
    )
    drawing = svg_of(figure, f"{words}, {escaped(sheet.title)}")
    return f"<figure>{drawing}<figcaption>{words}.</figcaption></figure>"
