"""Costs of a user's own are answered at once where their code is closed, and every way of changing what they read is
noticed in the next call; where the code may read what is not compared, every call is compared with its Python."""

import dataclasses
import enum
import functools
import gc
import logging
import os
import pathlib
import types
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from torch import nn

import mslsq
from mslsq.front import closed_costs
from mslsq.front.closed_costs import CHECKED_EVERY, UnseenChangeWarning
from mslsq.linear import Cholesky
from mslsq.tracing.capture import CaptureError
from tests.front.test_repeated_problem import answers  # noqa: F401

F64 = torch.float64
SOLVER = mslsq.LevenbergMarquardt(trace="always", native="never", linear_solver=Cholesky())
Y = torch.tensor([[1.0, 2.0], [3.0, 5.0], [2.0, -1.0]], dtype=F64)


def made(kind, y=Y, **attributes):
    """Measurements y = gain · p of a cost that knows the gain; one block each."""
    p = mslsq.Variable("p", mslsq.Euclidean(2), count=1)
    cost = kind(p[torch.zeros(len(y), dtype=torch.int64)], y=y, name="own")
    for name, value in attributes.items():
        setattr(cost, name, value)
    return mslsq.Problem(cost)


def solved(problem):
    start = {"p": torch.full((1, 2), 0.3, dtype=F64)}
    return mslsq.solve(problem, start, solver=SOLVER).value["p"][0]


def assert_gain(problem, gain, y=Y):
    torch.testing.assert_close(solved(problem), y.mean(0) / gain, rtol=1e-7, atol=1e-9)


def cost(residual, **members):
    return type("Own", (mslsq.CostFunction,), {"residual": residual, "__module__": __name__, **members})


def space(**entries):
    """A module of the user's with these contents."""
    module = types.ModuleType("tests_of_closed_costs")
    vars(module).update(torch=torch, mslsq=mslsq, **entries)
    return module


def written(text, **entries):
    """A class `Own` from text, in a module of its own that holds these."""
    module = space(**entries)
    exec(f"class Own(mslsq.CostFunction):\n    {text}", vars(module))
    return module.Own, module


PLAIN = "def residual(self, p, y): return {} * p - y"


def global_rebound():
    kind, module = written(PLAIN.format("GAIN"), GAIN=2.0)
    return kind, {}, lambda problem: setattr(module, "GAIN", 4.0)


def global_tensor_written():
    gain = torch.full((2,), 2.0, dtype=F64)
    kind, _ = written(PLAIN.format("GAIN"), GAIN=gain)
    return kind, {}, lambda problem: gain.mul_(2)


def global_tensor_written_past_its_version():
    gain = torch.full((2,), 2.0, dtype=F64)
    kind, _ = written(PLAIN.format("GAIN"), GAIN=gain)
    return kind, {}, lambda problem: gain.data.mul_(2)


def global_tensor_rebound():
    kind, module = written(PLAIN.format("GAIN"), GAIN=torch.full((2,), 2.0, dtype=F64))
    return kind, {}, lambda problem: setattr(module, "GAIN", torch.full((2,), 4.0, dtype=F64))


def attribute_of_a_module():
    kind, module = written(PLAIN.format("SETTINGS.gain"), SETTINGS=space(gain=2.0))
    return kind, {}, lambda problem: setattr(module.SETTINGS, "gain", 4.0)


def attribute_of_an_object():
    settings: Any = type("Settings", (), {"__module__": __name__})()
    settings.gain = 2.0
    kind, _ = written(PLAIN.format("SETTINGS.gain"), SETTINGS=settings)
    return kind, {}, lambda problem: setattr(settings, "gain", 4.0)


def list_written():
    kind, module = written(PLAIN.format("GAINS[0]"), GAINS=[2.0, 1.0])
    return kind, {}, lambda problem: module.GAINS.__setitem__(0, 4.0)


def dict_written():
    kind, module = written(PLAIN.format("GAINS['gain']"), GAINS={"gain": 2.0})
    return kind, {}, lambda problem: module.GAINS.update(gain=4.0)


def array_written():
    kind, module = written(PLAIN.format("float(GAINS[0])"), GAINS=np.array([2.0, 1.0]))
    return kind, {}, lambda problem: module.GAINS.__setitem__(0, 4.0)


def helper_redefined():
    kind, module = written(PLAIN.format("helper()"), helper=lambda: 2.0)
    return kind, {}, lambda problem: setattr(module, "helper", lambda: 4.0)


