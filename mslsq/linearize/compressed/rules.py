"""What each operation of a graph makes of the sets of its inputs: the rules by which dependence is propagated.

A rule may name too many unknowns, never too few: what is not known depends on everything its inputs depend on.
Operations that only move entries are run on the numbers of the entries instead of the entries themselves, so they need
no rule of their own, whatever their arguments.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array, eye_array, kron
from torch import Tensor

from mslsq import pytree
from mslsq.linearize.compressed.sets import Sets, TooDenseError, product, stacked, take, union, united

aten = torch.ops.aten


@dataclass(eq=False)
class Tracked:
    """A tensor while a graph is followed."""

    value: Tensor
    sets: Sets | None = None
    """One set per entry, in row-major order; None where no entry has a derivative."""
    sources: frozenset[str] = frozenset()
    """The inputs that the numbers come from, derivative or not."""


@dataclass
class Rulebook:
    """Applies rules; remembers which inputs decided a pattern by their values (indices, zeros of a matrix)."""

    varying: frozenset[str]
    """Inputs whose values differ from call to call, or between the problems of a batch: nothing may hang on them."""
    columns: int
    largest: int
    """Entries of one pattern beyond which the search is given up."""
    pinned: set[str] = field(default_factory=set)

    def sets_of(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: list[Tensor]) -> list[Any]:
        """The sets of every output of an operation (None for one without derivative)."""
        tracked = [leaf for leaf in pytree.leaves((args, kwargs)) if isinstance(leaf, Tracked)]
        if all(one.sets is None for one in tracked) or target in CONSTANT:
            return [None] * len(outputs)
        call = _Call(target, args, kwargs, tracked, outputs, self)
        found = _found(call) or everything(call)
        for sets in found:
            if sets.nnz > self.largest:
                raise TooDenseError(f"after {target} {sets.shape[0]:,} numbers depend on {sets.nnz:,} unknowns in sum")
        return [
            sets if output.is_floating_point() or output.is_complex() else None
            for sets, output in zip(found, outputs, strict=True)
        ]


@dataclass
class _Call:
    """One operation with everything about it."""

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    tracked: list[Tracked]
    outputs: list[Tensor]
    book: Rulebook

    def argument(self, name: str, default: Any = None) -> Any:
        """An argument by its name in the schema."""
        for number, entry in enumerate(self.target._schema.arguments):
            if entry.name == name:
                return self.args[number] if number < len(self.args) else self.kwargs.get(name, entry.default_value)
        return default

    def without_filling(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments, with zero for a number that the operation writes into free places."""
        args, kwargs = list(self.args), dict(self.kwargs)
        for number, entry in enumerate(self.target._schema.arguments):
            if entry.name == "value" and not isinstance(self.argument("value"), Tracked):
                if number < len(args):
                    args[number] = 0
                elif not entry.kwarg_only:
                    kwargs["value"] = 0
        return tuple(args), kwargs

    def sets(self, one: Tracked) -> Sets:
        """The sets of an input, empty ones for a constant."""
        return one.sets if one.sets is not None else csr_array((one.value.numel(), self.book.columns), dtype=bool)

    def pin(self, *decisive: Tracked) -> bool:
        """May the pattern hang on these values? Then the inputs they come from are remembered."""
        sources = frozenset[str]().union(*(one.sources for one in decisive))
        if sources & self.book.varying:
            return False
        self.book.pinned |= sources
        return True


Found = list[Any] | None
"""One set matrix per output; None where the rule does not apply."""
Rule = Callable[[_Call], Found]


def _found(call: _Call) -> Found:
    try:
        return _rule(call.target)(call)
    except TooDenseError:
        raise
    except (RuntimeError, TypeError, ValueError, IndexError, KeyError):
        return None  # called in a way that the rule does not know: caution costs time, not the answer


def everything(call: _Call) -> list[Any]:
    """Every entry of every output depends on all that any entry of any input depends on."""
    joint = None
    for one in call.tracked:
        if one.sets is not None:
            whole = united(one.sets, np.zeros(one.value.numel(), np.int64), 1)
            joint = whole if joint is None else union(joint, whole)
    assert joint is not None  # somebody has sets, else no rule is asked
    return [take(joint, np.zeros(output.numel(), np.int64)) for output in call.outputs]


def moved(call: _Call) -> Found:
    """Entries are moved, repeated, dropped: the operation itself says where to, run on their numbers."""
    floating = [one for one in call.tracked if one.value.is_floating_point() or one.value.is_complex()]
    indices = [one for one in call.tracked if one not in floating]
    if not call.pin(*indices):
        return None
    start, numbered = 1, {}
    for one in floating:  # zero stands for "nothing": what a padding or a triangle leaves empty
        stop = start + one.value.numel()
        numbered[id(one)] = torch.arange(start, stop, dtype=torch.float64).reshape(one.value.shape)
        start = stop

    def number(leaf: Any) -> Any:
        if not isinstance(leaf, Tracked):
            return leaf
        return numbered[id(leaf)] if id(leaf) in numbered else leaf.value.cpu()

    args, kwargs = pytree.map_leaves(number, call.without_filling())
    result = pytree.leaves(call.target(*args, **kwargs))
    joint = stacked([call.sets(one) for one in floating])
    return [take(joint, _integers(places) - 1) for places in result]


