"""A curve fit: measurements, the fitted curve with its bands, and what is left over."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from mslsq.front.fits.fitted import flat
from mslsq.plotting.figure import ACCENT, INK, figure_of, save_figure

if TYPE_CHECKING:
    from mslsq.front.fits.result import CurveFit

FINE = 400
"""Places at which the curve is drawn."""


def plot_fit(
    fit: "CurveFit",
    path: Path | str | None = None,
    *,
    index: int | tuple[int, ...] | None = None,
    level: float = 0.95,
    title: str = "",
) -> Any:
    """Points with their errors, the curve with its confidence band and the band for new measurements (where one error
    holds for all of them); below these the residuals, data − model.

    Args:
        fit: what `mslsq.curve_fit` returned.
        path: of a PNG to write.
        index: which fit of a batch.
        level: of the bands.
        title: above the picture.

    Returns:
        The matplotlib figure; `figure.axes` are the two panels. Where t is not one number per point, the points stand
        in their order, and the curve is drawn at them alone.

    Raises:
        ImportError: matplotlib is not installed.
    """
    alone = fit.of_problem(index)
    points = alone.fitted.tensors
    used = _flat(points.used).astype(bool)
    y = np.where(used, _flat(points.y), np.nan)
    given = alone.fitted.recipe.t_of(points.t)
    is_axis = isinstance(given, Tensor) and given.ndim == 1 and given.shape == points.y.shape
    x = _flat(given) if is_axis else np.arange(len(y), dtype=float)
    at = (
        torch.linspace(float(x[used].min()), float(x[used].max()), FINE, device="cpu").to(points.y) if is_axis else None
    )
    fine = x if at is None else _flat(at)
    bands = _bands(alone, at, level)
    sigma = _errors(alone)
    model = _flat(alone.predict().mean)

    try:
        figure = figure_of(7.2, 5.4)
    except ImportError as error:
        raise ImportError("CurveFit.plot needs matplotlib: pip install matplotlib, or mslsq[align].") from error
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    for (low, high), name, shade in zip(bands, ("curve", "new measurement"), (0.35, 0.13), strict=False):
        upper.fill_between(fine, low, high, color=ACCENT, alpha=shade, linewidth=0, label=f"{level:.4g} band, {name}")
    upper.plot(fine, _flat(alone.predict(at).mean), color=ACCENT, linewidth=1.5, label="fit")
    style = {"fmt": "o", "markersize": 3.5, "color": INK, "elinewidth": 0.8}
    upper.errorbar(x, y, yerr=sigma, label="data", **style)
    lower.axhline(0, color=ACCENT, linewidth=1.2)
    lower.errorbar(x, y - model, yerr=sigma, **style)
    upper.set(ylabel="y", title=title)
    lower.set(xlabel="t" if is_axis else "number of the point", ylabel="data − fit")
    upper.legend(frameon=False, fontsize=9)
    for axis in (upper, lower):
        axis.spines[["top", "right"]].set_visible(False)
    if path is not None:
        save_figure(figure, Path(path))
    return figure


def _bands(fit: "CurveFit", at: Tensor | None, level: float) -> list[tuple[np.ndarray, np.ndarray]]:
    """Of the curve, and of new measurements where one error holds for all of them."""
    kinds = ("confidence", "prediction") if fit.fitted.recipe.sigma in ("none", "number") else ("confidence",)
    predictions = [fit.predict(at, level, band=kind) for kind in kinds]
    return [(_flat(prediction.lower), _flat(prediction.upper)) for prediction in predictions]


def _errors(fit: "CurveFit") -> np.ndarray | None:
    """The standard deviation of each point as the fit takes it: as given, times what the residuals say unless sigma
    is absolute; nothing where none was given."""
    recipe, tensors = fit.fitted.recipe, fit.fitted.tensors
    if recipe.noise == "poisson":
        return _flat(fit.predict().mean) ** 0.5
    if recipe.sigma not in ("number", "each"):
        return None
    whitening = _flat(tensors.whitening)
    scale = 1.0 if recipe.absolute_sigma else float(fit.reduced_chi_square.detach()) ** 0.5
    return scale / np.where(whitening > 0, whitening, np.nan)


def _flat(tree: Any) -> np.ndarray:
    return flat(tree).detach().cpu().numpy()
