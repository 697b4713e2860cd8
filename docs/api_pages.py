"""The API reference, a Sphinx extension: it writes what `public_names` finds, from the docstrings.

    {public-names}                a table of all public names, one line each
    {public-module} mslsq.linear  the description of each name whose page this is

Docstrings have code in single backticks and Google's sections. `as_restructured_text` turns the former into what
autodoc reads, `napoleon` the latter. Inline code that is a public name becomes a link to its description.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import public_names
from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms import SphinxTransform
from sphinx.util import logging

CODE = re.compile(r"(:[\w:]+:`[^`]+`|``[^`]+``|`[^`]+`)")
LOGGER = logging.getLogger(__name__)
TOP_LEVEL = ("module", "class", "exception", "function", "data")
FOREIGN = ("Module", "Function", "Exception", "Enum", "int", "tuple")
"""Bases whose members are described by Python and PyTorch."""


class PublicModule(Directive):
    """Each name of a module that is described nowhere else, by autodoc; the others as links."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        module = self.arguments[0]
        here, elsewhere = [], []
        for name in public_names.names_of(module):
            (here if public_names.page_of(module, name) == module else elsewhere).append(name)
        values = {name: public_names.value_of(module, name) for name in here}
        bases = {id(base) for value in values.values() if inspect.isclass(value) for base in value.__mro__[1:]}
        leads = {name for name in here if id(values[name]) in bases or inspect.isroutine(values[name])}
        first = sorted(here, key=lambda name: name not in leads)  # functions, and what others are made from
        lines = [line for name in first for line in described(module, name)]
        if elsewhere and module != "mslsq":
            links = ", ".join(f":py:obj:`{name} <{public_names.shortest(module, name)}>`" for name in elsewhere)
            lines += [f"Can be imported from here, described elsewhere: {links}."]
        return parsed(self, [*introduction(module), *lines])


class PublicNames(Directive):
    """The one page that lists all public names."""

    def run(self) -> list[nodes.Node]:
        lines = []
        for module in public_names.public_modules():
            lines += [f".. rubric:: ``{module}``", "", ".. list-table::", "   :widths: 35 65", ""]
            for name in public_names.names_of(module):
                target = public_names.shortest(module, name)
                said = as_restructured_text([public_names.summary(public_names.value_of(module, name))])[0]
                lines += [f"   * - :py:obj:`{name} <{target}>`", f"     - {said}"]
            lines.append("")
        return parsed(self, lines)


def parsed(directive: Directive, lines: list[str]) -> list[nodes.Node]:
    """The nodes of reStructuredText, also within a page that is Markdown."""
    wrapped = [8 * "`" + "{eval-rst}", *lines, 8 * "`"] if directive.state.__class__.__name__ == "MockState" else lines
    container = nodes.container()
    directive.state.nested_parse(StringList(wrapped, source="docs/api_pages.py"), 0, container)
    return container.children


def introduction(module: str) -> list[str]:
    """The docstring of the module, which is the place of links to it; that of `mslsq` says no more than the README."""
    return [f".. py:module:: {module}" if module == "mslsq" else f".. automodule:: {module}", ""]


def described(module: str, name: str) -> list[str]:
    """The autodoc directive of one name."""
    value, full = public_names.value_of(module, name), public_names.shortest(module, name)
    if inspect.isclass(value):
        return [f".. autoclass:: {full}", *(f"   {option}" for option in options_of(value)), ""]
    if inspect.isroutine(value):
        return [f".. autofunction:: {full}", ""]
    return [f".. autodata:: {full}", "   :no-value:", ""]


def options_of(kind: type) -> list[str]:
    """What a class adds to its public bases; the members of private bases are its own."""
    names = linked_names()
    public = [base for base in kind.__mro__[1:] if base.__name__ in names]
    inherited = sorted({name for base in public for name in vars(base) if not name.startswith("_")})
    options = [":members:", f":inherited-members: {', '.join((*FOREIGN, *(base.__name__ for base in public)))}"]
    options += [f":exclude-members: {', '.join(inherited)}"] if inherited else []
    return options + ([":show-inheritance:"] if kind.__bases__ != (object,) else [])


