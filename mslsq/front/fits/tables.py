"""Fits as plain numbers: a dict for JSON, a table for pandas."""

from typing import TYPE_CHECKING, Any

from mslsq.front.fits.report import correlations_of, rows_of, statistics_of

if TYPE_CHECKING:
    from mslsq.front.fits.result import CurveFit


def dict_of(fit: "CurveFit") -> dict[str, Any]:
    """Of one fit its parameters by name, correlations and statistics; of a batch lists over its fits."""
    solution = fit.solution
    found: dict[str, Any] = {"parameters": _parameters(fit)}
    if solution.cost.ndim == 0:
        found["correlations"] = {f"{first}, {second}": value for first, second, value in correlations_of(fit)}
    found |= {name: figure.tolist() for name, figure in statistics_of(fit).items()}
    found |= {
        "num_parameters": fit.num_parameters,
        "num_evaluations": solution.num_evaluations.tolist(),
        "num_steps": solution.num_steps.tolist(),
        "converged": solution.converged.tolist(),
        "message": solution.message(),
    }
    return found


def _parameters(fit: "CurveFit") -> dict[str, dict[str, Any]]:
    values, errors = (fit.fitted.recipe.parameters.vector(tree).detach() for tree in (fit.value, fit.standard_errors))
    return {
        name: {"value": values[..., number].tolist(), "standard_error": errors[..., number].tolist()}
        for number, name in enumerate(fit.names)
    }


def frame_of(fit: "CurveFit") -> Any:
    """A `pandas.DataFrame` with a row per parameter of one fit, or a row per fit of a batch."""
    try:
        import pandas  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError(
            "CurveFit.to_pandas needs pandas, which mslsq does not install by itself: pip install pandas, or "
            "mslsq[pandas]. CurveFit.to_dict() gives the same numbers without it."
        ) from error
    if fit.solution.cost.ndim == 0:
        rows = rows_of(fit)
        table = {"value": [row.value for row in rows], "standard_error": [row.error for row in rows]}
        return pandas.DataFrame(table, index=pandas.Index([row.name for row in rows], name="parameter"))
    columns: dict[str, Any] = {}
    vector = fit.fitted.recipe.parameters.vector
    values, errors = (vector(tree).detach().flatten(0, -2).cpu() for tree in (fit.value, fit.standard_errors))
    for number, name in enumerate(fit.names):
        columns[name] = values[:, number].numpy()
        columns[f"{name} standard error"] = errors[:, number].numpy()
    for name, figure in statistics_of(fit).items():
        columns[name] = figure.flatten().cpu().numpy()
    columns["converged"] = fit.solution.converged.flatten().cpu().numpy()
    batch = tuple(fit.solution.cost.shape)
    index = (
        pandas.RangeIndex(batch[0]) if len(batch) == 1 else pandas.MultiIndex.from_product([range(n) for n in batch])
    )
    return pandas.DataFrame(columns, index=index)
