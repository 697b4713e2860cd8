"""The code of README.md, CONTRIBUTING.md and docs/ runs: a page's blocks in order, in one namespace and one folder."""

import linecache
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from pages import PAGES, ROOT, Block, blocks_of

LINK = re.compile(r"\]\((?!https?://)(?P<target>[^)#]+)")


def compiled(block: Block, page: Path):
    """The code of a block; tracebacks and warnings name the page and its line, and find the source there."""
    padded = "\n" * (block.line - 1) + block.code
    linecache.cache[str(page)] = (len(padded), None, padded.splitlines(keepends=True), str(page))
    return compile(padded, str(page), "exec")


def run_in_shell(block: Block, folder: Path) -> None:
    """As from a checkout in which the results shall lie in `folder`: its scripts are there, `python` is this one."""
    for name in ("scripts", "configs"):
        if not (folder / name).exists():
            (folder / name).symlink_to(ROOT / name)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = ["bash", "-euo", "pipefail", "-c", block.code]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def pristine(tmp_path, monkeypatch):
    """A folder to write into, fixed random numbers, and the default dtype put back afterwards."""
    monkeypatch.chdir(tmp_path)
    before = torch.get_default_dtype()
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(before)


SLOW = {"bilevel_weights", "depth_maps", "elevation_models", "robot_maps", "tiles_and_stars"}  # ten seconds and more
WITH_CODE = [
    pytest.param(page, id=page.stem, marks=pytest.mark.slow if page.stem in SLOW else ())
    for page in PAGES
    if blocks_of(page.read_text("utf-8"))
]


@pytest.mark.sampled(11)
@pytest.mark.parametrize("page", WITH_CODE)
def test_the_code_of_a_page_runs(page, pristine, capsys):
    namespace = {"__name__": "page"}
    for block in blocks_of(page.read_text("utf-8")):
        if block.language == "sh":
            run_in_shell(block, Path.cwd())
            continue
        program = compiled(block, page)
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


def test_blocks_are_found_with_their_lines_and_what_shall_not_run_is_skipped():
    text = "a\n```python\nx = 1\n```\n```python no-run\n1 / 0\n```\n```sh\nls\n```\n"
    text += "```sh run\npwd\n```\n```python\ny = x\n```\n"
    assert blocks_of(text) == [(3, "python", "x = 1\n"), (12, "sh", "pwd\n"), (15, "python", "y = x\n")]


def test_a_command_that_fails_is_noticed(tmp_path):
    with pytest.raises(AssertionError, match="no such file"):
        run_in_shell(Block(1, "sh", "python -c 'raise SystemExit(\"no such file\")'\nls\n"), tmp_path)
