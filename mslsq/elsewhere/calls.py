"""Functions and solvers that answer an option of another library with our word."""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

from mslsq.elsewhere.options import OPTIONS_OF_CALLS, OPTIONS_OF_SOLVERS

F = TypeVar("F", bound=Callable[..., Any])
K = TypeVar("K")

STARTS: Mapping[str, str] = {
    "p0": "the start says how many parameters there are, and model(p, t) takes them as one; "
    "mslsq.interop.scipy.curve_fit has SciPy's signature, curve_fit(f, xdata, ydata)",
}
"""What other libraries do without, and why a call here does not."""


def knows_words(what: str, words: Mapping[str, str]) -> Callable[[F], F]:
    """A function that answers an option which it does not have, but another library has, with our word."""

    def knowing(function: F) -> F:
        parameters = inspect.signature(function).parameters
        known = frozenset(parameters)
        needed = [(place, name) for place, (name, own) in enumerate(parameters.items()) if own.default is own.empty]
        starts = [(place, name) for place, name in needed if name in STARTS]

        @functools.wraps(function)
        def called(*args: Any, **options: Any) -> Any:
            if not known.issuperset(options):
                for name in options:
                    if name not in known and name in words:
                        raise TypeError(f"{what} has no option {name!r}. Here: {words[name]}.")
            for place, name in starts:
                if len(args) <= place and name not in options:
                    raise TypeError(f"{what} needs {name!r}: {STARTS[name]}.")
            return function(*args, **options)

        return cast(F, called)

    return knowing


def call_knowing_words(of_solvers: Iterable[str]) -> Callable[[F], F]:
    """A front door that says our word for an option of another library, and that an option of a solver (`of_solvers`
    are their names here) belongs there."""
    words = {
        **{name: f"{words}; options belong to the solver" for name, words in OPTIONS_OF_SOLVERS.items()},
        **{name: f"it belongs to the solver: solver=mslsq.LevenbergMarquardt({name}=...)" for name in of_solvers},
        **OPTIONS_OF_CALLS,
    }
    return lambda function: knows_words(function.__qualname__.removesuffix(".__init__"), words)(function)


def solver_knowing_words(kind: type[K]) -> type[K]:
    """A solver that says our word for an option of another library's solver."""
    kind.__init__ = knows_words(kind.__name__, OPTIONS_OF_SOLVERS)(kind.__init__)
    return kind