def code_of_a_helper_replaced():
    kind, module = written(PLAIN.format("helper()"), helper=lambda: 2.0)
    return kind, {}, lambda problem: setattr(module.helper, "__code__", (lambda: 4.0).__code__)


def default_of_a_helper_replaced():
    kind, module = written(PLAIN.format("helper()"), helper=lambda gain=2.0: gain)
    return kind, {}, lambda problem: setattr(module.helper, "__defaults__", (4.0,))


def keyword_default_of_a_helper_replaced():
    def helper(*, gain=2.0):
        return gain

    kind, module = written(PLAIN.format("helper()"), helper=helper)
    return kind, {}, lambda problem: module.helper.__kwdefaults__.update(gain=4.0)


def builtin_hidden():
    kind, module = written(PLAIN.format("sum((1.0, 1.0))"))
    return kind, {}, lambda problem: setattr(module, "sum", lambda numbers: 4.0)


def attribute_of_the_cost():
    return (
        cost(lambda self, p, y: self.gain * p - y),
        {"gain": 2.0},
        lambda problem: setattr(problem["own"], "gain", 4.0),
    )


def list_of_the_cost():
    kind = cost(lambda self, p, y: self.gains[0] * p - y)
    return kind, {"gains": [2.0]}, lambda problem: problem["own"].gains.__setitem__(0, 4.0)


def tensor_of_the_cost_written():
    kind = cost(lambda self, p, y: self.gain * p - y)
    return kind, {"gain": torch.full((2,), 2.0, dtype=F64)}, lambda problem: problem["own"].gain.mul_(2)


def tensor_of_the_cost_replaced():
    kind = cost(lambda self, p, y: self.gain * p - y)
    other = torch.full((2,), 4.0, dtype=F64)
    return kind, {"gain": torch.full((2,), 2.0, dtype=F64)}, lambda problem: setattr(problem["own"], "gain", other)


def parameter_written():
    kind = cost(lambda self, p, y: self.gain * p - y)
    parameter = nn.Parameter(torch.full((2,), 2.0, dtype=F64), requires_grad=False)
    return kind, {"gain": parameter}, lambda problem: problem["own"].gain.data.mul_(2)


def training_flag():
    kind = cost(lambda self, p, y: (2.0 if self.training else 4.0) * p - y)
    return kind, {}, lambda problem: problem.eval()


def attribute_of_the_class():
    kind = cost(lambda self, p, y: self.gain * p - y, gain=2.0)
    return kind, {}, lambda problem: setattr(kind, "gain", 4.0)


def attribute_of_a_base():
    base = cost(lambda self, p, y: self.gain * p - y, gain=2.0)
    kind = type("Derived", (base,), {"__module__": __name__})
    return kind, {}, lambda problem: setattr(base, "gain", 4.0)


def base_replaced():
    one, two = (cost(lambda self, p, y: self.gain * p - y, gain=gain) for gain in (2.0, 4.0))
    kind = type("Derived", (one,), {"__module__": __name__})
    return kind, {}, lambda problem: setattr(kind, "__bases__", (two,))


def class_of_the_cost_replaced():
    one, two = (cost(lambda self, p, y: self.gain * p - y, gain=gain) for gain in (2.0, 4.0))
    return one, {}, lambda problem: setattr(problem["own"], "__class__", two)


def method_replaced():
    kind = cost(lambda self, p, y: 2.0 * p - y)
    return kind, {}, lambda problem: setattr(kind, "residual", lambda self, p, y: 4.0 * p - y)


def method_of_the_object_replaced():
    kind = cost(lambda self, p, y: 2.0 * p - y)
    return kind, {}, lambda problem: setattr(problem["own"], "residual", lambda p, y: 4.0 * p - y)


def code_of_a_method_replaced():
    kind = cost(lambda self, p, y: 2.0 * p - y)
    return kind, {}, lambda problem: setattr(kind.residual, "__code__", (lambda self, p, y: 4.0 * p - y).__code__)


def property_replaced():
    kind = cost(lambda self, p, y: self.gain * p - y, gain=property(lambda self: 2.0))
    return kind, {}, lambda problem: setattr(kind, "gain", property(lambda self: 4.0))


