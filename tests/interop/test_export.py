"""A fixed-step solve exports to plain operations, and the exported program gives the same answer."""

import io
import operator

import pytest
import torch
from torch import nn

import mslsq
from mslsq.interop import ExportError, export

F64 = torch.float64
FIXED = mslsq.LevenbergMarquardt(max_steps=4, early_stop=False)


def ring() -> tuple[mslsq.Problem, torch.Tensor, torch.Tensor]:
    """Poses with analytic Jacobians: problem, start and measurements as storage."""
    generator = torch.Generator().manual_seed(0)
    pose = mslsq.Variable("pose", mslsq.SE2, count=5)
    i, j = torch.arange(5), (torch.arange(5) + 1) % 5
    measured = mslsq.SE2.exp(0.3 * torch.randn(5, 3, generator=generator, dtype=F64))
    problem = mslsq.Problem(mslsq.Between(pose[i], pose[j], measured=measured), pose.fixed([0]))
    return problem, mslsq.SE2.exp(torch.zeros(5, 3, dtype=F64)).storage, measured.storage


def other(measured: torch.Tensor) -> torch.Tensor:
    return mslsq.SE2(measured).retract(0.1 * torch.ones(5, 3, dtype=F64)).storage


@pytest.fixture(scope="module")
def exported():
    problem, start, measured = ring()
    layer = mslsq.LeastSquaresLayer(problem, FIXED)
    return layer, export(layer, ({"pose": start}, {"between": {"measured": measured}}))


def test_an_exported_layer_gives_the_same_answer_for_other_data(exported):
    layer, program = exported
    _, start, measured = ring()
    given = ({"pose": start}, {"between": {"measured": other(measured)}})
    found, expected = program.module()(*given), layer(*given)
    assert torch.allclose(found["value"]["pose"], expected.value["pose"], rtol=1e-12, atol=1e-14)
    assert torch.allclose(found["cost"], expected.cost, rtol=1e-12, atol=1e-14)
    assert found["status"] == expected.status


def test_an_exported_program_holds_plain_operations_and_survives_a_file(exported):
    _, program = exported
    _, start, measured = ring()
    given = ({"pose": start}, {"between": {"measured": measured}})
    targets = {node.target for node in program.graph.nodes if node.op == "call_function"} - {operator.getitem}
    assert {str(target).partition(".")[0] for target in targets} <= {"aten"}
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    again = torch.export.load(file)
    assert torch.equal(again.module()(*given)["value"]["pose"], program.module()(*given)["value"]["pose"])


class Model(nn.Module):
    """A network, a layer, and something after it."""

    def __init__(self, solver=FIXED):
        super().__init__()
        problem, start, _ = ring()
        self.network, self.layer = nn.Linear(4, 15, dtype=F64), mslsq.LeastSquaresLayer(problem, solver)
        self.register_buffer("start", start)

    def forward(self, z):
        measured = mslsq.SE2.exp(0.1 * self.network(z).reshape(5, 3))
        solution = self.layer({"pose": self.start}, {"between": {"measured": measured}})
        return mslsq.SE2(solution.value["pose"]).log()


@pytest.mark.slow
def test_a_model_with_a_layer_inside_exports_whole():
    torch.manual_seed(0)
    model = Model()
    program = export(model, (torch.ones(4, dtype=F64),))
    z = torch.randn(4, dtype=F64)
    assert torch.allclose(program.module()(z), model(z), rtol=1e-10, atol=1e-13)


def test_a_solver_that_stops_early_is_refused_in_words():
    with pytest.raises(ExportError, match=r"layer 'layer' has early_stop=True.*early_stop=False"):
        export(Model(mslsq.LevenbergMarquardt()), (torch.ones(4, dtype=F64),))
