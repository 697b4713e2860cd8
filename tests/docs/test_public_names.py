"""What is public is one rule, read from `__all__`: the reference describes all of it, users' code needs no more."""

import ast
import importlib
import inspect
import pkgutil
import re
from types import ModuleType

import public_names
import pytest
from pages import PAGES, ROOT, python_of

import mslsq

MODULES = public_names.public_modules()
NAMES = [(module, name) for module in MODULES for name in public_names.names_of(module)]
REFERENCE = ROOT / "docs" / "reference"
INTERNAL = {
    "UnknownSystemError": "a map then has no place by its header; elsewhere it is a GeoreferenceError",
    "_UnknownError": "the text of the graph is not noted, and is written (`native.noted`)",
    "CompilerError": "becomes a KernelsMissingError or a warning",
    "DataDependentError": "becomes a CaptureError",
    "NotPositiveDefiniteError": "becomes an entry that could not be solved",
    "NotRecordableError": "a step is then not recorded",
    "NotScalarError": "a residual then has no native program, and `verbose` says why",
    "NoLoopError": "a recorded graph then has no native program, and PyTorch runs it",
    "UnfitError": "the recorded graph runs instead of its native program",
    "ForeignError": "a solve is then stated as the first one was",
    "TensorsWantedError": "the model of a fit is then one of tensors",
    "MoreError": "what code reads is then compared by a walk",
    "OpenError": "a call is then answered the slow way, compared with its Python",
    "TooDenseError": "one big residual then has a dense Jacobian",
}
"""Exceptions that the library catches itself."""


def resolved(dotted: str) -> object:
    """What a user's `import mslsq...` and dots lead to."""
    value: object = mslsq
    parts = dotted.split(".")
    for length, part in enumerate(parts[1:], 2):
        value = getattr(value, part) if hasattr(value, part) else importlib.import_module(".".join(parts[:length]))
    return value


@pytest.mark.parametrize(("module", "name"), NAMES, ids=lambda value: str(value).removeprefix("mslsq."))
def test_a_public_name_can_be_imported_and_stands_on_one_page(module, name):
    value = public_names.value_of(module, name)
    assert not name.startswith("_")
    assert resolved(public_names.shortest(module, name)) is value
    assert public_names.page_of(module, name) in MODULES


def test_public_names_are_at_the_top_or_one_level_below():
    """Or in a module that is itself such a name."""
    for module in MODULES:
        parent, _, name = module.rpartition(".")
        assert module == "mslsq" or parent == "mslsq" or name in public_names.names_of(parent)


def test_every_public_module_has_its_place_in_the_reference():
    written = [
        match
        for page in sorted(REFERENCE.glob("*.md"))
        for match in re.findall(r"```\{public-module\} (\S+)", page.read_text("utf-8"))
    ]
    assert sorted(written) == sorted(MODULES)


def test_every_exception_that_reaches_a_caller_is_public():
    found = {}
    for info in pkgutil.walk_packages(mslsq.__path__, "mslsq."):
        if info.name.endswith(("__main__", "libmslsq")):  # a program; the compiled kernels, which are no module
            continue
        module = importlib.import_module(info.name)
        for name, value in vars(module).items():
            if inspect.isclass(value) and issubclass(value, Exception) and value.__module__ == info.name:
                found[name] = value
    public = {public_names.value_of(module, name) for module, name in NAMES if name in found}
    assert {name for name, value in found.items() if value not in public} == set(INTERNAL)


def chains_of(code: str) -> set[str]:
    """The full names under `mslsq` that a program imports or reaches by dots."""
    tree, found, alias = ast.parse(code), set(), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "mslsq":
            found |= {f"{node.module}.{name.name}" for name in node.names}
            alias |= {name.asname or name.name: f"{node.module}.{name.name}" for name in node.names}
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names if name.name.split(".")[0] == "mslsq"}
    alias |= {"mslsq": "mslsq"}
    for node in ast.walk(tree):
        parts, inner = [], node
        while isinstance(inner, ast.Attribute):
            parts.append(inner.attr)
            inner = inner.value
        if parts and isinstance(inner, ast.Name) and inner.id in alias:
            found.add(".".join([alias[inner.id], *reversed(parts)]))
    return found


def is_public(dotted: str) -> bool:
    """Every step from module to module, and the first step out of one, stands in an `__all__`."""
    module = "mslsq"
    for part in dotted.split(".")[1:]:
        if module not in MODULES:
            return False
        inner = f"{module}.{part}"
        if inner not in MODULES:
            return part in public_names.names_of(module)  # what follows are attributes of a public thing
        module = inner
    return True


PROGRAMS = {
    **{f"{page.stem}": python_of(page) for page in PAGES},
    **{path.name: path.read_text("utf-8") for path in sorted((ROOT / "examples").glob("*.py"))},
}


@pytest.mark.parametrize("name", [name for name, code in PROGRAMS.items() if "mslsq" in code])
def test_pages_and_examples_use_public_names_alone(name):
    assert {chain for chain in chains_of(PROGRAMS[name]) if not is_public(chain)} == set()


def test_a_private_name_would_be_noticed():
    code = "import mslsq.linearize.capture\nfrom mslsq.linear import dense, QR\nmslsq.linear.QR().solve\nmslsq.pytree.x"
    private = {chain for chain in chains_of(code) if not is_public(chain)}
    assert private == {"mslsq.linearize.capture", "mslsq.linear.dense", "mslsq.pytree", "mslsq.pytree.x"}


def test_modules_are_told_from_what_they_hold():
    assert isinstance(mslsq.linear, ModuleType) and public_names.is_module("mslsq", "linear")
    assert public_names.page_of("mslsq", "Huber") == "mslsq.losses"
    assert public_names.shortest("mslsq.losses", "Huber") == "mslsq.Huber"
    assert public_names.shortest("mslsq.manifolds", "LieGroup") == "mslsq.manifolds.LieGroup"
    assert public_names.shortest("mslsq.kernels", "KernelsMissingWarning") == "mslsq.errors.KernelsMissingWarning"
