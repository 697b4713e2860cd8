"""The picture of a curve fit shows the points, the curve and the bands of the fit itself."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import mslsq
from mslsq.plotting import plot_fit

pytest.importorskip("matplotlib")

D = torch.float64
T = torch.linspace(0, 4, 25, dtype=D)


def decay(p: Tensor, t: Tensor) -> Tensor:
    return p[0] * torch.exp(-p[1] * t) + p[2]


def measured(*shape: int) -> Tensor:
    noise = torch.randn(*shape, 25, generator=torch.Generator().manual_seed(0), dtype=D)
    return decay(torch.tensor([2.5, 1.3, 0.5], dtype=D), T) + 0.05 * noise


def test_data_curve_bands_and_residuals_are_those_of_the_fit(tmp_path: Path) -> None:
    y = measured()
    y[3] = torch.nan
    fit = mslsq.curve_fit(decay, T, y, torch.ones(3, dtype=D), sigma=0.05, absolute_sigma=True)
    figure = fit.plot(tmp_path / "fit.png", level=0.9)
    assert (tmp_path / "fit.png").read_bytes().startswith(b"\x89PNG")
    assert figure._repr_png_().startswith(b"\x89PNG")  # what a notebook shows
    upper, lower = figure.axes
    curve = next(line for line in upper.lines if line.get_label() == "fit")
    x, shown = curve.get_data()
    np.testing.assert_allclose(shown, decay(fit.value, torch.tensor(np.asarray(x))), rtol=1e-12)
    for area, band in zip(upper.collections, ("confidence", "prediction"), strict=False):
        _, low, high = fit.predict(torch.tensor(np.asarray(x)), 0.9, band)
        edges = area.get_paths()[0].vertices[:, 1]
        assert edges.min() == pytest.approx(float(low.min())) and edges.max() == pytest.approx(float(high.max()))
    residuals = lower.containers[0].lines[0].get_ydata()
    np.testing.assert_allclose(residuals, (y - decay(fit.value, T)).numpy(), rtol=1e-9)
    assert np.isnan(residuals[3])
    heights = [
        segment[1, 1] - segment[0, 1] for segment in upper.containers[0].lines[2][0].get_segments() if len(segment)
    ]
    np.testing.assert_allclose([h for h in heights if np.isfinite(h)], 0.1, rtol=1e-9)  # ± 0.05


def test_one_fit_of_a_batch_is_drawn_and_others_are_asked_for() -> None:
    fits = mslsq.curve_fit(decay, T, measured(3), torch.ones(3, dtype=D), in_dims=(None, 0, None))
    figure = plot_fit(fits, index=2, title="the third")
    np.testing.assert_allclose(figure.axes[0].containers[0].lines[0].get_ydata(), measured(3)[2])
    with pytest.raises(mslsq.ProblemError, match="say which one"):
        fits.plot()


def test_points_that_are_no_line_are_drawn_in_their_order() -> None:
    grid = torch.randn(25, 2, generator=torch.Generator().manual_seed(1), dtype=D)
    fit = mslsq.curve_fit(lambda p, t: t @ p, grid, measured(), torch.ones(2, dtype=D))
    upper, lower = fit.plot().axes
    assert lower.get_xlabel() == "number of the point"
    np.testing.assert_allclose(upper.containers[0].lines[0].get_xdata(), np.arange(25))


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    fit = mslsq.curve_fit(decay, T, measured(), torch.ones(3, dtype=D))
    with pytest.raises(ImportError, match="pip install matplotlib"):
        fit.plot()