def elementwise(call: _Call) -> Found:
    """Each entry depends on the entries that are broadcast with it."""
    return [
        _broadcast([(call.sets(one), one.value.shape) for one in call.tracked if one.sets is not None], output.shape)
        for output in call.outputs
    ]


def reduced(call: _Call) -> Found:
    """Sums, norms, extrema over some axes."""
    one = call.tracked[0]
    dims = _dims(call.argument("dim"), one.value.ndim)
    sets, shape = _united_over(one, dims, call)
    if any(output.numel() != int(np.prod(shape)) for output in call.outputs):
        return None
    return [sets for _ in call.outputs]


def mixed(call: _Call) -> Found:
    """Every entry depends on all along some axes: softmax, cumulative sums, sorting, cross products."""
    dims = _dims(call.argument("dim"), max(one.value.ndim for one in call.tracked))
    parts = [_united_over(one, dims, call) for one in call.tracked if one.sets is not None]
    if any(output.ndim != len(shape) for output in call.outputs for _, shape in parts):
        return None
    return [_broadcast(parts, output.shape) for output in call.outputs]


def matrices(call: _Call) -> Found:
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


def multiplied(call: _Call) -> Found:
    """Matrix products: entry (i, j) depends on row i of one factor and column j of the other."""
    names = [entry.name for entry in call.target._schema.arguments if str(entry.type) == "Tensor"]
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


def accumulated(call: _Call) -> Found:
    """`index_add`, `scatter_add`: entries of a source are added to places of another tensor."""
    into, index = call.args[0], call.argument("index") or call.argument("indices")
    source = call.argument("source") or call.argument("src") or call.argument("values")
    indices = [one for one in pytree.leaves(index) if isinstance(one, Tracked)]
    if not isinstance(source, Tracked) or not call.pin(*indices):
        return None
    places = torch.arange(into.value.numel(), device=into.value.device).reshape(into.value.shape)
    if call.target is aten.index_add.default:
        places = places.index_select(call.args[1], index.value)
        sources = torch.arange(source.value.numel()).reshape(source.value.shape)
    elif call.target is aten.index_put.default:
        places = places[tuple(slice(None) if one is None else one.value for one in index)]
        sources = torch.arange(source.value.numel()).reshape(source.value.shape).expand(places.shape)
    else:
        places = places.gather(call.args[1], index.value)
        sources = torch.arange(source.value.numel()).reshape(source.value.shape)
        sources = sources[tuple(slice(0, size) for size in places.shape)]
    spread = take(call.sets(source), _integers(sources))
    added = united(spread, _integers(places), into.value.numel())
    return [added if into.sets is None else union(into.sets, added)]


def put(call: _Call) -> Found:
    """`index_put` replaces, or adds up."""
    return accumulated(call) if call.argument("accumulate") else moved(call)


def paired(call: _Call) -> Found:
    """A complex entry as two real ones."""
    sets = call.sets(call.tracked[0])
    return [take(sets, np.repeat(np.arange(sets.shape[0]), 2))]