def as_restructured_text(lines: list[str]) -> list[str]:
    """Docstring lines with inline code in double backticks and no accidental emphasis; code blocks stay as they are."""
    return [CONVERSIONS[kind](line) for kind, line in zip(kinds_of(lines), lines, strict=True)]


def kinds_of(lines: list[str]) -> Iterator[str]:
    """Of each line: prose, an example (`>>>` to the next empty line), a table, or code indented below `::`."""
    kind, depth = "prose", 0
    for line in lines:
        text, here = line.strip(), len(line) - len(line.lstrip())
        if (not text and kind in ("example", "table")) or (text and kind == "code" and here <= depth):
            kind = "prose"
        if kind == "prose" and text.startswith(">>>"):
            kind = "example"
        elif kind == "prose" and text.startswith("=="):
            kind = "table"
        yield kind
        if kind == "prose" and text.endswith("::"):
            kind, depth = "code", here


def prose(line: str) -> str:
    parts = CODE.split(line)
    for number, part in enumerate(parts):
        if number % 2 == 0:
            escaped = part.replace("\\", "\\\\").replace("*", "\\*").replace("|", "\\|")
            parts[number] = re.sub(r"(\w)_(?!\w)", r"\1\\_", escaped)
        elif not part.startswith(":"):
            before, after = parts[number - 1][-1:], parts[number + 1][:1]
            joined = [r"\ " if side.isalnum() or side == "_" else "" for side in (before, after)]
            parts[number] = f"{joined[0]}``{part.strip('`')}``{joined[1]}"
    return "".join(parts)


CONVERSIONS: dict[str, Callable[[str], str]] = {
    "prose": prose,
    "example": str,
    "code": str,
    "table": lambda line: line.replace("|", "\N{DIVIDES}"),  # cells stand in columns: nothing may become longer
}


def convert_docstring(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = as_restructured_text(lines)


class LinkedNames(SphinxTransform):
    """Inline code that is a public name, with or without `mslsq.` and `()`, becomes a link."""

    default_priority = 400

    def apply(self, **options: Any) -> None:
        known = linked_names()
        for literal in list(self.document.findall(nodes.literal)):
            target = known.get(literal.astext()) or known.get(literal.astext().removesuffix("()"))
            if target and not isinstance(literal.parent, (nodes.reference, pending_xref)):
                link = pending_xref("", refdomain="py", reftype="obj", reftarget=target, refexplicit=True, refwarn=True)
                literal.replace_self(link)
                link += literal


def linked_names() -> dict[str, str]:
    """How prose may call a public name: as at the top (`Huber`, `mslsq.Huber`), or in full (`linear.QR`)."""
    found = {}
    for module in reversed(public_names.public_modules()):
        for name in public_names.names_of(module):
            target = public_names.shortest(module, name)
            short = f"{module}.{name}".removeprefix("mslsq.")
            found |= {f"mslsq.{short}": target, f"{short}()": target}
            if (
                not name.islower() or "_" in name
            ):  # `cost` may be an attribute, `Huber` and `curve_fit` are nothing else
                found |= {short: target, name: target}
    return found


def check_complete(app: Sphinx, env: BuildEnvironment) -> None:
    """Everything public is described, and nothing else: members of classes aside."""
    modules = public_names.public_modules()
    public = {public_names.shortest(module, name) for module in modules for name in public_names.names_of(module)}
    public |= set(modules)
    objects: Any = env.get_domain("py").data["objects"]
    found = {name for name, entry in objects.items() if entry.objtype in TOP_LEVEL and not entry.aliased}
    for name in sorted(public - found):
        LOGGER.warning("%s is public and is described on no page of docs/reference", name)
    for name in sorted(found - public):
        LOGGER.warning("%s is described, and is not public", name)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("public-module", PublicModule)
    app.add_directive("public-names", PublicNames)
    app.add_transform(LinkedNames)
    app.connect("env-check-consistency", check_complete)
    app.connect("autodoc-process-docstring", convert_docstring, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
