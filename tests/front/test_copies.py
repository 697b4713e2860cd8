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


def restored(made):
    """Through a file, as `torch.load` reads one by default: no code of the file's is run."""
    file = io.BytesIO()
    torch.save(made, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def of_poses():
    pose = mslsq.Variable("pose", mslsq.SE3, count=2)
    between = mslsq.Between(pose[torch.tensor([0])], pose[torch.tensor([1])], measured=mslsq.SE3.identity(1, dtype=F64))
    start = mslsq.SE3.exp(0.1 * torch.arange(12, dtype=F64).view(2, 6))
    return mslsq.solve(mslsq.Problem(between, pose.fixed([0])), {"pose": start})


def test_solutions_and_elements_are_loaded_with_weights_only():
    solution = of_poses()
    again = restored({"best": solution, "why": mslsq.Status(int(solution.status))})
    assert torch.equal(again["best"].value["pose"].storage, solution.value["pose"].storage)
    assert torch.equal(again["best"].history.cost.nan_to_num(), solution.history.cost.nan_to_num())
    assert again["why"] is mslsq.Status(int(solution.status)) and again["best"].message() == solution.message()
    for element in (mslsq.SO3.identity(dtype=F64), mslsq.UnitVector.of_dim(4)(torch.eye(4, dtype=F64)[0])):
        assert torch.equal(restored(element).storage, element.storage)


def test_a_deep_copy_of_a_solution_has_its_own_memory_and_the_same_derivative():
    y = Y.clone().requires_grad_()
    solution = mslsq.least_squares(residual, START, (T, y))
    copied = copy.deepcopy(solution)
    assert torch.equal(copied.value, solution.value) and copied.value.data_ptr() != solution.value.data_ptr()
    assert torch.equal(copied.history.accepted, solution.history.accepted)
    (expected,) = torch.autograd.grad(solution.value[0], y, retain_graph=True)
    assert torch.equal(torch.autograd.grad(copied.value[0], y)[0], expected)
