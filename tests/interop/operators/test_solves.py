"""A foreign operator in residuals: solves and their derivatives are those of the same residual in plain PyTorch."""

import importlib.util
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.func import jacrev, vmap

import mslsq
from mslsq.interop.operators import wrap

FACTOR = torch.tensor(1.3, dtype=torch.float64)
START = torch.ones(2, dtype=torch.float64)
DATA = torch.tensor([2.0, 0.3], dtype=torch.float64)


def values(x: Tensor, s: Tensor) -> Tensor:
    return torch.stack([x[0] ** 2 * s, x[1] * x[0].sin()])


def backward(inputs, cotangents):
    (x, s), (g,) = inputs, cotangents
    along = 2 * x[0] * s * g[0] + x[1] * x[0].cos() * g[1]
    return torch.stack([along, x[0].sin() * g[1]]), x[0] ** 2 * g[0]


def residual_with(function):
    def residual(p, data):
        return torch.cat([function(p, FACTOR) - data, 0.1 * (p - 1)])

    return residual


plain = residual_with(values)


@pytest.mark.parametrize("rules", [{}, {"jvp": "rows"}, {"jvp": "differences"}], ids=str)
def test_a_solve_ends_where_that_of_plain_operations_does(rules):
    foreign = residual_with(wrap(values, backward=backward, **rules))
    expected = mslsq.least_squares(plain, START, args=(DATA,))
    found = mslsq.least_squares(foreign, START, args=(DATA,))
    assert found.converged
    torch.testing.assert_close(found.value, expected.value, rtol=1e-12, atol=1e-12)
    many = DATA + torch.linspace(0, 0.3, 20, dtype=DATA.dtype)[:, None]
    a, b = (mslsq.least_squares(r, START.expand(20, 2), args=(many,), in_dims=(0, 0)) for r in (foreign, plain))
    torch.testing.assert_close(a.value, b.value, rtol=1e-10, atol=1e-12)


def test_derivatives_through_a_solve_need_second_and_are_then_right():
    def gradient(function):
        return vmap(jacrev(lambda d: mslsq.least_squares(residual_with(function), START, args=(d,)).value))(many)

    many = DATA + torch.linspace(0, 0.3, 5, dtype=DATA.dtype)[:, None]
    with pytest.raises(mslsq.errors.SecondDerivativeError, match="second="):
        gradient(wrap(values, backward=backward))
    found = gradient(wrap(values, backward=backward, second="differences"))
    torch.testing.assert_close(found, gradient(values), rtol=1e-9, atol=1e-10)


def test_a_residual_that_also_writes_in_place_is_captured_with_the_derivatives():
    operator = wrap(values, backward=backward)

    def in_place(p, data):
        error = torch.zeros(4, dtype=p.dtype)
        error[:2] = operator(p, FACTOR) - data
        error[2:] = 0.1 * (p - 1)
        return error

    with pytest.warns(mslsq.errors.InPlaceResidualWarning):
        found = mslsq.least_squares(in_place, START, args=(DATA,))
    torch.testing.assert_close(found.value, mslsq.least_squares(plain, START, args=(DATA,)).value)


def test_a_wrong_backward_stops_a_solve_with_its_name():
    wrong = wrap(
        values, backward=lambda inputs, cotangents: tuple(2 * g for g in backward(inputs, cotangents)), name="mine"
    )
    with pytest.raises(mslsq.interop.operators.OperatorError, match="mine: backward is wrong"):
        mslsq.least_squares(residual_with(wrong), START, args=(DATA,))


def test_many_blocks_and_a_manifold():
    """Distances of poses to beacons, by an operator of their storage."""

    def distance(pose, beacon):
        return torch.linalg.vector_norm(pose[..., :2] - beacon, dim=-1, keepdim=True)

    operator = wrap(distance, backward="autograd", lanes="batch")
    beacons = torch.tensor([[0.0, 0.0], [4.0, 0.0], [0.0, 3.0], [5.0, 5.0]], dtype=torch.float64)
    truth = torch.tensor([1.0, 2.0], dtype=torch.float64)
    measured = torch.linalg.vector_norm(truth - beacons, dim=-1)

    @mslsq.cost
    def range_to(pose, beacon, measured):
        return operator(pose.storage, beacon) - measured

    pose = mslsq.Variable("pose", mslsq.SE2)
    heading = mslsq.Prior(pose, target=mslsq.SE2.identity(1, dtype=torch.float64), weight=1e-6)
    problem = mslsq.Problem(range_to(pose, beacon=beacons, measured=measured[:, None]), heading)
    start = mslsq.SE2.from_xyt(torch.tensor([2.0, 2.5, 0.2], dtype=torch.float64))
    solution = mslsq.solve(problem, {"pose": start})
    torch.testing.assert_close(solution.value["pose"].translation.flatten(), truth, rtol=1e-4, atol=1e-4)


@pytest.mark.slow  # a minute: PyTorch's headers
def test_the_example_in_cpp_finds_the_potentials(tmp_path):
    if shutil.which("c++") is None and shutil.which("g++") is None:
        pytest.skip("no C++ compiler")
    if shutil.which("ninja") is None:
        pytest.skip("no ninja, which torch.utils.cpp_extension needs")
    pytest.importorskip("matplotlib")
    path = Path(__file__).resolve().parents[3] / "examples/pair_potential.py"
    spec = importlib.util.spec_from_file_location("pair_potential", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    before = torch.get_default_dtype()
    try:
        found = module.main(["--out", str(tmp_path)])
    finally:
        torch.set_default_dtype(before)
    assert found["converged"] == 1
    assert found["worst"] < 4  # standard errors, nine parameters
    assert (tmp_path / "pair_potential.png").stat().st_size > 10_000
