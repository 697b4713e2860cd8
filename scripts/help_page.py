"""What `--help` prints: a script's own docstring, its options as `configs/` explain them, its experiments, and Hydra.

The comments in `configs/` are the one place where options are explained, the docstring that for purpose, examples and
exit codes.
"""

import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
LINE = re.compile(r"^(?P<indent> *)(?P<name>\w+): *(?P<value>[^#]*?) *(?:# *(?P<comment>.*))?$")
MORE = re.compile(r"^ +# *(?P<comment>.*)$")
NOT_OPTIONS = ("defaults", "hydra")
NAME_WIDTH = 34

HYDRA = """
Sweeps:      -m NAME=one,two OTHER=1,2 runs every combination, one after the other, and goes on where one fails;
             a table of all ends it, and sweep.csv beside the jobs' folders holds the same.
Folders:     hydra.run.dir=FOLDER is where a run writes, hydra.sweep.dir=FOLDER a sweep.
Look first:  --cfg job prints the options as a run would have them.
Completion:  eval "$(python SCRIPT -sc install=bash)" completes options by Tab (zsh and fish too: --hydra-help).
More:        --hydra-help lists what else Hydra can do.
"""


class Option(NamedTuple):
    """One line of a file in `configs/`: `section.name`, its default as written, and what it is for."""

    name: str
    default: str
    comment: str

    @property
    def is_section(self) -> bool:
        """Is it the heading of options, with none of its own?"""
        return not self.default


def options_of(name: str) -> list[Option]:
    """The options of `configs/NAME.yaml` in their order. Comments that go on below their line belong to it."""
    found: list[Option] = []
    section, skipping = "", False
    for line in (CONFIGS / f"{name}.yaml").read_text("utf-8").splitlines():
        entry, more = LINE.match(line), MORE.match(line)
        if entry is None:
            if more and found and not skipping:
                found[-1] = found[-1]._replace(comment=f"{found[-1].comment} {more['comment']}")
            continue
        if not entry["indent"]:
            section, skipping = "", entry["name"] in NOT_OPTIONS
        if skipping:
            continue
        full = f"{section}.{entry['name']}" if entry["indent"] else entry["name"]
        found.append(Option(full, entry["value"], entry["comment"] or ""))
        if found[-1].is_section:
            section = entry["name"]
    return found


def experiments_of(name: str, tasks: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Name and first sentence of the experiments that are for this script: they name its options and tasks alone."""
    known = {option.name for option in options_of(name)}
    for file in sorted((CONFIGS / "experiment").glob("*.yaml")):
        text = file.read_text("utf-8")
        values = {found["name"]: found["value"] for line in text.splitlines() if (found := LINE.match(line))}
        top = {found["name"] for line in text.splitlines() if (found := LINE.match(line)) and not found["indent"]}
        task = values.get("task")
        if top <= known and (task in tasks if task else name == "align"):
            comment = " ".join(line[1:].strip() for line in text.splitlines() if line.startswith("# "))
            comment = comment.partition("_global_")[2].strip() or comment
            yield file.stem, re.split(r"(?<=[.:]) (?=[A-Z`])", comment)[0].rstrip(":")


def help_page(docstring: str, name: str, tasks: Sequence[str], width: int = 120) -> str:
    """The whole page, wrapped to `width` columns."""
    parts = [docstring.strip(), "", f"Options, written as name=value (defaults from configs/{name}.yaml):", ""]
    for option in options_of(name):
        if option.is_section:
            parts += ["", *_entry(f"  {option.name}:", option.comment, width)]
        else:
            parts += _entry(f"  {option.name}={option.default}", option.comment, width)
    parts += ["", "Experiments, files of options under a name (configs/experiment):", ""]
    for experiment, comment in experiments_of(name, tasks):
        parts += _entry(f"  +experiment={experiment}", comment, width)
    return "\n".join([*parts, HYDRA.replace("SCRIPT", f"scripts/{name}.py").rstrip()]) + "\n"


def _entry(left: str, right: str, width: int) -> list[str]:
    """Two columns; the right one begins on the next line where the left one is too long."""
    lines = textwrap.wrap(right, max(30, width - NAME_WIDTH)) or [""]
    if len(left) < NAME_WIDTH - 1:
        first, rest = f"{left:<{NAME_WIDTH}}{lines[0]}".rstrip(), lines[1:]
    else:
        first, rest = left, lines
    return [first, *(" " * NAME_WIDTH + line for line in rest)]
