"""The code of README.md and of every page of docs/ runs as it stands: the blocks of a page one after the other, in one
namespace."""

import linecache
import re
import warnings
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(?P<info>[^\n]*)\n(?P<code>.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://)(?P<target>[^)#]+)")


def blocks_of(text: str) -> list[tuple[int, str]]:
    """The ```python blocks with the number of their first line; those marked `no-run` are left out."""
    found = []
    for match in FENCE.finditer(text):
        words = match["info"].split()
        if words and words[0] == "python" and "no-run" not in words:
            found.append((text.count("\n", 0, match.start("code")) + 1, match["code"]))
    return found


def compiled(code: str, page: Path, line: int):
    """The code of a block; tracebacks and warnings name the page and its line, and find the source there."""
    padded = "\n" * (line - 1) + code
    linecache.cache[str(page)] = (len(padded), None, padded.splitlines(keepends=True), str(page))
    return compile(padded, str(page), "exec")


@pytest.fixture
def pristine(tmp_path, monkeypatch):
    """A folder to write into, fixed random numbers, and the default dtype put back afterwards."""
    monkeypatch.chdir(tmp_path)
    before = torch.get_default_dtype()
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(before)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks_of(page.read_text("utf-8"))], ids=lambda p: p.stem)
def test_the_code_of_a_page_runs(page, pristine, capsys):
    namespace = {"__name__": "page"}
    for line, code in blocks_of(page.read_text("utf-8")):
        program = compiled(code, page, line)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", category=FutureWarning)  # PyTorch's own, of its pytrees
            warnings.filterwarnings("ignore", category=DeprecationWarning)
            exec(program, namespace)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_links_between_pages_lead_somewhere(page):
    targets = [match["target"] for match in LINK.finditer(page.read_text("utf-8"))]
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing


def test_blocks_are_found_with_their_lines_and_no_run_is_skipped():
    text = "a\n```python\nx = 1\n```\n```python no-run\n1 / 0\n```\n```sh\nls\n```\n```python\ny = x\n```\n"
    assert blocks_of(text) == [(3, "x = 1\n"), (12, "y = x\n")]
