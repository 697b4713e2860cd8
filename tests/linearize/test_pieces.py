"""Terms of many blocks are linearized some blocks at a time, with the same result as all at once."""

import pytest
import torch

import mslsq
import mslsq.linearize.assembly as assembly
from mslsq.datasets.synthetic_graphs import sphere_graph

F64 = torch.float64


def problem_and_start():
    """Poses in space with a loss, a weight and a loss scale for each edge, a fixed pose, and a term of another kind."""
    made = sphere_graph(laps=6, per_lap=20)
    graph, generator = made.graph, torch.Generator().manual_seed(0)
    pose = mslsq.Variable("pose", mslsq.SE3, count=len(graph.poses))
    edges = len(graph.measured)
    scale = 0.5 + torch.rand(edges, generator=generator, dtype=F64)
    root = torch.eye(6, dtype=F64) + 0.1 * torch.rand(edges, 6, 6, generator=generator, dtype=F64).triu()

    @mslsq.cost
    def height(x, *, measured):
        return x.translation[2:] - measured

    where = torch.randint(len(graph.poses), (300,), generator=generator)
    problem = mslsq.Problem(
        mslsq.Between(
            pose[graph.first], pose[graph.second], measured=graph.measured, weight=mslsq.SqrtInformation(root),
            loss=mslsq.Huber(scale),
        ),
        height(pose[where], measured=torch.rand(300, 1, generator=generator, dtype=F64)),
        pose.fixed([0]),
    )  # fmt: skip
    return problem, {"pose": graph.poses}


def solved(lanes_of_jacobian, monkeypatch, piece, **options):
    problem, start = problem_and_start()
    monkeypatch.setattr(assembly, "PIECE", piece)
    seen, original = lanes_of_jacobian, assembly.add_normal_equations

    def noted(gradient, values, jacobian, residual, plan):
        seen.append(jacobian.shape[-1])
        return original(gradient, values, jacobian, residual, plan)

    monkeypatch.setattr(assembly, "add_normal_equations", noted)
    solver = mslsq.LevenbergMarquardt(max_steps=6, **options)
    solution = mslsq.solve(problem, start, solver=solver)
    monkeypatch.undo()
    return solution


@pytest.mark.slow
@pytest.mark.parametrize("piece", [1, 1000, 4000])
def test_pieces_give_the_steps_of_the_whole(piece, monkeypatch):
    lanes, none = [], []
    pieces = solved(lanes, monkeypatch, piece, trace="never")
    whole = solved(none, monkeypatch, 10**9, trace="never")
    assert not none
    assert lanes and max(lanes) <= max(piece // 6, 1)  # of a height; J of an edge has 72 numbers
    torch.testing.assert_close(pieces.history.cost, whole.history.cost, rtol=1e-10, atol=0, equal_nan=True)
    torch.testing.assert_close(pieces.value["pose"].storage, whole.value["pose"].storage, rtol=1e-9, atol=1e-9)


def test_a_recorded_step_is_not_written_down_piece_by_piece(monkeypatch):
    lanes = []
    recorded = solved(lanes, monkeypatch, 1000, trace="always")
    whole = solved([], monkeypatch, 10**9, trace="never")
    torch.testing.assert_close(recorded.cost, whole.cost, rtol=1e-10, atol=0)


def test_derivatives_are_not_taken_through_pieces(monkeypatch):
    problem, start = problem_and_start()
    gradients = []
    for piece in (1000, 10**9):
        monkeypatch.setattr(assembly, "PIECE", piece)
        measured = torch.full((300, 1), 0.3, dtype=F64, requires_grad=True)
        solver = mslsq.GaussNewton(max_steps=3, trace="never")
        for adjoint in (mslsq.Unrolled(), mslsq.Truncated(2)):
            data = {"height": {"measured": measured}}
            solution = mslsq.solve(problem, start, data, solver=solver, adjoint=adjoint)
            gradients.append(torch.autograd.grad(solution.cost, measured)[0])
    torch.testing.assert_close(gradients[0], gradients[2], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(gradients[1], gradients[3], rtol=1e-9, atol=1e-12, equal_nan=True)
