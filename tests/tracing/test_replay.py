"""Replayed graphs give what the recorded function gives, whatever is merged or made once."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from mslsq.tracing.recording import Recorded
from mslsq.tracing.replay import merge_repeated, straight_line

F64 = torch.float64


def fill(x):
    a, b = x.new_zeros(3, 3), x.new_zeros(3, 3)
    before = a.diagonal() + 0
    a.diagonal().copy_(x)
    return a @ b, a.diagonal() + before, b


def constants(x):
    a, b = torch.zeros(3, dtype=F64), torch.zeros(3, dtype=F64)
    a.add_(x)
    return a, b, torch.full((3,), -0.0, dtype=F64) + x * 0, torch.full((3,), 0.0, dtype=F64).copysign(-x)


def derivatives(x):
    def f(d, e):
        return torch.sin(x + d) * torch.cos(e)

    return torch.func.jacfwd(f, argnums=(0, 1))(x.new_zeros(3), x.new_zeros(3))


def repeated(x):
    return x * 2 + x * 2, x * 2.0, x.view(3).view(3), torch.where(x > 0, x, 1), torch.diag_embed(x), torch.diag_embed(x)


@pytest.mark.parametrize("function", [fill, constants, derivatives, repeated], ids=lambda f: f.__name__)
def test_a_replay_gives_what_the_function_gives_on_other_numbers(function):
    recorded = Recorded(function, (torch.tensor([1.0, 2.0, 3.0], dtype=F64),))
    for x in ([1.0, 2.0, 3.0], [-4.0, 0.5, 2.0], [-4.0, 0.5, 2.0]):
        x = torch.tensor(x, dtype=F64)
        for replayed, expected in zip(recorded(x), function(x), strict=True):
            assert torch.equal(replayed, expected)
            assert torch.equal(replayed.signbit(), expected.signbit())


def test_repeated_operations_are_done_once():
    graph = make_fx(lambda x: [torch.exp(x) + 1, torch.exp(x) * 2])(torch.ones(3))
    merge_repeated(graph.graph)
    assert sum(node.target is torch.ops.aten.exp.default for node in graph.graph.nodes) == 1
    x = torch.tensor([0.0, 1.0, 2.0])
    assert all(map(torch.equal, straight_line(graph.graph, graph)(x), (torch.exp(x) + 1, torch.exp(x) * 2)))


def test_random_numbers_are_drawn_again_and_not_shared():
    graph = make_fx(lambda x: [torch.rand(3), torch.rand(3)])(torch.ones(3))
    merge_repeated(graph.graph)
    replay = straight_line(graph.graph, graph)
    first, second = replay(torch.ones(3))
    again, _ = replay(torch.ones(3))
    assert not torch.equal(first, second)
    assert not torch.equal(first, again)


def test_one_tensor_in_two_places_of_the_example_is_two_inputs():
    x = torch.ones(3, dtype=F64)
    recorded = Recorded(lambda a, b: a - b, (x, x))
    assert torch.equal(recorded(2 * x, x), x)
