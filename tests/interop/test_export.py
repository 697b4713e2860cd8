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


@pytest.mark.slow
def test_an_exported_layer_gives_the_same_answer_for_other_data(exported):
    layer, program = exported
    _, start, measured = ring()
    given = ({"pose": start}, {"between": {"measured": other(measured)}})
    found, expected = program.module()(*given), layer(*given)
    assert torch.allclose(found["value"]["pose"], expected.value["pose"], rtol=1e-12, atol=1e-14)
    assert torch.allclose(found["cost"], expected.cost, rtol=1e-12, atol=1e-14)
    assert found["status"] == expected.status


@pytest.mark.slow
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


# ---- torch.export.export itself --------------------------------------------------------------------------


@pytest.mark.slow
def test_torch_export_takes_a_layer_as_it_is():
    problem, start, measured = ring()
    layer = mslsq.LeastSquaresLayer(problem, FIXED)
    program = torch.export.export(layer, ({"pose": start}, {"between": {"measured": measured}}))
    assert {str(n.target).partition(".")[0] for n in program.graph.nodes if n.op == "call_function"} <= {
        "aten",
        "<built-in function getitem>",
    }
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    for runs in (program, torch.export.load(file)):
        given = ({"pose": start}, {"between": {"measured": other(measured)}})
        found, expected = runs.module()(*given), layer(*given)
        assert torch.allclose(found.value["pose"], expected.value["pose"], rtol=1e-12, atol=1e-14)
        assert torch.equal(found.status, expected.status)


@pytest.mark.slow
def test_torch_export_takes_a_model_with_a_layer_inside_and_keeps_its_parameters():
    torch.manual_seed(0)
    model = Model()
    program = torch.export.export(model, (torch.ones(4, dtype=F64),))
    z = torch.randn(4, dtype=F64)
    assert torch.allclose(program.module()(z), model(z), rtol=1e-10, atol=1e-13)
    assert "network.weight" in program.state_dict


class Learnt(mslsq.CostFunction):
    """A residual without Jacobians of its own, with a parameter, and a weight and a loss that have some too."""

    def __init__(self, *variables, **data):
        super().__init__(*variables, **data)
        self.rate = nn.Parameter(torch.tensor(0.7, dtype=F64))

    def residual(self, p, t, y):
        return (p[0] * torch.exp(self.rate * p[1] * t) - y)[None]


@pytest.mark.slow
def test_torch_export_takes_autodiff_losses_and_parameters_too():
    t = torch.linspace(0, 1, 6, dtype=F64)
    p = mslsq.Variable("p", mslsq.Euclidean(2))
    cost = Learnt(p, t=t, y=2 * torch.exp(-t), loss=mslsq.Huber(0.3), weight=mslsq.Scale(nn.Parameter(t.new_ones(()))))
    layer = mslsq.LeastSquaresLayer(mslsq.Problem(cost), mslsq.LevenbergMarquardt(max_steps=6, early_stop=False))
    alone = torch.export.export(layer, ({"p": torch.tensor([1.0, -1.0], dtype=F64)},))
    start = ({"p": torch.tensor([1.5, -0.5], dtype=F64)},)
    assert torch.allclose(alone.module()(*start).value["p"], layer(*start).value["p"], rtol=1e-9)
    given = ({"p": torch.tensor([1.0, -1.0], dtype=F64)}, {"learnt": {"y": 3 * torch.exp(-0.5 * t)}})
    program = torch.export.export(layer, given)
    assert torch.allclose(program.module()(*given).value["p"], layer(*given).value["p"], rtol=1e-9)
    assert layer(*given).value["p"].requires_grad  # exporting has changed nothing


def test_torch_export_of_what_it_cannot_take_names_the_way_that_works():
    problem, start, measured = ring()
    given = ({"pose": start}, {"between": {"measured": measured}})
    with pytest.raises(Exception, match=r"early_stop=True.*mslsq\.interop\.export"):
        torch.export.export(mslsq.LeastSquaresLayer(problem), given)

    class Bare(nn.Module):
        def forward(self, values, data):
            return mslsq.solve(problem, values, data, solver=FIXED).value["pose"]

    with pytest.raises(Exception, match=r"LeastSquaresLayer.*mslsq\.interop\.export"):
        torch.export.export(Bare(), given)


@mslsq.cost
def grown(x: mslsq.Euclidean, at: torch.Tensor) -> torch.Tensor:
    return torch.exp(x) - at


@pytest.mark.slow
@pytest.mark.parametrize("with_torch", [False, True])
def test_a_bounded_layer_exports_its_bounds(with_torch):
    x = mslsq.Variable("x", mslsq.Euclidean(2), count=2, lower=0.1, upper=torch.tensor(0.5, dtype=F64))
    problem = mslsq.Problem(grown(x, at=torch.ones(2, 2, dtype=F64), name="grown"))
    layer = mslsq.LeastSquaresLayer(
        problem, mslsq.LevenbergMarquardt(max_steps=12, early_stop=False), project_start=True
    )
    start = {"x": torch.zeros(2, 2, dtype=F64)}
    at, other = (torch.tensor(x, dtype=F64) for x in ([[2.0, 1.0], [1.3, 1.5]], [[1.4, 9.0], [0.2, 1.2]]))
    data = {"grown": {"at": at}}
    program = torch.export.export(layer, (start, data)) if with_torch else export(layer, (start, data))
    for given in (at, other):
        found = program.module()(start, {"grown": {"at": given}})
        value = found.value["x"] if with_torch else found["value"]["x"]
        expected = torch.log(given).clamp(0.1, 0.5)
        torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-12)


def test_a_solver_of_rounds_or_with_a_clock_is_refused():
    problem, start, _ = ring()
    for solver, words in (
        (mslsq.GraduatedNonConvexity(FIXED, scale=1.0), "rounds"),
        (mslsq.LevenbergMarquardt(max_steps=4, early_stop=False, time_budget=1.0), "time_budget"),
    ):
        with pytest.raises(ExportError, match=words):
            export(mslsq.LeastSquaresLayer(problem, solver), ({"pose": start},))
