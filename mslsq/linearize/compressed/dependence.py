"""Element sparsity of a residual: which unknowns each of its entries depends on, read off its graph.

The graph of one problem is followed once, node by node, with the set of unknowns behind every entry of every tensor
(`rulebook`). Nothing is guessed from numbers, so the pattern holds wherever the residual is evaluated; where it hangs
on the values of an input (the index tensor of an edge list), that input is `pinned`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from mslsq import pytree
from mslsq.linearize.compressed.operation import Pins, Source, Tracked
from mslsq.linearize.compressed.rulebook import Rulebook
from mslsq.linearize.compressed.sets import LARGEST, Sets, csr, empty, singletons
from mslsq.private import is_operator
from mslsq.tracing.graph import attribute_of, by_place, distinct, graph_of


@dataclass(frozen=True, eq=False)
class Dependence:
    """Row i of `sets` holds the columns where row i of the Jacobian may be non-zero."""

    sets: Sets
    pinned: frozenset[str]
    """The inputs whose values the pattern hangs on."""


def dependence_of(
    function: Callable[[Tensor, tuple[Tensor, ...], Mapping[str, Tensor]], Tensor],
    columns: int,
    storages: tuple[Tensor, ...],
    inputs: Mapping[str, Tensor],
    batched: frozenset[str] = frozenset(),
    largest: int | None = None,
) -> Dependence:
    """The sparsity of ∂ function(δ, storages, inputs) / ∂δ at δ = 0, for every value of `storages` and of the inputs.

    Args:
        function: out-of-place (see `capture`), returns a real vector.
        columns: the length of δ.
        batched: inputs that differ between the problems of a batch; the pattern holds for all of them.
        largest: the most entries that a pattern may have, those of intermediate tensors included.

    Raises:
        TooDenseError: the pattern has too many entries to be worth anything.
    """
    delta = storages[0].new_zeros(columns)
    example = distinct([delta, *storages, *inputs.values()])
    flat = by_place(lambda tensors, given: function(tensors[0], tensors[1:], given), 1 + len(storages), inputs)
    with torch.no_grad():
        graph = graph_of(flat, example)
    sources: list[Source] = [None] * (1 + len(storages)) + list(inputs)
    starts = [Tracked(tensor, None, frozenset([source])) for tensor, source in zip(example, sources, strict=True)]
    starts[0].sets = singletons(columns, 0, columns)
    pins = Pins(frozenset([None, *batched]))
    book = Rulebook(pins, columns, LARGEST if largest is None else min(largest, LARGEST))
    with torch.no_grad():
        result = _followed(graph, starts, book)
    sets = result.sets if result.sets is not None else empty(result.value.numel(), columns)
    return Dependence(csr(sets), frozenset(source for source in pins.pinned if source is not None))


def _followed(graph: fx.GraphModule, starts: list[Tracked], book: Rulebook) -> Tracked:
    """Every node in order; what is not needed any more is dropped."""
    known: dict[fx.Node, Any] = {}
    left = {node: len(node.users) for node in graph.graph.nodes}
    given = iter(starts)
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            known[node] = next(given)
        elif node.op == "get_attr":
            known[node] = Tracked(attribute_of(graph, node))
        elif node.op == "output":
            return pytree.leaves(fx.map_arg(node.args[0], lambda used: known[used]))[0]
        elif not is_operator(node.target):
            args = fx.map_arg(node.args, lambda used: known[used])
            known[node] = node.target(*args)  # pyright: ignore[reportCallIssue]  (getitem of several outputs)
        else:
            known[node] = _evaluated(node, known, book)
        for used in node.all_input_nodes:
            left[used] -= 1
            if not left[used]:
                del known[used]
    raise AssertionError("a graph ends with its output")


def _evaluated(node: fx.Node, known: dict[fx.Node, Any], book: Rulebook) -> Any:
    """The output of one operation: numbers (an index may be computed), sets, sources."""
    args: Any = fx.map_arg(node.args, lambda used: known[used])
    kwargs: Any = fx.map_arg(node.kwargs, lambda used: known[used])

    def value(leaf: Any) -> Any:
        return leaf.value if isinstance(leaf, Tracked) else leaf

    values, named = pytree.map_leaves(value, (args, kwargs))
    result = node.target(*values, **named)  # pyright: ignore[reportCallIssue]
    leaves, structure = pytree.flatten(result)
    outputs = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    sources = frozenset[Source]().union(
        *(leaf.sources for leaf in pytree.leaves((args, kwargs)) if isinstance(leaf, Tracked))
    )
    sets = iter(book.sets_of(node.target, args, kwargs, outputs))
    tracked = [Tracked(leaf, next(sets), sources) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    return pytree.unflatten(tracked, structure)
