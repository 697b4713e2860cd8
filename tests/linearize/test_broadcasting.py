"""Costs in closed form are evaluated for all blocks at once: the same numbers as one block after the other, and the
blocks innermost in memory, which is what makes it fast."""

import pytest
import torch

import mslsq
from mslsq.front.problem_statement import stated
from mslsq.linearize.blocks import BlockTerm
from mslsq.linearize.first_block import block_term
from mslsq.linearize.unmoved import Influence

F64 = torch.float64
GROUPS = [mslsq.SO2, mslsq.SE2, mslsq.SO3, mslsq.SE3]
EDGES = 40


def elements(kind, count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    if isinstance(kind, mslsq.Euclidean):
        return torch.randn(count, kind.dim, generator=generator, dtype=F64)
    return kind.random(count, generator=generator, dtype=F64)


def weights(rows):
    generator = torch.Generator().manual_seed(1)
    matrices = torch.randn(EDGES, rows, rows, generator=generator, dtype=F64)
    return {
        "none": None,
        "scale": mslsq.Scale(2.0),
        "scales": mslsq.Scale(1 + torch.rand(EDGES, generator=generator, dtype=F64)),
        "diagonal": mslsq.Diagonal(1 + torch.rand(rows, generator=generator, dtype=F64)),
        "diagonals": mslsq.Diagonal(1 + torch.rand(EDGES, rows, generator=generator, dtype=F64)),
        "root": mslsq.SqrtInformation(matrices[0]),
        "roots": mslsq.SqrtInformation(matrices),
    }


def terms(problem, values, data=None, in_dims=None) -> list[tuple[BlockTerm, tuple, dict]]:
    system = stated(problem, values, data, in_dims)
    batch = 1 if system.size is None else system.size
    found = []
    for term, own, inputs in zip(system.system.terms, system.batched, system.inputs, strict=True):
        block = block_term(term, system.system, batch, own, system.values, inputs, Influence(system.system))
        found.append((block, system.values, block.prepare(inputs)))
    return found


def assert_as_mapped(block, values, inputs):
    """`vmap` of the very same functions: another route through PyTorch, one block at a time in their eyes."""
    assert block.term.broadcasts
    residual, jacobian = block.linearizations(values, inputs)
    mapped = block.over_lanes(block.linearization_of_block, values, inputs)
    # The same operations in another order of summation: a few units in the last place of entries up to 1e3.
    torch.testing.assert_close(residual, mapped[0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(jacobian, mapped[1], rtol=1e-12, atol=1e-11)
    torch.testing.assert_close(block.residuals(values, inputs), mapped[0], rtol=1e-12, atol=1e-12)


def between(kind, weight=None, shared=False):
    pose = mslsq.Variable("pose", kind, count=20)
    generator = torch.Generator().manual_seed(2)
    first, second = torch.randint(0, 20, (2, EDGES), generator=generator)
    measured = elements(kind, 1, seed=3)[0] if shared else elements(kind, EDGES, seed=3)
    cost = mslsq.Between(pose[first], pose[second], measured=mslsq.Shared(measured) if shared else measured)
    cost.weight = weight
    return mslsq.Problem(cost)


@pytest.mark.parametrize("name", weights(1))
@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.__name__)
def test_relative_poses_at_once_are_those_one_by_one(group, name):
    problem = between(group, weights(group.tangent_dim)[name])
    for block in terms(problem, {"pose": elements(group, 20)}):
        assert_as_mapped(*block)


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.__name__)
def test_a_measurement_that_all_blocks_share(group):
    for block in terms(between(group, shared=True), {"pose": elements(group, 20)}):
        assert_as_mapped(*block)


@pytest.mark.parametrize("kind", [*GROUPS, mslsq.Euclidean(3)], ids=str)
@pytest.mark.parametrize("count", [1, EDGES])
def test_priors_and_differences(kind, count):
    x, base = mslsq.Variable("x", kind, count=EDGES), mslsq.Variable("base", kind)
    index = torch.arange(count)
    problem = mslsq.Problem(
        mslsq.Prior(x[index], target=elements(kind, count, seed=4)),
        mslsq.Difference(x[index], x[index.flip(0)], measured=None),
        mslsq.Difference(base, x[index], name="from_one"),
    )
    values = {"x": elements(kind, EDGES), "base": elements(kind, 1)[0]}
    for block in terms(problem, values):
        assert_as_mapped(*block)


def snavely(shared=False):
    camera, point = (
        mslsq.Variable("camera", mslsq.Euclidean(9), count=4),
        mslsq.Variable("point", mslsq.Euclidean(3), 20),
    )
    generator = torch.Generator().manual_seed(5)
    i, j = (torch.randint(0, count, (EDGES,), generator=generator) for count in (4, 20))
    pixel = 100 * torch.randn(EDGES, 2, generator=generator, dtype=F64)
    cost = mslsq.SnavelyReprojection(camera[i], point[j], pixel=mslsq.Shared(pixel[0]) if shared else pixel)
    size = torch.tensor([0.5, 0.5, 0.5, 1, 1, 1, 400, 0.1, 0.01], dtype=F64)
    cameras = size * torch.randn(4, 9, generator=generator, dtype=F64)
    cameras[0, :3] = 0  # the series around no rotation
    points = torch.randn(20, 3, generator=generator, dtype=F64) - torch.tensor([0, 0, 5], dtype=F64)
    return mslsq.Problem(cost), {"camera": cameras, "point": points}


@pytest.mark.parametrize("shared", [False, True])
def test_observations_of_cameras(shared):
    ((block, values, inputs),) = terms(*snavely(shared))
    assert_as_mapped(block, values, inputs)
    assert block.linearizations(values, inputs)[1].stride(-1) == 1


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.__name__)
def test_a_batch_of_problems(group):
    values = {"pose": elements(group, 60).reshape(3, 20)}
    problem = between(group, weights(group.tangent_dim)["roots"])
    for block in terms(problem, values, in_dims=({"pose": 0}, {})):
        assert_as_mapped(*block)


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.__name__)
def test_blocks_are_innermost_in_memory(group):
    ((block, values, inputs),) = terms(
        between(group, weights(group.tangent_dim)["roots"]), {"pose": elements(group, 20)}
    )
    residual, jacobian = block.linearizations(values, inputs)
    assert residual.stride(-1) == 1 and jacobian.stride(-1) == 1


def test_what_a_subclass_or_a_weight_writes_for_one_block_is_mapped():
    class Twice(mslsq.Between):
        def residual(self, a, b, measured):
            return 2 * super().residual(a, b, measured)

        def jacobians(self, a, b, measured):
            return tuple(2 * part for part in super().jacobians(a, b, measured))

    class Reversed(mslsq.Diagonal):
        @classmethod
        def whiten(cls, residual, value):
            assert residual.ndim == 1
            return residual * value

    pose = mslsq.Variable("pose", mslsq.SE2, count=20)
    measured = elements(mslsq.SE2, 19)
    twice = Twice(pose[:19], pose[1:], measured=measured)
    weighted = mslsq.Between(pose[:19], pose[1:], measured=measured, weight=Reversed(torch.ones(3, dtype=F64)))
    assert twice.broadcasts is None and not Reversed.broadcasts
    for block, *_ in terms(mslsq.Problem(twice, weighted), {"pose": elements(mslsq.SE2, 20)}):
        assert not block.term.broadcasts


def test_similarities_have_no_closed_form_and_are_mapped():
    problem = between(mslsq.Sim3)
    ((block, *_),) = terms(problem, {"pose": elements(mslsq.Sim3, 20)})
    assert not block.term.broadcasts
