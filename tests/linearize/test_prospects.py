"""When programs are taken up: never within a solve, never in what something else records, and for good."""

import gc
import itertools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

import mslsq
from mslsq.front import prepared_call
from mslsq.interop import export
from mslsq.linearize import programs, prospects, signs, terms_of_library, trace
from mslsq.linearize.family import family_key
from mslsq.linearize.programs import Prospect
from mslsq.linearize.programs import scalars_of as scalars_of_graph
from mslsq.native import building, noted
from mslsq.native.building import Kept, Making
from mslsq.native.folder import NOTE, WORDS
from mslsq.native.operator import native_residuals
from mslsq.native.store import Store
from mslsq.solvers import planning, run, whole_solves
from tests.native.functions import NEEDS_COMPILER, scalars_of

F64 = torch.float64
pytestmark = NEEDS_COMPILER
T = torch.linspace(0, 1, 7, dtype=F64)
Y = 2 * torch.exp(-1.3 * T) + 0.1 * torch.sin(20 * T)
START = torch.tensor([1.0, 0.0], dtype=F64)
Residual = Callable[..., Tensor]


@pytest.fixture(autouse=True)
def own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """No word from outside, and no whole solves as programs, which small dense ones would be."""
    monkeypatch.delenv("MSLSQ_NATIVE", raising=False)
    for module in (planning, whole_solves):
        monkeypatch.setattr(module, "is_small_and_dense", lambda *_: False)


LINES = itertools.count()


def new_decay() -> Residual:
    """A residual without plans: they belong to its code, and code is equal to other code of the same line."""
    names: dict[str, Any] = {"torch": torch, "T": T}
    exec("\n" * next(LINES) + "def decay(p, y):\n    return p[0] * torch.exp(p[1] * T) - y", names)
    return names["decay"]


@pytest.fixture
def residual() -> Residual:
    return new_decay()


def solve(residual: Residual, **options: Any) -> mslsq.Solution:
    """Recorded at once, so that whatever is recorded twice under one name would show."""
    solver = mslsq.LevenbergMarquardt(**{"trace": "always", **options})
    return mslsq.least_squares(residual, START, (Y,), solver=solver)


def assert_equal_to_the_bit(a: mslsq.Solution, b: mslsq.Solution) -> None:
    assert torch.equal(a.value, b.value)
    assert torch.equal(a.history.cost.nan_to_num(-1), b.history.cost.nan_to_num(-1))
    assert torch.equal(a.history.gradient_norm.nan_to_num(-1), b.history.gradient_norm.nan_to_num(-1))


def test_the_program_of_this_file_has_bits_of_its_own(residual):
    """The tests below could not fail if it had those of PyTorch."""
    plain, native = solve(residual, native="never"), solve(residual, native="wait")
    assert not torch.equal(plain.history.cost.nan_to_num(-1), native.history.cost.nan_to_num(-1))
    torch.testing.assert_close(native.value, plain.value, rtol=1e-10, atol=0)
    assert torch.equal(native.status, plain.status) and torch.equal(native.num_steps, plain.num_steps)


def test_a_solve_without_programs_stays_one_beside_a_solve_with_them(residual, capsys):
    """One plan, one residual, options that differ: each has graphs of its own, and tells of itself."""
    plain, native = solve(residual, native="never"), solve(residual, native="wait")
    for _ in range(2):
        assert_equal_to_the_bit(solve(residual, native="never", verbose=True), plain)
        assert "program" not in capsys.readouterr().out
        assert_equal_to_the_bit(solve(residual, native="wait", verbose=True), native)
        assert "The native program of 'decay'" in capsys.readouterr().out


def test_a_program_that_comes_while_a_solve_runs_is_taken_up_by_the_next(residual):
    """As from another thread: in the middle of a solve another one takes the program up."""
    plain = solve(residual, native="never")
    inner: list[mslsq.Solution] = []

    def another(info: Any) -> None:
        if info.step == 2:
            inner.append(solve(residual, native="wait"))

    outer = solve(residual, callback=another)
    assert_equal_to_the_bit(outer, plain)
    assert_equal_to_the_bit(solve(residual), inner[0])  # "auto" takes what is there


