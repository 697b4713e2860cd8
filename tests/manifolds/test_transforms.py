"""Elements inside torch.func and make_fx: pytrees, and traces that equal what they were traced from."""

import pytest
import torch
from lie_reference import GROUPS
from torch.func import jacfwd, jacrev, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from mslsq.manifolds import Sim2, Sim3

every_group = pytest.mark.parametrize("group", GROUPS, ids=lambda g: g.__name__)


@every_group
def test_elements_pass_through_transforms_as_pytrees(group):
    a = group.random(5, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    assert isinstance(vmap(lambda e: e.inverse())(a), group)
    torch.testing.assert_close(vmap(lambda e: (e @ e).log())(a), (a @ a).log())
    nested = vmap(vmap(lambda e, f: e.local(f), (None, 0)), (0, None))(a, a)
    torch.testing.assert_close(nested, a[:, None].local(a[None]))
    jacobian = jacfwd(lambda e: e.log())(a[0])
    assert isinstance(jacobian, group)  # as jacfwd of a dict gives a dict
    torch.testing.assert_close(jacrev(lambda e: e.log())(a[0]).storage, jacobian.storage)
    trace = make_fx(vmap(lambda e, d: e.retract(d)))(a, torch.zeros(5, group.tangent_dim, dtype=torch.float64))
    replayed = trace(a, 0.1 * torch.ones(5, group.tangent_dim, dtype=torch.float64))
    assert isinstance(replayed, group)
    torch.testing.assert_close(replayed.storage, a.retract(torch.full((group.tangent_dim,), 0.1).double()).storage)


@pytest.mark.sampled(2)
@every_group
def test_a_traced_linearisation_equals_the_eager_one(group):
    def residual(d, a, b):
        return b.local(a.retract(d))

    generator = torch.Generator().manual_seed(6)
    a, b = group.random(2, 4, dtype=torch.float64, generator=generator)
    zero = torch.zeros(4, group.tangent_dim, dtype=torch.float64)
    for jacobian in (jacrev,) if group in (Sim2, Sim3) else (jacfwd, jacrev):  # tracing a similarity takes seconds
        linearise = vmap(jacobian(residual))
        trace = make_fx(linearise)(zero, b, a)  # traced elsewhere than replayed: no branch is baked in
        trace.graph.eliminate_dead_code()
        trace.recompile()
        torch.testing.assert_close(trace(zero, a, b), linearise(zero, a, b), rtol=0, atol=1e-14)


def test_a_bad_element_does_not_disturb_its_batch_mates():
    x = torch.randn(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(8))
    for group in (g for g in GROUPS if g.tangent_dim <= 6):
        jacobian = vmap(jacrev(lambda d, group=group: group.exp(d).log()))
        clean = x[:, : group.tangent_dim]
        for bad in (float("nan"), float("inf")):
            value = jacobian(torch.stack([clean[0], torch.full_like(clean[1], bad), clean[2]]))
            torch.testing.assert_close(value[[0, 2]], jacobian(clean)[[0, 2]], rtol=0, atol=0)
