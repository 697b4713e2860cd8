"""Functions with the names, the order of arguments and the results of SciPy's, for code that was written for it."""

from mslsq.interop.scipy.fitting import curve_fit
from mslsq.interop.scipy.minimizing import least_squares

__all__ = ["curve_fit", "least_squares"]