def test_every_solve_of_many_threads_is_with_programs_or_without_from_its_start_to_its_end(residual, monkeypatch):
    plain, native = solve(new_decay(), native="never"), solve(new_decay(), native="wait")
    monkeypatch.setattr(prospects, "PROGRAM_SECONDS", 0.0)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: solve(residual), range(40)))
    kinds = []
    for solution in found:
        kinds.append(torch.equal(solution.history.cost.nan_to_num(-1), native.history.cost.nan_to_num(-1)))
        assert_equal_to_the_bit(solution, native if kinds[-1] else plain)
    assert any(kinds) and not all(kinds)


def test_a_first_solve_whose_steps_will_take_long_waits_for_its_program(residual, monkeypatch):
    native = solve(new_decay(), native="wait")
    monkeypatch.setattr(prospects, "PROGRAM_SECONDS", 1.0)
    monkeypatch.setattr(planning, "seconds_of_steps", lambda *_: 100.0)
    assert_equal_to_the_bit(solve(residual), native)


def test_a_first_solve_waits_no_longer_than_its_steps_will_take_and_later_ones_not_at_all(residual, monkeypatch):
    plain, waited = solve(residual, native="never"), []
    monkeypatch.setattr(Kept, "found", lambda *_: None)
    monkeypatch.setattr(prospects, "PROGRAM_SECONDS", 1.0)
    monkeypatch.setattr(planning, "seconds_of_steps", lambda *_: 1.5)
    monkeypatch.setattr(Making, "wait", lambda _, patience: waited.append(patience))
    monkeypatch.setattr(Making, "is_settled", False)
    another = new_decay()
    for _ in range(3):
        assert_equal_to_the_bit(solve(another), plain)
    assert len(waited) == 1 and 1.4 < waited[0] <= 1.5


def test_a_first_solve_that_is_short_waits_for_nothing(residual, monkeypatch):
    monkeypatch.setattr(prospects, "PROGRAM_SECONDS", 1.0)
    monkeypatch.setattr(planning, "seconds_of_steps", lambda *_: 0.9)
    monkeypatch.setattr(Making, "wait", lambda *_: pytest.fail("it waits"))
    assert_equal_to_the_bit(solve(residual), solve(residual, native="never"))


