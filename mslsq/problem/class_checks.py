"""Can a class of costs work as it is written? What is wrong is said with what to write."""

import inspect
from collections.abc import Hashable
from types import FunctionType
from typing import Any

from mslsq.problem.errors import ProblemError, unknown_name
from mslsq.problem.variable import Blocks, Variable

VARIABLE_ARGUMENTS = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
MOST_SIGNATURES = 1024
_SIGNATURES: set[Hashable] = set()
"""Signatures of residuals with numbers of variables and names of data that fit them: looking at one takes 0.1 ms."""

OTHERS_WORDS = (
    *("error", "err_fn", "evaluateError", "unwhitenedError", "Evaluate", "evaluate", "compute_residual", "cost"),
    *("residuals", "forward", "__call__"),
)
"""What other libraries call a residual."""

HOW_TO_INIT = (
    "Begin __init__ with super().__init__(*variables, weight=..., loss=..., **data), and assign attributes of your own "
    "behind it. (@dataclass writes an __init__ that does not; without an __init__ of your own that of CostFunction "
    "serves.)"
)


class OfInit:
    """An attribute of cost functions that `CostFunction.__init__` assigns, before it does."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, cost: Any, owner: type) -> Any:
        if cost is None:
            raise AttributeError(self.name)  # of the class it is none
        raise ProblemError(
            f"{owner.__name__} is not complete: CostFunction.__init__ has not been called. {HOW_TO_INIT}"
        )


def check_variables(cost: Any, given: tuple[Any, ...]) -> None:
    """Are all that stand by position variables?"""
    others = [one for one in given if not isinstance(one, Variable | Blocks)]
    if not others:
        return
    names = list(inspect.signature(cost.residual).parameters)[len(given) - len(others) : len(given)]
    kinds = ", ".join(type(one).__name__ for one in others)
    raise ProblemError(
        f"Cost {cost.name!r}: by position it takes Variables or variable[index], not {kinds}. Data are given by "
        f"keyword: {', '.join(f'{name}=...' for name in names) or 'name=...'}."
    )


def check_signature(cost: Any, data: dict[str, Any], base: type) -> None:
    """Do the variables and data fit the parameters of `residual`? `base` is that of all cost functions."""
    kind = _signature(cost, data)
    if kind in _SIGNATURES:
        return
    if type(cost).residual is vars(base)["residual"] and "residual" not in vars(cost):
        raise NotImplementedError(without_residual(type(cost), base))
    signature = inspect.signature(cost.residual)
    try:
        signature.bind(*cost.references, **data)
        if kind is not None:
            if len(_SIGNATURES) >= MOST_SIGNATURES:
                _SIGNATURES.clear()
            _SIGNATURES.add(kind)
    except TypeError as error:
        given = ", ".join([*map(repr, cost.references), *data])
        keywords = [
            p.name for p in signature.parameters.values() if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        for keyword in data:
            takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
            if keyword not in keywords and not takes_any:
                raise unknown_name(f"data of cost {cost.name!r}", keyword, keywords[len(cost.references) :]) from None
        hint = " Is its first parameter, self, missing?" if _lacks_self(cost, data) else ""
        raise ProblemError(
            f"Cost {cost.name!r}: residual{signature} cannot be called with ({given}): {error}.{hint}"
        ) from None


def _lacks_self(cost: Any, data: dict[str, Any]) -> bool:
    """Does `residual`, written as a method, fit the variables and data in the place of self?"""
    function = vars(type(cost)).get("residual")
    if not isinstance(function, FunctionType):
        return False
    try:
        inspect.signature(function).bind(*cost.references, **data)
    except TypeError:
        return False
    return True


def _signature(cost: Any, data: dict[str, Any]) -> Hashable:
    """What tells whether variables and data fit; None where `residual` is no plain method of the class."""
    function = getattr(type(cost), "residual", None)
    if type(function) is not FunctionType or function.__dict__ or "residual" in vars(cost):
        return None
    code, optional = function.__code__, tuple(function.__kwdefaults__ or ())
    named = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    arguments = code.co_posonlyargcount, code.co_argcount, code.co_flags & VARIABLE_ARGUMENTS, named
    return arguments, len(function.__defaults__ or ()), optional, len(cost.references), tuple(data)


def without_residual(kind: type, base: type) -> str:
    """What to tell of a class whose residual is not written; other libraries' words for it are known."""
    own = (name for one in kind.__mro__[: kind.__mro__.index(base)] for name in vars(one))
    found = next((name for name in own if name in OTHERS_WORDS), None)
    hint = f" It has {found!r}: call that residual." if found else ""
    return f"{kind.__name__} must define residual(self, *variables, **data).{hint}"
