"""Graphs that the recorder writes: those of `make_fx`, without what it imports."""

import subprocess
import sys

import pytest
import torch
from torch.func import functionalize, jacfwd, jacrev, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from mslsq.tracing.operators import WHILE_RECORDING
from mslsq.tracing.recorder import is_recording, record
from mslsq.tracing.rewrites import make_transformable

P = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
T = torch.linspace(0, 1, 5, dtype=torch.float64)


def written_in_place(p, t):
    out = torch.zeros(6, dtype=p.dtype)
    out[:3] = p * t[:3]
    out[3:] += torch.sin(p)
    out[0] = p[1]
    return [out]


def pair(q):
    return torch.stack([q.sum(), (q @ q) * torch.tensor(2.0, dtype=q.dtype)])


FUNCTIONS = {
    "elementwise": lambda p, t: [p[0] * torch.exp(p[1] * t).sum() + 3 * p[2]],
    "forward mode": lambda p, t: [vmap(jacfwd(pair))(torch.stack([p, p + 1]))],
    "reverse mode": lambda p, t: [vmap(jacrev(pair))(torch.stack([p, p + 1]))],
    "both": lambda p, t: [vmap(jacfwd(jacrev(pair)))(torch.stack([p, p * t[1]]))],
    "in place": written_in_place,
    "in place, written out of place": functionalize(written_in_place, remove="mutations_and_views"),
    "several results": lambda p, t: list(torch.linalg.eigh(torch.outer(p, p) + torch.diag(p))),
    "a constant": lambda p, t: [p * T[:3], p + torch.tensor([1, 2, 3])],
    "an input as it is": lambda p, t: [t, p],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_graph_has_the_operations_of_make_fx_and_their_results(name):
    function = FUNCTIONS[name]
    graph = record(function, [P.clone(), T.clone()], WHILE_RECORDING)
    expected = make_fx(function, decomposition_table=WHILE_RECORDING)(P.clone(), T.clone())

    def operations(module):
        return [node.target for node in module.graph.nodes if node.op == "call_function"]

    assert operations(graph) == operations(expected)
    other = 1.3 * P + 0.1
    for found, of_python in zip(graph(other, T), function(other, T), strict=True):
        assert torch.equal(found, of_python)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_nodes_know_shape_dtype_and_device_of_their_results(name):
    graph = record(FUNCTIONS[name], [P.clone(), T.clone()], WHILE_RECORDING)
    compared = []

    class Looking(torch.fx.Interpreter):
        def run_node(self, n):
            result = super().run_node(n)
            if isinstance(result, torch.Tensor):
                known = n.meta["val"]
                assert (known.shape, known.dtype, known.device) == (result.shape, result.dtype, result.device), n
                assert known.untyped_storage().nbytes() <= 8  # a number, not the example's result
                assert n.op == "get_attr" or n.meta["tensor_meta"].stride == result.stride(), n
                compared.append(n)
            return result

    Looking(graph).run(P.clone(), T.clone())
    assert len(compared) > 1


def test_a_number_that_no_input_changes_may_be_asked_for():
    graph = record(lambda p: [p * float(torch.tensor([2.0, 3.0]).sum())], [P.clone()], {})
    assert torch.equal(graph(P)[0], 5 * P)


def test_a_number_that_an_input_changes_may_not_be_asked_for():
    with pytest.raises(RuntimeError, match="asks for a value that depends on the inputs"):
        record(lambda p: [p * float(p[0])], [P.clone()], {})


def test_what_is_written_into_a_tensor_made_inside_does_not_stay_there():
    def accumulated(p):
        total = torch.tensor([1.0, 1.0, 1.0], dtype=p.dtype)
        return [total.add_(p)]

    graph = record(accumulated, [P.clone()], {})
    assert [graph(P)[0].tolist() for _ in range(2)] == [(1 + P).tolist()] * 2


def test_operators_come_in_parts_in_inference_mode_too():
    with torch.inference_mode():
        graph = record(lambda p: [torch.matmul(p[None], p[:, None])], [P.clone()], {})
    assert torch.ops.aten.matmul.default not in [node.target for node in graph.graph.nodes]
    assert float(graph(P)[0]) == float(P @ P)


def test_a_recording_within_another_leaves_no_trace_in_it():
    example = T.clone()

    def outside(p):
        inner = record(lambda q: [torch.sin(q) * q], [example], {})
        assert len(inner.graph.nodes) == 4
        return p + 1

    graph = make_fx(outside)(P.clone())
    assert [str(node.target) for node in graph.graph.nodes if node.op == "call_function"] == ["aten.add.Tensor"]


def test_one_knows_that_something_is_being_recorded():
    seen = []

    def looking(p):
        seen.append(is_recording())
        return [p + 1]

    looking(P)
    record(looking, [P.clone()], {})
    make_fx(looking)(P.clone())
    assert seen == [False, True, True]


@pytest.mark.slow
def test_recording_a_jacobian_imports_neither_dynamo_nor_sympy():
    code = """
import sys, torch
from torch.func import vmap
from mslsq.private import jacfwd
from mslsq.tracing.graph import graph_of
p = torch.rand(4, 3, dtype=torch.float64)
graph_of(lambda p: [vmap(jacfwd(lambda q: torch.stack([q.sin().sum(), 3 * q @ q])))(p)], [p], functional=True)
print([name for name in ("torch._dynamo", "sympy") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[0] == "[]"


def test_a_conjugated_number_stays_a_tensor_when_a_graph_is_rewritten():
    # The pullback of 1j·x conjugates the number: a rewritten graph raised "'complex' object has no attribute 'conj'".
    x, g = torch.randn(2, 3, dtype=torch.complex128, generator=torch.Generator().manual_seed(0))
    graph = make_fx(lambda x, g: torch.func.vjp(lambda x: torch.exp(0.3j * x), x)[1](g)[0])(x, g)
    assert any(node.target is torch.ops.aten._conj.default and node.args == (0.3j,) for node in graph.graph.nodes)
    assert torch.allclose(make_transformable(graph, (x, g))(x, g), graph(x, g))
