"""Curve fits like the one before are answered at once, with all that a fit has, where nothing else has changed."""

import gc
import pickle
import warnings
import weakref

import pytest
import torch

import mslsq
from mslsq.front import plans, repeated_fit
from mslsq.front.fits.covariance import CovarianceWarning, covariance_of_one, of_normal_equations
from tests.front.answers import noted
from tests.native.functions import NEEDS_COMPILER

F64 = torch.float64
pytestmark = NEEDS_COMPILER
T = torch.linspace(0, 2, 20, dtype=F64)
START = torch.tensor([1.0, -1.0, 0.0], dtype=F64)
OPTIONS = {"native": "wait", "trace": "always"}
SOLVER = mslsq.LevenbergMarquardt(**OPTIONS)
PYTHON = mslsq.LevenbergMarquardt(native="never", trace="never")


@pytest.fixture
def answers(monkeypatch):
    """Whether each ordinary fit was answered at once; nothing is known of calls before."""
    monkeypatch.setattr(plans, "_KEPT", weakref.WeakKeyDictionary())
    return noted(monkeypatch, repeated_fit.FitCall)


def decay(p, t):
    return p[0] * torch.exp(p[1] * t) + p[2]


def measured(seed=0, dtype=F64):
    noise = torch.randn(20, generator=torch.Generator().manual_seed(seed), dtype=F64)
    return ((1 + 0.1 * seed) * torch.exp(-1.3 * T) + 0.4 + 0.01 * noise).to(dtype)


def assert_same(found, expected, rtol=1e-6):
    close = {"rtol": rtol, "atol": 1e-3 * rtol}
    torch.testing.assert_close(found.value, expected.value, **close)
    torch.testing.assert_close(found.covariance, expected.covariance, **close)
    torch.testing.assert_close(found.standard_errors, expected.standard_errors, **close)
    torch.testing.assert_close(found.chi_square, expected.chi_square, **close)
    assert found.degrees_of_freedom.equal(expected.degrees_of_freedom)
    mine, other = found.fitted, expected.fitted
    for name in ("y", "whitening", "used", "t", "held"):
        torch.testing.assert_close(getattr(mine.tensors, name), getattr(other.tensors, name))
    assert mine.recipe.sigma == other.recipe.sigma and mine.recipe.mode == other.recipe.mode
    assert found.report() == expected.report() or rtol > 1e-9
    for one, two in zip(found.predict(), expected.predict(), strict=True):
        torch.testing.assert_close(one, two, **close)


