"""Maps placed through others: what is not known of their places."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mslsq.alignment.draft import Draft
from mslsq.alignment.models import MODELS, Frame
from mslsq.alignment.result import MapStatus
from mslsq.alignment.tree import through

LIKE = torch.zeros((), dtype=torch.float64)
FRAMES = Frame(90, 120, LIKE), Frame(64, 50, LIKE), Frame(80, 80, LIKE)


@pytest.mark.parametrize("model", MODELS)
def test_errors_of_a_map_take_in_those_of_the_one_it_was_placed_through(model):
    """The covariance is that of the tangent of the whole warp, by differences in both."""
    kind, random = MODELS[model], torch.Generator().manual_seed(0)

    def drawn(*shape):
        return 0.2 * torch.randn(*shape, dtype=torch.float64, generator=random)

    identity = kind.identity(dtype=torch.float64)
    reached, link = (identity.retract(drawn(kind.tangent_dim)) for _ in range(2))
    roots = [drawn(kind.tangent_dim, kind.tangent_dim) for _ in range(2)]

    def transform(of_link, of_parent):
        return FRAMES[1].to_pixels(link.retract(of_link).matrix()) @ FRAMES[0].to_pixels(
            reached.retract(of_parent).matrix()
        )

    nothing = torch.zeros(kind.tangent_dim, dtype=torch.float64)
    whole = kind.from_matrix(FRAMES[0].from_pixels(transform(nothing, nothing)))

    def tangent(*moved):
        return whole.local(kind.from_matrix(FRAMES[0].from_pixels(transform(*moved))))

    expected = torch.zeros(kind.tangent_dim, kind.tangent_dim, dtype=torch.float64)
    for place, root in enumerate(roots):
        for column in root.T:
            moved = [nothing, nothing]
            moved[place] = 1e-6 * column
            slope = tangent(*moved) / 1e-6
            expected += torch.outer(slope, slope)

    draft = Draft([MapStatus.ALIGNED] * 3, [""] * 3, 0, model, LIKE)
    draft.entries["transforms"][1] = FRAMES[0].to_pixels(reached.matrix())
    draft.entries["covariance"][1] = roots[1] @ roots[1].T
    placed = SimpleNamespace(covariance=roots[0] @ roots[0].T, corner_sigma=1.0, value=torch.zeros(2))
    found: Any = SimpleNamespace(fixed=1, placed=placed, transform=FRAMES[1].to_pixels(link.matrix()))
    covariance, sigma = through(found, draft, FRAMES.__getitem__)
    torch.testing.assert_close(covariance, expected, rtol=1e-4, atol=1e-6)
    assert float(sigma) > 0

    on_reference: Any = SimpleNamespace(fixed=0, placed=placed, transform=found.transform)
    assert through(on_reference, draft, FRAMES.__getitem__) == (placed.covariance, 1.0)
