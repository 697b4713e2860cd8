"""Recorded graphs, node by node, on fake tensors of CUDA: every operation has a CUDA form, and none leaves the device.

The graphs are recorded on the CPU; what they hold and what they make is moved with their inputs.
"""

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

import mslsq
from mslsq import linear
from mslsq.datasets import ring_graph
from mslsq.front import plans
from mslsq.linearize.trace import Execution
from mslsq.tracing.recording import Recorded
from tests.devices.doors import DOORS, LOSSES
from tests.devices.forms import has_form_on_cuda, table

pytestmark = pytest.mark.fake_cuda
F64 = torch.float64
CUDA = torch.device("cuda", 0)
ALWAYS: dict[str, Any] = {"trace": "always"}


class OnCuda(fx.Interpreter):
    """Runs a graph with every device that it names replaced by CUDA."""

    def __init__(self, graph: fx.GraphModule, mode: FakeTensorMode):
        super().__init__(graph)
        self.mode = mode

    def fake(self, x: Tensor) -> Tensor:
        with self.mode:
            return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=CUDA)

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        held = super().get_attr(target, args, kwargs)
        return self.fake(held) if isinstance(held, Tensor) else held

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if isinstance(target, torch._ops.OpOverload) and target.namespace == "aten":
            assert has_form_on_cuda(target), target
        with self.mode:
            return super().call_function(
                target, args, {name: CUDA if isinstance(x, torch.device) else x for name, x in kwargs.items()}
            )


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[fx.GraphModule, list[Tensor]]]:
    """Every graph that is recorded in a test, with an example of its inputs."""
    found: list[tuple[fx.GraphModule, list[Tensor]]] = []
    record = Recorded.__init__

    def kept(self: Recorded, function: Callable[..., Any], example: tuple[Any, ...]) -> None:
        record(self, function, example)
        found.append((self.graph, [leaf for leaf in pytree.tree_leaves(example) if isinstance(leaf, Tensor)]))

    monkeypatch.setattr(Recorded, "__init__", kept)
    return found


def assert_all_run_on_cuda(graphs: list[tuple[fx.GraphModule, list[Tensor]]]) -> None:
    assert graphs
    for graph, example in graphs:
        runner = OnCuda(graph, FakeTensorMode())
        outputs = runner.run(*map(runner.fake, example))
        assert all(x.device == CUDA for x in pytree.tree_leaves(outputs) if isinstance(x, Tensor))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("solver", [mslsq.LevenbergMarquardt, mslsq.Dogleg, mslsq.GaussNewton])
@pytest.mark.parametrize("loss", [None, mslsq.Cauchy(0.05)], ids=["plain", "cauchy"])
def test_fits_and_their_derivatives(solver: Any, loss: Any, graphs: Any):
    t = torch.linspace(0, 1, 16, dtype=F64)
    y = (2 * torch.exp(-1.5 * t) + 0.3).repeat(3, 1).requires_grad_()
    solution = mslsq.least_squares(
        lambda p, t, y: p[0] * torch.exp(p[1] * t) + p[2] - y,
        torch.tensor([1.0, -1.0, 0.0], dtype=F64),
        (t, y),
        in_dims=(None, None, 0),
        solver=solver(**ALWAYS),
        loss=loss,
    )
    solution.value.square().sum().backward()
    assert_all_run_on_cuda(graphs)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "solver",
    [linear.Cholesky(), linear.ConjugateGradient(), linear.ConjugateGradient(matrix_free=True)],
    ids=["cholesky", "conjugate_gradient", "matrix_free"],
)
def test_pose_graphs(solver: Any, graphs: Any):
    graph = ring_graph(laps=2, per_lap=6).graph
    mslsq.solve(
        graph.problem(loss=mslsq.Huber(1.0)),
        {"pose": graph.poses},
        solver=mslsq.LevenbergMarquardt(linear_solver=solver, max_steps=4, **ALWAYS),
    )
    assert_all_run_on_cuda(graphs)


KINDS = {
    "bounds": {"start", "step"},
    "GraduatedNonConvexity": {"start", "step", "norms of"},
    "constraints": {"start", "step", "constraints", "cost alone"},
    "solve, a batch of graphs": {"start", "step"},
    "curve_fit, errors of t": {"start", "step"},
    "derivatives, Implicit": {"start", "step", "gradient", "factored", "cost", "pullback to", "pullback through"},
    "derivatives, Truncated": {"linearization"},
    "derivatives, Unrolled": {"linearization"},
    "derivatives, DirectLossMinimization": {"factored"},
    "derivatives, of bounds": {"factored"},
    **{name: {"start", "step"} for name in LOSSES},
}
"""Doors, and how the names of graphs begin that are recorded behind them."""


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", KINDS)
def test_graphs_behind_front_doors(name: str, graphs: Any, monkeypatch: pytest.MonkeyPatch):
    names: list[str] = []
    record = Execution.record

    def named(self: Execution, name: str, *args: Any, **options: Any) -> None:
        names.append(name)
        record(self, name, *args, **options)

    monkeypatch.setattr(Execution, "record", named)
    monkeypatch.setattr(plans, "_KEPT", weakref.WeakKeyDictionary())  # graphs are recorded again
    DOORS[name](lambda tree: tree, mslsq.LevenbergMarquardt(native="never", acceleration=None, **ALWAYS))
    missing = {kind for kind in KINDS[name] if not any(one.startswith(kind) for one in names)}
    assert not missing, sorted(set(names))
    assert_all_run_on_cuda(graphs)


def test_a_bent_step_runs_on_cuda(graphs: Any):
    solver = mslsq.LevenbergMarquardt(native="never", acceleration=0.75, **ALWAYS)
    DOORS["least_squares, a batch"](lambda tree: tree, solver)
    assert_all_run_on_cuda(graphs)


def test_an_operator_that_cuda_does_not_have_is_seen():
    if table() is None:
        pytest.skip("this PyTorch has no table of its operators")
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(torch.ops.aten.mkldnn_linear.default, (x, x)))
    with pytest.raises(AssertionError, match="mkldnn_linear"):
        assert_all_run_on_cuda([(fx.GraphModule({}, graph), [torch.ones(2, 2)])])
