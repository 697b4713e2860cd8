"""Small matrix products written out for the compiler: the same numbers, and only where they are small."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from mslsq.tracing.small_products import write_out_small_products

aten = torch.ops.aten


def products(graph):
    return [node for node in graph.nodes if node.target is aten.bmm.default]


@pytest.mark.parametrize("shape", [(50, 6, 6, 12), (50, 1, 3, 1), (16, 12, 6, 12)])
def test_small_products_are_written_out_and_give_the_same(shape):
    count, rows, inner, columns = shape
    left = torch.randn(count, rows, inner, dtype=torch.float64)
    right = torch.randn(count, inner, columns, dtype=torch.float64)
    graph = make_fx(lambda a, b: torch.bmm(a, b) + 1)(left, right)
    write_out_small_products(graph.graph)
    graph.recompile()
    assert not products(graph.graph)
    torch.testing.assert_close(graph(left, right), left @ right + 1, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("shape", [(2, 6, 6, 12), (50, 64, 64, 64), (50, 2, 40, 2)])
def test_large_products_and_few_of_them_are_left_to_blas(shape):
    count, rows, inner, columns = shape
    graph = make_fx(torch.bmm)(torch.randn(count, rows, inner), torch.randn(count, inner, columns))
    write_out_small_products(graph.graph)
    assert len(products(graph.graph)) == 1