@pytest.fixture
def new_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Store]]:
    """Programs as a new process finds them, in a folder of the test; and one block is enough to look for them."""
    monkeypatch.setenv("MSLSQ_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(prospects, "PROGRAM_SECONDS", 1.0)
    monkeypatch.setattr(prospects, "LOOK_LANES", 1)
    made: list[Store] = []

    def new() -> Store:
        store = Store()
        monkeypatch.setattr(building, "request", store.request)
        monkeypatch.setattr(building, "is_kept", store.is_kept)
        monkeypatch.setattr(building, "kept", store.kept)
        for module in (signs, noted):
            monkeypatch.setattr(module, "STORE", store)
        made.append(store)
        return store

    new()
    yield new
    for store in made:
        store.close()


def test_a_first_solve_takes_the_program_of_a_process_before(residual, new_process, monkeypatch):
    plain, native = solve(residual, native="never"), solve(residual, native="wait")
    store = new_process()
    monkeypatch.setattr(store, "_start", lambda *_: pytest.fail("a compiler is started"))
    assert_equal_to_the_bit(solve(new_decay()), native)
    monkeypatch.setattr(prospects, "LOOK_LANES", 2)
    assert_equal_to_the_bit(solve(new_decay()), plain)
    monkeypatch.setattr(prospects, "LOOK_LANES", 1)
    assert_equal_to_the_bit(solve(new_decay(), native="never"), plain)


def test_a_program_that_is_noted_is_taken_without_its_text(residual, new_process, monkeypatch):
    native = solve(residual, native="wait")
    new_process()
    monkeypatch.setattr(programs, "scalars_of", lambda *_: pytest.fail("a text is written"))
    for native_of in ("auto", "wait"):
        assert_equal_to_the_bit(solve(new_decay(), native=native_of), native)


def ring(
    count: int = 5, weight: Any = 2.0, loss: Any = None, dtype: torch.dtype = F64, kind: Any = mslsq.Between
) -> Callable[..., mslsq.Solution]:
    """A ring of poses with factors of the library: how it is solved with these options."""
    generator = torch.Generator().manual_seed(0)
    pose, i = mslsq.Variable("pose", mslsq.SE2, count=count), torch.arange(count)
    measured = mslsq.SE2.exp(torch.randn(count, 3, generator=generator, dtype=dtype))
    cost = kind(pose[i], pose[(i + 1) % count], measured=measured, weight=weight, loss=loss)
    start = mslsq.SE2.exp(0.1 * torch.randn(count, 3, generator=generator, dtype=dtype))

    def solved(**options: Any) -> mslsq.Solution:
        solver = mslsq.LevenbergMarquardt(max_steps=6, linear_solver=mslsq.linear.SparseCholesky(), **options)
        return mslsq.solve(mslsq.Problem(cost, pose.fixed([0])), {"pose": start}, solver=solver)

    return solved


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known of other solves' terms, and no program of a whole solve stands before those of blocks."""
    monkeypatch.setattr(prospects, "LOOK_LANES_OF_CLOSED_FORMS", 1)
    monkeypatch.setattr(planning, "prospect_of", lambda *_: Prospect())
    monkeypatch.setattr(planning, "is_small_and_dense", lambda *_: False)


def test_a_problem_that_grows_takes_the_program_of_a_process_before(apart, new_process, monkeypatch):
    ring()(native="wait")
    store = new_process()
    monkeypatch.setattr(store, "_start", lambda *_: pytest.fail("a compiler is started"))
    monkeypatch.setattr(prospects, "LOOK_LANES_OF_CLOSED_FORMS", 4096)
    monkeypatch.setattr(prospects, "LOOK_SECONDS", 0.0)
    family = Prospect()
    monkeypatch.setattr(planning, "prospect_of", lambda *_: family)
    first, plain = ring(6)(), ring(6)(native="never")
    assert torch.equal(first.value["pose"].storage, plain.value["pose"].storage)
    assert family.draft is None and family.seconds > 0
    found = ring(7)().value["pose"].storage
    assert family.draft is not None
    assert torch.equal(found, ring(7)(native="wait").value["pose"].storage)
    torch.testing.assert_close(found, ring(7)(native="never").value["pose"].storage, rtol=1e-9, atol=1e-9)


def test_a_term_of_the_library_takes_its_program_without_being_recorded(apart, new_process, monkeypatch):
    ring()(native="wait")
    store = new_process()
    monkeypatch.setattr(store, "_start", lambda *_: pytest.fail("a compiler is started"))
    recorded, plainly = [], programs.graph_of_block
    monkeypatch.setattr(programs, "graph_of_block", lambda *given: recorded.append(given) or plainly(*given))
    for count in (6, 7):  # another plan, the same program
        found, plain = ring(count)(), ring(count)(native="never")
        assert not recorded
        assert not torch.equal(found.history.cost.nan_to_num(), plain.history.cost.nan_to_num())  # another rounding
        torch.testing.assert_close(found.value["pose"].storage, plain.value["pose"].storage, rtol=1e-9, atol=1e-9)
    monkeypatch.setattr(noted, "_code", lambda _: "another version")
    ring(8)()
    assert len(recorded) == 1


class OwnBetween(mslsq.Between):
    """A user's own, as far as can be told."""


@pytest.mark.slow
def test_notes_tell_terms_of_the_library_apart(apart, new_process, monkeypatch):
    found: list[str | None] = []
    plain = terms_of_library.key_of_term

    def noting(*given: Any) -> str | None:
        found.append(plain(*given))
        return found[-1]

    monkeypatch.setattr(terms_of_library, "key_of_term", noting)
    root = 2 * torch.eye(3, dtype=F64)
    kinds = [{}, {"weight": mslsq.Diagonal(torch.ones(3, dtype=F64))}, {"weight": mslsq.SqrtInformation(root)}]
    kinds += [{"weight": None}, {"loss": mslsq.Huber(1.0)}, {"loss": mslsq.Cauchy(1.0)}]
    kinds += [{"weight": torch.tensor(2.0).item(), "dtype": torch.float32}, {"kind": OwnBetween}]
    for options in kinds:
        ring(**options)(native="wait")
    *keys, of_own = found
    assert of_own is None
    assert len(set(keys)) == len(keys) and None not in keys


def test_notes_tell_apart_terms_with_and_without_an_index(apart, new_process, monkeypatch):
    """Inputs go by their places: the program of the one would read past the end of what the other gives it."""
    found: list[tuple[str | None, Any, int]] = []
    plain = terms_of_library.key_of_term

    def noting(block: Any, values: Any, inputs: Any, arguments: Any) -> str | None:
        key = plain(block, values, inputs, arguments)
        found.append((key, family_key(block, values, inputs), len(arguments)))
        return key

    monkeypatch.setattr(terms_of_library, "key_of_term", noting)
    ones = torch.ones(1, 2, dtype=F64)
    single, several = mslsq.Variable("x", mslsq.Euclidean(2)), mslsq.Variable("x", mslsq.Euclidean(2), count=1)
    solver = mslsq.LevenbergMarquardt(native="wait")
    for variable, start in ((single, 0 * ones[0]), (several[torch.tensor([0])], 0 * ones)):
        solution = mslsq.solve(mslsq.Problem(mslsq.Prior(variable, target=ones)), {"x": start}, solver=solver)
        torch.testing.assert_close(solution.value["x"].reshape(1, 2), ones)
    (one, alike, few), (other, not_alike, more) = found
    assert None not in (one, other) and few < more and one != other and alike != not_alike


def scaled_decay(factor: float) -> Residual:
    """The same with a number that it reads."""
    names: dict[str, Any] = {"torch": torch, "T": T, "factor": factor}
    exec("\n" * next(LINES) + "def decay(p, y):\n    return p[0] * torch.exp(p[1] * T) - factor * y", names)
    return names["decay"]


SPOILED = {
    "of another program": lambda words: words[::-1],
    "of no program": lambda words: ["0" * 64 + " 0 1 " + "0" * 64] * 2,
    "an input is missing": lambda words: [one.replace(" 0 ", " ", 1) for one in words],
    "cut off": lambda words: [one[:70] for one in words],
    "empty": lambda words: ["", ""],
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("spoiled", SPOILED)
def test_a_note_that_is_damaged_or_of_another_program_is_not_believed(residual, new_process, tmp_path, spoiled):
    """A program reads the inputs that it was written for: the text is written then."""
    native, other = solve(residual, native="wait"), solve(scaled_decay(2.0), native="wait")
    one, two = (tmp_path / "cache" / "programs").glob(f"{NOTE}*")
    words = [path.joinpath(WORDS).read_text() for path in (one, two)]
    changed = SPOILED[spoiled](words)
    assert changed != words
    for path, own in zip((one, two), changed, strict=True):
        (path / WORDS).write_text(own)
    new_process()
    for found, expected in ((solve(new_decay()), native), (solve(scaled_decay(2.0)), other)):
        assert_equal_to_the_bit(found, expected)


def test_what_the_residual_holds_and_how_the_library_writes_tell_notes_apart(new_process, tmp_path, monkeypatch):
    folder = tmp_path / "cache" / "programs"
    for factor in (1.0, 2.0):
        solve(scaled_decay(factor), native="wait")
    assert len(list(folder.glob(f"{NOTE}*"))) == 2
    store = new_process()
    monkeypatch.setattr(noted, "_code", lambda _: "another version")
    monkeypatch.setattr(store, "_start", lambda *_: pytest.fail("a compiler is started"))
    written = []
    monkeypatch.setattr(programs, "scalars_of", lambda *given: written.append(given) or scalars_of_graph(*given))
    solve(scaled_decay(1.0), native="wait")
    assert len(written) == 1  # the text is the same one, and so is the program
    assert len(list(folder.glob(f"{NOTE}*"))) == 3


def test_without_a_sign_nothing_is_written(residual, new_process, monkeypatch):
    monkeypatch.setattr(prospects, "Draft", lambda *_, **__: pytest.fail("a program is written"))
    assert_equal_to_the_bit(solve(residual), solve(residual, native="never"))


def test_a_sign_without_a_program_is_taken_away(residual, new_process, tmp_path, monkeypatch):
    plain = solve(residual, native="never")
    solve(residual, native="wait")
    folder = tmp_path / "cache" / "programs"
    (sign,) = folder.glob("sign-*")
    for path in folder.iterdir():
        if path != sign:
            shutil.rmtree(path)
    store = new_process()
    monkeypatch.setattr(store, "_start", lambda *_: pytest.fail("a compiler is started"))
    assert_equal_to_the_bit(solve(new_decay()), plain)
    assert not list(folder.iterdir())


@pytest.mark.slow
def test_signs_tell_terms_apart_and_are_alike_in_all_processes(residual, new_process, tmp_path):
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.linearize.test_prospects import *
from mslsq.native.store import STORE
solve(new_decay(), native="wait")
solve(lambda p, y: p[0] * torch.exp(p[1] * T) - 2 * y, native="wait")
"""
    for module in ("planning", "whole_solves"):
        code = code.replace(
            "from mslsq.native", f"{module}.is_small_and_dense = lambda *_: False\nfrom mslsq.native", 1
        )
    for _ in range(2):
        subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONHASHSEED": "random"})
        found = sorted(path.name for path in (tmp_path / "cache" / "programs").glob("sign-*"))
        assert len(found) == 2
    native = solve(residual, native="wait")
    new_process()
    assert_equal_to_the_bit(solve(new_decay()), native)
    assert sorted(path.name for path in (tmp_path / "cache" / "programs").glob("sign-*")) == found


@pytest.mark.parametrize("options", [{"early_stop": False, "max_steps": 12}, {"trace": "never"}])
def test_by_itself_no_program_comes_to_a_solve_that_wants_nothing_kept_or_nothing_asked(residual, options):
    plain = solve(residual, native="never", **options)
    native = solve(residual, native="wait", **options)
    assert not torch.equal(native.history.cost.nan_to_num(-1), plain.history.cost.nan_to_num(-1))
    assert_equal_to_the_bit(solve(residual, **options), plain)


def operators_of(graph: fx.GraphModule) -> set[str]:
    return {str(node.target).partition(".")[0] for node in graph.graph.nodes if node.op == "call_function"}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("native", ["auto", "wait"])
@pytest.mark.slow
def test_what_something_else_records_holds_plain_operations(residual, native):
    options = {"native": native, "early_stop": False, "max_steps": 4, "trace": "auto"}
    for _ in range(2):
        solve(residual, **{**options, "native": "wait"})  # there is a program, and it is in use

    def value(y: Tensor) -> Tensor:
        solver = mslsq.LevenbergMarquardt(**options)
        return mslsq.least_squares(residual, START, (y,), solver=solver, adjoint=mslsq.Detached()).value

    graph = make_fx(value)(Y.clone())
    assert "aten" in operators_of(graph) and "mslsq" not in operators_of(graph)
    torch.testing.assert_close(graph(Y + 0.01), value(Y + 0.01), rtol=1e-10, atol=0)


@pytest.mark.parametrize("exported", [torch.export.export, pytest.param(export, marks=pytest.mark.slow)])
@pytest.mark.sampled(1)
def test_an_exported_layer_holds_plain_operations_whatever_it_ran_before(exported):
    class Decay(mslsq.CostFunction):
        def residual(self, p: Tensor, t: Tensor, y: Tensor) -> Tensor:
            return (p[0] * torch.exp(p[1] * t) - y)[None]

    p = mslsq.Variable("p", mslsq.Euclidean(2))
    problem = mslsq.Problem(Decay(p, t=T, y=Y))
    layer = mslsq.LeastSquaresLayer(problem, mslsq.LevenbergMarquardt(max_steps=4, early_stop=False, native="wait"))
    given = ({"p": START},)
    with torch.no_grad():
        layer(*given)
    program = exported(layer, given)
    found = operators_of(program.graph_module)
    assert "aten" in found and "mslsq" not in found


def test_a_program_lives_as_long_as_a_graph_may_name_it():
    making = Making([scalars_of(lambda x: x * x - 3, 2, F64)])
    making.wait()
    (program,) = making.programs() or [None]
    assert program is not None
    (again,) = making.programs() or [None]
    assert again is not None and again.number == program.number  # a number is made of the text
    number, x = program.number, torch.tensor([[1.0], [2.0]], dtype=F64)
    graph = make_fx(lambda x: native_residuals([x], [0], [number, 1, 1]))(x)
    del making, program, again
    gc.collect()
    torch.testing.assert_close(graph(x)[0], x * x - 3)


def test_a_graph_that_names_a_program_of_another_process_says_so():
    with pytest.raises(RuntimeError, match=r"a native program that this process has not made.*native='never'"):
        native_residuals([torch.ones(2, 1)], [0], [12345, 1, 1])


def test_a_prepared_solve_takes_a_program_up_at_its_check(residual, monkeypatch):
    monkeypatch.setattr(prepared_call, "CHECKED_EVERY", 3)
    plain, native = solve(residual, native="never"), solve(residual, native="wait")
    other = new_decay()
    prepared = mslsq.prepared(other, START, (Y,), solver=mslsq.LevenbergMarquardt(trace="always"))
    assert_equal_to_the_bit(prepared(START, (Y,)), plain)
    solve(other, native="wait")
    found = [prepared(START, (Y,)) for _ in range(5)]
    for solution, expected in zip(found, [plain, plain, native, native, native], strict=True):
        assert_equal_to_the_bit(solution, expected)


def test_programs_of_several_costs_are_taken_up_together(monkeypatch):
    """A solve between two of them would be recorded for nothing."""
    ready: list[bool] = []

    class Late(prospects.Draft):
        """The second of two programs is with the compiler until it is said to be ready."""

        count = 0

        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.wait()
            Late.count += 1
            self.is_late = Late.count == 2

        @property
        def is_settled(self) -> bool:
            return super().is_settled and (bool(ready) or not self.is_late)

    monkeypatch.setattr(prospects, "Draft", Late)
    monkeypatch.setattr(prospects, "PROGRAM_SECONDS", 0.0)
    monkeypatch.setattr(planning, "prospect_of", lambda *_: Prospect())

    class Ring(mslsq.CostFunction):
        def residual(self, x: Tensor) -> Tensor:
            return torch.sqrt(x * x + 0.3) * torch.exp(x) - 2

    class Tie(mslsq.CostFunction):
        def residual(self, x: Tensor) -> Tensor:
            return torch.sin(x) * torch.tanh(x * 3) - 0.1

    x = mslsq.Variable("x", mslsq.Euclidean(2))
    problem = mslsq.Problem(Ring(x), Tie(x))
    values = {"x": torch.tensor([0.1, 0.4], dtype=F64)}
    costs = []
    for call in range(4):
        if call == 3:
            ready.append(True)
        costs.append(mslsq.solve(problem, values, solver=mslsq.LevenbergMarquardt(max_steps=5)).history.cost)
    assert Late.count == 2
    for cost in costs[1:3]:
        assert torch.equal(cost, costs[0])
    assert not torch.equal(costs[3], costs[0])
    torch.testing.assert_close(costs[3], costs[0], rtol=1e-12, atol=0)


# ---- compile=True -----------------------------------------------------------------------------------------


def chain(residual: Callable[..., Tensor]) -> Callable[..., mslsq.Solution]:
    """400 numbers in a chain, block-sparse: how it is solved with these options."""
    x = mslsq.Variable("x", mslsq.Euclidean(1), count=400)
    i = torch.arange(399)
    tie, ends = mslsq.cost(residual), torch.tensor([[0.0], [9.0]], dtype=F64)
    problem = mslsq.Problem(tie(x[i], x[i + 1]), mslsq.Prior(x[[0, 399]], target=ends))
    start = {"x": torch.linspace(0, 1, 400, dtype=F64)[:, None]}
    return lambda **options: mslsq.solve(problem, start, solver=mslsq.LevenbergMarquardt(max_steps=8, **options))


@pytest.fixture
def without_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("PyTorch's compiler was called")

    monkeypatch.setattr("mslsq.tracing.recording.compiled_by_inductor", refuse)


def test_compiling_a_large_problem_means_to_wait_for_its_programs(without_inductor):
    solved = chain(lambda a, b: torch.sinh(b - a) + 0.01 * (a * b).sin() - 0.02)
    plain, native = solved(native="never"), solved(native="wait")
    assert not torch.equal(native.history.cost, plain.history.cost)
    assert torch.equal(solved(compile=True).history.cost, native.history.cost)
    assert torch.equal(solved(compile=True, native="never").history.cost, plain.history.cost)
    torch.testing.assert_close(native.value["x"], plain.value["x"], rtol=1e-9, atol=1e-12)


def test_compiling_a_large_problem_that_has_no_program_says_why_and_solves_it(without_inductor, capsys):
    solved = chain(lambda a, b: torch.linalg.matrix_exp((b - a).reshape(1, 1)).reshape(1) + 0.1 * (b - a) - 1.2)
    compiled, plain = solved(compile=True, verbose=True), solved()
    assert "has no native program: linalg_matrix_exp" in capsys.readouterr().out
    assert torch.equal(compiled.history.cost.nan_to_num(0), plain.history.cost.nan_to_num(0))


SCRIPT = """
import torch, mslsq
torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
t = torch.linspace(0, 1, 9, dtype=torch.float64)
y = 2 * torch.exp(-1.3 * t) + 0.1 * torch.sin(20 * t)
y = torch.stack([y + 0.01 * k for k in range(5)])
def residual(p, y): return p[0] * torch.exp(p[1] * t) - y
for _ in range(3):
    found = mslsq.least_squares(residual, torch.tensor([1.0, 0.0], dtype=torch.float64), (y,), in_dims=(None, 0))
    print([x.hex() for x in [*found.value.flatten().tolist(), *found.history.cost.nan_to_num(0).flatten().tolist()]])
"""


@pytest.mark.slow
def test_deterministic_runs_are_equal_to_the_bit_whatever_is_compiled_already(tmp_path: Path):
    """The first process compiles, the second finds the program; and within each all calls are equal."""
    said = []
    for _ in range(2):
        environment = os.environ | {"MSLSQ_CACHE_DIR": str(tmp_path), "MSLSQ_NATIVE": ""}
        run = subprocess.run(
            [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True, timeout=120
        )
        said += run.stdout.splitlines()
    assert len(said) == 6 and len(set(said)) == 1
    assert list((tmp_path / "programs").glob("*/program.so"))  # it was by a program


def test_a_problem_that_grows_leaves_its_sign_once(new_process, monkeypatch):
    """To write it down takes longer than the kernels of a step of a hundred poses."""
    left = []
    monkeypatch.setattr(prospects, "leave_sign", lambda *given: left.append(given))
    new_process()
    x = mslsq.Variable("x", mslsq.Euclidean(2), 1)
    target = torch.randn(1, 2, dtype=F64)
    problem = mslsq.Problem(mslsq.Prior(x, target=target))
    for count in range(2, 6):
        x = mslsq.Variable("x", mslsq.Euclidean(2), count)
        problem = problem.extended(mslsq.Difference(x[[count - 2]], x[[count - 1]], measured=target))
        start = {"x": torch.zeros(count, 2, dtype=F64)}
        mslsq.solve(problem, start, solver=mslsq.LevenbergMarquardt(native="wait", max_steps=3))
    families = {given[0].term.name for given in left}
    assert families <= {"prior", "difference"} and left
    assert len(left) <= 3  # one block, and several


class Brightness(mslsq.CostFunction):
    """The mean of very many numbers, which are too many for a program."""

    def residual(self, p: Tensor, grid: Tensor) -> Tensor:
        return (p[:1] * torch.exp(p[1:] * grid)).mean(0, keepdim=True) - 1.5


@pytest.fixture
def mean_and_prior() -> mslsq.Problem:
    p = mslsq.Variable("p", mslsq.Euclidean(2))
    grid = mslsq.Shared(torch.linspace(0, 1, 100_000, dtype=F64))
    return mslsq.Problem(Brightness(p, grid=grid), mslsq.Prior(p, target=torch.tensor([[1.0, 0.5]], dtype=F64)))


@pytest.mark.parametrize("share", [1e-3, 0.9])
def test_programs_of_some_terms_alone_wait_until_they_are_worth_that_all_is_recorded_again(
    share, mean_and_prior, monkeypatch
):
    class Quick(prospects.Draft):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.wait()

    monkeypatch.setattr(prospects, "Draft", Quick)
    monkeypatch.setattr(prospects, "PROGRAM_SECONDS", 1.0)
    monkeypatch.setattr(planning, "prospect_of", lambda *_: Prospect())
    monkeypatch.setattr(prospects, "_share", lambda *_: share)
    recorded: list[str] = []
    record = trace.Execution.record
    monkeypatch.setattr(trace.Execution, "record", lambda *args, **given: recorded.append(args[1]) or record(*args))

    def note(plan: Any, seconds: float) -> None:
        for prospect in plan.prospects.values():
            prospect.seconds += 10.0  # of which recording takes more than a hundredth, and less than nine tenths

    monkeypatch.setattr(run, "note_seconds", note)
    solver = mslsq.LevenbergMarquardt(trace="always")
    for number in range(3):
        start = {"p": torch.tensor([0.1 * number, 0.2], dtype=F64)}
        assert mslsq.solve(mean_and_prior, start, solver=solver).converged
    assert recorded.count("step") == (1 if share < 0.5 else 2)


def test_the_share_of_a_term_is_what_it_takes_of_a_linearization(mean_and_prior, monkeypatch):
    shares: list[float] = []
    measured = prospects._share

    def share(*given: Any) -> float:
        shares.append(measured(*given))
        return shares[-1]

    monkeypatch.setattr(prospects, "_share", share)
    monkeypatch.setattr(prospects, "PROGRAM_SECONDS", 0.0)
    monkeypatch.setattr(planning, "prospect_of", lambda *_: Prospect())
    for number in range(20):
        start = {"p": torch.tensor([0.1 * number, 0.2], dtype=F64)}
        mslsq.solve(mean_and_prior, start, solver=mslsq.LevenbergMarquardt(trace="always"))
        if shares:
            break
        time.sleep(0.5)
    assert shares and 0 < shares[0] < 0.5


@pytest.mark.parametrize("is_large", [False, True])
def test_a_wait_counts_for_large_problems_alone(is_large):
    execution = trace.Execution(is_large, trace.Notes())
    execution.run_eagerly(time.sleep, 0.2)  # as where other processes have the core
    assert execution.eager_calls == 1
    assert (execution.eager_seconds >= 0.2) == is_large
