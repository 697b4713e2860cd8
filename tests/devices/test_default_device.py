"""A default device that is not that of the data says nothing about where the library computes."""

import ast
from pathlib import Path

import numpy as np
import pytest
import torch

import mslsq
import mslsq.alignment
import mslsq.datasets
import mslsq.interop.scipy

F64 = torch.float64
PACKAGE = Path(mslsq.__file__).parent
ROOMS = sorted(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists())
ON_THE_DEFAULT_DEVICE = {
    "alignment/learned/layer.py": "a module is made where PyTorch makes modules",
    "alignment/metrics/network.py": "a module is made where PyTorch makes modules",
    "interop/theseus/reverse.py": "an objective of Theseus is of one device",
}
MAKERS = {
    *("arange", "as_tensor", "empty", "empty_strided", "eye", "full", "linspace", "logspace", "ones", "rand"),
    *("randint", "randn", "randperm", "scalar_tensor", "tensor", "tril_indices", "triu_indices", "zeros"),
}

T = torch.linspace(0, 2, 30, dtype=F64)
Y = 2 * torch.exp(-1.3 * T) + 0.05 * torch.cos(9 * T)
BATCH = Y + 0.01 * torch.cos(torch.arange(40, dtype=F64))[:, None]
START = torch.tensor([1.0, -1.0], dtype=F64)
STEP = mslsq.SE2.exp(torch.tensor([[1.0, 0.0, 0.1]], dtype=F64).expand(29, -1))


def decay(p, t, y):
    return p[0] * torch.exp(p[1] * t) - y


class Relative(mslsq.CostFunction):
    def residual(self, a, b, measured):
        return (measured.inverse() @ (a.inverse() @ b)).log()


def graph():
    pose = mslsq.Variable("pose", mslsq.SE2, count=30)
    i = torch.arange(29, device="cpu")
    loop = mslsq.Between(pose[[0]], pose[[29]], measured=STEP[:1], loss=mslsq.Huber(1.0))
    return mslsq.Problem(Relative(pose[i], pose[i + 1], measured=STEP), loop, pose.fixed([0]))


PROBLEM, POSES, BOUNDS = graph(), {"pose": mslsq.SE2.identity(30, dtype=F64)}, (-5.0, 5.0)


def one(solver):
    return mslsq.least_squares(decay, START, (T, Y), solver=solver).value


def within_bounds(solver):
    return mslsq.least_squares(decay, START, (T, Y), bounds=BOUNDS, solver=solver).value


def batch(solver):
    return mslsq.least_squares(decay, START, (T, BATCH), in_dims=(None, None, 0), solver=solver).value


def poses(solver):
    return mslsq.solve(PROBLEM, POSES, solver=solver).value["pose"].storage


def gradient(solver):
    y = Y.clone().requires_grad_()
    return torch.autograd.grad(mslsq.least_squares(decay, START, (T, y), solver=solver).value.sum(), y)[0]


def standard_errors(solver):
    return mslsq.curve_fit(lambda p, t: p[0] * torch.exp(p[1] * t), T, Y, START, solver=solver).standard_errors


@pytest.mark.sampled(5)
@pytest.mark.parametrize("solve", [one, within_bounds, batch, poses, gradient, standard_errors])
@pytest.mark.parametrize("native", ["never", "wait"])
def test_data_of_the_cpu_are_solved_there_under_another_default_device(solve, native):
    # A native program that was handed memory of the other device ended the process.
    solver = mslsq.LevenbergMarquardt(native=native)
    expected = solve(solver)
    with torch.device("meta"):
        found = [solve(solver) for _ in range(3)]
    for value in found:
        torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-9)


def made_and_explained():
    problem, values = graph(), dict(POSES)
    check = mslsq.check_jacobian(next(iter(problem)))
    assert check.ok and mslsq.explain(problem, values).rank
    return mslsq.solve(problem, values).value["pose"].storage


def aligned():
    y, x = torch.meshgrid(*(torch.arange(96, dtype=F64, device="cpu"),) * 2, indexing="ij")
    surface = torch.cos(x / 7 + torch.sin(y / 11)) + torch.sin((x - y) / 9) * torch.cos(y / 5)
    return mslsq.alignment.align([surface[2:90, 2:90], surface[4:92, 1:89]], model="translation").transforms


def as_in_scipy():
    t, y = T.numpy(), Y.numpy()
    found = mslsq.interop.scipy.least_squares(lambda p: p[0] * np.exp(p[1] * t) - y, np.ones(2), bounds=(-5, 5))
    return torch.from_numpy(found.x)


def predicted():
    fit = mslsq.curve_fit(lambda p, t: p[0] * torch.exp(p[1] * t), T, Y, START)
    return torch.stack(fit.predict(T, sigma=0.1))


def a_graph_of_a_data_set():
    return mslsq.datasets.ring_graph(2, 12).graph.poses.storage


@pytest.mark.sampled(1)
@pytest.mark.parametrize("make", [made_and_explained, aligned, as_in_scipy, predicted, a_graph_of_a_data_set])
def test_whatever_the_library_makes_is_on_the_device_of_the_data(make):
    expected = make()
    with torch.device("meta"):
        found = make()
    assert found.device == torch.device("cpu")
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("room", ROOMS)
def test_every_tensor_that_the_library_makes_says_its_device(room):
    silent = []
    for file in sorted((PACKAGE / room).rglob("*.py")):
        if str(file.relative_to(PACKAGE)) in ON_THE_DEFAULT_DEVICE:
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                of_torch = isinstance(node.func.value, ast.Name) and node.func.value.id == "torch"
                says = any(keyword.arg in ("device", None) for keyword in node.keywords)
                if of_torch and node.func.attr in MAKERS and not says:
                    silent.append(f"{file.relative_to(PACKAGE)}:{node.lineno}")
    assert not silent


def test_a_tensor_that_the_residual_makes_on_another_default_device_is_named():
    """It was PyTorch's "Tensor on device meta is not on the expected device cpu!"."""
    start, y = torch.ones(2), torch.arange(4.0)
    torch.set_default_device("meta")
    try:
        with pytest.raises(mslsq.errors.ProblemError, match=r"two devices.*default device \(meta\).*device=p.device"):
            mslsq.least_squares(lambda p, y: p[0] - y * torch.ones(4), start, (y,))
    finally:
        torch.set_default_device(None)
