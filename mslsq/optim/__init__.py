"""Training by least squares: an optimizer of PyTorch's form that takes residuals, not a loss."""

from mslsq.optim.errors import OptimizerError, ResidualError
from mslsq.optim.levenberg_marquardt import LevenbergMarquardt
from mslsq.optim.per_sample import PerSample
from mslsq.optim.report import StepReport, StepStatus

__all__ = ["LevenbergMarquardt", "OptimizerError", "PerSample", "ResidualError", "StepReport", "StepStatus"]
