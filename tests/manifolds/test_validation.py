"""Numbers that are no element are refused by name, where values may be read; nowhere else are they looked at."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import mslsq
from mslsq import SE2, SE3, SO2, SO3, Sim2, Sim3, UnitVector
from mslsq.manifolds import ManifoldError
from mslsq.manifolds.validation import unchecked

GROUPS = [SO2, SE2, Sim2, SO3, SE3, Sim3]
DTYPES = [torch.float32, torch.float64]
D = torch.float64


def two(kind, dtype=D):
    return kind.random(3, 2, dtype=dtype, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [*GROUPS, UnitVector, UnitVector.of_dim(5)])
def test_a_storage_whose_rotation_is_not_of_norm_one_is_refused_by_its_entry(kind, dtype):
    good = two(kind, dtype).storage
    assert kind(good).storage is good
    for factor in (0.0, 0.9, 1.01, 2.0):
        bad = good.clone()
        bad[1, 0] *= factor
        with pytest.raises(ManifoldError, match=r"entry \[1, 0\]") as caught:
            kind(bad)
        assert kind.__name__ in str(caught.value)
    with pytest.raises(ManifoldError, match="one of 6 such entries"):
        kind(2 * good)
    with pytest.raises(ManifoldError, match=": it "):
        kind(2 * good[0, 0])


@pytest.mark.parametrize("kind", GROUPS)
def test_numbers_of_four_digits_and_of_float32_are_let_through(kind):
    storage = kind.random(2000, dtype=D, generator=torch.Generator().manual_seed(1)).storage
    kind((storage * 1e4).round() / 1e4)
    kind(storage.float())
    rough = kind((storage * 1e4).round() / 1e4).normalized().matrix()
    linear = rough[..., : 3 if kind.storage_dim > 5 or kind is SO3 else 2, :][..., : rough.shape[-1]]
    size = 3 if kind in (SO3, SE3, Sim3) else 2
    linear = linear[..., :size, :size]
    gram = linear @ linear.mT
    gram = gram / gram[..., :1, :1]
    assert torch.allclose(gram, torch.eye(size, dtype=D).expand_as(gram), atol=1e-12)


@pytest.mark.parametrize("kind", [Sim2, Sim3])
def test_scales_are_positive(kind):
    storage = two(kind).storage.clone()
    storage[2, 1, -1] = -0.5
    with pytest.raises(ManifoldError, match=r"entry \[2, 1\] has the scale -0.5, which must be positive"):
        kind(storage)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", GROUPS)
def test_matrices_that_are_no_motion_are_refused_by_their_entry(kind, dtype):
    good = two(kind, dtype).matrix()
    assert torch.allclose(kind.from_matrix(good).matrix(), good, atol=1e-5 if dtype == torch.float32 else 1e-12)
    size = 3 if kind in (SO3, SE3, Sim3) else 2
    scaled = kind in (Sim2, Sim3)

    def refused(change, says):
        bad = good.clone()
        bad[0, 1, :size, :size] = change(bad[0, 1, :size, :size])
        with pytest.raises(ManifoldError, match=says) as caught:
            kind.from_matrix(bad)
        assert "entry [0, 1]" in str(caught.value)

    refused(lambda m: m.flip(0) if size == 2 else m[[1, 0, 2]], "reflection" if not scaled else "not a rotation times")
    refused(torch.zeros_like, "torch.linalg.svd")
    refused(lambda m: m + 0.1 * m[:, :1], "torch.linalg.svd")
    if scaled:
        kind.from_matrix(two(kind, dtype).matrix())
    else:
        refused(lambda m: 2 * m, "torch.linalg.svd")


@pytest.mark.parametrize("kind", [SE2, SE3])
def test_a_transposed_motion_is_refused(kind):
    with pytest.raises(ManifoldError, match=r"last row.*transposed"):
        kind.from_matrix(two(kind).matrix().mT)
    kind.from_matrix(two(kind).matrix()[..., :-1, :])


def test_other_shapes_are_refused():
    with pytest.raises(ManifoldError, match=r"takes.*\(\.\.\., 3, 3\), got torch.float32 of shape \(4, 4\)"):
        SO3.from_matrix(torch.eye(4))
    with pytest.raises(ManifoldError, match="int64"):
        SO3.from_matrix(torch.eye(3, dtype=torch.int64))


def test_a_vector_without_direction_is_seen_as_nan_and_nan_is_not_refused():
    assert UnitVector.from_vector(torch.zeros(3)).storage.isnan().all()
    SO3(torch.full((2, 4), torch.nan))
    storage = torch.tensor([[0.0, 0.0, 0.0, 1.0], [torch.nan, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 3.0]])
    with pytest.raises(ManifoldError, match=r"entry \[2\]"):
        SO3(storage)


def test_nothing_is_checked_under_transforms_or_while_a_graph_is_recorded():
    """Neither error nor a graph of the moment: what is no rotation passes, as it must where nothing can be read."""
    twice = 2 * SO3.random(3, dtype=D).storage
    make = lambda q: SO3(q).act(q[:3]) + SO3.from_matrix(2 * SO3(q).matrix()).storage[:3]  # noqa: E731
    torch.func.vmap(make)(twice)
    torch.func.jacfwd(make)(twice[0])
    torch.func.jacrev(make)(twice[0])
    graph = make_fx(make)(twice[0])
    assert not [node for node in graph.graph.nodes if "local_scalar" in str(node.target)]
    with torch._subclasses.FakeTensorMode() as mode:
        make(mode.from_tensor(twice)[0])
    SO3(twice.to("meta"))
    SO3(torch.zeros(0, 4))
    with unchecked():
        SO3(twice)
    with pytest.raises(ManifoldError):
        SO3(twice)


def test_derivatives_pass_through_the_look():
    q = SO3.random(dtype=D).storage.requires_grad_()
    SO3(q).matrix().sum().backward()
    assert q.grad is not None


def test_the_start_of_a_solve_is_looked_at_also_as_plain_storage():
    pose = mslsq.Variable("pose", SO3, count=2)
    problem = mslsq.Problem(mslsq.Prior(pose[[0, 1]], target=SO3.identity(2, dtype=D)))
    start = SO3.random(2, dtype=D).storage
    mslsq.solve(problem, {"pose": start})
    with pytest.raises(ValueError, match=r"Variable 'pose': SO3.*entry \[1\].*normalize"):
        mslsq.solve(problem, {"pose": start * torch.tensor([[1.0], [2.0]], dtype=D)})


@pytest.mark.parametrize("kind", [SO2, SE2, SO3, SE3, Sim2, Sim3])
def test_exp_refuses_what_is_no_tangent_vector(kind):
    for shape in ((kind.tangent_dim + 1,), (2, kind.tangent_dim - 1), ()):
        with pytest.raises(ManifoldError, match=r"tangent vectors, shape \(\.\.\., "):
            kind.exp(torch.zeros(shape))
    assert kind.exp(torch.zeros(3, kind.tangent_dim)).storage.shape == (3, kind.storage_dim)


@pytest.mark.parametrize(
    ("residual", "words"),
    [
        (lambda x: mslsq.SE3.log(x.storage), r"SE3\(tensor\)\.log\(\.\.\.\)"),
        (lambda x: mslsq.SO3.inverse(x.storage[..., 3:]).log(), "inverse of a group was called with a tensor"),
    ],
)
def test_numbers_where_an_element_is_meant_are_told_in_a_residual(residual, words):
    with pytest.raises(mslsq.ProblemError, match=words):
        mslsq.least_squares(residual, mslsq.SE3.identity(dtype=torch.float64))
    with pytest.raises(ManifoldError, match=r"Make it one: SE3\("):
        mslsq.least_squares(lambda x: x.between(x.storage).log(), mslsq.SE3.identity(dtype=torch.float64))


def test_other_errors_of_a_residual_are_its_own():
    with pytest.raises(AttributeError, match="no attribute 'missing'"):
        mslsq.least_squares(lambda x: x.missing(), mslsq.SE3.identity(dtype=torch.float64))


@pytest.mark.parametrize("kind", GROUPS)
@pytest.mark.parametrize("method", ["compose", "between", "local"])
def test_elements_of_two_groups_do_not_mix(kind, method):
    """SO3 and SE2 are both four numbers: one as seen from the other was a number of no meaning."""
    element = kind.random()
    for other in GROUPS:
        if other is not kind:
            with pytest.raises(ManifoldError, match=f"another {kind.__name__}, not {other.__name__}"):
                getattr(element, method)(other.random())
    for numbers in (element.storage, element.storage.numpy(), element.storage.tolist()):
        with pytest.raises(ManifoldError, match=rf"Make it one: {kind.__name__}\("):
            getattr(element, method)(numbers)


class Own(mslsq.SE3):
    """A user's own name for poses."""


