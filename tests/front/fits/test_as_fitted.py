"""What is asked of a fit is of the model that was fitted: where what it reads has changed since, an error says so."""

import pickle
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

import mslsq
from mslsq.problem.errors import ProblemError

D = torch.float64
T = torch.linspace(0, 4, 30, dtype=D)
Y = 2.5 * torch.exp(-1.3 * T) + 0.5 + 0.05 * torch.sin(40 * T)
START = torch.ones(3, dtype=D)
SCALE = 1.0


@dataclass
class Configuration:
    scale: float = 1.0
    shift: Tensor | None = None


def fit_of(configuration: Configuration, **options) -> mslsq.CurveFit:
    def model(p: Tensor, t: Tensor) -> Tensor:
        shift = 0.0 if configuration.shift is None else configuration.shift
        return configuration.scale * p[0] * torch.exp(-p[1] * t) + p[2] + shift

    return mslsq.curve_fit(model, T, Y, START, **options)


QUESTIONS = {
    "predict": lambda fit: fit.predict(T[:3]).mean,
    "profile": lambda fit: fit.confidence_interval(method="profile").lower,
    "r_squared": lambda fit: fit.r_squared,
    "report": lambda fit: fit.report(),
}


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("size", [2.0, 1 + 1e-6])
def test_a_question_after_the_configuration_has_changed_is_an_error(question: str, size: float) -> None:
    configuration = Configuration()
    fit = fit_of(configuration)
    before = QUESTIONS[question](fit)
    configuration.scale = size
    with pytest.raises(ProblemError, match="has changed since"):
        QUESTIONS[question](fit)
    configuration.scale = 1.0
    after = QUESTIONS[question](fit)
    assert after == before if isinstance(before, str) else torch.equal(after, before)


def test_a_global_that_has_changed_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    fit = mslsq.curve_fit(lambda p, t: SCALE * p[0] * torch.exp(-p[1] * t) + p[2], T, Y, START)
    fit.predict(T)
    monkeypatch.setitem(globals(), "SCALE", 1.5)
    with pytest.raises(ProblemError, match="has changed since"):
        fit.predict(T)


def test_a_tensor_that_is_written_to_is_seen() -> None:
    shift = torch.zeros((), dtype=D)
    fit = fit_of(Configuration(shift=shift))
    fit.predict(T)
    shift += 0.1
    with pytest.raises(ProblemError, match="written in place"):
        fit.predict(T)


def test_the_fits_that_have_changed_are_counted() -> None:
    configuration = Configuration()

    def model(p: Tensor, t: Tensor) -> Tensor:
        return p[0] * torch.exp(-p[1] * t) + p[2] * configuration.scale

    y = torch.stack([Y, Y - 0.5 - 0.05 * torch.sin(40 * T), Y])
    fits = mslsq.curve_fit(model, T, y, torch.tensor([2.5, 1.3, 0.0], dtype=D), in_dims=(None, 0, None))
    fits.predict(T)
    configuration.scale = 3.0
    with pytest.raises(ProblemError, match=r"2 of 3 fits"):
        fits.predict(T)
    fits.of_problem(1).predict(T)  # p[2] is zero there


