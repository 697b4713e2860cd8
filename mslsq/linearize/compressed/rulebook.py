"""Which rule is whose: the operations of PyTorch by the way dependence passes through them."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mslsq import pytree
from mslsq.linearize.compressed.operation import Operation, Pins, Tracked
from mslsq.linearize.compressed.rules import (
    Found,
    Rule,
    accumulated,
    convolved,
    elementwise,
    everything,
    joined,
    matrices,
    mixed,
    moved,
    multiplied,
    paired,
    put,
    reduced,
    sampled,
)
from mslsq.linearize.compressed.sets import TooDenseError
from mslsq.private import is_operator

aten = torch.ops.aten


@dataclass
class Rulebook:
    """Applies rules."""

    pins: Pins
    columns: int
    """How many unknowns there are."""
    largest: int
    """Entries of one pattern beyond which the search is given up."""

    def sets_of(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: list[Tensor]) -> list[Any]:
        """The sets of every output of an operation (None for one without derivative)."""
        tracked = [leaf for leaf in pytree.leaves((args, kwargs)) if isinstance(leaf, Tracked)]
        if all(one.sets is None for one in tracked) or target in CONSTANT:
            return [None] * len(outputs)
        operation = Operation(target, args, kwargs, tracked, outputs, self.columns, self.pins)
        found = _found(operation) or everything(operation)
        for sets in found:
            if sets.nnz > self.largest:
                raise TooDenseError(f"after {target} {sets.shape[0]:,} numbers depend on {sets.nnz:,} unknowns in sum")
        return [
            sets if output.is_floating_point() or output.is_complex() else None
            for sets, output in zip(found, outputs, strict=True)
        ]


def _found(operation: Operation) -> Found:
    try:
        return _rule(operation.target)(operation)
    except TooDenseError:
        raise
    except (RuntimeError, TypeError, ValueError, IndexError, KeyError):
        return None  # called in a way that the rule does not know: caution costs time, not the answer


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
    if not is_operator(target) or target in REINTERPRETING:
        return everything
    if torch.Tag.pointwise in target.tags:
        return elementwise
    return moved if target.is_view else everything
