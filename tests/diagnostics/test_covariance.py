"""Marginal covariances against closed forms and against the inverse of the whole normal matrix."""

import pytest
import torch
from torch import Tensor

import mslsq
from mslsq.datasets.synthetic_graphs import ring_graph
from mslsq.diagnostics import SingularCovarianceError, covariance_of_normal
from mslsq.diagnostics.located import located

D = torch.float64


def levelling() -> tuple[mslsq.Problem, mslsq.Solution]:
    h = mslsq.Variable("h", mslsq.Euclidean(1), count=3)
    zero = torch.zeros(1, 1, dtype=D)
    problem = mslsq.Problem(
        mslsq.Prior(h[[0]], target=zero, weight=mslsq.Scale(torch.tensor(10.0, dtype=D))),
        mslsq.Difference(h[[0, 1, 0]], h[[1, 2, 2]], measured=torch.tensor([[1.0], [1.0], [2.3]], dtype=D)),
    )
    return problem, mslsq.solve(problem, {"h": torch.zeros(3, 1, dtype=D)})


def test_a_linear_problem_has_its_closed_form() -> None:
    problem, solution = levelling()
    # h1: 0.01 of the prior, then sigma² 1 and 2 in parallel.
    expected = torch.tensor([0.01, 0.01 + 2 / 3, 0.01 + 2 / 3], dtype=D).reshape(3, 1, 1)
    torch.testing.assert_close(mslsq.covariance(problem, solution, "h"), expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(mslsq.covariance(problem, solution, "h", 2), expected[2], rtol=1e-12, atol=0)
    torch.testing.assert_close(mslsq.covariance(problem, solution, "h", [2, 0]), expected[[2, 0]], rtol=1e-12, atol=0)


def test_blocks_of_a_pose_graph_are_those_of_the_whole_inverse() -> None:
    generator = torch.Generator().manual_seed(0)
    count = 12  # 66 free columns: beyond what is always treated as one system
    poses = mslsq.SE3.random(count, generator=generator, dtype=D)
    i = torch.tensor([*range(count - 1), 0, 3])
    j = torch.tensor([*range(1, count), 7, 11])
    noise = mslsq.SE3.exp(0.05 * torch.randn(len(i), 6, generator=generator, dtype=D))
    pose = mslsq.Variable("pose", mslsq.SE3, count)
    root = torch.randn(len(i), 6, 6, generator=generator, dtype=D) + 3 * torch.eye(6, dtype=D)
    measured = poses[i].inverse() @ poses[j] @ noise
    problem = mslsq.Problem(
        mslsq.Between(pose[i], pose[j], measured=measured, weight=mslsq.SqrtInformation(root)), pose.fixed([0])
    )
    solution = mslsq.solve(problem, {"pose": poses})
    found = mslsq.covariance(problem, solution, "pose")

    at = solution.value["pose"]

    def residual(delta: Tensor) -> Tensor:
        moved = at.retract(torch.cat([torch.zeros(1, 6, dtype=D), delta.reshape(-1, 6)]))
        errors = (measured.inverse() @ (moved[i].inverse() @ moved[j])).log()
        return (root @ errors[..., None]).reshape(-1)

    jacobian = torch.func.jacfwd(residual)(torch.zeros(6 * (count - 1), dtype=D))
    inverse = torch.linalg.inv(jacobian.T @ jacobian)
    for block in range(1, count):
        own = slice(6 * (block - 1), 6 * block)
        torch.testing.assert_close(found[block], inverse[own, own], rtol=1e-7, atol=1e-12)
    assert bool((found[0] == 0).all())


def test_independent_parts_have_their_own_covariance() -> None:
    x = mslsq.Variable("x", mslsq.Euclidean(2), 60)
    sigma = torch.rand(60, 2, generator=torch.Generator().manual_seed(1), dtype=D) + 0.1
    target = torch.zeros(60, 2, dtype=D)
    problem = mslsq.Problem(mslsq.Prior(x, target=target, weight=mslsq.Diagonal(1 / sigma)))
    solution = mslsq.solve(problem, {"x": target})
    torch.testing.assert_close(mslsq.covariance(problem, solution, "x"), torch.diag_embed(sigma**2))


def test_a_gauge_is_an_error_that_says_what_to_do() -> None:
    x = mslsq.Variable("x", mslsq.Euclidean(2), 3)
    problem = mslsq.Problem(mslsq.Difference(x[[0, 1]], x[[1, 2]]))
    solution = mslsq.solve(problem, {"x": torch.zeros(3, 2, dtype=D)})
    with pytest.raises(SingularCovarianceError, match=r"x\[2\], entry 0 .*Hold a gauge"):
        mslsq.covariance(problem, solution, "x")


def test_a_batch_has_a_covariance_per_entry_and_a_singular_one_is_nan() -> None:
    x = mslsq.Variable("x", mslsq.Euclidean(2))
    weight = mslsq.Diagonal(torch.ones(2, dtype=D))
    problem = mslsq.Problem(mslsq.Prior(x, target=torch.zeros(1, 2, dtype=D), weight=weight))
    weights = torch.tensor([[1.0, 2.0], [4.0, 0.0], [0.5, 1.0]], dtype=D)
    data = {"prior": {"weight": weights}}
    solution = mslsq.solve(problem, {"x": torch.ones(2, dtype=D)}, data, in_dims=(None, 0))
    found = mslsq.covariance(problem, solution, "x", data=data)
    torch.testing.assert_close(found[0], torch.diag(weights[0] ** -2))
    torch.testing.assert_close(found[2], torch.diag(weights[2] ** -2))
    assert bool(found[1].isnan().all())


def ring(anchored: bool = True) -> tuple[mslsq.Problem, mslsq.Solution]:
    """A pose graph of 120 poses, 357 free columns: enough for the block-sparse path."""
    graph = ring_graph(laps=4, per_lap=30).graph
    pose = mslsq.Variable("pose", mslsq.SE2, 120)
    weight = mslsq.SqrtInformation.from_information(graph.information)
    between = mslsq.Between(pose[graph.first], pose[graph.second], measured=graph.measured, weight=weight)
    problem = mslsq.Problem(between, pose.fixed([5])) if anchored else mslsq.Problem(between)
    return problem, mslsq.solve(problem, {"pose": graph.poses}, adjoint=mslsq.Detached())


def test_a_large_graph_has_the_blocks_of_its_dense_inverse() -> None:
    problem, solution = ring()
    point = located(problem, solution.value, dense=True)
    inverse = torch.linalg.inv(point.linearization().matrix[0, 0])
    found = mslsq.covariance(problem, solution, "pose")
    columns = point.columns("pose")
    for block in range(120):
        if block != 5:
            own = inverse[columns[block][:, None], columns[block]]
            torch.testing.assert_close(found[block], own, rtol=1e-9, atol=0)
    assert bool((found[5] == 0).all())
    torch.testing.assert_close(mslsq.covariance(problem, solution, "pose", [3, 7, 3]), found[[3, 7, 3]], rtol=0, atol=0)
    torch.testing.assert_close(mslsq.covariance(problem, solution, "pose", 119), found[119], rtol=0, atol=0)


def test_the_free_gauge_of_a_large_graph_is_counted() -> None:
    problem, solution = ring(anchored=False)
    with pytest.raises(SingularCovarianceError, match="3 of 360 directions are free"):
        mslsq.covariance(problem, solution, "pose")


def test_more_free_directions_than_are_counted_are_not_given_a_number() -> None:
    x = mslsq.Variable("x", mslsq.Euclidean(3), count=150)
    problem = mslsq.Problem(mslsq.Prior(x[torch.arange(120)], target=torch.zeros(120, 3, dtype=D)))
    chain = mslsq.Difference(x[torch.arange(119)], x[torch.arange(1, 120)], measured=torch.zeros(119, 3, dtype=D))
    problem = mslsq.Problem(*problem, chain)
    solution = mslsq.solve(problem, {"x": torch.zeros(150, 3, dtype=D)})
    with pytest.raises(SingularCovarianceError, match="at least 16 of 450 directions are free"):  # 90
        mslsq.covariance(problem, solution, "x", 3)


def test_a_singular_entry_of_a_batch_of_large_graphs_is_nan_alone() -> None:
    problem, solution = ring()
    cost = problem["between"]
    factor = cost.weight.value
    weights = torch.stack([factor, 0 * factor, 2 * factor])
    start = {"pose": solution.value["pose"]}
    data = {"between": {"weight": weights}}
    batch = mslsq.solve(problem, start, data, in_dims=(None, 0), adjoint=mslsq.Detached())
    found = mslsq.covariance(problem, batch, "pose", [0, 60], data=data)
    alone = mslsq.covariance(problem, solution, "pose", [0, 60])
    torch.testing.assert_close(found[0], alone, rtol=1e-8, atol=0)
    torch.testing.assert_close(found[2], alone / 4, rtol=1e-8, atol=0)
    assert bool(found[1].isnan().all())


def test_unknown_names_and_indices_are_errors() -> None:
    problem, solution = levelling()
    with pytest.raises(mslsq.ProblemError, match="Did you mean 'h'"):
        mslsq.covariance(problem, solution, "hh")
    with pytest.raises(mslsq.ProblemError, match="3 blocks"):
        mslsq.covariance(problem, solution, "h", 7)


@pytest.mark.parametrize("count", [40, 400], ids=["dense", "sparse"])
def test_what_is_singular_in_single_precision_alone_is_said_to_be_so(count: int) -> None:
    # a chain that hangs on a weak prior: the last variance is 1e8 + count, beyond seven digits beside one
    x = mslsq.Variable("x", mslsq.Euclidean(1), count=count)
    i = torch.arange(count - 1)
    problem = mslsq.Problem(
        mslsq.Difference(x[i], x[i + 1], measured=torch.ones(count - 1, 1, dtype=D)),
        mslsq.Prior(x[[0]], target=torch.zeros(1, 1, dtype=D), weight=1e-4),
    )
    start = torch.arange(count, dtype=D)[:, None]
    covariance = mslsq.covariance(problem, mslsq.solve(problem, {"x": start}), "x", count - 1)
    # the condition of JᵀJ is some 1e8 · count
    torch.testing.assert_close(covariance, torch.full((1, 1), 1e8 + count - 1, dtype=D), rtol=1e-5, atol=0)
    single = problem.to(torch.float32)
    solution = mslsq.solve(single, {"x": start.float()})
    with pytest.raises(SingularCovarianceError, match="precision of float32: try float64"):
        mslsq.covariance(single, solution, "x", count - 1)


def test_values_of_one_problem_do_instead_of_a_solution() -> None:
    problem, solution = levelling()
    found = mslsq.covariance(problem, {"h": solution.value["h"]}, "h")
    torch.testing.assert_close(found, mslsq.covariance(problem, solution, "h"), rtol=1e-14, atol=0)
    with pytest.raises(TypeError, match="or values by variable, not Tensor"):
        mslsq.covariance(problem, solution.value["h"], "h")  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [6, 200])
