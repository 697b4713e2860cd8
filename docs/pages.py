"""The pages that readers see, and the code in them."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
AT_THE_TOP = [ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG")]
PAGES = [*AT_THE_TOP, *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(?P<info>[^\n]*)\n(?P<code>.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """Code of a page that runs, as it stands between its fences."""

    line: int
    """Of its first line in the page."""
    language: str
    code: str


def blocks_of(text: str) -> list[Block]:
    """The blocks that run: ```python, but for those marked `no-run`, and ```sh marked `run`."""
    found = []
    for match in FENCE.finditer(text):
        language, *marks = match["info"].split() or [""]
        if (language == "python" and "no-run" not in marks) or (language == "sh" and "run" in marks):
            found.append(Block(text.count("\n", 0, match.start("code")) + 1, language, match["code"]))
    return found


def python_of(path: Path) -> str:
    """All Python of a page, one block after the other."""
    return "\n".join(block.code for block in blocks_of(path.read_text("utf-8")) if block.language == "python")
