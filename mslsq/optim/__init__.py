"""Training by least squares: an optimizer of PyTorch's form that takes residuals, not a loss."""

from typing import TYPE_CHECKING

from mslsq.elsewhere.names import NAMES_OF_OPTIMIZERS, module_knowing_words
from mslsq.optim.errors import OptimizerError, ResidualError
from mslsq.optim.levenberg_marquardt import LevenbergMarquardt
from mslsq.optim.per_sample import PerSample
from mslsq.optim.report import StepReport, StepStatus

__all__ = ["LevenbergMarquardt", "OptimizerError", "PerSample", "ResidualError", "StepReport", "StepStatus"]

if not TYPE_CHECKING:
    __getattr__ = module_knowing_words(__name__, NAMES_OF_OPTIMIZERS)
