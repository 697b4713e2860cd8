"""Which of "auto", "wait" and "never" holds for a solve."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

import mslsq
from mslsq.native.choice import CHOICES, choice
from mslsq.solvers.solver import SolverOptionError

STRICTNESS = {"auto": 0, "wait": 1, "never": 2}


@pytest.mark.parametrize("option", CHOICES)
@pytest.mark.parametrize("named", ["", *CHOICES])
def test_the_stricter_of_option_and_environment_holds(option, named, monkeypatch):
    monkeypatch.setenv("MSLSQ_NATIVE", named)
    assert choice(option) == max(option, named or "auto", key=STRICTNESS.__getitem__)


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def test_under_deterministic_algorithms_nothing_depends_on_when_the_compiler_is_done(monkeypatch, deterministic):
    monkeypatch.delenv("MSLSQ_NATIVE", raising=False)
    assert [choice(option) for option in CHOICES] == ["wait", "wait", "never"]


def test_a_misspelt_variable_is_an_error_that_names_the_nearest_word(monkeypatch):
    monkeypatch.setenv("MSLSQ_NATIVE", "nevre")
    with pytest.raises(ValueError, match=r"MSLSQ_NATIVE must be one of 'auto', 'wait', 'never'.*Did you mean 'never'"):
        choice("auto")


@pytest.mark.parametrize("kind", [mslsq.GaussNewton, mslsq.LevenbergMarquardt, mslsq.Dogleg])
def test_every_solver_has_the_option_and_no_graph_depends_on_it(kind):
    assert kind().native == "auto"
    assert kind(native="never").key == kind(native="wait").key
    with pytest.raises(SolverOptionError, match="native must be one of 'auto', 'wait', 'never', not 'never '"):
        kind(native="never ")


def test_a_program_comes_by_itself_only_where_it_may(monkeypatch):
    monkeypatch.delenv("MSLSQ_NATIVE", raising=False)
    assert [choice(option, by_itself=False) for option in CHOICES] == ["never", "wait", "never"]
    assert mslsq.GaussNewton().may_get_programs
    assert not mslsq.GaussNewton(early_stop=False).may_get_programs
    assert not mslsq.GaussNewton(trace="never").may_get_programs


@pytest.mark.parametrize("option", CHOICES)
def test_what_something_else_records_gets_no_program(option, monkeypatch):
    """A program cannot leave its process; a graph of `make_fx`, `torch.jit` or `torch.export` may."""
    monkeypatch.delenv("MSLSQ_NATIVE", raising=False)
    found = []

    def recorded(x: torch.Tensor) -> torch.Tensor:
        found.append(choice(option))
        return x + 1

    class Module(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return recorded(x)

    x = torch.ones(2)
    make_fx(recorded)(x)
    torch.jit.trace(recorded, x, check_trace=False)
    torch.export.export(Module(), (x,))
    with FlopCounterMode(display=False):
        recorded(x)
    assert len(found) >= 4 and set(found) == {"never"}


def test_the_solver_alone_reads_how_its_functions_are_to_run():
    """Others ask it (`execution`, `keeps_graphs`, `native_choice`): what an option means is said once."""
    read = re.compile(r"solver\.(trace|native|compile)\b")
    root = Path(mslsq.__file__).parent
    assert not [path.name for path in root.rglob("*.py") if read.search(path.read_text())]


@pytest.mark.parametrize("native", CHOICES)
@pytest.mark.parametrize("trace", ["auto", "never"])
def test_what_a_solver_says_of_graphs_and_programs(trace, native, monkeypatch):
    monkeypatch.delenv("MSLSQ_NATIVE", raising=False)
    solver = mslsq.LevenbergMarquardt(trace=trace, native=native)
    assert solver.keeps_graphs == (trace != "never")
    assert solver.takes_programs == (trace != "never" and native != "never")
    assert solver.native_choice_of_large == solver.native_choice
    waiting = mslsq.LevenbergMarquardt(trace=trace, native=native, compile=True)
    assert waiting.native_choice_of_large == ("wait" if native == "auto" else waiting.native_choice)