def test_a_tie_that_has_changed_is_seen() -> None:
    factor = [5.0]
    tied = {"c": lambda p: p["a"] / factor[0]}
    start = {"a": torch.tensor(1.0, dtype=D), "rate": torch.tensor(1.0, dtype=D)}
    fit = mslsq.curve_fit(lambda p, t: p["a"] * torch.exp(-p["rate"] * t) + p["c"], T, Y, start, tied=tied)
    fit.propagate(lambda p: p["a"] + p["c"])
    factor[0] = 4.0
    for ask in (lambda: fit.propagate(lambda p: p["a"] + p["c"]), lambda: fit.sample(3), lambda: fit.predict(T)):
        with pytest.raises(ProblemError, match="has changed since"):
            ask()


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"loss": mslsq.Huber(0.5)},
        {"loss": mslsq.Cauchy(0.1), "sigma": 0.05},
        {"sigma": torch.linspace(0.02, 0.1, 30, dtype=D)},
        {"sigma": 0.01 * (torch.eye(30, dtype=D) + 0.3)},
        {"sigma_t": 0.01, "sigma": 0.05},
        {"mask": torch.arange(30) % 3 > 0},
        {"bounds": (torch.zeros(3, dtype=D), torch.tensor([2.0, 5.0, 1.0], dtype=D))},
        {"solver": mslsq.GraduatedNonConvexity(scale=0.06)},
        {"solver": mslsq.GraduatedNonConvexity(scale=0.06, loss="geman_mcclure")},
        {"solver": mslsq.LevenbergMarquardt(max_steps=2)},
    ],
    ids=str,
)
def test_fits_of_every_kind_are_asked_as_long_as_nothing_changes(options: dict) -> None:
    configuration = Configuration()
    for _ in range(3):  # recorded, and answered at once, later on
        fit = fit_of(configuration, **options)
        band = fit.predict(T)
        assert bool((band.lower <= band.upper).all()) and float(fit.r_squared) > 0.8
    configuration.scale = 1.1
    with pytest.raises(ProblemError, match="has changed since"):
        fit.predict(T)


def test_counts_are_compared_by_their_deviance() -> None:
    configuration = Configuration()

    def model(p: Tensor, t: Tensor) -> Tensor:
        return configuration.scale * p[0] * torch.exp(-p[1] * t) + p[2]

    y = (20 * Y).round()
    fit = mslsq.curve_fit(model, T, y, torch.tensor([40.0, 1.0, 5.0], dtype=D), noise="poisson")
    fit.predict(T)
    configuration.scale = 1.1
    with pytest.raises(ProblemError, match="has changed since"):
        fit.predict(T)


def test_single_precision_and_large_data_are_no_change() -> None:
    for dtype, offset in ((torch.float32, 0.0), (torch.float32, 1e5), (D, 1e9)):
        y = Y.to(dtype) + offset
        start = torch.tensor([1.0, 1.0, offset], dtype=dtype)
        for _ in range(3):
            fit = mslsq.curve_fit(lambda p, t: p[0] * torch.exp(-p[1] * t) + p[2], T.to(dtype), y, start)
            assert fit.predict(T.to(dtype)).mean.isfinite().all()


def test_a_model_that_counts_its_calls_is_asked_all_the_same() -> None:
    calls = [0]

    def model(p: Tensor, t: Tensor) -> Tensor:
        calls[0] += 1
        return p[0] * torch.exp(-p[1] * t) + p[2]

    fit = mslsq.curve_fit(model, T, Y, START)
    torch.testing.assert_close(fit.predict(T).mean, model(fit.value, T))


def test_predictions_are_differentiated_and_mapped_as_before() -> None:
    def upper(y: Tensor) -> Tensor:
        return fit_of_y(y).predict(T[:4]).upper.sum()

    def fit_of_y(y: Tensor) -> mslsq.CurveFit:
        return mslsq.curve_fit(lambda p, t: p[0] * torch.exp(-p[1] * t) + p[2], T, y, START)

    gradient = torch.func.grad(upper)(Y)
    h = 1e-5
    step = torch.cos(torch.arange(30, dtype=D))
    difference = (upper(Y + h * step) - upper(Y - h * step)) / (2 * h)
    torch.testing.assert_close(gradient @ step, difference, rtol=1e-5, atol=1e-8)
    mapped = torch.func.vmap(upper)(torch.stack([Y, 2 * Y]))
    torch.testing.assert_close(mapped[0], upper(Y), rtol=1e-9, atol=0)


def module_model(p: Tensor, t: Tensor) -> Tensor:
    return p[0] * torch.exp(-p[1] * t) + p[2]


def test_a_pickled_fit_is_asked_again() -> None:
    fit = mslsq.curve_fit(module_model, T, Y, START)
    again = pickle.loads(pickle.dumps(fit))
    torch.testing.assert_close(again.predict(T).upper, fit.predict(T).upper)
    spoiled = replace(fit, solution=replace(fit.solution, cost=2 * fit.solution.cost))
    with pytest.raises(ProblemError, match="has changed since"):
        spoiled.predict(T)