SIGMAS = {
    "none": lambda seed: None,
    "number": lambda seed: 0.01 + 0.001 * seed,
    "tensor of one number": lambda seed: torch.tensor(0.02, dtype=F64),
    "of each point": lambda seed: torch.linspace(0.01, 0.02 + 0.001 * seed, 20, dtype=F64),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("sigma", SIGMAS)
def test_fits_like_the_one_before_are_answered_by_their_own_data(answers, sigma, absolute):
    for seed in range(5):
        options = {"sigma": SIGMAS[sigma](seed), "absolute_sigma": absolute}
        found = mslsq.curve_fit(decay, T * (1 + 0.1 * seed), measured(seed), START, solver=SOLVER, **options)
        assert_same(
            found, mslsq.curve_fit(decay, T * (1 + 0.1 * seed), measured(seed), START, solver=PYTHON, **options)
        )
    assert answers[0::2] == [False, False, True, True, True]


@pytest.mark.parametrize("max_steps", range(7))
def test_the_covariance_is_that_of_the_point_where_the_solve_ends(answers, max_steps):
    """Also where the last step was rejected: JᵀJ is that of the point that was kept."""
    for start in (START, torch.tensor([0.1, 3.0, -2.0], dtype=F64)):
        for _ in range(4):
            solver = mslsq.LevenbergMarquardt(max_steps=max_steps, **OPTIONS)
            found = mslsq.curve_fit(decay, T, measured(), start, solver=solver)
        r, jacobian = decay(found.value, T) - measured(), torch.func.jacfwd(decay)(found.value, T)
        expected = covariance_of_one(jacobian, r, torch.ones(20, dtype=torch.bool), None, False, None)
        torch.testing.assert_close(found.covariance, expected, rtol=1e-8, atol=0)
    assert answers[-1]


def test_an_ill_conditioned_fit_has_the_covariance_of_its_jacobian(answers):
    """JᵀJ has the square of its condition number: 1e13 here."""
    powers = torch.arange(9)

    def polynomial(p, t):
        return (p * t[:, None] ** powers).sum(-1)

    start = torch.zeros(9, dtype=F64)
    for seed in range(4):
        found = mslsq.curve_fit(polynomial, T, measured(seed), start, solver=SOLVER)
        jacobian = T[:, None] ** powers
        r = polynomial(found.value, T) - measured(seed)
        expected = covariance_of_one(jacobian, r, torch.ones(20, dtype=torch.bool), None, False, None)
        torch.testing.assert_close(found.covariance, expected, rtol=1e-7, atol=0)
    assert answers[-1]
    normal = (jacobian.mT @ jacobian).numpy()
    assert of_normal_equations(normal, 1.0, 11, False) is None
    assert of_normal_equations(normal[:3, :3], 1.0, 17, False) is not None


@pytest.mark.parametrize("fill", [0.0, float("nan"), float("inf")])
def test_normal_equations_that_tell_nothing_are_left(fill):
    matrix = torch.eye(3, dtype=F64).numpy()
    assert of_normal_equations(matrix, 1.0, 0, False) is None
    matrix[1, 1] = fill
    assert of_normal_equations(matrix, 1.0, 5, False) is None
    assert of_normal_equations(torch.ones(3, 3, dtype=F64).numpy(), 1.0, 5, False) is None
    assert of_normal_equations(torch.eye(3).numpy(), 1.0, 5, False) is None  # float32 rounds too much


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("absolute", [False, True])
def test_the_covariance_by_numpy_is_that_by_pytorch(dtype, absolute):
    generator = torch.Generator().manual_seed(0)
    cases = [torch.randn(rows, 4, dtype=dtype, generator=generator) for rows in (30, 5, 4, 3)]
    cases += [cases[0].clone() for _ in range(5)]
    cases[-1][:, 2] = cases[-1][:, 1]
    cases[-2][3, 1] = torch.nan
    cases[-3][3, 1] = torch.inf
    cases[-4][:, 1] = 0
    cases[-5][:, 1] *= 1e-9
    for jacobian in cases:
        r = torch.randn(len(jacobian), dtype=dtype, generator=generator)
        used = torch.ones(len(jacobian), dtype=torch.bool)
        nothing = torch.zeros(4, dtype=torch.bool)
        found = covariance_of_one(jacobian, r, used, None, absolute, None)
        expected = covariance_of_one(jacobian, r, used, nothing, absolute, None)
        accuracy = {"rtol": 1e-9 if dtype == F64 else 1e-3, "atol": 0}
        torch.testing.assert_close(found, expected, equal_nan=True, **accuracy)


GAIN = 1.0


def a_global(monkeypatch):
    def model(p, t):
        return GAIN * decay(p, t)

    return lambda: model, lambda: monkeypatch.setitem(globals(), "GAIN", 2.0)


def a_cell(monkeypatch):
    gain = 1.0

    def model(p, t):
        return gain * decay(p, t)

    def change():
        nonlocal gain
        gain = 2.0

    return lambda: model, change


def a_cell_of_a_lambda_written_again(monkeypatch):
    gain = [1.0]

    def made(gain):
        return lambda p, t: gain * decay(p, t)

    return lambda: made(gain[0]), lambda: gain.__setitem__(0, 2.0)


def a_default(monkeypatch):
    def model(p, t, gain=1.0):
        return gain * decay(p, t)

    return lambda: model, lambda: setattr(model, "__defaults__", (2.0,))


def a_helper_in_the_closure(monkeypatch):
    def written(gain):
        return lambda p, t: gain * decay(p, t)

    helper = written(1.0)

    def model(p, t):
        return helper(p, t)

    def change():
        nonlocal helper
        helper = written(2.0)

    return lambda: model, change


def an_attribute(monkeypatch):
    class Model:
        gain = 1.0

        def __call__(self, p, t):
            return self.gain * decay(p, t)

    model = Model()
    return lambda: model, lambda: setattr(model, "gain", 2.0)


def an_attribute_of_the_class(monkeypatch):
    class Model:
        gain = 1.0

        def __call__(self, p, t):
            return self.gain * decay(p, t)

    model = Model()
    return lambda: model, lambda: setattr(Model, "gain", 2.0)


def a_tensor_in_the_closure(monkeypatch):
    gain = torch.ones((), dtype=F64)

    def model(p, t):
        return gain * decay(p, t)

    return lambda: model, lambda: gain.fill_(2.0)


def what_no_key_holds(monkeypatch):
    generator = torch.Generator()
    generator.manual_seed(1)

    def model(p, t):
        return float(generator.initial_seed()) * decay(p, t)

    return lambda: model, lambda: generator.manual_seed(2)


WAYS = [
    *(a_global, a_cell, a_cell_of_a_lambda_written_again, a_default, a_helper_in_the_closure, an_attribute),
    *(an_attribute_of_the_class, a_tensor_in_the_closure, what_no_key_holds),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_what_the_model_reads_is_compared(answers, monkeypatch, way):
    model, change = way(monkeypatch)
    for _ in range(4):
        first = mslsq.curve_fit(model(), T, measured(), START, solver=SOLVER)
    assert answers[-1]
    change()
    for _ in range(3):
        found = mslsq.curve_fit(model(), T, measured(), START, solver=SOLVER)
        torch.testing.assert_close(found.value[0], first.value[0] / 2, rtol=1e-6, atol=0)
        torch.testing.assert_close(found.covariance[0, 0], first.covariance[0, 0] / 4, rtol=1e-5, atol=0)


def test_a_lambda_that_is_written_in_the_call_is_answered(answers):
    for seed in range(4):
        found = mslsq.curve_fit(lambda p, t: decay(p, t), T, measured(seed), START, solver=SOLVER)
        assert_same(found, mslsq.curve_fit(decay, T, measured(seed), START, solver=PYTHON))
    assert answers[0::2] == [False, False, True, True]


@pytest.mark.slow
def test_other_calls_are_not_taken_for_those_before(answers):
    def fit(y=None, t=T, start=START, solver=SOLVER, model=decay, **options):
        return mslsq.curve_fit(model, t, measured() if y is None else y, start, solver=solver, **options)

    for _ in range(3):
        expected = fit()
    assert answers[-1]
    missing = measured()
    missing[3] = torch.nan
    assert int(fit(missing).degrees_of_freedom) == 16 and not answers[-1]
    single = fit(measured(dtype=torch.float32), T.float(), START.float())
    assert single.value.dtype == torch.float32 and not answers[-1]
    torch.testing.assert_close(single.value.double(), expected.value, rtol=1e-4, atol=1e-4)
    assert fit(measured()[:15], T[:15]).degrees_of_freedom == 12 and not answers[-1]
    assert fit(solver=mslsq.LevenbergMarquardt(max_steps=1, **OPTIONS)).solution.num_steps == 1 and not answers[-1]
    for _ in range(3):
        numbers = fit(start=[1.0, -1.0, 0.0], model=lambda p, t: decay(p, t))
        torch.testing.assert_close(torch.stack(numbers.value), expected.value, rtol=1e-6, atol=1e-9)
        assert not answers[-1]
    complex_model = lambda p, t: torch.complex(decay(p, t), torch.zeros_like(t))  # noqa: E731
    for _ in range(4):
        found = fit(torch.complex(measured(), torch.zeros_like(T)), model=complex_model)
        torch.testing.assert_close(found.value, expected.value)
        assert not answers[-1] and int(found.degrees_of_freedom) == 37
    asked = len(answers)
    bounded = fit(bounds=(None, torch.tensor([1.0, 9.0, 9.0], dtype=F64)))
    assert bounded.value[0] <= 1.0 and len(answers) == asked
    masked = fit(mask=T < 1.5)
    assert masked.degrees_of_freedom < 17 and len(answers) == asked
    with pytest.raises(mslsq.ProblemError, match="sigma must be positive"):
        fit(sigma=torch.zeros(20, dtype=F64))
    batch = fit(torch.stack([measured(0), measured(1)]), in_dims=(None, 0, None))
    torch.testing.assert_close(batch.value[0], expected.value, rtol=1e-6, atol=1e-9)
    assert_same(fit(), fit(solver=PYTHON))


def test_sigma_that_is_no_deviation_is_an_error_in_every_call(answers):
    sigma = torch.full((20,), 0.1, dtype=F64)
    for _ in range(4):
        mslsq.curve_fit(decay, T, measured(), START, sigma=sigma, solver=SOLVER)
    assert answers[-1]
    for wrong in (0.0, -1.0):
        sigma[4] = wrong
        with pytest.raises(mslsq.ProblemError, match=r"sigma\[4\]"):
            mslsq.curve_fit(decay, T, measured(), START, sigma=sigma, solver=SOLVER)
    sigma[4] = torch.nan
    with pytest.warns(CovarianceWarning):
        ended = [mslsq.curve_fit(decay, T, measured(), START, sigma=sigma, solver=one) for one in (SOLVER, PYTHON)]
    assert ended[0].solution.status.equal(ended[1].solution.status)


def test_derivatives_are_those_of_any_fit(answers):
    for _ in range(4):
        mslsq.curve_fit(decay, T, measured(), START, solver=SOLVER)
    assert answers[-1]

    def gradient(solver):
        y = measured().requires_grad_()
        found = mslsq.curve_fit(decay, T, y, START, solver=solver)
        return torch.autograd.grad(found.value.sum() + found.standard_errors.sum(), y)[0]

    torch.testing.assert_close(gradient(SOLVER), gradient(PYTHON), rtol=1e-6, atol=1e-9)
    with torch.no_grad():
        y = measured().requires_grad_()
        found = mslsq.curve_fit(decay, T, y, START, solver=SOLVER)
        assert answers[-1] and not found.value.requires_grad and not found.fitted.tensors.y.requires_grad
    mapped = torch.func.vmap(lambda y: mslsq.curve_fit(decay, T, y, START, solver=SOLVER).standard_errors)
    torch.testing.assert_close(mapped(measured()[None])[0], found.standard_errors, rtol=1e-6, atol=1e-9)


def test_a_fit_without_a_covariance_warns_in_every_call(answers):
    def model(p, t):
        return (p[0] + p[1]) * t

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(4):
            found = mslsq.curve_fit(model, T, measured(), torch.ones(2, dtype=F64), solver=SOLVER)
            assert bool(torch.isinf(found.covariance).all())
    warned = [one for one in caught if one.category is CovarianceWarning]
    assert answers[-1] and len(warned) == 4


def test_trees_of_parameters_and_of_t(answers):
    def model(p, t):
        return p["a"] * torch.exp(p["b"][0] * t["t"]) ** t["power"] + p["b"][1]

    start = {"a": torch.tensor(1.0, dtype=F64), "b": torch.tensor([-1.0, 0.0], dtype=F64)}
    for seed, power in ((0, 1), (1, 1), (2, 1), (0, 2), (1, 2)):
        t = {"t": T, "power": power}
        found = mslsq.curve_fit(model, t, measured(seed), start, solver=SOLVER)
        expected = mslsq.curve_fit(model, t, measured(seed), start, solver=PYTHON)
        assert list(found.value) == ["a", "b"] and found.standard_errors["a"].shape == ()
        for name in start:
            torch.testing.assert_close(found.value[name], expected.value[name], rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(found.covariance, expected.covariance, rtol=1e-5, atol=1e-9)
        assert found.report() == expected.report()
    assert answers[4]


def test_a_fit_has_memory_of_its_own_and_can_be_saved(answers):
    t, y = T.clone(), measured()
    for _ in range(4):
        found = mslsq.curve_fit(decay, t, y, START, solver=SOLVER)
    assert answers[-1]
    before = found.chi_square.clone(), found.predict().mean.clone()
    t.zero_(), y.zero_(), found.value.add_(0.0)
    torch.testing.assert_close(found.fitted.tensors.y, measured())
    torch.testing.assert_close(found.predict().mean, before[1])
    again = pickle.loads(pickle.dumps(found))
    assert_same(again, found)


@pytest.mark.slow
def test_nothing_of_the_users_is_kept_alive(answers):
    class Data:
        def __init__(self):
            self.gain = torch.ones((), dtype=F64)

        def __call__(self, p, t):
            return self.gain * decay(p, t)

    model, gain = Data(), torch.ones((), dtype=F64)
    for _ in range(4):
        mslsq.curve_fit(model, T, measured(), START, solver=SOLVER)
        mslsq.curve_fit(lambda p, t: gain * decay(p, t), T, measured(), START, solver=SOLVER)
    assert answers[-2:] == [True, True]
    references = [weakref.ref(model), weakref.ref(gain)]
    del model, gain
    gc.collect()
    assert [reference() for reference in references] == [None, None]
