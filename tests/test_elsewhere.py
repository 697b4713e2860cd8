"""Who writes another library's word is told ours, and ours exists."""

import copy
import dataclasses
import inspect
import pickle
import re

import numpy as np
import pytest
import torch

import mslsq
import mslsq.factors
import mslsq.interop.scipy
import mslsq.interop.theseus
from mslsq.elsewhere.elements import NAMES_OF_ELEMENTS
from mslsq.elsewhere.members import NAMES_OF_PROBLEMS, NAMES_OF_VARIABLES
from mslsq.elsewhere.names import FAMILIES, NAMES
from mslsq.elsewhere.options import ATTRIBUTES_OF_FITS, ATTRIBUTES_OF_SOLUTIONS, OPTIONS_OF_CALLS, OPTIONS_OF_SOLVERS
from mslsq.errors import CaptureError, ProblemError

ONES = torch.ones(2, dtype=torch.float64)
SOLVERS = (mslsq.GaussNewton, mslsq.LevenbergMarquardt, mslsq.Dogleg)
GROUPS = (mslsq.SO2, mslsq.SE2, mslsq.Sim2, mslsq.SO3, mslsq.SE3, mslsq.Sim3)


def line(p):
    return 3 * p - 1


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"method": "lm"}, "solver=mslsq.LevenbergMarquardt()"),
        ({"ftol": 1e-8}, "LevenbergMarquardt(ftol=...)"),
        ({"max_nfev": 10}, "max_steps=..."),
        ({"f_scale": 1.0}, "mslsq.Huber"),
        ({"verbose": 2}, "LevenbergMarquardt(verbose=...)"),
    ],
)
def test_least_squares_says_our_word(option, said):
    with pytest.raises(TypeError, match=re.escape(said)):
        mslsq.least_squares(line, ONES, **option)


def test_other_calls_do_as_well():
    t = torch.linspace(0, 1, 5)
    with pytest.raises(TypeError, match=r"curve_fit has no option 'maxfev'.*max_steps"):
        mslsq.curve_fit(lambda p, t: p * t, t, t, torch.ones(1), maxfev=3)
    problem = mslsq.Problem(mslsq.Prior(mslsq.Variable("x", mslsq.Euclidean(2)), target=ONES[None]))
    with pytest.raises(TypeError, match=r"solve has no option 'optimizer_kwargs'.*solver="):
        mslsq.solve(problem, {"x": ONES}, optimizer_kwargs={})


def test_a_layer_says_our_word_when_it_is_called():
    x = mslsq.Variable("x", mslsq.Euclidean(2))
    layer = mslsq.LeastSquaresLayer(mslsq.Problem(mslsq.Prior(x, target=ONES[None])))
    with pytest.raises(TypeError, match=r"has no option 'input_tensors'. Here: values are the start"):
        layer(input_tensors={"x": ONES})
    with pytest.raises(TypeError, match=r"has no option 'optimizer_kwargs'. Here: options belong to the solver"):
        layer({"x": ONES}, optimizer_kwargs={})


def test_the_optimizers_of_networks_say_our_word():
    with pytest.raises(AttributeError, match=r"Here: mslsq.optim.LevenbergMarquardt"):
        mslsq.optim.LM  # noqa: B018
    with pytest.raises(ImportError, match=r"Here: torch.optim has it"):
        from mslsq.optim import Adam  # noqa: F401
    assert not hasattr(mslsq.optim, "anything")


@pytest.mark.parametrize("solver", SOLVERS)
def test_solvers_say_our_word(solver):
    with pytest.raises(TypeError, match=rf"{solver.__name__} has no option 'max_iterations'. Here: max_steps"):
        solver(max_iterations=3)