def static_method_replaced():
    kind = cost(lambda self, p, y: self.gain() * p - y, gain=staticmethod(lambda: 2.0))
    return kind, {}, lambda problem: setattr(kind, "gain", staticmethod(lambda: 4.0))


def default_of_a_method_replaced():
    def residual(self, p, y, gain=2.0):
        return gain * p - y

    return cost(residual), {}, lambda problem: setattr(residual, "__defaults__", (4.0,))


def cell_rebound():
    gain = 2.0

    def rebind(problem):
        nonlocal gain
        gain = 4.0

    return cost(lambda self, p, y: gain * p - y), {}, rebind


def cell_tensor_written():
    gain = torch.full((2,), 2.0, dtype=F64)
    return cost(lambda self, p, y: gain * p - y), {}, lambda problem: gain.mul_(2)


def cell_tensor_rebound():
    gain, kept = torch.full((2,), 2.0, dtype=F64), []

    def rebind(problem):
        nonlocal gain
        kept.append(gain)
        gain = torch.full((2,), 4.0, dtype=F64)

    return cost(lambda self, p, y: gain * p - y), {}, rebind


def list_of_tensors():
    kind, kept = cost(lambda self, p, y: self.gains[0] * p - y), []

    def change(problem):
        kept.append(problem["own"].gains[0])
        problem["own"].gains[0] = torch.full((2,), 4.0, dtype=F64)

    return kind, {"gains": [torch.full((2,), 2.0, dtype=F64)]}, change


def cell_of_the_decorator():
    gain = 2.0

    @mslsq.cost
    def own(p, y):
        return gain * p - y

    def rebind(problem):
        nonlocal gain
        gain = 4.0

    return own, {}, rebind


def layer(gain):
    made = nn.Linear(2, 2, bias=False, dtype=F64).requires_grad_(False)
    made.weight.copy_(gain * torch.eye(2, dtype=F64))
    return made


def through_a_network():
    return cost(lambda self, p, y: self.net(p) - y)


def weight_of_a_layer_written():
    return through_a_network(), {"net": layer(2.0)}, lambda problem: problem["own"].net.weight.mul_(2)


def weight_of_a_layer_written_past_its_version():
    return through_a_network(), {"net": layer(2.0)}, lambda problem: problem["own"].net.weight.data.mul_(2)


def weight_of_a_layer_replaced():
    def change(problem):
        problem["own"].net.weight = layer(4.0).weight

    return through_a_network(), {"net": layer(2.0)}, change


def layer_replaced():
    net = nn.Sequential(nn.Identity(), layer(2.0))
    return through_a_network(), {"net": net}, lambda problem: problem["own"].net.__setitem__(1, layer(4.0))


def layer_added():
    net = nn.Sequential(layer(2.0))
    return through_a_network(), {"net": net}, lambda problem: problem["own"].net.append(layer(2.0))


def hook_of_a_layer():
    def change(problem):
        problem["own"].net.register_forward_hook(lambda module, given, output: 2 * output)

    return through_a_network(), {"net": layer(2.0)}, change


def hook_of_all_layers():
    def change(problem):
        handle = nn.modules.module.register_module_forward_hook(lambda module, given, output: 2 * output)
        problem["own"].removed = weakref.finalize(problem, handle.remove)

    return through_a_network(), {"net": layer(2.0)}, change


def forward_of_a_layer_replaced():
    def change(problem):
        problem["own"].net.forward = lambda x: 4.0 * x

    return through_a_network(), {"net": layer(2.0)}, change


def mode_of_a_layer():
    net = nn.Sequential(layer(4.0), nn.BatchNorm1d(2, affine=False, eps=0.0, dtype=F64)).eval()
    net[1].running_var.fill_(4.0)  # divides by two
    return (
        cost(lambda self, p, y: self.net(p[None])[0] - y),
        {"net": net},
        lambda problem: problem["own"].net[1].running_var.fill_(1.0),
    )


def network_of_a_module():
    kind, module = written("def residual(self, p, y): return NET(p) - y", NET=layer(2.0))
    return kind, {}, lambda problem: module.NET.weight.mul_(2)


def array_in_an_attribute():
    kind = cost(lambda self, p, y: torch.as_tensor(self.gains) * p - y)
    return kind, {"gains": np.array([2.0, 2.0])}, lambda problem: problem["own"].gains.__imul__(2.0)


@dataclasses.dataclass
class Inner:
    gain: float = 2.0


