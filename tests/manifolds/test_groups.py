"""The groups as groups: axioms, action, adjoint, matrices, exponential and logarithm, against SciPy and themselves."""

import math

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lie_reference import ANGLE, ANGLES, GROUPS, POINT_DIM, directional_derivative, hat, tangent_at
from scipy.spatial.transform import Rotation

from mslsq.manifolds import SE2, SE3, SO2, SO3, ManifoldError, Sim2, Sim3, cat, stack

EPS = 2.3e-16
every_group = pytest.mark.parametrize("group", GROUPS, ids=lambda g: g.__name__)
seeds = st.integers(0, 2**31)


def draw(group, seed, *batch):
    return group.random(*batch, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def same(a, b, tolerance=1e-13):
    torch.testing.assert_close(a.matrix(), b.matrix(), rtol=tolerance, atol=tolerance)


@every_group
@settings(max_examples=20, deadline=None)
@given(seed=seeds)
def test_group_axioms(group, seed):
    a, b, c = draw(group, seed, 3)
    neutral = group.identity(dtype=torch.float64)
    same((a @ b) @ c, a @ (b @ c), 1e-12)  # products of scales up to e^3 and translations of that size
    same(a @ neutral, a)
    same(neutral @ a, a)
    same(a @ a.inverse(), neutral, 1e-12)
    same(a.inverse() @ a, neutral, 1e-12)
    same(a.between(b), a.inverse() @ b, 1e-12)


@every_group
@settings(max_examples=20, deadline=None)
@given(seed=seeds)
def test_composition_is_the_product_of_matrices(group, seed):
    a, b = draw(group, seed, 2)
    torch.testing.assert_close((a @ b).matrix(), a.matrix() @ b.matrix(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        a.inverse().matrix() @ a.matrix(), torch.eye(len(a.matrix())).double(), rtol=0, atol=1e-12
    )


@every_group
@settings(max_examples=20, deadline=None)
@given(seed=seeds)
def test_action_is_that_of_the_matrix(group, seed):
    n = POINT_DIM[group]
    a = draw(group, seed)
    points = torch.randn(7, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    matrix = a.matrix()
    expected = points @ matrix[:n, :n].mT + (matrix[:n, n] if len(matrix) > n else 0.0)
    torch.testing.assert_close(a.act(points), expected, rtol=1e-13, atol=1e-13)


@every_group
@settings(max_examples=20, deadline=None)
@given(seed=seeds)
def test_the_adjoint_moves_tangent_vectors_to_the_left(group, seed):
    a = draw(group, seed)
    x = 0.7 * torch.randn(group.tangent_dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    same(a @ group.exp(x), group.exp(a.adjoint() @ x) @ a, 1e-12)


@every_group
@settings(max_examples=20, deadline=None)
@given(seed=seeds)
def test_local_is_the_inverse_of_retract(group, seed):
    generator = torch.Generator().manual_seed(seed)
    a = draw(group, seed)
    delta = tangent_at(group, 3.0 * torch.rand((), generator=generator).item(), generator)
    # The translation behind a motion of 3 radians is known to about |t| / sinc(1.5) ~ 2 roundings.
    torch.testing.assert_close(a.local(a.retract(delta)), delta, rtol=1e-12, atol=1e-12)
    b = draw(group, seed + 1)
    same(a.retract(a.local(b)), b, 1e-11)
    same(a.retract(delta), a @ group.exp(delta))


@every_group
@pytest.mark.parametrize("angle", [0.0, *ANGLES, math.pi, 4.0, 6.0])
def test_exp_is_the_matrix_exponential(group, angle):
    generator = torch.Generator().manual_seed(1)
    for _ in range(5):
        x = tangent_at(group, angle, generator)
        expected = scipy.linalg.expm(np.array(hat(group, x.tolist())))
        # SciPy's Padé approximation with squaring is itself good to a few roundings of the norm
        np.testing.assert_allclose(
            group.exp(x).matrix().numpy(), expected, rtol=1e-13, atol=2e-14 * np.abs(expected).max()
        )


@pytest.mark.parametrize("sigma", [0.0, 1e-12, 1e-4, 0.1, -0.49, 0.51, -2.0, 3.0])
@pytest.mark.parametrize("angle", [0.0, 1e-9, 0.1, 0.5, 3.1])
@pytest.mark.parametrize("group", [Sim2, Sim3])
def test_similarities_grow_and_turn_at_any_mix_of_rates(group, angle, sigma):
    x = tangent_at(group, angle, torch.Generator().manual_seed(2))
    x[-1] = sigma
    expected = directional_derivative(
        group, x, []
    )  # in 80 digits: scipy.linalg.expm is off by 6e-14 of the norm at σ = 3
    np.testing.assert_allclose(group.exp(x).matrix().numpy(), expected, rtol=0, atol=8 * EPS * np.abs(expected).max())
    torch.testing.assert_close(group.exp(x).log(), x, rtol=1e-12, atol=1e-13)


@every_group
@pytest.mark.parametrize("angle", ANGLES)
def test_the_logarithm_inverts_the_exponential_to_1e12(group, angle):
    generator = torch.Generator().manual_seed(3)
    x = torch.stack([tangent_at(group, angle, generator) for _ in range(50)])
    error = group.exp(x).log() - x
    part = ANGLE[group]
    assert (error[:, part].norm(dim=-1) / angle).max() <= 1e-12
    assert (error.norm(dim=-1) / x.norm(dim=-1)).max() <= 1e-12


@every_group
def test_the_logarithm_at_pi_is_finite_and_right(group):
    generator = torch.Generator().manual_seed(4)
    x = torch.stack([tangent_at(group, math.pi, generator) for _ in range(50)])
    y = group.exp(x).log()
    # The axis may come back reversed: half a turn either way is the same rotation.
    assert ((y[:, ANGLE[group]].norm(dim=-1) - math.pi).abs() <= 1e-12 * math.pi).all()
    torch.testing.assert_close(group.exp(y).matrix(), group.exp(x).matrix(), rtol=1e-12, atol=1e-12)
    exactly = {SO3: [1.0, 0, 0, 0], SE3: [1.0, 2, 3, 0, 1, 0, 0], Sim3: [1.0, 2, 3, 0, 0, 1, 0, 2]}
    if group in exactly:  # a quaternion whose real part is 0, not 6e-17
        element = group(torch.tensor(exactly[group], dtype=torch.float64))
        same(group.exp(element.log()), element)


def test_the_logarithm_holds_the_fixed_axis_to_the_last_digit_near_zero():
    x = torch.tensor([3e-13, -4e-13, 0.0], dtype=torch.float64)
    torch.testing.assert_close(SO3.exp(x).log(), x, rtol=4 * EPS, atol=0.0)


@pytest.mark.parametrize("group", [SO3, SE3, Sim3])
def test_a_quaternion_and_its_negative_are_one_rotation(group):
    a = draw(group, 5, 20)
    sign = torch.ones(group.storage_dim, dtype=torch.float64)
    sign[{SO3: slice(0, 4), SE3: slice(3, 7), Sim3: slice(3, 7)}[group]] = -1.0
    torch.testing.assert_close(group(a.storage * sign).log(), a.log(), rtol=0, atol=0)
    assert (a.log()[..., ANGLE[group]].norm(dim=-1) <= math.pi).all()


def test_rotations_agree_with_scipy():
    x = torch.randn(200, 3, generator=torch.Generator().manual_seed(6), dtype=torch.float64) * 1.5
    mine, scipys = SO3.exp(x), Rotation.from_rotvec(x.numpy())
    np.testing.assert_allclose(mine.matrix().numpy(), scipys.as_matrix(), atol=1e-15 * 8)
    np.testing.assert_allclose(mine.log().numpy(), scipys.as_rotvec(), atol=1e-14)
    sign = np.sign((mine.storage.numpy() * scipys.as_quat()).sum(-1, keepdims=True))
    np.testing.assert_allclose(mine.storage.numpy(), sign * scipys.as_quat(), atol=1e-15)
    other = Rotation.random(200, rng=np.random.default_rng(0))
    both = mine @ SO3(torch.as_tensor(other.as_quat()))
    np.testing.assert_allclose(both.matrix().numpy(), (scipys * other).as_matrix(), atol=1e-14)
    points = np.random.default_rng(1).normal(size=(200, 3))
    np.testing.assert_allclose(mine.act(torch.as_tensor(points)).numpy(), scipys.apply(points), atol=1e-14)
    np.testing.assert_allclose(mine.inverse().matrix().numpy(), scipys.inv().as_matrix(), atol=1e-14)


@every_group
def test_a_matrix_becomes_its_element(group):
    generator = torch.Generator().manual_seed(7)
    half_turns = [tangent_at(group, math.pi, generator) for _ in range(20)]  # every branch of the largest component
    for a in (draw(group, 8, 50), group.exp(torch.stack(half_turns))):
        same(group.from_matrix(a.matrix()), a)


def test_planar_motions_from_position_and_heading():
    xyt = torch.tensor([[1.0, 2.0, math.pi / 2], [0.0, -1.0, -3.0]], dtype=torch.float64)
    motion = SE2.from_xyt(xyt)
    torch.testing.assert_close(motion[0].act(torch.tensor([1.0, 0.0]).double()), torch.tensor([1.0, 3.0]).double())
    torch.testing.assert_close(motion.xyt(), xyt)


def test_a_motion_is_made_of_its_parts():
    a = draw(SE3, 9, 4)
    same(SE3.from_parts(a.rotation, a.translation), a)
    assert SE3.from_parts(a.rotation[0], a.translation).shape == (4,)


@every_group
def test_batches_broadcast(group):
    a, b = draw(group, 10, 5, 1), draw(group, 11, 3)
    assert (a @ b).shape == (5, 3)
    assert a.local(b).shape == (5, 3, group.tangent_dim)
    same((a @ b)[2, 1], a[2, 0] @ b[1])
    points = torch.randn(4, 1, POINT_DIM[group], dtype=torch.float64)
    moved = draw(group, 12, 6).act(points)
    assert moved.shape == (4, 6, POINT_DIM[group])
    single = draw(group, 13)
    assert (single @ b).shape == (3,)
    assert (b @ single).shape == (3,)
    assert single.adjoint().shape == (group.tangent_dim,) * 2


@every_group
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_long_products_stay_in_the_group_and_keep_their_dtype(group, dtype):
    generator = torch.Generator().manual_seed(14)
    step = group.exp(0.3 * torch.randn(group.tangent_dim, generator=generator, dtype=dtype))
    step = step if group not in (Sim2, Sim3) else group(torch.cat([step.storage[..., :-1], torch.ones(1, dtype=dtype)]))
    a = step
    for _ in range(12):
        a = a @ a  # repeated squaring doubles a deviation from unit norm each time: 4096-fold without renormalising
    rotation = a.storage if group in (SO2, SO3) else a.rotation.storage
    assert a.dtype == dtype
    assert (rotation.norm() - 1.0).abs() <= 4 * torch.finfo(dtype).eps


@pytest.mark.parametrize("group", [SO2, SE2, SO3, SE3], ids=lambda g: g.__name__)
@pytest.mark.parametrize("angle", [0.0, 1e-9, 0.1, 0.4999, 0.5001, 1.0, 3.0])
def test_jacobians_of_the_exponential(group, angle):
    x = tangent_at(group, angle, torch.Generator().manual_seed(15))
    zero = torch.zeros_like(x)
    forward = torch.func.jacfwd(lambda d: group.exp(x).local(group.exp(x + d)))(zero)
    left = torch.func.jacfwd(lambda d: (group.exp(x + d) @ group.exp(x).inverse()).log())(zero)
    back = torch.func.jacfwd(lambda d: group.exp(x).retract(d).log())(zero)
    torch.testing.assert_close(group.right_jacobian(x), forward, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(group.left_jacobian(x), left, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(group.right_jacobian_inverse(x), back, rtol=1e-12, atol=1e-13)
    eye = torch.eye(group.tangent_dim, dtype=torch.float64)
    torch.testing.assert_close(group.left_jacobian_inverse(x) @ group.left_jacobian(x), eye, rtol=0, atol=1e-12)
    batch = torch.stack([x, -x])
    torch.testing.assert_close(group.left_jacobian(batch)[1], group.right_jacobian(x))


def test_elements_behave_like_a_batch():
    a = draw(SE3, 16, 4, 3)
    assert (a.shape, a.ndim, len(a), a.dtype) == ((4, 3), 2, 4, torch.float64)
    assert a[1].shape == (3,)
    assert a[..., 0].shape == (4,)
    assert a[:, torch.tensor([0, 2])].shape == (4, 2)
    assert a[None].shape == (1, 4, 3)
    assert a[torch.tensor([True, False, True, False])].shape == (2, 3)
    assert a.reshape(-1).shape == (12,)
    assert a.reshape((2, 6)).shape == (2, 6)
    assert a.to(torch.float32).dtype == torch.float32
    assert stack([a, a]).shape == (2, 4, 3)
    assert stack([a, a], -1).shape == (4, 3, 2)
    assert cat([a, a], 1).shape == (4, 6)
    assert a.clone().storage is not a.storage
    assert repr(SO2.identity(dtype=torch.float64)).startswith("SO2(tensor([1., 0.]")


@every_group
def test_random_elements_repeat_with_their_generator(group):
    torch.testing.assert_close(draw(group, 17, 3).storage, draw(group, 17, 3).storage)
    assert group.random(2, 3).shape == (2, 3)
    assert group.identity(2, 3).dtype == torch.get_default_dtype()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SO3(torch.eye(3)), ["SO3", "(..., 4)", "(3, 3)", "SO3.from_matrix"]),
        (lambda: SE3(torch.zeros(5, 6)), ["(..., 7)", "(5, 6)", "SE3.exp"]),
        (lambda: SE2(torch.zeros(3)), ["SE2.from_xyt"]),
        (lambda: SO2(torch.tensor(1.0)), ["(..., 2)", "()"]),
        (lambda: SO3([0.0, 0.0, 0.0, 1.0]), ["list", "torch.as_tensor"]),
        (lambda: SO3(torch.tensor([0, 0, 0, 1])), ["int64", ".double()"]),
        (lambda: SO3.identity() @ SE3.identity(), ["SO3 @ SE3"]),
        (lambda: SO3.identity() @ torch.zeros(3), [".act(points)"]),
        (lambda: stack([SO3.identity(), SO2.identity()]), ["SO2, SO3"]),
        (lambda: stack([]), ["at least one"]),
        (lambda: cat([SO3.identity()]), ["stack"]),
    ],
)
def test_errors_say_what_was_given_and_what_to_write(make, words):
    with pytest.raises(ManifoldError) as caught:
        make()
    for word in words:
        assert word in str(caught.value)
