"""Whole solves as CUDA C, run by the processor: the steps of PyTorch and of the native program, however launched."""

import signal
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

import mslsq
from mslsq import solution as solutions
from mslsq.front import plans
from mslsq.kernels.build import CompilerError
from mslsq.linearize.plan import Plan
from mslsq.native.cuda import solves
from mslsq.native.cuda.nvrtc import Compiled, Resources
from mslsq.native.cuda.solve_building import CudaSolveMaking, making_solves
from mslsq.native.cuda.solves import ADVANCE, BEGIN, CudaSolves
from mslsq.native.scalars import NotScalarError
from mslsq.native.solve_building import SolveMaking
from mslsq.native.tables import Layout
from mslsq.solvers import choices, whole_program
from tests.devices.claimed import Device, here, there
from tests.devices.elsewhere import elsewhere
from tests.native.cuda.host import Host
from tests.native.cuda.test_zoo import NEEDS_NVRTC, nvrtc_of_tests
from tests.native.functions import NEEDS_COMPILER
from tests.solvers.test_whole_solves import assert_same, both, equal_bits, fits, measured, of_problems, watch

F64, F32 = torch.float64, torch.float32
__all__ = ["watch"]
WAITS = mslsq.LevenbergMarquardt(native="wait", max_steps=100)
LAYOUT = Layout((2,), (), 0, 9, 2, 7, 8, (3, 4, 4, 5))
"""Of two unknowns."""


# ---- numbers


@NEEDS_COMPILER
def test_steps_and_costs_are_those_of_pytorch(watch, launches):
    python, cuda = both(watch, fits(measured(70)), max_steps=100)
    assert_same(python, cuda)
    assert {count for kernel, count, _ in launches if kernel == BEGIN} == {70, 3}  # three are compared before