def test_what_a_bound_holds_is_known(count: int) -> None:
    x = mslsq.Variable("x", mslsq.Euclidean(2), count=count, upper=torch.tensor([0.1, torch.inf], dtype=D))
    i, j = torch.arange(count - 1), torch.arange(1, count)
    generator = torch.Generator().manual_seed(1)
    problem = mslsq.Problem(
        mslsq.Prior(x, target=torch.randn(count, 2, generator=generator, dtype=D), weight=mslsq.Scale(0.75)),
        mslsq.Difference(x[i], x[j], measured=0.3 * torch.randn(count - 1, 2, generator=generator, dtype=D)),
    )
    solution = mslsq.solve(problem, {"x": torch.zeros(count, 2, dtype=D)})
    free = solution.active["x"].flatten() == 0
    assert 0 < int((~free).sum()) < count
    eye, zero = torch.eye(count, dtype=D), torch.zeros(count - 1, count, dtype=D)
    rows = torch.cat([0.75 * eye, zero.index_put((i, j), eye[0, 0]).index_put((i, i), -eye[0, 0])])
    normal = torch.kron(rows.mT @ rows, torch.eye(2, dtype=D))
    whole = torch.zeros(2 * count, 2 * count, dtype=D)
    whole[free.nonzero(), free.nonzero()[:, 0]] = torch.linalg.inv(normal[free][:, free])
    expected = torch.stack([whole[2 * k : 2 * k + 2, 2 * k : 2 * k + 2] for k in range(count)])
    torch.testing.assert_close(mslsq.covariance(problem, solution, "x"), expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(mslsq.covariance(problem, solution, ["x"]), whole, rtol=1e-9, atol=1e-12)


def test_covariance_of_normal_equations_at_hand():
    jacobian = torch.randn(2, 3, 9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    jacobian[..., 1] *= 1e7  # columns of very different length
    normal = jacobian.mT @ jacobian
    torch.testing.assert_close(covariance_of_normal(normal), torch.linalg.inv(normal), rtol=1e-9, atol=0)
    jacobian[0, 1, :, 3] = jacobian[0, 1, :, 0] + jacobian[0, 1, :, 2]  # depends on the others
    jacobian[1, 2, 0, 0] = torch.inf
    found = covariance_of_normal(jacobian.mT @ jacobian)
    assert found[0, 1].isnan().all() and found[1, 2].isnan().all()
    assert found.isnan().flatten(2).any(-1).sum() == 2
    for batch, alone in zip(found.flatten(0, 1), (jacobian.mT @ jacobian).flatten(0, 1), strict=True):
        torch.testing.assert_close(covariance_of_normal(alone), batch, rtol=1e-12, atol=0, equal_nan=True)
