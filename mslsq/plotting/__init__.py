"""Pictures of solves, written as files; Matplotlib is imported when one is drawn."""

from mslsq.plotting.convergence import plot_convergence
from mslsq.plotting.figure import INK, figure_of, save_figure
from mslsq.plotting.fits import plot_fit
from mslsq.plotting.views import Panel, plot_views

__all__ = ["INK", "Panel", "figure_of", "plot_convergence", "plot_fit", "plot_views", "save_figure"]