@dataclasses.dataclass
class Settings:
    inner: Inner = dataclasses.field(default_factory=Inner)
    folder: pathlib.Path = pathlib.Path("outputs")


def dataclass_in_an_attribute():
    kind = cost(lambda self, p, y: self.settings.inner.gain * p - y)
    return kind, {"settings": Settings()}, lambda problem: setattr(problem["own"].settings.inner, "gain", 4.0)


def configuration_in_an_attribute():
    kind = cost(lambda self, p, y: self.cfg.model.gain * p - y)
    cfg = OmegaConf.create({"model": {"gain": 2.0}})
    return kind, {"cfg": cfg}, lambda problem: setattr(problem["own"].cfg.model, "gain", 4.0)


def reference_of_a_configuration():
    kind = cost(lambda self, p, y: self.cfg.gain * p - y)
    cfg = OmegaConf.create({"gain": "${other}", "other": 2.0})
    return kind, {"cfg": cfg}, lambda problem: setattr(problem["own"].cfg, "other", 4.0)


def environment_in_a_configuration():
    os.environ["MSLSQ_TEST_GAIN"] = "2.0"
    kind = cost(lambda self, p, y: float(self.cfg.gain) * p - y)
    cfg = OmegaConf.create({"gain": "${oc.env:MSLSQ_TEST_GAIN}"})
    return kind, {"cfg": cfg}, lambda problem: os.environ.update(MSLSQ_TEST_GAIN="4.0")


def namespace():
    kind = cost(lambda self, p, y: self.settings.inner.gain * p - y)
    settings = types.SimpleNamespace(inner=types.SimpleNamespace(gain=2.0))
    return kind, {"settings": settings}, lambda problem: setattr(settings.inner, "gain", 4.0)


class Mode(enum.Enum):
    SINGLE = 2.0
    DOUBLE = 4.0


def member_of_an_enum():
    kind = cost(lambda self, p, y: (2.0 if self.mode is Mode.SINGLE else 4.0) * p - y)
    return kind, {"mode": Mode.SINGLE}, lambda problem: setattr(problem["own"], "mode", Mode.DOUBLE)


def constant_that_is_written_into_a_fresh_tensor():
    text = """def residual(self, p, y):
        r = torch.empty(2, dtype=p.dtype)
        r[0] = GAIN * p[0]
        r[1:] = GAIN * p[1:]
        return r - y"""
    kind, module = written(text, GAIN=2.0)
    return kind, {}, lambda problem: setattr(module, "GAIN", 4.0)


def constant_in_a_context():
    text = """def residual(self, p, y):
        with torch.no_grad():
            gain = GAIN * torch.ones(2, dtype=p.dtype)
        return gain * p - y"""
    kind, module = written(text, GAIN=2.0)
    return kind, {}, lambda problem: setattr(module, "GAIN", 4.0)


def function_that_is_mapped():
    kind, module = written("def residual(self, p, y): return torch.func.vmap(F)(p) - y", F=lambda x: 2.0 * x)
    return kind, {}, lambda problem: setattr(module, "F", lambda x: 4.0 * x)


class Opaque:
    """Its number is nowhere to be seen."""

    def __init__(self, number=2):
        self._generator = torch.Generator().manual_seed(number)

    def put(self, number):
        self._generator.manual_seed(number)

    def __call__(self):
        return float(self._generator.initial_seed())


class Application:
    """Holds what its method does not read."""

    def __init__(self):
        self.gain, self.random, self.log = 2.0, np.random.default_rng(0), logging.getLogger("test")


def attribute_beside_what_is_not_read():
    kind = cost(lambda self, p, y: self.application.gain * p - y)
    return kind, {"application": Application()}, lambda problem: setattr(problem["own"].application, "gain", 4.0)


def attribute_that_was_not_read_before():
    kind = cost(lambda self, p, y: self.application.gain * p - y)

    def change(problem):
        problem["own"].application.random = Opaque(4)
        kind.residual = lambda self, p, y: self.application.random() * p - y

    return kind, {"application": Application()}, change


