"""The pages that readers see, and the Python in them."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
AT_THE_TOP = [ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG")]
PAGES = [*AT_THE_TOP, *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(?P<info>[^\n]*)\n(?P<code>.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)


def blocks_of(text: str) -> list[tuple[int, str]]:
    """The ```python blocks with the number of their first line; those marked `no-run` are left out."""
    found = []
    for match in FENCE.finditer(text):
        words = match["info"].split()
        if words and words[0] == "python" and "no-run" not in words:
            found.append((text.count("\n", 0, match.start("code")) + 1, match["code"]))
    return found
