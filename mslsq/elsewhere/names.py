"""What other libraries have at their top; a module that is asked for it says our word."""

import dis
import sys
from collections.abc import Callable, Mapping
from typing import Any

NAMES: Mapping[str, str] = {
    **dict.fromkeys(("Pose2", "Pose2d"), "mslsq.SE2; of x, y and an angle mslsq.SE2.from_xyt(...)"),
    **dict.fromkeys(
        ("Pose3", "Pose", "SE3d", "SE3f", "SE3Var", "SE3_type", "mat2SE3", "RigidTransform"),
        "mslsq.SE3; of a matrix mslsq.SE3.from_matrix(...), of a rotation and a translation mslsq.SE3.from_parts(...)",
    ),
    **dict.fromkeys(("Rot2", "Rot2d", "SO2d"), "mslsq.SO2"),
    **dict.fromkeys(
        ("Rot3", "Rotation", "Quaternion", "SO3d", "SO3f", "SO3_type", "mat2SO3"),
        "mslsq.SO3, stored as (qx, qy, qz, qw); of a matrix mslsq.SO3.from_matrix(...)",
    ),
    **dict.fromkeys(("Similarity2", "RxSO2"), "mslsq.Sim2"),
    **dict.fromkeys(("Similarity3", "RxSO3", "mat2Sim3"), "mslsq.Sim3"),
    **dict.fromkeys(("Unit3", "SphereManifold", "S2"), "mslsq.UnitVector"),
    **dict.fromkeys(("se2", "se3", "so3", "sim3"), "tangents are tensors: mslsq.SE3.exp(tangent), .log()"),
    **dict.fromkeys(("randn_SE3", "randn_SO3"), "mslsq.SE3.random(...), mslsq.SO3.random(...)"),
    **dict.fromkeys(("identity_SE3", "identity_SO3"), "mslsq.SE3.identity(...), mslsq.SO3.identity(...)"),
    **dict.fromkeys(("LieTensor", "LieGroup"), "mslsq.SE3 and others; mslsq.manifolds.LieGroup is their base"),
    **dict.fromkeys(
        ("Vector", "Point2", "Point3", "EuclideanManifold", "VarValues", "symbol", "symbol_shorthand", "Parameter"),
        "mslsq.Variable(name, mslsq.Euclidean(dim), count)",
    ),
    **dict.fromkeys(
        ("EigenQuaternionManifold", "QuaternionManifold", "LocalParameterization", "ProductManifold"),
        "mslsq.Variable(name, mslsq.SO3); products are dicts {'rotation': mslsq.SO3, ...}",
    ),
    "SubsetManifold": "variable.fixed(index, components=...)",
    "Values": "values are a dict by variable name, of tensors or elements",
    **dict.fromkeys(
        ("NonlinearFactorGraph", "FactorGraph", "SparseOptimizer", "Objective", "LeastSquaresProblem"),
        "mslsq.Problem(*costs)",
    ),
    **dict.fromkeys(
        ("Factor", "CustomFactor", "NonlinearFactor", "AutoDiffCostFunction", "SizedCostFunction", "Cost", "BaseEdge"),
        "a subclass of mslsq.CostFunction with residual(self, ...), or a function under mslsq.cost",
    ),
    **dict.fromkeys(("VertexSE3", "VertexSE2"), "mslsq.Variable(name, mslsq.SE3, count)"),
    **dict.fromkeys(("EdgeSE3", "EdgeSE2"), "mslsq.Between(a, b, measured=...)"),
    "Local": "mslsq.Prior(variable, target=...)",
    **dict.fromkeys(
        ("LevenbergMarquardtOptimizer", "LevenbergMarquardtParams", "OptimizationAlgorithmLevenberg", "LM"),
        "mslsq.LevenbergMarquardt(max_steps=...), given to mslsq.solve(problem, values, solver=...)",
    ),
    **dict.fromkeys(
        ("GaussNewtonOptimizer", "GaussNewtonParams", "OptimizationAlgorithmGaussNewton", "GN"),
        "mslsq.GaussNewton(max_steps=...), given to mslsq.solve(problem, values, solver=...)",
    ),
    **dict.fromkeys(
        ("DoglegOptimizer", "DoglegParams", "OptimizationAlgorithmDogleg"),
        "mslsq.Dogleg(max_steps=...), given to mslsq.solve(problem, values, solver=...)",
    ),
    **dict.fromkeys(("GncOptimizer", "GncParams", "GNCRobustCostFunction"), "solver=mslsq.GraduatedNonConvexity()"),
    **dict.fromkeys(
        ("ISAM2", "ISAM2Params", "NonlinearISAM"), "problem.extended(*costs), and mslsq.solve from the last values"
    ),
    "BatchFixedLagSmoother": "mslsq.marginalized(problem, values, blocks)",
    **dict.fromkeys(("Marginals", "Covariance"), "mslsq.covariance(problem, solution, name)"),
    **dict.fromkeys(
        ("noiseModel", "CostWeight", "GaussianNoise"),
        "weight=mslsq.Scale(...), mslsq.Diagonal(...) or mslsq.SqrtInformation(...)",
    ),
    "ScaleCostWeight": "weight=mslsq.Scale(...)",
    "DiagonalCostWeight": "weight=mslsq.Diagonal(...)",
    **dict.fromkeys(
        ("HuberLoss", "RobustKernelHuber", "RobustCostFunction", "RobustLossFunction", "LossFunction"),
        "loss=mslsq.Huber(...) or another of mslsq.losses",
    ),
    **dict.fromkeys(("CauchyLoss", "RobustKernelCauchy"), "loss=mslsq.Cauchy(...)"),
    "SoftLOneLoss": "loss=mslsq.SoftL1(...)",
    **dict.fromkeys(("TukeyLoss", "RobustKernelTukey"), "loss=mslsq.Tukey(...)"),
    "ArctanLoss": "loss=mslsq.Arctan(...)",
    "WelschLoss": "loss=mslsq.Welsch(...)",
    "GemanMcClureLoss": "loss=mslsq.GemanMcClure(...)",
    "TheseusLayer": "mslsq.LeastSquaresLayer(problem); Theseus' own objects by mslsq.interop.theseus",
    "eb": "mslsq.Between, mslsq.Prior, and mslsq.factors",
    **dict.fromkeys(
        ("CholeskyDenseSolver", "DENSE_QR", "DENSE_NORMAL_CHOLESKY"), "linear_solver=mslsq.linear.Cholesky()"
    ),
    **dict.fromkeys(
        ("CholmodSparseSolver", "BaspachoSparseSolver", "LUCudaSparseSolver", "SPARSE_NORMAL_CHOLESKY"),
        "linear_solver=mslsq.linear.SparseCholesky()",
    ),
    **dict.fromkeys(("DENSE_SCHUR", "SPARSE_SCHUR", "ITERATIVE_SCHUR"), "linear_solver=mslsq.linear.Schur()"),
    **dict.fromkeys(
        ("leastsq", "minimize", "optimize", "Minimizer", "fmin", "root", "fsolve"),
        "mslsq.least_squares(residual, x0); mslsq.interop.scipy.least_squares has SciPy's signature",
    ),
    **dict.fromkeys(("OptimizeResult", "MinimizerResult", "SolverSummary", "Summary"), "mslsq.Solution"),
    **dict.fromkeys(("Model", "fit"), "mslsq.curve_fit(model, t, y, p0)"),
    **dict.fromkeys(("approx_fprime", "check_grad", "GradientChecker"), "mslsq.check_jacobian(...)"),
    **dict.fromkeys(
        ("Solver", "Solve", "Optimizer", "SolverOptions", "Options"),
        "mslsq.solve(problem, values, solver=mslsq.LevenbergMarquardt(...))",
    ),
    "AddResidualBlock": "mslsq.Problem(*costs): a cost stands for all its blocks",
}
"""What other libraries have at their top."""