SEEN = [
    *(global_rebound, global_tensor_written, global_tensor_written_past_its_version, global_tensor_rebound),
    *(attribute_of_a_module, attribute_of_an_object, list_written, dict_written, array_written, helper_redefined),
    *(code_of_a_helper_replaced, default_of_a_helper_replaced, keyword_default_of_a_helper_replaced, builtin_hidden),
    *(attribute_of_the_cost, list_of_the_cost, tensor_of_the_cost_written, tensor_of_the_cost_replaced),
    *(parameter_written, training_flag, attribute_of_the_class, attribute_of_a_base, base_replaced),
    *(class_of_the_cost_replaced, method_replaced, method_of_the_object_replaced, code_of_a_method_replaced),
    *(property_replaced, static_method_replaced, default_of_a_method_replaced, cell_rebound, cell_tensor_written),
    *(cell_tensor_rebound, list_of_tensors, cell_of_the_decorator),
    *(weight_of_a_layer_written, weight_of_a_layer_written_past_its_version, weight_of_a_layer_replaced),
    *(layer_replaced, layer_added, hook_of_a_layer, hook_of_all_layers, forward_of_a_layer_replaced),
    *(mode_of_a_layer, network_of_a_module, array_in_an_attribute, dataclass_in_an_attribute),
    *(configuration_in_an_attribute, reference_of_a_configuration, environment_in_a_configuration, namespace),
    *(member_of_an_enum, constant_that_is_written_into_a_fresh_tensor, constant_in_a_context),
    *(function_that_is_mapped, attribute_beside_what_is_not_read, attribute_that_was_not_read_before),
]
"""Ways to change what closed code reads, each from a gain of 2 to one of 4."""


def of_an_object_that_does_not_show_its_state(tmp_path, monkeypatch):
    opaque = Opaque()
    return cost(lambda self, p, y: opaque() * p - y), lambda: opaque.put(4)


def of_a_file(tmp_path, monkeypatch):
    file = str(tmp_path / "gain")

    def write(text):
        with open(file, "w", encoding="utf-8") as stream:
            stream.write(text)

    def read():
        with open(file, encoding="utf-8") as stream:
            return float(stream.read())

    write("2.0")
    return cost(lambda self, p, y: read() * p - y), lambda: write("4.0")


def of_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("MSLSQ_TEST_GAIN", "2.0")

    def residual(self, p, y):
        return float(os.environ["MSLSQ_TEST_GAIN"]) * p - y

    return cost(residual), lambda: monkeypatch.setenv("MSLSQ_TEST_GAIN", "4.0")


def of_a_name_in_a_string(tmp_path, monkeypatch):
    settings = types.SimpleNamespace(gain=2.0)

    def residual(self, p, y):
        return getattr(settings, "ga" + "in"[: len(y)]) * p - y

    return cost(residual), lambda: setattr(settings, "gain", 4.0)


def of_a_flag_of_pytorch(tmp_path, monkeypatch):
    def residual(self, p, y):
        return (2.0 if torch.get_float32_matmul_precision() == "highest" else 4.0) * p - y

    return cost(residual), lambda: torch.set_float32_matmul_precision("high")


def of_a_library_that_keeps_something(tmp_path, monkeypatch):
    import decimal

    precision = decimal.getcontext().prec
    monkeypatch.setattr(decimal.getcontext(), "prec", 2)

    def residual(self, p, y):
        return float(decimal.getcontext().prec) * p - y

    def change():
        decimal.getcontext().prec = 4

    assert precision != 2
    return cost(residual), change


def of_an_import(tmp_path, monkeypatch):
    module = space(gain=2.0)
    monkeypatch.setitem(__import__("sys").modules, "tests_of_closed_costs", module)

    def residual(self, p, y):
        import tests_of_closed_costs  # pyright: ignore[reportMissingImports]

        return tests_of_closed_costs.gain * p - y

    return cost(residual), lambda: setattr(module, "gain", 4.0)


def of_a_cache(tmp_path, monkeypatch):
    opaque = Opaque()

    @functools.cache
    def cached(key):
        return opaque()

    def change():
        opaque.put(4)
        cached.cache_clear()

    return cost(lambda self, p, y: cached(1) * p - y), change


def of_a_method_that_no_walk_looks_into(tmp_path, monkeypatch):
    opaque = Opaque()

    def data_arguments(self, tensors):
        return {"y": tensors["y"], "gain": opaque()}

    return cost(lambda self, p, y, gain=2.0: gain * p - y, data_arguments=data_arguments), lambda: opaque.put(4)


def of_a_large_tensor_of_the_class(tmp_path, monkeypatch):
    gains = torch.full((5000,), 2.0, dtype=F64)

    def change():
        gains.data.mul_(2)

    return cost(lambda self, p, y: self.gains[0] * p - y, gains=gains), change


