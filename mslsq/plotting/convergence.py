"""The cost of a solve and its gradient, step by step."""

from pathlib import Path

import torch

from mslsq.plotting.figure import ACCENT, figure_of, save_figure
from mslsq.solution import History


def plot_convergence(history: History, title: str, path: Path) -> Path:
    """Cost and gradient norm of one problem after each step, logarithmic; steps that were rejected are hollow."""
    known = torch.isfinite(history.cost)
    steps = torch.arange(len(history.cost), device="cpu")[known]
    accepted = history.accepted[known].clone()
    accepted[:1] = True  # the start
    figure = figure_of(8.4, 3.6)
    for axis, values, name in zip(
        figure.subplots(1, 2), (history.cost[known], history.gradient_norm[known]), ("cost", "gradient"), strict=True
    ):
        values = values.detach().cpu()
        axis.plot(steps, values, color=ACCENT, linewidth=1.2)
        axis.plot(steps[accepted], values[accepted], "o", markersize=4, color=ACCENT, label="accepted")
        if not bool(accepted.all()):
            rejected = ~accepted
            axis.plot(steps[rejected], values[rejected], "o", markersize=4, color=ACCENT, fillstyle="none")
        if bool((values > 0).all()):
            axis.set_yscale("log")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.set(xlabel="step (hollow: rejected)", ylabel=name)
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize=10)
    return save_figure(figure, path)
