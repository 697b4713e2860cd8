"""Every exception and every warning that can reach a caller of the front doors, in one place to import them from."""

from mslsq.adjoint.adjoint import AdjointOptionError, DerivativeOrderError
from mslsq.adjoint.compiling import ExportError
from mslsq.adjoint.warning import NotDifferentiableWarning, UnconvergedAdjointWarning
from mslsq.diagnostics.dense_factor import SingularCovarianceError
from mslsq.front.closed_costs import UnseenChangeWarning
from mslsq.front.fits.covariance import CovarianceWarning
from mslsq.front.fits.profile import ProfileWarning
from mslsq.front.prepared_call import HiddenStateError
from mslsq.front.statement import SolveInterrupted
from mslsq.kernels.library import KernelsMissingWarning
from mslsq.kernels.loading import KernelsMissingError, KernelsNotKeptWarning
from mslsq.linear.independent_kinds import EliminationError
from mslsq.linear.sparse.backends import BackendMissingError
from mslsq.linearize.agreement import DerivativeMismatchError, NonDeterministicResidualError
from mslsq.linearize.cuts import CutDerivativeWarning
from mslsq.linearize.loaded import LoadedParameterError
from mslsq.linearize.pairs import BroadcastResidualWarning
from mslsq.linearize.unmoved import NonFiniteDerivativeWarning
from mslsq.linearize.ways import SlowResidualWarning, UndifferentiableResidualError
from mslsq.manifolds.errors import ManifoldError
from mslsq.native.cuda.driver import DriverError
from mslsq.native.graphs.prospect import NativeGraphWarning
from mslsq.optim.errors import OptimizerError, ResidualError
from mslsq.parallel import JoblibMissingError, JournalError
from mslsq.problem.errors import (
    DeviceError,
    DtypeError,
    IndexRangeError,
    ProblemError,
    SecondDerivativeError,
    ShapeError,
    UnknownNameError,
)
from mslsq.ranks import RankFailedError, RankLostError, RanksDifferError, RanksError
from mslsq.replacing import NotWrittenError
from mslsq.solvers.checkpoint import CheckpointError
from mslsq.solvers.influence import NoInfluenceWarning, VanishingSquaresWarning
from mslsq.solvers.solver import SolverOptionError
from mslsq.solvers.whole_program import NativeDifferenceWarning
from mslsq.tracing.capture import CaptureError
from mslsq.tracing.inplace import InPlaceResidualWarning
from mslsq.tracing.reading.exchange import UncollectedTensorError
from mslsq.tracing.recording import NoCompilerWarning

__all__ = [
    "AdjointOptionError",
    "BackendMissingError",
    "BroadcastResidualWarning",
    "CaptureError",
    "CheckpointError",
    "CovarianceWarning",
    "CutDerivativeWarning",
    "DerivativeMismatchError",
    "DerivativeOrderError",
    "DeviceError",
    "DriverError",
    "DtypeError",
    "EliminationError",
    "ExportError",
    "HiddenStateError",
    "InPlaceResidualWarning",
    "IndexRangeError",
    "JoblibMissingError",
    "JournalError",
    "KernelsMissingError",
    "KernelsMissingWarning",
    "KernelsNotKeptWarning",
    "LoadedParameterError",
    "ManifoldError",
    "NativeDifferenceWarning",
    "NativeGraphWarning",
    "NoCompilerWarning",
    "NoInfluenceWarning",
    "NonDeterministicResidualError",
    "NonFiniteDerivativeWarning",
    "NotDifferentiableWarning",
    "NotWrittenError",
    "OptimizerError",
    "ProblemError",
    "ProfileWarning",
    "RankFailedError",
    "RankLostError",
    "RanksDifferError",
    "RanksError",
    "ResidualError",
    "SecondDerivativeError",
    "ShapeError",
    "SingularCovarianceError",
    "SlowResidualWarning",
    "SolveInterrupted",
    "SolverOptionError",
    "UncollectedTensorError",
    "UnconvergedAdjointWarning",
    "UndifferentiableResidualError",
    "UnknownNameError",
    "UnseenChangeWarning",
    "VanishingSquaresWarning",
]