@pytest.mark.slow
@NEEDS_COMPILER
def test_every_solve_of_the_table_has_the_steps_of_pytorch_and_of_the_native_program(solve_zoo, monkeypatch):
    """One in fifty problems may be a step apart, as PyTorch is from itself where rounding decides."""
    told = ""
    for name, made in solve_zoo.ZOO.items():
        python, native = (made().solved(native=way) for way in ("never", "wait"))
        with monkeypatch.context() as patch:
            patch.setattr(whole_program, "making_solves", lambda *of, **_: CudaSolveMaking(*of[:-1], Host()))
            cuda = made().solved(native="wait")
        count = cuda.cost.numel()
        for other, solution in (("PyTorch", python), ("native", native)):
            apart = int((cuda.num_steps != solution.num_steps).sum())
            error = float(((cuda.cost - solution.cost).abs() / solution.cost)[solution.converged].max())
            if apart > -(-count // 50) or not error < 1e-9 or int(solution.converged.sum()) < count * 0.9:
                told += f"{name}, {other}: steps of {apart} of {count} differ, costs by {error}\n"
    assert not told, told


@NEEDS_COMPILER
def test_bits_of_a_problem_depend_neither_on_launches_nor_on_the_batch_nor_on_the_grid(watch, launches, monkeypatch):
    y = measured(301)
    y[::7] += torch.linspace(0, 3, y[::7].shape[0])[:, None] * torch.linspace(-1, 1, 20) ** 3  # some take longer
    whole = fits(y)(WAITS)
    steps = [(count, steps) for kernel, count, steps in launches if kernel == ADVANCE][1:]
    assert len(steps) > 1 and steps[-1][0] < 301 // 2  # those that are done have left
    part = fits(y[100:117])(WAITS)
    assert equal_bits(part, of_problems(whole, torch.arange(100, 117)))
    for first, most, full in ((1, 1, 1), (3, 7, 4), (1000, 1000, 2)):
        for name, value in (("FIRST_STEPS", first), ("MOST_STEPS", most), ("FULL", full)):
            monkeypatch.setattr(solves, name, value)
        assert equal_bits(fits(y)(WAITS), whole)
    monkeypatch.setattr(solves, "LARGEST_GRID", (1, 1))  # a thread has several problems
    assert equal_bits(fits(y)(WAITS), whole)
    assert all(watch.native)


@NEEDS_COMPILER
def test_without_an_early_stop_one_launch_takes_all_steps(watch, launches):
    y = measured(40)
    whole = fits(y)(WAITS)
    del launches[:]
    found = fits(y)(mslsq.LevenbergMarquardt(native="wait", early_stop=False, max_steps=100))
    assert launches[-2:] == [(BEGIN, 40, 1), (ADVANCE, 40, 100)]
    assert equal_bits(found, whole)


@NEEDS_COMPILER
def test_very_many_problems_have_a_history_as_long_as_their_longest_solve(watch, launches, monkeypatch):
    monkeypatch.setattr(solutions, "WITH_WHOLE_HISTORY", 6)
    python, cuda = both(watch, fits(measured(21)), max_steps=100)
    assert_same(python, cuda)
    assert cuda.history.cost.shape == (21, int(cuda.num_steps.max()) + 1)


@NEEDS_COMPILER
def test_an_interrupt_keeps_the_steps_that_were_taken(watch, launches, monkeypatch):
    options: dict[str, Any] = {"ftol": 0.0, "xtol": 0.0, "gtol": 0.0, "max_steps": 100, "native": "wait"}
    y, solver = measured(200), mslsq.GaussNewton(**options)
    whole = fits(y)(solver)
    for name in ("FIRST_STEPS", "MOST_STEPS"):
        monkeypatch.setattr(solves, name, 2)
    launch, begun = CudaSolves._launch, len(launches)

    def interrupted(self: Any, *args: Any) -> None:
        launch(self, *args)
        if len(launches) == begun + 4:  # the start, and three times two steps
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(CudaSolves, "_launch", interrupted)
    with pytest.raises(KeyboardInterrupt) as raised:
        fits(y)(solver)
    found = raised.value.solution  # pyright: ignore[reportAttributeAccessIssue]
    assert int(found.num_steps.max()) == 6
    assert torch.equal(found.history.cost[:, :7].nan_to_num(), whole.history.cost[:, :7].nan_to_num())
    assert bool(found.history.cost[:, 7:].isnan().all())
    assert int((found.status == int(mslsq.Status.INTERRUPTED)).sum()) > 100


@NEEDS_COMPILER
@pytest.mark.slow
def test_sums_in_several_loops_are_the_same(watch, launches, monkeypatch):
    """As if a whole linearization spilled, and one in four loops did not."""
    y, loops = measured(70), []
    whole = fits(y)(WAITS)

    def compiled(self: Any, source: str) -> Compiled:
        loops.append(source.count("for (long first = 0;"))
        found = host_compiled(self, source)
        return Compiled(found.image, {"solves_advance": Resources(255, 9000 // loops[-1] if loops[-1] < 4 else 0, 0)})

    host_compiled = Host.compiled
    monkeypatch.setattr(Host, "compiled", compiled)
    monkeypatch.setattr(plans, "_KEPT", weakref.WeakKeyDictionary())
    divided = fits(y)(WAITS)
    assert loops == [1, 2, 4]
    assert torch.equal(divided.num_steps, whole.num_steps)
    torch.testing.assert_close(divided.cost, whole.cost, rtol=1e-12, atol=0)


def whole_steps_spill(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """As if kernels of whole steps spilled very much; filled with how many steps are taken in pieces."""
    host_compiled, launched, taken = Host.compiled, CudaSolves._launch_pieces, []

    def compiled(self: Any, source: str) -> Compiled:
        spilled = {"solves_advance": Resources(255, 10**9, 0)} if "solves_advance(" in source else {}
        return Compiled(host_compiled(self, source).image, spilled)

    def noted(self: Any, state: Tensor, rest: Any, shared: Any, steps: int, grid: Any) -> None:
        taken.append(steps)
        launched(self, state, rest, shared, steps, grid)

    monkeypatch.setattr(Host, "compiled", compiled)
    monkeypatch.setattr(CudaSolves, "_launch_pieces", noted)
    monkeypatch.setattr(plans, "_KEPT", weakref.WeakKeyDictionary())
    return taken


@pytest.mark.sampled(1)
@NEEDS_COMPILER
@pytest.mark.parametrize("options", [{}, {"early_stop": False, "max_steps": 37}], ids=["stops", "odd"])
@pytest.mark.slow
def test_steps_in_pieces_have_the_bits_of_whole_steps(watch, launches, monkeypatch, options):
    y = measured(301)
    y[::7] += torch.linspace(0, 3, y[::7].shape[0])[:, None] * torch.linspace(-1, 1, 20) ** 3  # some take longer
    solver = mslsq.LevenbergMarquardt(**{"native": "wait", "max_steps": 100} | options)
    whole = fits(y)(solver)
    taken = whole_steps_spill(monkeypatch)
    for most in (7, 128):  # an odd number of steps ends in the other place of the states
        monkeypatch.setattr(solves, "FIRST_STEPS", min(most, 8))
        monkeypatch.setattr(solves, "MOST_STEPS", most)
        assert equal_bits(fits(y)(solver), whole)
    assert len(taken) > 2 and all(watch.native)


@pytest.mark.slow
@NEEDS_COMPILER
def test_every_fit_of_the_table_has_the_bits_of_whole_steps_in_pieces(solve_zoo, launches, monkeypatch):
    fits = {name: made for name, made in solve_zoo.ZOO.items() if not isinstance(made().residual, mslsq.Problem)}
    whole = {name: made().solved(native="wait") for name, made in fits.items()}
    taken = whole_steps_spill(monkeypatch)
    for name, made in fits.items():
        del taken[:]
        assert equal_bits(made().solved(native="wait"), whole[name]), name
        assert taken, name


# ---- when there are programs


@pytest.mark.parametrize(("device", "batch", "is_for_it"), [("cpu", 1, True), ("cuda", 1, False), ("cuda", 128, True)])
def test_few_problems_are_not_for_the_threads_of_a_gpu(device, batch, is_for_it, watch, monkeypatch):
    found = []
    small = choices.is_small_and_dense

    def asked(task: Any, plan: Any) -> bool:
        with monkeypatch.context() as patch:
            patch.setattr(Plan, "is_on_cpu", property(lambda _: device == "cpu"))
            found.append(small(task, plan))
        return False

    def residual(p: Tensor, y: Tensor) -> Tensor:  # a function that no other test has
        return p.cosh() - y

    monkeypatch.setattr("mslsq.solvers.whole_solves.is_small_and_dense", asked)
    monkeypatch.setattr(plans, "_KEPT", weakref.WeakKeyDictionary())
    start, y = torch.ones(2, dtype=F64), torch.full((batch, 2), 2.0, dtype=F64)
    mslsq.least_squares(residual, start, (y,), in_dims=(None, 0), solver=mslsq.LevenbergMarquardt(max_steps=1))
    assert found == [is_for_it]


def test_the_device_says_what_is_compiled():
    given: Any = "solves", Roots(), LAYOUT, F64
    assert isinstance(making_solves(*given, torch.device("cuda:0")), CudaSolveMaking)
    with pytest.raises(CompilerError, match="device 'mps'"):
        making_solves(*given, torch.device("mps"))
    with pytest.raises(NotScalarError, match="share 125 tensors, more than 124"):
        making_solves("solves", given[1], Layout((2,), (), 125, 9, 2, 7, 8, ()), F64, torch.device("cuda:0"))


@NEEDS_COMPILER
def test_on_a_processor_it_is_its_own_compiler():
    given: Any = "solves", Roots(), LAYOUT, F64
    assert isinstance(making_solves(*given, torch.device("cpu")), SolveMaking)


class WithoutNvrtc(Host):
    def compiled(self, source: str) -> Compiled:
        raise CompilerError("NVRTC was not found")


def test_without_nvrtc_pytorch_solves_and_verbose_says_so(watch, monkeypatch, capsys):
    monkeypatch.setattr(whole_program, "making_solves", lambda *of: CudaSolveMaking(*of[:-1], WithoutNvrtc()))

    def residual(p: Tensor) -> Tensor:  # a function that no other test has
        return p.sinh() - 2

    def solved(**options: Any) -> mslsq.Solution:
        solver = mslsq.LevenbergMarquardt(native="wait", **options)
        return mslsq.least_squares(residual, torch.zeros(5, 2, dtype=F64), in_dims=(0,), solver=solver)

    assert bool(solved().converged.all()) and not watch.native[-1]
    assert bool(solved(verbose=True).converged.all())
    assert "Whole solves have no native program: NVRTC was not found" in capsys.readouterr().out


# ---- on the device


class Roots:
    """x² = the second number of each problem + its whole number · the third that all share."""

    bending = None

    def count(self, loops: int = 1) -> int:
        return 10

    def text(self, name: str, loops: int = 1) -> str:
        return ROOTS


ROOTS = """
static void solves_move(const Inputs& in, V* s, V* record) {  // how far x is from the root of what is given
    const V wanted = in.data[1] + real_(in.integers[0]) * same((const real*)in.shared[0] + 2);
    s[1] = (real)0.5 * (s[0] * s[0] / wanted - 1) * (s[0] * s[0] / wanted - 1);
    s[2] = s[1] < (real)1e-20 ? 1 : 0;
    s[4] = s[0] * s[0];
    record[0] = s[1], record[1] = s[3] + 100, record[2] = 0, record[3] = 0, record[4] = 1;
}
static void solves_start(const Inputs& in, V* s, V* record) { s[3] = 0, solves_move(in, s, record); }
static void solves_step(const Inputs& in, V* s, V* record) {
    const V wanted = in.data[1] + real_(in.integers[0]) * same((const real*)in.shared[0] + 2);
    s[0] = (real)0.5 * (s[0] + wanted / s[0]), s[3] = s[3] + 1;
    solves_move(in, s, record);
}
"""


@NEEDS_COMPILER
@pytest.mark.fake_cuda
@elsewhere
def test_a_launch_asks_the_device_once_and_nothing_of_two_devices_meets(device: Device):
    layout = Layout((1,), ((2, True), (1, False)), 1, 5, 1, 2, 3, (4,))
    making = CudaSolveMaking("solves", Roots(), layout, F64, Host())  # pyright: ignore[reportArgumentType]
    making.wait()
    program, of_bare = making.program(), solves.given
    assert program is not None
    solves.given = lambda placed: of_bare([x._replace(tensor=getattr(x.tensor, "inner", x.tensor)) for x in placed])
    y = torch.stack((torch.zeros(300, dtype=F64), torch.linspace(1, 4, 300, dtype=F64)), 1)
    y[250:, 1] = 1e9  # that takes longer
    whole, shared = torch.arange(300)[:, None] % 3, torch.tensor([0.0, 0.0, 2.0], dtype=F64)
    values, y, whole, shared = there((torch.full((300, 1), 1.5, dtype=F64), y, whole, shared))
    try:
        device.transfers.clear()
        found = program.solve([values], [y, whole], [shared], 100)
        assert device.transfers == {"aten::nonzero": 4}, device.transfers  # after the start, 8, 16 and 32 steps
        device.transfers.clear()
        again = program.solve([values], [y, whole], [shared], 100, looks=False)
        assert not device.transfers
    finally:
        solves.given = of_bare
    root = (here(y)[:, 1] + 2 * here(whole)[:, 0]).sqrt()
    for solved in (found, again):
        torch.testing.assert_close(here(solved.values[0])[:, 0], root, rtol=1e-9, atol=0)
        torch.testing.assert_close(here(solved.matrix)[:, 0], root**2, rtol=1e-9, atol=0)
        assert bool((here(solved.status) == 1).all()) and bool((here(solved.num_steps)[250:] > 16).all())
        assert torch.equal(here(solved.gradient_norm), here(solved.num_steps) + 100.0)
        assert torch.equal(here(solved.history.columns[-1]).sum(1), here(solved.num_steps) + 1)


# ---- compiled for a GPU


@NEEDS_NVRTC
@pytest.mark.parametrize("dtype", [F64, pytest.param(F32, marks=pytest.mark.slow)])
def test_machine_code_and_ptx_of_a_whole_solve(solve_zoo, dtype):
    solve = solve_zoo.ZOO["decay, 3 unknowns, 20 points"]().to(dtype)
    found = solve_zoo.recorded(solve)
    making = CudaSolveMaking("solves", found.functions, found.layout, dtype, solve_zoo.ForArchitecture(90))
    told = making.compiled(found.functions).compiled.resources
    assert set(told) == {"solves_begin", "solves_advance"}
    assert all(0 < one.registers <= 255 and one.spilled < 64 for one in told.values())
    assert (
        ".entry solves_advance"
        in nvrtc_of_tests().compiled(making.source(found.functions), 90, ptx=True).image.decode()
    )


@NEEDS_NVRTC
def test_what_spills_less_in_pieces_is_divided(solve_zoo):
    """A step of six unknowns in SE(3), float64: 2.4 KB spilled, in pieces 0.5 KB and 1.9 KB moved."""
    found = solve_zoo.recorded(solve_zoo.ZOO["pose, SE(3), 12 points"]())
    making = CudaSolveMaking("solves", found.functions, found.layout, F64, solve_zoo.ForArchitecture(90))
    chosen = making.compiled(found.functions)
    assert chosen.pieces == 3
    assert set(chosen.compiled.resources) == {"solves_begin", "solves_piece0", "solves_piece1", "solves_piece2"}
    text = making.source(found.functions, chosen.loops, is_divided=True)
    assert ".entry solves_piece2" in nvrtc_of_tests().compiled(text, 90, ptx=True).image.decode()


@pytest.mark.slow
@NEEDS_NVRTC
def test_nvrtc_compiles_every_solve(solve_zoo):
    assert len(list(solve_zoo.rows(90))) == 2 * len(solve_zoo.ZOO)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [F64, F32])
def test_whole_solves_on_a_gpu_are_those_on_the_cpu(dtype, watch, solve_zoo):
    for name, made in solve_zoo.ZOO.items():
        here = made().to(dtype)
        there = here.to("cuda")
        found, expected = there.solved(native="wait"), here.solved(native="never")
        assert watch.native[-2], f"{name}: {watch.sentences[-2]}"
        scale = 1e-7 if dtype == F64 else 1e-2
        torch.testing.assert_close(found.cost.cpu(), expected.cost, rtol=scale, atol=1e-6 * float(expected.cost.max()))