OPEN = [
    of_a_large_tensor_of_the_class,
    of_a_method_that_no_walk_looks_into,
    *(of_an_object_that_does_not_show_its_state, of_a_file, of_the_environment, of_a_name_in_a_string),
    *(of_a_flag_of_pytorch, of_a_library_that_keeps_something, of_an_import, of_a_cache),
]
"""Costs that read what no key can hold."""


FAST = {
    *(global_rebound, global_tensor_written_past_its_version, list_written, helper_redefined, attribute_of_the_cost),
    *(weight_of_a_layer_written, attribute_that_was_not_read_before),
    *(attribute_of_the_class, method_replaced, cell_rebound, cell_tensor_rebound, of_a_file, of_the_environment),
}
"""Each is recorded twice, which takes a second: every run of the suite tries these."""


def cases(ways):
    return [pytest.param(way, id=way.__name__, marks=() if way in FAST else pytest.mark.slow) for way in ways]


AGAIN = [pytest.param(False, id="same"), pytest.param(True, id="made again", marks=pytest.mark.slow)]


@pytest.mark.sampled(6)
@pytest.mark.filterwarnings("ignore:The residual of cost")
@pytest.mark.parametrize("way", cases(SEEN))
@pytest.mark.parametrize("is_new", AGAIN)
def test_what_closed_code_reads_is_compared_in_every_call(answers, way, is_new):  # noqa: F811
    kind, attributes, change = way()
    problem = made(kind, **attributes)
    for _ in range(4):
        assert_gain(problem, 2.0)
    assert answers[-1]
    if is_new:
        problem = made(kind, **attributes)
        assert_gain(problem, 2.0)
        assert answers[-1]
    change(problem)
    for _ in range(3):
        assert_gain(problem, 4.0)


def test_new_problems_of_one_class_are_answered_by_their_own_data(answers):  # noqa: F811
    kind = cost(lambda self, p, y: self.gain * p - y, gain=2.0)
    for seed in range(5):
        y = torch.randn(3, 2, generator=torch.Generator().manual_seed(seed), dtype=F64)
        assert_gain(made(kind, y=y), 2.0, y)
    assert answers == [False, True, True, True, True]
    assert_gain(made(kind, gain=3.0), 3.0)
    assert not answers[-1]
    assert_gain(made(cost(lambda self, p, y: self.gain * p - y, gain=4.0)), 4.0)
    assert not answers[-1]


@pytest.mark.parametrize("way", cases(OPEN))
def test_open_code_is_compared_with_its_python_in_every_call(answers, way, tmp_path, monkeypatch):  # noqa: F811
    kind, change = way(tmp_path, monkeypatch)
    problem = made(kind)
    for _ in range(3):
        assert_gain(problem, 2.0)
        assert_gain(made(kind), 2.0)
    change()
    try:
        for _ in range(2):
            assert_gain(problem, 4.0)
            assert_gain(made(kind), 4.0)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert not any(answers)


def test_code_that_writes_what_it_reads_is_not_answered_at_once(answers):  # noqa: F811
    class Counting(mslsq.CostFunction):
        def residual(self, p, y):
            self.calls = getattr(self, "calls", 0) + 1
            return 2.0 * p - y

    problem = made(Counting)
    for _ in range(4):
        assert_gain(problem, 2.0)
    assert not any(answers)


def test_random_numbers_are_refused(answers):  # noqa: F811
    problem = made(cost(lambda self, p, y: (1 + torch.rand(1, dtype=F64)) * p - y))
    with pytest.raises(CaptureError, match="random numbers"):
        for _ in range(4):
            solved(problem)
    assert not any(answers)


def test_modes_are_other_calls(answers):  # noqa: F811
    """Default dtype and device, grad mode, autocast."""
    kind = cost(lambda self, p, y: (2.0 + 2.0 * (torch.zeros(1) / 3 + 1 / 3).double()) * p - y)
    problem = made(kind)
    for _ in range(3):
        single = solved(problem)
    assert answers[-1]
    torch.set_default_dtype(F64)
    try:
        double = solved(problem)
    finally:
        torch.set_default_dtype(torch.float32)
    assert not answers[-1]
    torch.testing.assert_close(double, Y.mean(0) / (8 / 3), rtol=1e-12, atol=0)
    assert not torch.equal(single, double) and torch.equal(solved(problem), single)
    with torch.device("meta"), pytest.raises(Exception):  # noqa: B017  a residual on another device
        solved(problem)
    assert not answers[-1]
    with torch.no_grad():
        assert torch.equal(solved(problem), single) and answers[-1]
    with torch.autocast("cpu"):
        solved(problem)
    assert not answers[-1]


