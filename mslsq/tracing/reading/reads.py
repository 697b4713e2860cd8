"""What a code object asks for by name: globals and cells, with the attributes read of them.

`config.model.scale` depends on one attribute of one module, not on the module: so what is followed are chains of names.
"""

import dis
import functools
import types
from dataclasses import dataclass

Chains = tuple[tuple[str, ...], ...]
"""Chains of attributes read of one name; the empty chain: it is also used as a whole (kept, passed on, called)."""

WHOLE: Chains = ((),)
BY_STRING = {"getattr", "hasattr", "vars", "globals", "attrgetter", "__dict__", "__getattribute__", "environ", "getenv"}
"""Names with which something may be read whose own name is a string."""
NOTHING = {"EXTENDED_ARG", "CACHE", "RESUME", "NOP"}


@dataclass(frozen=True)
class Reads:
    """What a code object and the code nested in it read."""

    globals: dict[str, Chains]
    free: dict[str, Chains]
    attributes: frozenset[str]
    """Names of attributes, of whatever object."""
    strings: tuple[str, ...]
    """String constants that may name what is read; only where some name of `BY_STRING` stands in the code."""
    imports: tuple[tuple[str, int], ...]
    """(module, level) of import statements."""
    environ: bool
    """Is `os.environ` or `os.getenv` among the names?"""
    table: bool
    """Is `globals()` among the names?"""


@functools.lru_cache(maxsize=4096)
def reads_of(code: types.CodeType) -> Reads:
    """The names that a code object reads; nested functions and comprehensions are part of it."""
    found: dict[str, dict[str, dict[tuple[str, ...], None]]] = {"globals": {}, "free": {}}
    attributes: dict[str, None] = {}
    imports: dict[tuple[str, int], None] = {}
    constants: list[object] = []
    open_chain: tuple[str, str, tuple[str, ...]] | None = None
    for instruction in dis.get_instructions(code):
        operation, argument = instruction.opname, instruction.argval
        if operation in NOTHING:
            continue
        if operation in ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "DELETE_ATTR"):
            attributes[argument] = None
            if open_chain is not None:
                open_chain = (open_chain[0], open_chain[1], (*open_chain[2], argument))
            continue
        if open_chain is not None:
            found[open_chain[0]].setdefault(open_chain[1], {})[open_chain[2]] = None
            open_chain = None
        if operation in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"):
            open_chain = ("globals", argument, ())
        elif operation in ("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"):
            open_chain = ("free", argument, ())
        elif operation in ("LOAD_SUPER_ATTR", "LOAD_SUPER_METHOD", "IMPORT_FROM"):
            attributes[argument] = None
        elif operation == "IMPORT_NAME":
            level = constants[-2] if len(constants) > 1 else 0
            imports[(argument, level if isinstance(level, int) else 0)] = None
        elif operation in ("LOAD_CONST", "LOAD_SMALL_INT"):
            constants.append(argument)
    strings = {constant: None for constant in code.co_consts if isinstance(constant, str)}
    by_string = not BY_STRING.isdisjoint(code.co_names)
    environ, table = not {"environ", "getenv"}.isdisjoint(code.co_names), "globals" in code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            nested = reads_of(constant)
            for kind, names in (("globals", nested.globals), ("free", nested.free)):
                for name, chains in names.items():
                    found[kind].setdefault(name, {}).update(dict.fromkeys(chains))
            attributes.update(dict.fromkeys(nested.attributes))
            imports.update(dict.fromkeys(nested.imports))
            strings.update(dict.fromkeys(nested.strings))
            by_string, environ, table = (
                by_string or bool(nested.strings),
                environ or nested.environ,
                table or nested.table,
            )
    return Reads(
        {name: tuple(chains) for name, chains in found["globals"].items()},
        {name: tuple(chains) for name, chains in found["free"].items()},
        frozenset(attributes),
        tuple(strings) if by_string else (),
        tuple(imports),
        environ,
        table,
    )