def joined(call: _Call) -> Found:
    """Two real entries as a complex one."""
    sets = call.sets(call.tracked[0])
    return [united(sets, np.arange(sets.shape[0]) // 2, sets.shape[0] // 2)]


def convolved(call: _Call) -> Found:
    """A convolution with constant weights: each place depends on the places under the kernel, in all channels."""
    image, weight = call.args[0], call.args[1]
    stride, padding, dilation, transposed = call.args[3:7]
    if weight.sets is not None or transposed or weight.value.ndim not in (3, 4) or call.args[8] != 1:
        return None
    bias = call.args[2]
    if isinstance(bias, Tracked) and bias.sets is not None:
        return None
    lead = [1] if weight.value.ndim == 3 else []
    numbers = torch.arange(1.0, image.value.numel() + 1, dtype=torch.float64)
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
    groups = torch.arange(batch * columns.shape[2]).reshape(batch, 1, -1).expand(columns.shape)
    sets = united(take(call.sets(image), _integers(columns) - 1), _integers(groups), batch * columns.shape[2])
    return [_broadcast([(sets, (batch, 1, *output.shape[2:]))], output.shape)]


def sampled(call: _Call) -> Found:
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
            places = torch.arange(int(np.prod(own))).reshape(tuple(own)).expand(tuple(shape))
            sets = take(sets, _integers(places))
        joint = sets if joint is None else union(joint, sets)
    assert joint is not None  # a rule is asked only where an input has sets
    return joint


def _united_over(one: Tracked, dims: Sequence[int], call: _Call) -> tuple[Sets, tuple[int, ...]]:
    """The union along some axes, and the shape with ones in their place."""
    shape = list(one.value.shape)
    if not shape:
        return call.sets(one), ()
    for dim in dims:
        shape[dim] = 1
    count = int(np.prod(shape))
    if count == one.value.numel():
        return call.sets(one), tuple(shape)
    groups = torch.arange(count).reshape(shape).expand(one.value.shape)
    return united(call.sets(one), _integers(groups), count), tuple(shape)


def _constant_factor(call: _Call, left: Tracked, right: Tracked) -> Sets | None:
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
    table = csr_array(nonzero.cpu().numpy())
    sets = call.sets(other)
    if other.value.ndim == 1:
        return product(table, sets)
    if constant is left:  # (AB)_ij over k: rows (k, j) of B
        return product(csr_array(kron(table, eye_array(other.value.shape[1], dtype=bool))), sets)
    return product(csr_array(kron(eye_array(other.value.shape[0], dtype=bool), table)), sets)


def _dims(given: Any, ndim: int) -> tuple[int, ...]:
    """The axes named in an argument; all where none is."""
    if given is None or (isinstance(given, (list, tuple)) and not given):
        return tuple(range(ndim))
    return (given,) if isinstance(given, int) else tuple(given)


def _integers(tensor: Tensor) -> np.ndarray:
    return tensor.reshape(-1).to(torch.int64).cpu().numpy()


def _overloads(*names: str) -> set[Any]:
    """All overloads of operations, those that this PyTorch has."""
    found = set()
    for name in names:
        packet = getattr(aten, name, None)
        if packet is not None:
            found.update(getattr(packet, overload) for overload in packet.overloads())
    return found


CONSTANT = _overloads(
    *("zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty"),
    *("sign", "sgn", "floor", "ceil", "round", "trunc", "heaviside", "argmax", "argmin", "floor_divide"),
)
"""Operations whose result has no derivative, whatever its inputs."""

_BY_RULE: dict[Rule, set[Any]] = {
    elementwise: _overloads(
        *("complex", "polar", "real", "imag", "_to_copy", "to", "resolve_conj", "resolve_neg", "_conj"),
        *(
            "conj_physical",
            "detach",
            "alias",
            "lift_fresh",
            "lift_fresh_copy",
            "_neg_view",
            "clone",
            "copy",
            "prelu",
            "_prelu_kernel",
        ),
    ),
    moved: _overloads(
        *("cat", "stack", "index_select", "gather", "take", "embedding", "repeat", "flip", "roll", "tril", "triu"),
        *("diag_embed", "constant_pad_nd", "slice_scatter", "select_scatter", "diagonal_scatter", "_unsafe_view"),
        *("reflection_pad1d", "reflection_pad2d", "replication_pad1d", "replication_pad2d", "im2col", "rot90"),
        *("pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "repeat_interleave", "_reshape_alias"),
    )
    | {aten.index.Tensor, aten.scatter.src, aten.scatter.value, aten._unsafe_index.Tensor, aten.index_fill.int_Scalar},
    put: {aten.index_put.default, aten._unsafe_index_put.default},
    accumulated: {aten.index_add.default, aten.scatter_add.default},
    reduced: _overloads(
        *("sum", "mean", "amax", "amin", "max", "min", "prod", "logsumexp", "linalg_vector_norm", "norm", "var"),
        *("std", "var_mean", "std_mean", "median", "nansum", "mode"),
    )
    - {aten.max.other, aten.min.other},
    mixed: _overloads(
        *("_softmax", "_log_softmax", "cumsum", "cumprod", "logcumsumexp", "sort", "topk", "linalg_cross"),
        *("cummax", "cummin", "_fft_r2c", "_fft_c2c", "_fft_c2r"),
    ),
    matrices: _overloads(
        *("linalg_cholesky_ex", "linalg_inv_ex", "linalg_eigh", "_linalg_eigh", "_linalg_svd", "linalg_qr"),
        *("cholesky_solve", "linalg_solve_triangular", "cholesky_inverse", "linalg_matrix_exp"),
    ),
    multiplied: {
        *(aten.mm.default, aten.bmm.default, aten.mv.default, aten.dot.default, aten.addmm.default),
        *(aten.baddbmm.default, aten.addmv.default, aten.vdot.default),
    },
    paired: {aten.view_as_real.default},
    joined: {aten.view_as_complex.default},
    convolved: {aten.convolution.default},
    sampled: {aten.grid_sampler_2d.default, aten.grid_sampler_3d.default},
}
_RULES: dict[Any, Rule] = {target: rule for rule, targets in _BY_RULE.items() for target in targets}
REINTERPRETING = _overloads("as_strided") | {aten.view.dtype}
"""Views of memory, not of entries."""


def _rule(target: Any) -> Rule:
    if target in _RULES:
        return _RULES[target]
    if not isinstance(target, torch._ops.OpOverload) or target in REINTERPRETING:
        return everything
    if torch.Tag.pointwise in target.tags:
        return elementwise
    return moved if target.is_view else everything
