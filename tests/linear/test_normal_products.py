"""Normal equations by kernels: the same numbers as by PyTorch's own operations, whatever is coupled or held fixed."""

import dataclasses

import pytest
import torch

import mslsq
from mslsq.linear.normal_products import normal_equations, normal_matrix_by_tensors, placed_matrices
from mslsq.linearize.assembly import Assembly
from mslsq.linearize.blocks import BlockTerm
from mslsq.linearize.pattern import pattern_of, placement_of
from mslsq.manifolds import space_of
from mslsq.problem.structure import structure_of
from mslsq.problem.system import Slot, System, Term, Unknown


def system_of(sizes: tuple[int, int], slots: list[tuple[int, torch.Tensor]], free: list[torch.Tensor | None]) -> System:
    """Three blocks of one size and five of another, coupled by one term; its residual is never called."""
    spaces = [space_of(mslsq.Euclidean(size)) for size in sizes]
    counts = (3, 5)
    unknowns = tuple(
        Unknown(name, space, count, mask) for name, space, count, mask in zip("ab", spaces, counts, free, strict=True)
    )
    term = Term("term", tuple(Slot(k, i) for k, i in slots), len(slots[0][1]), residual=lambda *_: None)
    return System(unknowns, (term,))


def free_entries(count: int, tangent: int, fixed: str) -> torch.Tensor | None:
    if fixed == "nothing":
        return None
    free = torch.ones(count, tangent, dtype=torch.bool)
    free[1] = False
    if fixed == "parts":
        free[0, 1], free[2, :1] = False, False
        free[3:4, -1] = False
    return free


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("lanes_last", [True, False])
@pytest.mark.parametrize("fixed", ["nothing", "blocks", "parts"])
@pytest.mark.parametrize("sizes", [(3, 2), (9, 3), (6, 7)])
@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0, 0), (1, 0, 1)])
def test_kernels_and_tensors_give_the_same_matrix(order, sizes, fixed, lanes_last, dtype):
    """Sizes that the kernels know and others, both orders of the variables, one kind twice, the same block twice in a
    lane, blocks held fixed, and parts of blocks: the first, the last, or one in between."""
    lanes, counts = 77, (3, 5)  # which kernels take in several parts
    generator = torch.Generator().manual_seed(0)
    slots = [(k, torch.randint(counts[k], (lanes,), generator=generator)) for k in order]
    system = system_of(sizes, slots, [free_entries(count, n, fixed) for count, n in zip(counts, sizes, strict=True)])
    structure = structure_of(system, split=False)
    pattern = pattern_of(system, structure)
    block = BlockTerm(system.terms[0], system, 2, frozenset(), 4, 0)
    placement = placement_of(block, structure, pattern)
    by_kernels = Assembly(block, structure, placement, sparse=True)
    assert placement.normal is not None
    by_tensors = dataclasses.replace(by_kernels, placement=dataclasses.replace(placement, normal=None))
    jacobian = torch.randn(2, 4, sum(sizes[k] for k in order), lanes, generator=generator, dtype=dtype)
    if not lanes_last:
        jacobian = jacobian.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1)
    residual = torch.randn(2, 4, lanes, generator=generator, dtype=dtype)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(
        by_kernels.hessian(jacobian), by_tensors.hessian(jacobian), rtol=tolerance, atol=tolerance
    )
    on_devices = normal_matrix_by_tensors(jacobian, placement.normal)
    torch.testing.assert_close(on_devices, by_kernels.hessian(jacobian), rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(
        by_kernels.gradient(jacobian, residual), by_tensors.gradient(jacobian, residual), rtol=tolerance, atol=tolerance
    )
    both = normal_equations(jacobian, residual, *placement.normal.packed)
    alone = by_kernels.gradient(jacobian, residual), by_kernels.hessian(jacobian)
    torch.testing.assert_close(both, alone, rtol=0, atol=0)
    matrices = torch.randn(2, *2 * [jacobian.shape[2]], lanes, generator=generator, dtype=dtype)
    matrices = matrices + matrices.transpose(1, 2)
    if not lanes_last:
        matrices = matrices.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1)
    placed = placed_matrices(matrices, *placement.normal.packed)
    assert torch.equal(placed, by_kernels.placed(matrices))
    torch.testing.assert_close(placed, by_tensors.placed(matrices), rtol=tolerance, atol=tolerance)
