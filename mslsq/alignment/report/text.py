"""Names from outside in pictures and pages: nothing in them is taken for mark-up."""

import html
import unicodedata


def printable(text: str) -> str:
    """Without characters that cannot be shown or stored (control codes, halves of surrogates): � stands for them."""
    return "".join("\ufffd" if unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t" else c for c in text)


def escaped(text: object) -> str:
    """For HTML, in text and in attributes."""
    return html.escape(printable(str(text)), quote=True)


LONGEST = 48
"""Letters of a name in a figure, which has no room for more: a layout with longer ones collapses."""


def plain(text: str) -> str:
    """For matplotlib, which reads $ as mathematics: one line, the end left out where it is long."""
    text = " ".join(printable(text).split())
    return (text if len(text) <= LONGEST else text[: LONGEST - 1] + "…").replace("$", r"\$")