def test_a_class_and_its_subclass_are_one_group():
    pose = mslsq.SE3.random()
    own = Own(pose.storage)
    for one, other in ((pose, own), (own, pose)):
        torch.testing.assert_close(one.local(other), torch.zeros(6, dtype=one.dtype), atol=1e-6, rtol=0.0)


@pytest.mark.parametrize("kind", GROUPS)
def test_points_and_tangent_vectors_of_another_dimension_are_refused(kind):
    element = kind.random()
    dim = element.matrix().shape[-1] - (kind not in (SO2, SO3))
    for wrong in (dim - 1, dim + 1, 2 * dim):
        with pytest.raises(ManifoldError, match=rf"act takes points, shape \(\.\.\., {dim}\)"):
            element.act(torch.zeros(5, wrong))
    with pytest.raises(ManifoldError, match=r"log\(\) is a tangent vector"):
        element.retract(element)


def test_directions_refuse_what_is_no_direction_and_no_tangent_vector():
    up = mslsq.UnitVector.random()
    with pytest.raises(ManifoldError, match="another UnitVector, not SO3"):
        up.local(mslsq.SO3.random())
    with pytest.raises(ManifoldError, match=r"retract takes tangent vectors, shape \(\.\.\., 2\)"):
        up.retract(torch.zeros(3))