def test_a_word_that_no_library_has_is_python_s_error():
    with pytest.raises(TypeError, match="unexpected keyword argument 'flavour'"):
        mslsq.least_squares(line, ONES, flavour=1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'flavour'"):
        mslsq.Dogleg(flavour=1)


@pytest.mark.parametrize("attribute", ["x", "success", "nfev", "popt", "optimality"])
def test_a_solution_says_our_attribute(attribute):
    solution = mslsq.least_squares(line, ONES)
    with pytest.raises(AttributeError, match=f"no attribute '{attribute}'. Here: "):
        getattr(solution, attribute)
    with pytest.raises(AttributeError, match=r"no attribute 'flavour'$"):
        getattr(solution, "flavour")  # noqa: B009


def test_a_fit_says_our_attribute():
    t = torch.linspace(0, 1, 5)
    fit = mslsq.curve_fit(lambda p, t: p * t, t, 2 * t, torch.ones(1))
    for attribute, said in (("popt", ".value"), ("pcov", ".covariance"), ("redchi", ".reduced_chi"), ("cost", ".sol")):
        with pytest.raises(AttributeError, match=rf"no attribute '{attribute}'. Here: {re.escape(said)}"):
            getattr(fit, attribute)
        assert not hasattr(fit, attribute)
    with pytest.raises(AttributeError, match=r"no attribute 'flavour'$"):
        _ = fit.flavour
    with pytest.raises(TypeError, match=r"fit.value and fit.covariance"):
        _popt, _pcov = fit
    for again in (copy.copy(fit), copy.deepcopy(fit), torch.func.vmap(lambda x: fit.value * x)(torch.ones(2)) * 0 + 2):
        torch.testing.assert_close(getattr(again, "value", again).reshape(-1)[:1], fit.value)


def test_the_error_inside_of_an_attribute_of_a_fit_is_its_own():
    class Broken(mslsq.CurveFit):
        @property
        def odd(self):
            return torch.nothing_of_that_name

    with pytest.raises(AttributeError, match="nothing_of_that_name"):
        _ = Broken(*[torch.ones(1)] * 5).odd


def test_a_curve_fit_as_scipy_calls_it_is_told_of_the_start():
    t = torch.linspace(0, 1, 5)
    with pytest.raises(TypeError, match=r"curve_fit needs 'p0': .*mslsq.interop.scipy.curve_fit"):
        mslsq.curve_fit(lambda t, a: a * t, t, t)
    assert mslsq.curve_fit(model=lambda p, t: p * t, t=t, y=2 * t, p0=torch.ones(1)).value.item() == pytest.approx(2)


def test_jac_is_a_function():
    with pytest.raises(mslsq.ProblemError, match="not '2-point': without one derivatives are exact"):
        mslsq.least_squares(line, ONES, jac="2-point")


def a_problem():
    variable = mslsq.Variable("x", mslsq.Euclidean(2))
    return mslsq.Problem(mslsq.Prior(variable, target=ONES[None])), variable


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("add", "problem.extended(*costs)"),  # GTSAM, Theseus
        ("error", "problem.cost(values)"),
        ("AddResidualBlock", "mslsq.Problem(*costs)"),  # Ceres
        ("SetParameterBlockConstant", "variable.fixed(index)"),
        ("optim_vars", "problem.variables"),  # Theseus
        ("marginalCovariance", "mslsq.covariance"),
        ("optimize", "mslsq.solve(problem, values)"),
    ],
)
def test_a_problem_says_our_word(word, said):
    problem, _ = a_problem()
    with pytest.raises(AttributeError, match=f"no attribute '{word}'. Here: .*{re.escape(said)}"):
        getattr(problem, word)
    assert not hasattr(problem, word)
    with pytest.raises(AttributeError, match=r"no attribute 'flavour'$"):
        _ = problem.flavour


def test_a_variable_holds_no_numbers():
    _, variable = a_problem()
    with pytest.raises(AttributeError, match=r"no attribute 'tensor'. Here: a variable holds no numbers"):
        _ = variable.tensor
    with pytest.raises(AttributeError, match=r"no attribute 'flavour'$"):
        _ = variable.flavour
    for again in (copy.deepcopy(variable), pickle.loads(pickle.dumps(variable))):
        assert repr(again) == repr(variable)


def test_a_problem_with_such_words_is_copied():
    problem, _ = a_problem()
    assert mslsq.solve(copy.deepcopy(problem), {"x": 0 * ONES}).converged


def test_a_solution_is_no_table():
    problem, _ = a_problem()
    solution = mslsq.solve(problem, {"x": 0 * ONES})
    with pytest.raises(TypeError, match=r"solution.value\['x'\]"):
        solution["x"]
    with pytest.raises(TypeError, match="not iterable"):
        iter(solution)


@pytest.mark.parametrize("given", [np.zeros(2), [0.0, 0.0], 1.0], ids=["NumPy", "list", "number"])
def test_what_is_no_tensor_is_told_how_it_becomes_one(given):
    problem, _ = a_problem()
    how = r"Write torch\.(as_)?tensor\(...\)"
    for call in (
        lambda: mslsq.solve(problem, {"x": given}),
        lambda: problem.cost({"x": given}),
        lambda: problem.residuals({"x": given}),
        lambda: mslsq.LeastSquaresLayer(problem)({"x": given}),
        lambda: mslsq.explain(problem, {"x": given}),
    ):
        with pytest.raises(ValueError, match=how):
            call()
    if not isinstance(given, list):  # which is a pytree of two
        with pytest.raises(ProblemError, match=how):
            problem.cost({"x": ONES}, {"prior": {"target": given}})
    for kind in GROUPS:
        for call in (kind.exp, kind.identity().act):
            with pytest.raises(mslsq.errors.ManifoldError, match=how):
                call(given)