def test_functions_of_pytorch_that_are_replaced_are_noticed(answers, monkeypatch):  # noqa: F811
    kind = cost(lambda self, p, y: torch.mul(p, 2.0).add(0.0) - y)
    problem = made(kind)
    for _ in range(3):
        assert_gain(problem, 2.0)
    assert answers[-1]
    with monkeypatch.context() as patched:
        patched.setattr(torch, "mul", lambda x, factor: 2 * factor * x)
        assert_gain(problem, 4.0)
    assert_gain(problem, 2.0)
    with monkeypatch.context() as patched:
        patched.setattr(torch.Tensor, "add", lambda x, number: 2 * x + number)
        assert_gain(problem, 4.0)
    assert_gain(problem, 2.0)


def test_what_changes_past_all_that_is_compared_is_said(answers, monkeypatch):  # noqa: F811
    """The library itself is written into: the comparison in turn warns, and every call is compared from then on."""
    from mslsq.manifolds import planar

    turn = mslsq.SO2.exp(torch.full((3, 1), 0.1, dtype=F64))
    p = mslsq.Variable("p", mslsq.SO2, count=1)
    kind = cost(lambda self, p, y: (y.inverse() @ p).log())
    problem = mslsq.Problem(kind(p[torch.zeros(3, dtype=torch.int64)], y=turn, name="own"))

    def angle():
        start = {"p": mslsq.SO2.identity(1, dtype=F64)}
        return float(mslsq.solve(problem, start, solver=SOLVER).value["p"].log())

    for _ in range(3):
        assert angle() == pytest.approx(0.1)
    assert answers[-1]
    plain = planar.angle
    monkeypatch.setattr(planar, "angle", lambda z: plain(z) + 0.05 * plain(z).detach() + 0.01)
    with pytest.warns(UnseenChangeWarning, match="'own'"):
        for _ in range(CHECKED_EVERY + 1):
            angle()
    assert not answers[-1]
    angle()
    assert not answers[-1]


def test_blocks_are_compared_in_turn_and_none_is_left_out(answers, monkeypatch):  # noqa: F811
    """What changes in one block of five alone is noticed when that has its turn."""
    from mslsq.manifolds import planar
    from mslsq.solvers import witness

    monkeypatch.setattr(closed_costs, "CHECKED_EVERY", 2)
    turns = mslsq.SO2.exp(torch.tensor([[0.1], [0.15], [0.2], [0.9], [0.15]], dtype=F64))
    p = mslsq.Variable("p", mslsq.SO2, count=1)
    kind = cost(lambda self, p, y: (y.inverse() @ p).log())
    problem = mslsq.Problem(kind(p[torch.zeros(5, dtype=torch.int64)], y=turns, name="own"))
    start = {"p": mslsq.SO2.exp(torch.full((1, 1), 0.3, dtype=F64))}
    lanes, by_python = [], witness._by_plain_python

    def noted(user, chosen, *rest):
        lanes.append(chosen)
        return by_python(user, chosen, *rest)

    monkeypatch.setattr(witness, "_by_plain_python", noted)
    for _ in range(8):
        mslsq.solve(problem, start, solver=SOLVER)
    assert [len(chosen) for chosen in lanes[-3:]] == [1, 1, 1]
    plain = planar.angle
    monkeypatch.setattr(planar, "angle", lambda z: plain(z) + 0.05 * (plain(z).detach() < -0.3))  # of one block of five
    with pytest.warns(UnseenChangeWarning, match="'own'"):
        for _ in range(2 * len(turns)):
            mslsq.solve(problem, start, solver=SOLVER)


def test_closed_code_keeps_no_problem_alive():
    problem = made(cost(lambda self, p, y: 2.0 * p - y))
    for _ in range(3):
        solved(problem)
    last = weakref.ref(problem)
    del problem
    gc.collect()
    assert last() is None


def test_the_turn_of_the_comparison_comes(monkeypatch):
    turns = closed_costs.Turns()
    assert sum(turns.is_due() for _ in range(3 * CHECKED_EVERY)) == 3
