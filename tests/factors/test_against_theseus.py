"""Residuals and Jacobians are those of Theseus' cost functions, where the docstrings name these."""

import pytest
import torch
from torch.func import jacrev

import mslsq
from mslsq import factors

th = pytest.importorskip("theseus", reason="no Theseus: see scripts/install_theseus.sh", exc_type=ImportError)

F64 = torch.float64
ORIGIN, CELL, MARGIN = torch.tensor([-1.0, 0.5], dtype=F64), 0.4, 0.8


def drawn(seed, *shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


@pytest.mark.parametrize("kind", ["Point2", "SE2"])
def test_collision_is_that_of_theseus_with_the_axes_of_the_field_exchanged(kind):
    rows, columns, count = 6, 9, 40
    field = 2 * drawn(0, rows, columns) - 0.5  # of Theseus: rows in y
    extent = CELL * torch.tensor([columns - 1, rows - 1], dtype=F64)
    places = ORIGIN + extent * drawn(1, count, 2)
    angle = 6 * drawn(2, count, 1)
    elements = places if kind == "Point2" else torch.cat((places, angle.cos(), angle.sin()), 1)

    objective = th.Objective(dtype=F64)
    variable = getattr(th, kind)(tensor=elements, name="pose")
    given = ORIGIN[None], field[None], torch.tensor([[CELL]], dtype=F64), torch.tensor([[MARGIN]], dtype=F64)
    theirs = th.eb.Collision2D(variable, *given, th.ScaleCostWeight(torch.ones(1, 1, dtype=F64)))
    objective.add(theirs)
    objective.update()
    (expected_jacobian,), expected = theirs.jacobians()

    pose = mslsq.Variable("pose", mslsq.Euclidean(2) if kind == "Point2" else mslsq.SE2, count=count)
    distance, origin = mslsq.Shared(field.T.contiguous()), mslsq.Shared(ORIGIN)
    cost = factors.Collision(pose[torch.arange(count)], distance=distance, origin=origin, cell=CELL, margin=MARGIN)

    def residuals(delta):
        moved = places + delta if kind == "Point2" else mslsq.SE2(elements).retract(delta)
        return mslsq.evaluate(mslsq.Problem(cost), {"pose": moved}).residuals[cost.name]

    zero = torch.zeros(count, variable.dof(), dtype=F64)
    assert 5 < int((expected > 0).sum()) < count
    torch.testing.assert_close(residuals(zero), expected, rtol=0, atol=1e-13)
    own = jacrev(residuals)(zero).diagonal(dim1=0, dim2=2).movedim(-1, 0)  # of every block in its own pose
    torch.testing.assert_close(own, expected_jacobian, rtol=0, atol=1e-12)
