"""Copies and pickles of what solves: the same answers, no warnings, and whatever was found is found again."""

import copy
import io
import multiprocessing
import pickle
import warnings

import pytest
import torch
from torch import nn

import mslsq

F64 = torch.float64
T = torch.linspace(0, 2, 30, dtype=F64)
Y = 2 * torch.exp(-1.3 * T) + 0.05 * torch.cos(9 * T)
START = torch.tensor([1.0, -1.0], dtype=F64)
P = mslsq.Variable("p", mslsq.Euclidean(2))


class Decay(mslsq.CostFunction):
    def residual(self, p, t, y):
        return p[0] * torch.exp(p[1] * t) - y


def model(p, t):
    return p[0] * torch.exp(p[1] * t)


def residual(p, t, y):
    return model(p, t) - y


def of_pair(p, both):
    return model(p, both["t"]) - both["y"]


def problem():
    return mslsq.Problem(Decay(P, t=T, y=Y, loss=mslsq.Huber(1.0)))


class Fitting(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(30, dtype=F64))
        self.layer = mslsq.LeastSquaresLayer(problem())

    def forward(self, y):
        return self.layer({"p": START}, data={"decay": {"y": self.scale * y}}).value["p"]


def saved(made):
    file = io.BytesIO()
    torch.save(made, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


WAYS = {
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "pickle": lambda made: pickle.loads(pickle.dumps(made)),
    "torch.save": saved,
}
MADE = {
    "problem": (problem, lambda found: mslsq.solve(found, {"p": START}).value["p"]),
    "module": (Fitting, lambda found: found(Y)),
    "prepared residual": (
        lambda: mslsq.prepared(residual, START, args=(T, Y)),
        lambda found: found(START, (T, Y)).value,
    ),
    "prepared residual of a dict": (
        lambda: mslsq.prepared(of_pair, START, args=({"t": T, "y": Y},)),
        lambda found: found(START, ({"t": T, "y": Y},)).value,
    ),
    "prepared problem": (
        lambda: mslsq.prepared(problem(), {"p": START}),
        lambda found: found({"p": START}).value["p"],
    ),
    "prepared fit": (
        lambda: mslsq.prepared(mslsq.curve_fit, model, T, Y, START),
        lambda found: found(T, Y, START).standard_errors,
    ),
    "solution": (lambda: mslsq.least_squares(residual, START, (T, Y)), lambda found: found.value),
    "fit": (lambda: mslsq.curve_fit(model, T, Y, START), lambda found: found.predict(T)),
}


@pytest.mark.sampled(7)
@pytest.mark.parametrize(
    ("way", "calls"), [("pickle", 0), ("pickle", 3), ("deepcopy", 3), ("copy", 3), ("torch.save", 3)]
)
@pytest.mark.parametrize("kind", MADE)
def test_a_copy_answers_as_the_original_does(kind, way, calls):
    make, answer = MADE[kind]
    original = make()
    for _ in range(calls):
        answer(original)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copied = WAYS[way](original)
    for _ in range(3):
        torch.testing.assert_close(answer(copied), answer(original), rtol=1e-9, atol=1e-9)


def test_a_copy_of_a_prepared_solve_still_notices_what_is_not_as_it_was_prepared():
    copied = pickle.loads(pickle.dumps(mslsq.prepared(residual, START, args=(T, Y))))
    with pytest.raises(mslsq.errors.ShapeError, match="prepared for"):
        copied(START, (T[:-1], Y[:-1]))


def test_gradients_of_a_copied_module_are_its_own():
    original = Fitting()
    original(Y).sum().backward()
    copied = copy.deepcopy(original)
    copied.zero_grad()
    copied(Y).sum().backward()
    torch.testing.assert_close(copied.scale.grad, original.scale.grad)
    assert copied.scale.grad is not original.scale.grad


def answered(copied):
    return copied({"p": START}).value["p"].tolist() if isinstance(copied, mslsq.LeastSquaresLayer) else None


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_layer_that_has_solved_goes_to_other_processes(method):
    layer = mslsq.LeastSquaresLayer(problem())
    expected = [answered(layer) for _ in range(3)][-1]
    with multiprocessing.get_context(method).Pool(2) as pool:
        found = pool.map_async(answered, [layer] * 3).get(timeout=120)
    torch.testing.assert_close(torch.tensor(found), torch.tensor([expected] * 3), rtol=1e-6, atol=1e-6)
