"""Pictures of an alignment and the page that shows them: matplotlib without a screen, HTML without a network."""

from mslsq.alignment.report.comparisons import Comparison, Sheet, picture_of, sheet_of
from mslsq.alignment.report.page import Chapter, write_page, write_pictures
from mslsq.alignment.report.summary import summary_html

__all__ = [
    "Chapter",
    "Comparison",
    "Sheet",
    "picture_of",
    "sheet_of",
    "summary_html",
    "write_page",
    "write_pictures",
]
