"""An error function that reads nothing but what is compared is trusted: it is compared with Python in turn, and not in
every call. What changes is noticed all the same."""

import random

import pytest
import torch

from mslsq.front.closed_costs import ClosedCosts, elements, may_be_closed
from mslsq.interop.theseus import from_theseus_layer
from mslsq.solvers.witness import Witness
from mslsq.tracing.reading.closed import Closed, why_open
from mslsq.tracing.reading.inputs import collect_module

th = pytest.importorskip(
    "theseus", reason="Theseus is not installed: see scripts/install_theseus.sh", exc_type=ImportError
)
F64 = torch.float64
FACTOR = 1.0
FACTORS = {"all": 1.0}
GENERATOR = random.Random(0)


def layer_of(error, variable=None, aux=None):
    """The mean of three numbers, moved by what `error` adds."""
    objective = th.Objective(dtype=F64)
    mean = variable or th.Vector(tensor=torch.zeros(1, 1, dtype=F64), name="mean")
    numbers = aux or th.Variable(torch.tensor([[1.0, 2.0, 3.0]], dtype=F64), name="numbers")
    weight = th.ScaleCostWeight(torch.ones(1, 1, dtype=F64))
    objective.add(th.AutoDiffCostFunction([mean], error, 3, weight, aux_vars=[numbers]))
    return from_theseus_layer(th.TheseusLayer(th.GaussNewton(objective)))


def cost_of(layer):
    (cost,) = layer.problem
    return cost


def why(layer):
    return why_open(collect_module(cost_of(layer)), elements())


def solved(layer):
    values, _ = layer.forward({"mean": torch.zeros(1, 1, dtype=F64)})
    return float(values["mean"])


def plain(optim_vars, aux_vars):
    return optim_vars[0].tensor - aux_vars[0].tensor


def with_global(optim_vars, aux_vars):
    return FACTOR * optim_vars[0].tensor - aux_vars[0].tensor


def with_dict(optim_vars, aux_vars):
    return FACTORS["all"] * optim_vars[0].tensor - aux_vars[0].tensor


def with_operators(optim_vars, aux_vars):
    (mean,) = optim_vars
    return (mean + mean).tensor / 2 - aux_vars[0].tensor


def with_group(optim_vars, aux_vars):
    turn = th.SO2.exp_map(optim_vars[0].tensor)
    return turn.log_map() - aux_vars[0].tensor


def with_hidden_state(optim_vars, aux_vars):
    return GENERATOR.getstate()[0] * 0.0 + optim_vars[0].tensor - aux_vars[0].tensor


class Counting(th.Vector):
    """A variable of a user's own, whose methods read more than its tensor."""

    def moved(self):
        return self.tensor + FACTORS["all"]


def with_own_class(optim_vars, aux_vars):
    return optim_vars[0].moved() - aux_vars[0].tensor


@pytest.mark.parametrize("error", [plain, with_global, with_dict, with_operators, with_group])
def test_what_reads_tensors_numbers_and_methods_of_theseus_is_closed(error):
    assert why(layer_of(error)) == ""


def test_a_function_that_holds_numbers_is_closed():
    def error(optim_vars, aux_vars):
        return factor * optim_vars[0].tensor - aux_vars[0].tensor

    factor = 2.0
    assert why(layer_of(error)) == ""


@pytest.mark.parametrize("error", [with_hidden_state])
def test_what_reads_hidden_state_is_not(error):
    assert "Random" in why(layer_of(error))


def test_a_function_that_is_open_leaves_others_closed():
    first, other = layer_of(with_hidden_state), layer_of(plain)
    assert ClosedCosts.of(first.problem) is None
    assert not may_be_closed(first.problem)
    assert may_be_closed(other.problem)


def test_a_global_number_that_changes_is_noticed_at_once(monkeypatch):
    layer = layer_of(with_global)
    for _ in range(5):
        assert solved(layer) == pytest.approx(2.0, rel=1e-9)
    monkeypatch.setitem(globals(), "FACTOR", 4.0)
    assert solved(layer) == pytest.approx(0.5, rel=1e-9)


def test_an_entry_of_a_global_dict_that_changes_is_noticed_at_once(monkeypatch):
    layer = layer_of(with_dict)
    for _ in range(5):
        assert solved(layer) == pytest.approx(2.0, rel=1e-9)
    monkeypatch.setitem(FACTORS, "all", 4.0)
    assert solved(layer) == pytest.approx(0.5, rel=1e-9)


def test_a_number_in_a_closure_that_changes_is_noticed_at_once():
    factor = 1.0

    def error(optim_vars, aux_vars):
        return factor * optim_vars[0].tensor - aux_vars[0].tensor

    layer = layer_of(error)
    for _ in range(5):
        assert solved(layer) == pytest.approx(2.0, rel=1e-9)
    factor = 4.0
    assert solved(layer) == pytest.approx(0.5, rel=1e-9)


def test_what_a_method_of_ones_own_variable_reads_is_noticed_at_once(monkeypatch):
    mean = Counting(tensor=torch.zeros(1, 1, dtype=F64), name="mean")
    layer = layer_of(with_own_class, mean)
    for _ in range(5):
        assert solved(layer) == pytest.approx(1.0, rel=1e-9)
    monkeypatch.setitem(FACTORS, "all", 0.0)
    assert solved(layer) == pytest.approx(2.0, rel=1e-9)


def test_a_method_of_theseus_that_is_replaced_is_noticed_at_once(monkeypatch):
    layer = layer_of(with_operators)
    closed = Closed.of(collect_module(cost_of(layer)), elements())
    assert closed is not None and closed.holds
    for _ in range(5):
        assert solved(layer) == pytest.approx(2.0, rel=1e-9)
    monkeypatch.setattr(th.Vector, "__add__", lambda self, other: th.Vector(tensor=4 * self.tensor))
    assert not closed.holds
    assert solved(layer) == pytest.approx(1.0, rel=1e-9)


@pytest.mark.parametrize("module, name", [("theseus", "so2_norm_eps_float64"), ("torchlie", "so3_near_pi_eps_float64")])
def test_a_threshold_of_theseus_that_changes_is_noticed_at_once(monkeypatch, module, name):
    closed = Closed.of(collect_module(cost_of(layer_of(with_group))), elements())
    assert closed is not None and closed.holds
    parameters = __import__("theseus.global_params", fromlist=["_"])
    kept = {"theseus": parameters._THESEUS_GLOBAL_PARAMS, "torchlie": parameters._LIE_GP}[module]
    monkeypatch.setattr(kept, name, 0.125)
    assert not closed.holds


def test_solves_of_it_go_without_a_comparison(monkeypatch):
    calls = []

    def error(optim_vars, aux_vars):
        return optim_vars[0].tensor - aux_vars[0].tensor

    layer = layer_of(error)
    for _ in range(4):
        solved(layer)
    own = Witness.disagrees
    monkeypatch.setattr(Witness, "disagrees", lambda self, *more: calls.append(own(self, *more)) or calls[-1])
    for _ in range(4):
        assert solved(layer) == pytest.approx(2.0, rel=1e-9)
    assert calls == [None] * 4
