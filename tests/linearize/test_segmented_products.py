"""Sums over sorted segments, run by the processor: the kernels' numbers, in one order whatever the grid."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import mslsq
from mslsq.datasets import ring_graph
from mslsq.kernels.build import CompilerError
from mslsq.linear.normal_products import NormalPlan, VariablePlan, normal_gradient, normal_matrix
from mslsq.linearize import assembly, programs, segmented_products
from mslsq.linearize.blocks import BlockTerm
from mslsq.linearize.pattern import pattern_of, placement_of
from mslsq.linearize.segmented_products import segmented, segmented_gradient, segmented_matrix
from mslsq.native.cuda import segments
from mslsq.native.cuda.nvrtc import Compiled
from mslsq.native.cuda.programs import CudaMaking
from mslsq.native.cuda.segments import SegmentKernels, segments_text
from mslsq.problem.structure import structure_of
from tests.linear.test_normal_products import free_entries, system_of
from tests.linearize.test_programs import attempts
from tests.native.cuda.host import Host, host_driver
from tests.native.cuda.test_zoo import NEEDS_NVRTC, nvrtc_of_tests
from tests.native.functions import NEEDS_COMPILER

F64, F32 = torch.float64, torch.float32
KERNELS = {dtype: SegmentKernels(dtype, Host()) for dtype in (F64, F32)}
__all__ = ["attempts"]


@pytest.fixture
def on_host(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The kernels are run by the processor, and are for its tensors."""
    monkeypatch.setattr(segments, "segment_kernels", lambda device, dtype: KERNELS[dtype])
    monkeypatch.setattr(segments, "are_for", lambda device: True)
    yield
    assert host_driver()._library.contexts_left() == 0


class Case:
    """As in `test_normal_products`: two kinds of blocks that a term couples, parts of which may be held."""

    def __init__(self, order: tuple[int, ...], sizes: tuple[int, int], fixed: str, dtype: torch.dtype, lanes: int = 77):
        counts = (3, 5)
        generator = torch.Generator().manual_seed(0)
        slots = [(k, torch.randint(counts[k], (lanes,), generator=generator)) for k in order]
        free = [free_entries(count, n, fixed) for count, n in zip(counts, sizes, strict=True)]
        system = system_of(sizes, slots, free)
        structure = structure_of(system, split=False)
        block = BlockTerm(system.terms[0], system, 2, frozenset(), 4, 0)
        placement = placement_of(block, structure, pattern_of(system, structure))
        assert placement.normal is not None
        self.plan = placement.normal
        self.jacobian = torch.randn(2, 4, sum(sizes[k] for k in order), lanes, generator=generator, dtype=dtype)
        self.residual = torch.randn(2, 4, lanes, generator=generator, dtype=dtype)

    def by_segments(self) -> tuple[Tensor, Tensor]:
        packed = segmented(self.plan).packed
        return segmented_gradient(self.jacobian, self.residual, *packed), segmented_matrix(self.jacobian, *packed)

    def by_kernels(self) -> tuple[Tensor, Tensor]:
        packed = self.plan.packed
        return normal_gradient(self.jacobian, self.residual, *packed), normal_matrix(self.jacobian, *packed)


@pytest.mark.sampled(6)
@NEEDS_COMPILER
@pytest.mark.parametrize("chunk", [64, 5])
@pytest.mark.parametrize("fixed", ["nothing", "blocks", "parts"])
@pytest.mark.parametrize(
    ("sizes", "order"), [((3, 2), (0, 1)), ((9, 3), (1, 0)), ((6, 12), (0, 0)), ((6, 7), (1, 0, 1))]
)
def test_numbers_are_those_of_the_kernels(on_host, monkeypatch, sizes, order, fixed, chunk):
    """Sums of one chunk and of several, blocks wider than a thread adds up, and the same block twice in a lane."""
    monkeypatch.setattr(segmented_products, "CHUNK", chunk)
    for dtype, tolerance in ((F64, 1e-12), (F32, 1e-4)):
        case = Case(order, sizes, fixed, dtype)
        torch.testing.assert_close(case.by_segments(), case.by_kernels(), rtol=tolerance, atol=tolerance)
        case.jacobian = case.jacobian.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1)  # other strides
        torch.testing.assert_close(case.by_segments(), case.by_kernels(), rtol=tolerance, atol=tolerance)