def test_elements_of_groups():
    with pytest.raises(mslsq.errors.ManifoldError, match="from_xyt"):
        mslsq.SE2(1.0, 2.0, 0.3)
    for given in [(1.0, 2.0, 0.3), (np.array([1.0, 2.0, 0.3]),), (torch.zeros(4),)]:
        with pytest.raises(mslsq.errors.ManifoldError, match=r"SE2\.from_xyt takes"):
            mslsq.SE2.from_xyt(*given)
    pose = mslsq.SE2.identity()
    for product in (lambda: pose * pose, lambda: 2 * pose):
        with pytest.raises(mslsq.errors.ManifoldError, match="a @ b"):
            product()


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("Expmap", ".exp(tangent)"),  # GTSAM
        ("Logmap", ".log()"),
        ("localCoordinates", ".local(other)"),
        ("transformTo", ".inverse().act(points)"),
        ("exp_map", ".exp(tangent)"),  # Theseus
        ("transform_from", ".act(points)"),
        ("Inv", ".inverse()"),  # PyPose
        ("Retr", ".retract(tangent)"),
        ("rplus", ".retract(tangent)"),  # manif
        ("Adj", ".adjoint()"),  # Sophus
        ("as_matrix", ".matrix()"),  # SciPy, jaxlie
    ],
)
@pytest.mark.parametrize("kind", GROUPS)
def test_groups_and_their_elements_say_our_word(kind, word, said):
    for asked in (kind, kind.identity()):
        with pytest.raises(AttributeError, match=rf"{kind.__name__} has no '{word}'. Here: {re.escape(said)}"):
            getattr(asked, word)
        assert not hasattr(asked, word)
        assert getattr(asked, word, None) is None
    with pytest.raises(AttributeError, match=r"no attribute 'flavour'$"):
        _ = kind.identity().flavour


def test_no_group_is_said_to_have_what_it_does_not():
    with pytest.raises(AttributeError, match=r"SE3 has no 'rjac'. Here: .right_jacobian\(tangent\)"):
        _ = mslsq.SE3.rjac
    with pytest.raises(AttributeError, match=r"Sim3 has no 'rjac'.$"):
        _ = mslsq.Sim3.rjac
    with pytest.raises(AttributeError, match=r"SO3 has no 'trans'.$"):
        _ = mslsq.SO3.identity().trans


def test_a_group_of_a_user_may_have_such_names():
    class Own(mslsq.SO2):
        coeffs = 3

        def Log(self):
            return self.log()

    own = Own.identity()
    assert own.coeffs == 3
    assert own.Log().shape == (1,)
    own.theta = 2.0
    assert own.theta == 2.0


@pytest.mark.parametrize("name", ["Pose3", "NonlinearFactorGraph", "LevenbergMarquardtOptimizer", "TheseusLayer"])
def test_the_package_says_our_word(name):
    with pytest.raises(AttributeError, match=f"no attribute '{name}'. Here: .*mslsq"):
        getattr(mslsq, name)
    with pytest.raises(ImportError, match=f"mslsq has no '{name}'. Here: .*mslsq"):
        exec(f"from mslsq import {name}")
    assert not hasattr(mslsq, name)


def test_a_factor_of_gtsam_is_known_by_its_beginning():
    for name, said in (("BetweenFactorPose2", "mslsq.Between"), ("BearingRangeFactor2D", "mslsq.factors.BearingRange")):
        with pytest.raises(AttributeError, match=said):
            getattr(mslsq, name)


def test_a_name_that_no_library_has_is_python_s_error_too():
    with pytest.raises(AttributeError, match=r"module 'mslsq' has no attribute 'flavour'$"):
        _ = mslsq.flavour
    with pytest.raises(ImportError, match="cannot import name 'flavour' from 'mslsq'"):
        exec("from mslsq import flavour")
    exec("from mslsq import alignment")  # a module that is not imported yet is found


def test_what_is_made_otherwise_is_made_as_before():
    solver = mslsq.LevenbergMarquardt(max_steps=3)
    for again in (copy.copy(solver), copy.deepcopy(solver), pickle.loads(pickle.dumps(solver))):
        assert again == solver
    pose = mslsq.SE3.random(2)
    for again in (copy.deepcopy(pose), pickle.loads(pickle.dumps(pose))):
        torch.testing.assert_close(again.storage, pose.storage)
    assert list(inspect.signature(mslsq.least_squares).parameters)[:3] == ["residual", "x0", "args"]


