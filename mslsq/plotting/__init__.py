"""Pictures of solves, written as files; Matplotlib is imported when one is drawn."""

from mslsq.plotting.convergence import plot_convergence
from mslsq.plotting.views import Panel, plot_views

__all__ = ["Panel", "plot_convergence", "plot_views"]
