"""Every `Args:` section says what the signature says: the same names, in the same order, and in public all of them."""

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import mslsq

NAMES = re.compile(r"(\*{0,2}\w+(?:, \*{0,2}\w+)*): \S")
SECTION = re.compile(r"^(?P<indent> *)Args:\n(?P<body>(?:(?P=indent) +.*\n|\n)*)", re.MULTILINE)
NEXT_ENTRY = re.compile(r"[.;,] (\w+): [a-z`\"(]")
"""Where a docstring was wrapped over the border of two entries, the second stands inside of the first."""


FACES = re.compile(r"mslsq(\.(?!adjoint|kernels)\w+|\.alignment\.learned|\.datasets\.\w+)?")
"""Where public names are: at the top or one level below. What users need of the engine's rooms is in `mslsq` itself."""


class Documented(NamedTuple):
    where: str
    docstring: str
    parameters: list[str]
    required: list[str]


class Entry(NamedTuple):
    names: list[str]
    text: str


def entries(docstring: str) -> list[Entry]:
    """What an `Args:` section documents, in order; raises for a line that belongs to no entry."""
    section = SECTION.search(inspect.cleandoc(docstring) + "\n")
    if section is None:
        return []
    indent = len(section["indent"]) + 4
    found: list[Entry] = []
    for line in filter(str.strip, section["body"].split("\n")):
        depth = len(line) - len(line.lstrip())
        match = NAMES.match(line.strip())
        if depth > indent and found:
            found[-1] = Entry(found[-1].names, f"{found[-1].text} {line.strip()}")
        elif depth == indent and match:
            found.append(Entry([name.lstrip("*") for name in match[1].split(", ")], line.strip()[match.end(1) :]))
        else:
            raise ValueError(f"this line of Args begins no entry, and is not indented as a continuation: {line!r}")
    return found


def modules() -> Iterator[Any]:
    root = Path(mslsq.__path__[0])
    for file in sorted(root.rglob("*.py")):
        parts = file.relative_to(root.parent).with_suffix("").parts
        if parts[-1] != "__main__":
            yield importlib.import_module(".".join(parts).removesuffix(".__init__"))


def parameters_of(value: Any) -> list[str]:
    """What may be documented: of a cost function the arguments of its residual too, which are its data by name."""
    named = list(inspect.signature(value.forward if is_a(value, torch.autograd.Function) else value).parameters)
    if is_a(value, mslsq.CostFunction) and value is not mslsq.CostFunction:
        named = [*inspect.signature(value.residual).parameters, *inspect.signature(mslsq.CostFunction).parameters]
    return [name for name in dict.fromkeys(named) if name not in ("self", "cls", "ctx")]


def required_of(value: Any) -> list[str]:
    """What has to be documented: of an option class its own options, of a cost function what its residual takes."""
    if is_dataclass(value):  # fields that do not count in comparisons are not options: the engine fills them in
        own = inspect.get_annotations(value)
        return [field.name for field in fields(value) if field.compare and field.name in own]
    if is_a(value, mslsq.CostFunction):
        return [name for name in inspect.signature(value.residual).parameters if name != "self"]
    return parameters_of(value)


def is_a(value: Any, kind: type) -> bool:
    return inspect.isclass(value) and issubclass(value, kind)


def documented() -> Iterator[Documented]:
    """All functions, classes and methods of the package whose docstring has an `Args:` section."""
    faces = [module for module in modules() if FACES.fullmatch(module.__name__)]
    public = {id(getattr(face, name)) for face in faces for name in getattr(face, "__all__", ())}
    for module in modules():
        for value in vars(module).values():
            if getattr(value, "__module__", None) != module.__name__ or not callable(value):
                continue
            is_public = id(value) in public
            where = f"{module.__name__}.{value.__name__}"
            yield from _one(where, value, is_public)
            if inspect.isclass(value):
                for name, method in vars(value).items():
                    plain = getattr(method, "__func__", method)  # of static and class methods
                    if inspect.isfunction(plain):
                        yield from _one(f"{where}.{name}", plain, is_public and not name.startswith("_"))


def _one(where: str, value: Any, public: bool) -> Iterator[Documented]:
    docstring = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
    if isinstance(docstring, str) and SECTION.search(inspect.cleandoc(docstring) + "\n"):
        yield Documented(where, docstring, parameters_of(value), required_of(value) if public else [])


ALL = list(documented())


def test_there_are_docstrings_to_compare():
    trees = [ast.parse(Path(module.__file__).read_text()) for module in modules()]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    definitions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    written = [node for node in definitions if SECTION.search((ast.get_docstring(node) or "") + "\n")]
    assert len(ALL) == len(written) > 40
    required = {one.where for one in ALL if one.required}
    assert {"mslsq.alignment.align.align", "mslsq.front.curve_fit.curve_fit"} <= required


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.where)
def test_args_are_the_parameters_in_their_order(one: Documented):
    names = [name for entry in entries(one.docstring) for name in entry.names]
    assert [name for name in names if name not in one.parameters] == []
    assert names == [name for name in one.parameters if name in names]
    assert [name for name in one.required if name not in names] == []


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.where)
def test_no_entry_swallows_its_neighbour(one: Documented):
    swallowed = [name for entry in entries(one.docstring) for name in NEXT_ENTRY.findall(entry.text)]
    assert [name for name in swallowed if name in one.parameters] == []


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("x: the one.\n    y: the other.", ["x", "y"]),
        ("x, y: both\n        of them.\n    *args: more.\n    **keywords: and more.", ["x", "y", "args", "keywords"]),
        ("x: the\n    one. y: the other.", "this line of Args"),
        ("x: the one\n    y", "this line of Args"),
    ],
)
def test_a_section_is_read_as_a_reader_does(body, said):
    indented = body.replace("\n", "\n    ")
    docstring = f"What it does.\n\n    Args:\n        {indented}\n\n    Returns:\n        z: no.\n    "
    if isinstance(said, list):
        assert [name for entry in entries(docstring) for name in entry.names] == said
        return
    with pytest.raises(ValueError, match=said):
        entries(docstring)


DIALECT = re.compile(
    r"(?<![^\W_])(nobody|whoever|anew|somebody|everybody|for who(?!,| in\b|\])|so many|so much|disposes|foretells?)"
    r"(?![^\W_])",  # parts of names too
    re.IGNORECASE,
)


def test_words_are_the_fields():
    """Plain English: words that a reader whose second language it is would have to look up, or read twice."""
    root = Path(mslsq.__file__).parents[1]
    folders = ("mslsq", "scripts", "examples", "configs", "benchmarks", "docs", "tests", ".ci")
    files = [path for folder in folders for path in (root / folder).rglob("*") if path != Path(__file__)]
    files += root.glob("*.md")
    found = [
        f"{path.relative_to(root)}:{number}: {line.strip()}"
        for path in files
        if path.suffix in (".py", ".yaml", ".md") and "results" not in path.parts
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if DIALECT.search(line)
    ]
    assert not found