FAMILIES: Mapping[str, str] = {
    "BetweenFactor": "mslsq.Between(a, b, measured=...)",
    "PriorFactor": "mslsq.Prior(variable, target=...)",
    "BearingRangeFactor": "mslsq.factors.BearingRange",
    "BearingFactor": "mslsq.factors.Bearing",
    "RangeFactor": "mslsq.factors.Range",
    "GPSFactor": "mslsq.factors.Position",
    "GenericProjectionFactor": "mslsq.factors.PinholeProjection",
    "GeneralSFMFactor": "mslsq.SnavelyReprojection",
    "GenericStereoFactor": "mslsq.factors.Stereo",
    "ImuFactor": "mslsq.factors.Inertial",
    "CombinedImuFactor": "mslsq.factors.Inertial",
    "PreintegratedImuMeasurements": "mslsq.factors.preintegrate",
    "WnoaMotionFactor": "mslsq.factors.ConstantVelocity",
    "NonlinearEquality": "variable.fixed(index), or mslsq.Equality(cost)",
    "Cal3": "mslsq.factors.PinholeProjection and its like, which take intrinsics as data or as variables",
    "PinholeCamera": "mslsq.factors.PinholeProjection",
}
"""Names that GTSAM ends by the type of their variables: `BetweenFactorPose3`."""


NAMES_OF_OPTIMIZERS: Mapping[str, str] = {
    **dict.fromkeys(
        ("LM", "LMOptimizer", "LevenbergMarquardtOptimizer", "LevenbergMarquardtModule", "GN", "GaussNewton"),
        "mslsq.optim.LevenbergMarquardt(model.parameters()), whose step takes a closure that returns residuals",
    ),
    **dict.fromkeys(
        ("Adam", "AdamW", "SGD", "LBFGS", "Optimizer", "lr_scheduler"),
        "torch.optim has it; mslsq.optim.LevenbergMarquardt(model.parameters()) trains by least squares",
    ),
}
"""What other libraries have beside optimizers of networks."""


def module_knowing_words(module: str, names: Mapping[str, str] = NAMES) -> Callable[[str], Any]:
    """The `__getattr__` of a module that says our word for a name of another library."""
    families = FAMILIES if names is NAMES else {}

    def missing(name: str) -> Any:
        words = names.get(name) or next((words for start, words in families.items() if name.startswith(start)), "")
        if words and _is_imported(sys._getframe(1)):
            # An AttributeError would not be shown.
            raise ImportError(f"{module} has no {name!r}. Here: {words}.", name=module)
        raise AttributeError(f"module {module!r} has no attribute {name!r}{f'. Here: {words}.' if words else ''}")

    return missing


def _is_imported(frame: Any) -> bool:
    """Is the code of a frame at a `from ... import`?"""
    return frame.f_code.co_code[frame.f_lasti] == dis.opmap["IMPORT_FROM"]
