"""Operations on many elements give the same numbers in either order of memory, and keep the order."""

import pytest
import torch

import mslsq
from mslsq.manifolds.components import batch_is_innermost, cat, cross, matmul, matrix_batch_is_innermost, stack

F64 = torch.float64
OPERATIONS = {
    "between": lambda a, b: a.between(b).storage,
    "inverse": lambda a, b: a.inverse().storage,
    "log": lambda a, b: a.log(),
    "exp": lambda a, b: type(a).exp(_ordered_like(a.storage, b.log())).storage,
    "normalized": lambda a, b: a.normalized().storage,
    "adjoint": lambda a, b: a.adjoint(),
    "right_jacobian_inverse": lambda a, b: type(a).right_jacobian_inverse(_ordered_like(a.storage, b.log())),
}


def innermost(x):
    """The same numbers with the batch innermost in memory."""
    return x.T.contiguous().T


def _ordered_like(like, x):
    return innermost(x) if batch_is_innermost(like) else x.contiguous()


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("group", [mslsq.SE2, mslsq.SO3, mslsq.SE3], ids=lambda group: group.__name__)
def test_operations_keep_the_order_in_memory(group, name):
    generator = torch.Generator().manual_seed(0)
    a, b = (group.random(30, generator=generator, dtype=F64) for _ in range(2))
    expected = OPERATIONS[name](a, b)
    found = OPERATIONS[name](group(innermost(a.storage)), group(innermost(b.storage)))
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)
    assert found.stride(0) == 1 and not found.is_contiguous()
    assert expected.stride(0) > 1


def test_joining_is_that_of_pytorch():
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(30, 3, generator=generator, dtype=F64) for _ in range(2))
    m, n = (torch.randn(30, 3, 3, generator=generator, dtype=F64) for _ in range(2))
    m_inner, n_inner = (x.permute(1, 2, 0).contiguous().permute(2, 0, 1) for x in (m, n))
    assert matrix_batch_is_innermost(m_inner) and not matrix_batch_is_innermost(m)
    torch.testing.assert_close(matmul(m_inner, n_inner), m @ n)
    torch.testing.assert_close(matmul(m_inner, n[0]), m @ n[0])
    torch.testing.assert_close(cross(innermost(a), innermost(b)), torch.linalg.cross(a, b))
    torch.testing.assert_close(cross(innermost(a), b[0]), torch.linalg.cross(a, b[0].expand(30, 3)))
    assert torch.equal(cat([innermost(a), innermost(b)]), torch.cat([a, b], -1))
    assert torch.equal(stack([a[:, 0], b[:, 0]], like=innermost(a)), torch.stack([a[:, 0], b[:, 0]], -1))


def test_a_single_element_and_an_ordinary_batch_are_not_reordered():
    for x in (torch.zeros(3), torch.zeros(5, 3), torch.zeros(5, 1), torch.zeros(1, 3), torch.zeros(2, 5, 3)):
        assert not batch_is_innermost(x)
