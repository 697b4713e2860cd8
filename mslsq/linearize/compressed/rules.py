"""What an operation makes of the sets of its inputs: the rules by which dependence is propagated.

A rule may name too many unknowns, never too few: what is not known depends on everything its inputs depend on.
Operations that only move entries are run on the numbers of the entries instead of the entries themselves, so they need
no rule of their own, whatever their arguments.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mslsq import pytree
from mslsq.linearize.compressed.operation import Operation, Tracked
from mslsq.linearize.compressed.sets import Sets, csr, product, stacked, take, union, united
from mslsq.private import arguments_of

aten = torch.ops.aten

Found = list[Any] | None
"""One set matrix per output; None where the rule does not apply."""
Rule = Callable[[Operation], Found]


def everything(call: Operation) -> list[Any]:
    """Every entry of every output depends on all that any entry of any input depends on."""
    joint = None
    for one in call.tracked:
        if one.sets is not None:
            whole = united(one.sets, np.zeros(one.value.numel(), np.int64), 1)
            joint = whole if joint is None else union(joint, whole)
    assert joint is not None  # an argument has sets, else no rule is asked
    return [take(joint, np.zeros(output.numel(), np.int64)) for output in call.outputs]


def moved(call: Operation) -> Found:
    """Entries are moved, repeated, dropped: the operation itself says where to, run on their numbers."""
    floating = [one for one in call.tracked if one.value.is_floating_point() or one.value.is_complex()]
    indices = [one for one in call.tracked if one not in floating]
    if not call.pin(*indices):
        return None
    start, numbered = 1, {}
    for one in floating:  # zero stands for "nothing": what a padding or a triangle leaves empty
        stop = start + one.value.numel()
        numbered[id(one)] = torch.arange(start, stop, dtype=torch.float64, device="cpu").reshape(one.value.shape)
        start = stop

    def number(leaf: Any) -> Any:
        if not isinstance(leaf, Tracked):
            return leaf
        return numbered[id(leaf)] if id(leaf) in numbered else leaf.value.cpu()

    args, kwargs = pytree.map_leaves(number, call.without_filling())
    result = pytree.leaves(call.target(*args, **kwargs))
    joint = stacked([call.sets(one) for one in floating])
    return [take(joint, _integers(places) - 1) for places in result]


def elementwise(call: Operation) -> Found:
    """Each entry depends on the entries that are broadcast with it."""
    return [
        _broadcast([(call.sets(one), one.value.shape) for one in call.tracked if one.sets is not None], output.shape)
        for output in call.outputs
    ]


def reduced(call: Operation) -> Found:
    """Sums, norms, extrema over some axes."""
    one = call.tracked[0]
    dims = _dims(call.argument("dim"), one.value.ndim)
    sets, shape = _united_over(one, dims, call)
    if any(output.numel() != int(np.prod(shape)) for output in call.outputs):
        return None
    return [sets for _ in call.outputs]


def mixed(call: Operation) -> Found:
    """Every entry depends on all along some axes: softmax, cumulative sums, sorting, cross products."""
    dims = _dims(call.argument("dim"), max(one.value.ndim for one in call.tracked))
    parts = [_united_over(one, dims, call) for one in call.tracked if one.sets is not None]
    if any(output.ndim != len(shape) for output in call.outputs for _, shape in parts):
        return None
    return [_broadcast(parts, output.shape) for output in call.outputs]


def matrices(call: Operation) -> Found:
    """Factorisations and solves: each matrix of a batch for itself."""
    parts = []
    for one in call.tracked:
        if one.sets is not None:
            if one.value.ndim < 2:
                return None
            sets, shape = _united_over(one, (-2, -1), call)
            parts.append((sets, shape[:-2]))
    batch = torch.broadcast_shapes(*(shape for _, shape in parts))
    if any(tuple(output.shape[: len(batch)]) != tuple(batch) for output in call.outputs):
        return None
    found = []
    for output in call.outputs:
        rest = (1,) * (output.ndim - len(batch))
        found.append(_broadcast([(sets, (*shape, *rest)) for sets, shape in parts], output.shape))
    return found


def multiplied(call: Operation) -> Found:
    """Matrix products: entry (i, j) depends on row i of one factor and column j of the other."""
    names = [entry.name for entry in arguments_of(call.target) if str(entry.type) == "Tensor"]
    factors = [call.argument(name) for name in names]
    added, (left, right) = factors[:-2], factors[-2:]
    output = call.outputs[0]
    sparse = _constant_factor(call, left, right)
    parts = [(sparse, tuple(output.shape))] if sparse is not None else []
    if sparse is None:
        for factor, own in ((left, -1), (right, -2)):
            if factor.sets is None:
                continue
            if factor.value.ndim == 1:
                parts.append((_united_over(factor, (0,), call)[0], (1,) * output.ndim))
                continue
            sets, shape = _united_over(factor, (own,), call)
            if output.ndim < factor.value.ndim:  # a matrix times a vector: its axis is gone
                shape = shape[:-1]
            parts.append((sets, shape))
    parts += [(one.sets, tuple(one.value.shape)) for one in added if isinstance(one, Tracked) and one.sets is not None]
    return [_broadcast(parts, output.shape)]


def accumulated(call: Operation) -> Found:
    """`index_add`, `scatter_add`: entries of a source are added to places of another tensor."""
    into, index = call.args[0], call.argument("index") or call.argument("indices")
    source = call.argument("source") or call.argument("src") or call.argument("values")
    indices = [one for one in pytree.leaves(index) if isinstance(one, Tracked)]
    if not isinstance(source, Tracked) or not call.pin(*indices):
        return None
    places = torch.arange(into.value.numel(), device=into.value.device).reshape(into.value.shape)
    if call.target is aten.index_add.default:
        places = places.index_select(call.args[1], index.value)
        sources = torch.arange(source.value.numel(), device="cpu").reshape(source.value.shape)
    elif call.target is aten.index_put.default:
        places = places[tuple(slice(None) if one is None else one.value for one in index)]
        sources = torch.arange(source.value.numel(), device="cpu").reshape(source.value.shape).expand(places.shape)
    else:
        places = places.gather(call.args[1], index.value)
        sources = torch.arange(source.value.numel(), device="cpu").reshape(source.value.shape)
        sources = sources[tuple(slice(0, size) for size in places.shape)]
    spread = take(call.sets(source), _integers(sources))
    added = united(spread, _integers(places), into.value.numel())
    return [added if into.sets is None else union(into.sets, added)]


def put(call: Operation) -> Found:
    """`index_put` replaces, or adds up."""
    return accumulated(call) if call.argument("accumulate") else moved(call)


def paired(call: Operation) -> Found:
    """A complex entry as two real ones."""
    sets = call.sets(call.tracked[0])
    return [take(sets, np.repeat(np.arange(sets.shape[0]), 2))]


def joined(call: Operation) -> Found:
    """Two real entries as a complex one."""
    sets = call.sets(call.tracked[0])
    return [united(sets, np.arange(sets.shape[0]) // 2, sets.shape[0] // 2)]


def convolved(call: Operation) -> Found:
    """A convolution with constant weights: each place depends on the places under the kernel, in all channels."""
    image, weight = call.args[0], call.args[1]
    stride, padding, dilation, transposed = call.args[3:7]
    if weight.sets is not None or transposed or weight.value.ndim not in (3, 4) or call.args[8] != 1:
        return None
    bias = call.args[2]
    if isinstance(bias, Tracked) and bias.sets is not None:
        return None
    lead = [1] if weight.value.ndim == 3 else []
    numbers = torch.arange(1.0, image.value.numel() + 1, dtype=torch.float64, device="cpu")
    batch, channels, *space = image.value.shape
    kernel = [*lead, *weight.value.shape[2:]]
    columns = torch.nn.functional.unfold(
        numbers.reshape(batch, channels, *lead, *space),
        tuple(kernel),
        dilation=(*lead, *dilation),
        padding=(*(0 for _ in lead), *padding),
        stride=(*lead, *stride),
    )  # (batch, channels · taps, places)
    output = call.outputs[0]
    groups = torch.arange(batch * columns.shape[2], device="cpu").reshape(batch, 1, -1).expand(columns.shape)
    sets = united(take(call.sets(image), _integers(columns) - 1), _integers(groups), batch * columns.shape[2])
    return [_broadcast([(sets, (batch, 1, *output.shape[2:]))], output.shape)]


def sampled(call: Operation) -> Found:
    """`grid_sample` of a constant image: each place depends on its own two coordinates."""
    image, grid = call.args[:2]
    if image.sets is not None:
        return None
    output = call.outputs[0]
    sets, shape = _united_over(grid, (-1,), call)
    return [_broadcast([(sets, (shape[0], 1, *shape[1:-1]))], output.shape)]


def _broadcast(parts: Sequence[tuple[Sets, Sequence[int]]], shape: Sequence[int]) -> Sets:
    """The union of sets that belong to tensors of these shapes, broadcast to one shape."""
    joint: Sets | None = None
    seen: dict[tuple[int, tuple[int, ...]], None] = {}
    for sets, own in parts:
        if (id(sets), tuple(own)) in seen:  # x * x
            continue
        seen[id(sets), tuple(own)] = None
        if tuple(own) != tuple(shape):
            places = torch.arange(int(np.prod(own)), device="cpu").reshape(tuple(own)).expand(tuple(shape))
            sets = take(sets, _integers(places))
        joint = sets if joint is None else union(joint, sets)
    assert joint is not None  # a rule is asked only where an input has sets
    return joint


def _united_over(one: Tracked, dims: Sequence[int], call: Operation) -> tuple[Sets, tuple[int, ...]]:
    """The union along some axes, and the shape with ones in their place."""
    shape = list(one.value.shape)
    if not shape:
        return call.sets(one), ()
    for dim in dims:
        shape[dim] = 1
    count = int(np.prod(shape))
    if count == one.value.numel():
        return call.sets(one), tuple(shape)
    groups = torch.arange(count, device="cpu").reshape(shape).expand(one.value.shape)
    return united(call.sets(one), _integers(groups), count), tuple(shape)


def _constant_factor(call: Operation, left: Tracked, right: Tracked) -> Sets | None:
    """The product with a constant matrix, where that is mostly zeros: a difference operator, an incidence matrix."""
    if (left.sets is not None and right.sets is not None) or left.value.ndim > 2 or right.value.ndim > 2:
        return None
    constant, other = (left, right) if left.sets is None else (right, left)
    if constant.value.ndim != 2 or constant.value.is_complex():
        return None
    nonzero = constant.value != 0
    if int(nonzero.sum()) * 4 > nonzero.numel() or not call.pin(constant):
        return None
    if constant is right:
        nonzero = nonzero.T
    from scipy.sparse import eye_array, kron  # see `csr`

    table = csr(nonzero.cpu().numpy())
    sets = call.sets(other)
    if other.value.ndim == 1:
        return product(table, sets)
    if constant is left:  # (AB)_ij over k: rows (k, j) of B
        return product(csr(kron(table, eye_array(other.value.shape[1], dtype=bool))), sets)
    return product(csr(kron(eye_array(other.value.shape[0], dtype=bool), table)), sets)


def _dims(given: Any, ndim: int) -> tuple[int, ...]:
    """The axes named in an argument; all where none is."""
    if given is None or (isinstance(given, (list, tuple)) and not given):
        return tuple(range(ndim))
    return (given,) if isinstance(given, int) else tuple(given)


def _integers(tensor: Tensor) -> np.ndarray:
    return tensor.reshape(-1).to(torch.int64).cpu().numpy()
