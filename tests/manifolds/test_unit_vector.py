"""Directions: great circles, tangent bases, any dimension."""

import math
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mslsq.manifolds import UnitVector

dims = pytest.mark.parametrize("dim", [2, 3, 4, 7])


def draw(dim, seed, *batch):
    return UnitVector.of_dim(dim).random(*batch, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_one_class_for_each_dimension():
    assert UnitVector.of_dim(3) is UnitVector
    four = UnitVector.of_dim(4)
    assert four is UnitVector.of_dim(4)
    assert (four.storage_dim, four.tangent_dim, four.__name__) == (4, 3, "UnitVector4")
    copy = pickle.loads(pickle.dumps(four.identity(2)))
    assert type(copy) is four
    assert torch.equal(copy.storage, four.identity(2).storage)
    with pytest.raises(ValueError, match="2 or more, not 1"):
        UnitVector.of_dim(1)
    with pytest.raises(ValueError, match=r"UnitVector.of_dim\(n\)"):
        UnitVector(torch.zeros(4))


@dims
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_retract_walks_a_great_circle_and_local_walks_back(dim, seed):
    x, y = draw(dim, seed, 2)
    delta = x.local(y)
    torch.testing.assert_close(x.retract(delta).storage, y.storage, rtol=0, atol=1e-14)
    torch.testing.assert_close(x.local(x.retract(delta)), delta, rtol=1e-13, atol=1e-13)
    angle = 2.0 * torch.asin(0.5 * (x.storage - y.storage).norm())
    # asin loses half of the digits where the points are nearly opposite
    torch.testing.assert_close(delta.norm(), angle, rtol=1e-7, atol=0.0)
    # the step as a vector of R^n, by Rodrigues' formula for the plane of x and the direction
    direction = x.basis() @ delta / delta.norm()
    expected = torch.cos(delta.norm()) * x.storage + torch.sin(delta.norm()) * direction
    torch.testing.assert_close(x.retract(delta).storage, expected, rtol=0, atol=1e-14)


@dims
def test_the_basis_is_orthonormal_and_tangent(dim):
    x = draw(dim, 1, 50)
    basis = x.basis()
    eye = torch.eye(dim - 1, dtype=torch.float64).expand(50, -1, -1)
    torch.testing.assert_close(basis.mT @ basis, eye, rtol=0, atol=1e-15 * 8)
    torch.testing.assert_close(
        basis.mT @ x.storage[..., None], torch.zeros(50, dim - 1, 1).double(), rtol=0, atol=2e-15
    )


@dims
@pytest.mark.parametrize("angle", [1e-12, 1e-9, 1e-4, 0.2499, 0.2501, 1.0, math.pi / 2, 3.0, math.pi - 1e-6])
def test_round_trips_over_the_whole_range_of_angles(dim, angle):
    x = draw(dim, 2, 30)
    delta = torch.randn(30, dim - 1, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    delta = angle * delta / delta.norm(dim=-1, keepdim=True)
    error = (x.local(x.retract(delta)) - delta).norm(dim=-1)
    # Small steps are differences of stored coordinates, rounded to 1e-16; near the opposite point the direction is
    # that of a vector of length pi - angle, known to 1e-16/(pi - angle).
    assert (error <= 1e-15 + 1e-15 * math.pi / (math.pi - angle)).all()


@dims
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_opposite_point_is_half_a_turn_away(dim, dtype):
    x = draw(dim, 4, 20).to(dtype)
    opposite = x._wrap(-x.storage)
    delta = x.local(opposite)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(delta.norm(dim=-1), torch.full((20,), math.pi, dtype=dtype), rtol=0, atol=8 * eps)
    torch.testing.assert_close(x.retract(delta).storage, opposite.storage, rtol=0, atol=8 * eps)


def test_long_walks_stay_on_the_sphere():
    x = UnitVector.identity(dtype=torch.float32)
    for _ in range(1000):
        x = x.retract(torch.tensor([0.3, -0.2]))
    assert (x.storage.norm() - 1.0).abs() <= 3e-7


def test_from_vector_normalises_and_broadcasts_work():
    x = UnitVector.from_vector(torch.tensor([0.0, 3.0, 4.0]))
    torch.testing.assert_close(x.storage, torch.tensor([0.0, 0.6, 0.8]))
    many = draw(3, 5, 4).to(torch.float32)
    assert x.local(many).shape == (4, 2)
    assert x.retract(torch.zeros(6, 2)).shape == (6,)
