"""The report of one fit, as text."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch

from mslsq.front.bounds import SIDES
from mslsq.front.fits.intervals import Interval

if TYPE_CHECKING:
    from mslsq.front.fits.result import CurveFit

LEAST_CORRELATION = 0.1
MOST_CORRELATIONS = 20


class Row(NamedTuple):
    """What is said of one entry of the parameters."""

    name: str
    value: float
    error: float
    note: str
    """Behind the figures: why an entry was not free."""


def rows_of(fit: "CurveFit") -> list[Row]:
    """One row per entry of the parameters of one fit."""
    parameters = fit.fitted.recipe.parameters
    values, errors = (parameters.vector(tree).tolist() for tree in (fit.value, fit.standard_errors))
    return [Row(*row) for row in zip(fit.names, values, errors, _notes(fit), strict=True)]


def _notes(fit: "CurveFit") -> list[str]:
    """Per entry what kept it from being free."""
    if fit.solution.active == ():
        return list(fit.notes)
    on_bound = {-1: "at its lower bound", 0: "", 1: "at its upper bound"}
    sides = fit.fitted.recipe.parameters.vector(fit.solution.active).tolist()
    return [note or on_bound[int(side)] for note, side in zip(fit.notes, sides, strict=True)]


def correlations_of(fit: "CurveFit") -> list[tuple[str, str, float]]:
    """Pairs of parameters whose correlation exceeds 0.1, the strongest first."""
    correlation, names = fit.correlation, fit.names
    first, second = torch.tril_indices(len(names), len(names), -1, device="cpu").tolist()
    pairs = [(names[j], names[i], float(correlation[i, j])) for i, j in zip(first, second, strict=True)]
    strong = [pair for pair in pairs if abs(pair[2]) > LEAST_CORRELATION]
    return sorted(strong, key=lambda pair: -abs(pair[2]))


def statistics_of(fit: "CurveFit") -> dict[str, "torch.Tensor"]:
    """The figures of a fit or of all fits of a batch, by the names of the properties of `CurveFit`."""
    names = ("chi_square", "reduced_chi_square", "aic", "bic", "r_squared", "num_points", "degrees_of_freedom")
    return {name: getattr(fit, name).detach() for name in names}


def report_of(fit: "CurveFit", interval: Interval | None, level: float) -> str:
    """All that is known of one fit, for people."""
    intervals = () if interval is None else _intervals(fit, interval, level)
    return "\n".join([*_parameters(fit), *intervals, *_correlations(fit), *_statistics(fit), *_solve(fit)])


def _parameters(fit: "CurveFit") -> Iterator[str]:
    yield "Parameters"
    rows = rows_of(fit)
    width = max(len("name"), *(len(row.name) for row in rows))
    yield f"  {'name':<{width}}  {'value':>14}  {'standard error':>14}  {'relative':>9}"
    for row in rows:
        relative = f"{abs(row.error / row.value):.2%}" if row.value else "-"
        figures = f"{row.value:>14.8g}  {row.error:>14.4g}  {relative:>9}"
        yield f"  {row.name:<{width}}  {figures}  {row.note}".rstrip()
    known = "as sigma says" if fit.fitted.recipe.absolute_sigma else "scaled by the reduced chi-square"
    known = "those of counts" if fit.fitted.recipe.noise == "poisson" else known
    yield f"  standard errors: {known}"


def _intervals(fit: "CurveFit", interval: Interval, level: float) -> Iterator[str]:
    yield f"Intervals of {level:.4g}"
    lower, upper = (fit.fitted.recipe.parameters.vector(side).tolist() for side in interval)
    notes = [""] * len(fit.names)
    bounds = [side.tolist() for side in fit.fitted.tensors.bounds]
    for place, *limits in zip(fit.fitted.recipe.places, *bounds, strict=True) if bounds else ():
        ends = zip(SIDES, (lower[place], upper[place]), limits, strict=True)
        at = [side for side, end, limit in ends if end == limit]
        notes[place] = f"ends at its {' and its '.join(at)} bound" if at else ""
    width = max(map(len, fit.names))
    for name, low, high, note in zip(fit.names, lower, upper, notes, strict=True):
        yield f"  {name:<{width}}  {low:>14.8g}  {high:>14.8g}  {note}".rstrip()


def _correlations(fit: "CurveFit") -> Iterator[str]:
    pairs = correlations_of(fit)
    if not pairs:
        return
    yield f"Correlations above {LEAST_CORRELATION}"
    width = max(len(f"{first}, {second}") for first, second, _ in pairs[:MOST_CORRELATIONS])
    for first, second, value in pairs[:MOST_CORRELATIONS]:
        yield f"  {f'{first}, {second}':<{width}}  {value:+.4f}"
    if len(pairs) > MOST_CORRELATIONS:
        yield f"  and {len(pairs) - MOST_CORRELATIONS} more"


def _statistics(fit: "CurveFit") -> Iterator[str]:
    figures = statistics_of(fit)
    yield "Statistics"
    yield f"  points                {int(figures['num_points'])}"
    yield f"  parameters varied     {fit.num_parameters}"
    yield f"  degrees of freedom    {int(figures['degrees_of_freedom'])}"
    loss = fit.fitted.recipe.loss
    meant = "  (deviance)" if fit.fitted.recipe.noise == "poisson" else "" if loss is None else f"  ({loss})"
    yield f"  chi-square            {float(figures['chi_square']):.8g}" + meant
    yield f"  reduced chi-square    {float(figures['reduced_chi_square']):.8g}"
    yield f"  AIC                   {float(figures['aic']):.8g}"
    yield f"  BIC                   {float(figures['bic']):.8g}"
    yield f"  R squared             {float(figures['r_squared']):.8g}"
    for in_deviations in fit.fitted.tensors.errors_of_t[:1]:
        yield f"  corrections of t      up to {float(in_deviations.abs().max()):.3g} standard deviations"


def _solve(fit: "CurveFit") -> Iterator[str]:
    solution = fit.solution
    yield "Solve"
    yield f"  evaluations           {int(solution.num_evaluations)} of the residual in {int(solution.num_steps)} steps"
    yield f"  {solution.message()}"
