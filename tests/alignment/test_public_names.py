"""The alignment is written on public names alone, as the README says: those that `mslsq`, or a module one level below,
lists in `__all__`."""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import mslsq
import mslsq.alignment

ROOT = Path(mslsq.alignment.__path__[0])
FILES = sorted(ROOT.rglob("*.py"))


def complaints(source: str) -> Iterator[str]:
    """What a file outside of the engine takes of it that is not public."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "mslsq":
            if node.module == "mslsq.alignment" or (node.module or "").startswith("mslsq.alignment."):
                continue
            module = importlib.import_module(node.module or "")
            for alias in node.names:
                if node.module.count(".") > 1 or alias.name not in getattr(module, "__all__", ()):
                    yield f"from {node.module} import {alias.name}"
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names if not _is_face(name.name))
        elif isinstance(node, ast.Attribute):
            yield from _of_attribute(node)


def _is_face(name: str) -> bool:
    parts = name.split(".")
    return parts[0] != "mslsq" or (len(parts) <= 2 and hasattr(importlib.import_module(name), "__all__"))


def _of_attribute(node: ast.Attribute) -> Iterator[str]:
    """`mslsq.a.b`: each is listed by the one before; and nothing private is touched but one's own."""
    written = ast.unparse(node)
    owner, _, name = written.rpartition(".")
    if name.startswith("_") and not name.startswith("__") and owner not in ("self", "cls"):
        yield written
    parts = written.split(".")
    if parts[0] != "mslsq" or not all(part.isidentifier() for part in parts):
        return
    found = mslsq
    for part in parts[1:]:
        inner = getattr(found, part)
        is_face = found is mslsq and isinstance(inner, ModuleType) and hasattr(inner, "__all__")
        if isinstance(found, ModuleType) and part not in found.__all__ and not is_face:
            yield written
            return
        found = inner


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_it_takes_public_names_alone(file):
    # a named tuple's method is public, whatever its name, and so is a package's version
    taken = [said for said in complaints(file.read_text()) if not said.endswith("._replace")]
    assert [said for said in taken if said != "mslsq.__version__"] == []


@pytest.mark.parametrize(
    "line",
    [
        "from mslsq.manifolds.base import Manifold",
        "from mslsq.manifolds import _hidden",
        "from mslsq import pytree",
        "import mslsq\nmslsq.front.costs.stated_cost",
        "import mslsq\nmslsq.linear.memo",
        "import mslsq.linear.memo",
        "kind._wrap(x)",
    ],
)
def test_a_private_name_is_seen(line):
    assert list(complaints(line))


def test_public_names_pass():
    imports = "import mslsq\nimport mslsq.losses\nfrom mslsq import SE2\nfrom mslsq.problem import ShapeError\n"
    uses = "mslsq.linear.Cholesky()\nself._own\nmslsq.Status.STALLED.sentence\n"
    assert list(complaints(imports + uses)) == []