def test_no_word_of_ours_is_called_another_library_s():
    for solver in SOLVERS:
        assert not set(solver.__dataclass_fields__) & set(OPTIONS_OF_SOLVERS)
    for call in (mslsq.least_squares, mslsq.curve_fit, mslsq.solve, mslsq.separable_fit):
        words = {**OPTIONS_OF_SOLVERS, **OPTIONS_OF_CALLS}

        assert not set(inspect.signature(call).parameters) & set(words), call
    assert not {*dir(mslsq.Solution), *mslsq.Solution.__dataclass_fields__} & set(ATTRIBUTES_OF_SOLUTIONS)
    assert not {*dir(mslsq.CurveFit), *mslsq.CurveFit.__dataclass_fields__} & set(ATTRIBUTES_OF_FITS)
    assert not {*vars(mslsq), *mslsq.__all__} & set(NAMES)
    problem, variable = a_problem()
    assert not {*dir(problem), *vars(problem)} & set(NAMES_OF_PROBLEMS)
    assert not {*dir(variable), *vars(variable)} & set(NAMES_OF_VARIABLES)
    assert not [name for name in vars(mslsq) for start in FAMILIES if name.startswith(start)]
    assert not [name for name in NAMES_OF_ELEMENTS for group in GROUPS if hasattr(group, name)]


def test_what_is_recommended_exists():
    for sentence in ATTRIBUTES_OF_FITS.values():
        attribute = re.match(r"\.(\w+)", sentence)
        assert attribute is None or attribute[1] in {*dir(mslsq.CurveFit), *mslsq.CurveFit.__dataclass_fields__}
    words = (OPTIONS_OF_SOLVERS, OPTIONS_OF_CALLS, ATTRIBUTES_OF_SOLUTIONS, NAMES, FAMILIES)
    words = (*words, NAMES_OF_PROBLEMS, NAMES_OF_VARIABLES)
    for sentence in {sentence for table in words for sentence in table.values()}:
        for path in re.findall(r"mslsq\.([\w.]+\w)", sentence):
            found = mslsq
            for name in path.split("."):
                found = getattr(found, name)
        for name, option in re.findall(r"(LevenbergMarquardt|Dogleg)\((\w+)=", sentence):
            assert option in getattr(mslsq, name).__dataclass_fields__
        if sentence.startswith("."):
            attribute = re.match(r"\.(\w+)", sentence)[1]
            assert attribute in {*dir(mslsq.Solution), *mslsq.Solution.__dataclass_fields__}


def test_what_is_recommended_of_elements_exists():
    for sentence in set(NAMES_OF_ELEMENTS.values()):
        for name in re.findall(r"\.([a-z_]+)", sentence):
            assert hasattr(mslsq.SE3.identity(), name) or hasattr(mslsq.SE2, name), sentence


@pytest.mark.parametrize("kind", SOLVERS)
def test_help_still_shows_the_options_of_a_solver(kind):
    assert list(inspect.signature(kind).parameters) == [field.name for field in dataclasses.fields(kind)]


class TestOfCallsThatWereMeantOtherwise:
    T = torch.linspace(0.0, 1.0, 20, dtype=torch.float64)

    @staticmethod
    def decay(p, t, y):
        return p[0] * torch.exp(-p[1] * t) - y

    def test_a_batch_that_is_not_declared_is_told_of_in_dims(self):
        starts, y = torch.ones(3, 2, dtype=torch.float64), torch.ones(3, 20, dtype=torch.float64)
        with pytest.raises(ProblemError, match=r"start of shape \(3, 2\).*these are 3 problems.*in_dims=0"):
            mslsq.least_squares(self.decay, starts, (self.T, y))
        with pytest.raises(ProblemError, match="in_dims=0"):
            mslsq.least_squares(lambda p: p[5] - 1.0, starts)
        with pytest.raises(ProblemError, match="in_dims=0"):
            mslsq.curve_fit(lambda p, t: p[0] * torch.exp(-p[1] * t), self.T, y[0], starts)
        assert mslsq.least_squares(self.decay, starts, (self.T, y), in_dims=(0, None, 0)).value.shape == (3, 2)

    def test_the_users_own_error_is_his_where_there_is_no_batch_to_forget(self):
        with pytest.raises(RuntimeError, match="must match the size") as raised:
            mslsq.least_squares(lambda p: p + torch.ones(3, dtype=torch.float64), torch.ones(2, dtype=torch.float64))
        assert "in_dims" not in str(raised.value)

    def test_an_array_of_numpy_among_the_arguments_is_pointed_at(self):
        with pytest.raises(CaptureError, match=r"torch.from_numpy\(...\)"):
            mslsq.least_squares(self.decay, torch.ones(2, dtype=torch.float64), (self.T.numpy(), self.T))
        with pytest.raises(CaptureError) as raised:
            mslsq.least_squares(lambda p: torch.tensor(p.tolist()) + p, torch.ones(2, dtype=torch.float64))
        assert "from_numpy" not in str(raised.value)