@NEEDS_COMPILER
def test_bits_depend_neither_on_the_grid_nor_on_the_batch(on_host, monkeypatch):
    monkeypatch.setattr(segmented_products, "CHUNK", 5)
    case = Case((0, 1), (6, 3), "parts", F64, lanes=700)
    whole = case.by_segments()
    monkeypatch.setattr(segments, "LARGEST_GRID", (1, 1))
    assert all(map(torch.equal, case.by_segments(), whole))
    case.jacobian, case.residual = case.jacobian[1:], case.residual[1:]
    assert all(torch.equal(one, other[1:]) for one, other in zip(case.by_segments(), whole, strict=True))


@NEEDS_COMPILER
def test_every_product_is_added_once_and_sums_lie_apart(on_host):
    """Of JᵀJ with J = 1 every number counts the products that go to it."""
    case = Case((0, 1), (6, 3), "nothing", F64, lanes=3000)
    case.jacobian, case.residual = torch.ones_like(case.jacobian), torch.ones_like(case.residual)
    gradient, matrix = case.by_segments()
    assert torch.equal(gradient, case.by_kernels()[0]) and torch.equal(matrix, case.by_kernels()[1])
    assert float(gradient[0].sum()) == 3000 * 4 * 9
    plan = segmented(case.plan)
    assert plan.room > plan.num_values  # several chunks
    assert {sums.width for sums in plan.matrix} == {6, 3} and len(plan.gradient) == 2


# ---- where they are used


@NEEDS_COMPILER
def test_a_solve_by_segments_takes_the_steps_of_the_kernels(on_host, attempts, monkeypatch):
    """Programs of blocks and their sums as CUDA C, in steps that are replayed."""
    monkeypatch.setattr(programs, "making", lambda written, device: CudaMaking(written, Host()))
    ring = ring_graph(laps=3, per_lap=20)
    problem, start = ring.graph.problem(), {"pose": ring.graph.poses}
    called: list[int] = []
    matrix = assembly.segmented_matrix

    def counted(*arguments: Any) -> Tensor:
        called.append(len(arguments[0]))
        return matrix(*arguments)

    monkeypatch.setattr(assembly, "segmented_matrix", counted)
    linear = mslsq.linear.SparseCholesky()
    found = {}
    for wish in ("wait", "never"):
        monkeypatch.setenv("MSLSQ_NATIVE", wish)
        solver = mslsq.LevenbergMarquardt(linear_solver=linear, native=wish, trace="always", max_steps=20)
        found[wish] = mslsq.solve(problem, start, solver=solver)
    assert called and found["wait"].converged
    assert int(found["wait"].num_steps) == int(found["never"].num_steps)
    torch.testing.assert_close(found["wait"].cost, found["never"].cost, rtol=1e-9, atol=0)


def test_without_a_compiler_or_on_another_device_there_are_none(monkeypatch):
    case = Case((0, 1), (3, 2), "nothing", F64)
    assert segmented_products.usable(case.plan, F64) is None  # of a CPU
    monkeypatch.setattr(segments, "are_for", lambda device: True)

    class Without(Host):
        def compiled(self, source: str) -> Compiled:
            raise CompilerError("NVRTC was not found")

    monkeypatch.setattr(segments, "segment_kernels", lambda device, dtype: SegmentKernels(dtype, Without()))
    assert segmented_products.usable(case.plan, F64) is None
    assert segmented_products.usable(NormalPlan(0, 0, (), ()), F64) is None


def test_a_plan_of_variables_alone_and_one_without_products():
    empty = segmented(NormalPlan(4, 3, (), ()))
    assert empty.matrix == empty.gradient == () and empty.room == 4
    places = torch.tensor([2, 0, 0])
    only = segmented(NormalPlan(0, 3, (), (VariablePlan(1, 1, torch.arange(3), places),)))
    (sums,) = only.gradient
    assert sums.lanes.tolist() == [1, 2, 0] and sums.begins.tolist() == [0, 2, 3] and sums.places.tolist() == [0, 2]


@NEEDS_NVRTC
@pytest.mark.parametrize("dtype", [F64, F32])
def test_kernels_of_every_width_compile_and_keep_their_sums_in_registers(dtype):
    for width in range(1, segments.WIDEST + 1):
        told = nvrtc_of_tests().compiled(segments_text(dtype, width), 90).resources
        assert set(told) == {f"add_products_{width}", f"add_chunks_{width}"}
        assert all(one.registers <= 128 and one.spilled < 64 for one in told.values())  # around divisions
