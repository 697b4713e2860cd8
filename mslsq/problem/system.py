"""A problem as the engine sees it: plain data, no modules, no names to look up.

A `System` is a list of unknowns and a list of terms. A term is one cost function for all its blocks: index tensors into
the unknowns, and pure functions of (values of one block, input tensors of one block). The front doors build systems,
everything below them reads them.
"""

import enum
from collections.abc import Callable, Hashable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mslsq import pytree
from mslsq.levels import python_numbers
from mslsq.losses import RobustLoss
from mslsq.manifolds.space import Space

Inputs = Mapping[str, Tensor]
"""The tensors a term depends on, by name; for one block, or for all."""


@dataclass(frozen=True, eq=False)
class Unknown:
    """One kind of variable: `count` blocks on `space`, some of them held at their start, whole or in part."""

    name: str
    space: Space
    count: int
    free: Tensor | None = None
    """(count, tangent) bool, or None where all is free."""
    is_bounded: bool = False
    """Has a solve bounds for its entries? Of Euclidean ones alone."""

    @cached_property
    def free_entries(self) -> np.ndarray:
        """(count, tangent) bool on the host, which components of which blocks may move."""
        if self.free is None:
            return np.ones((self.count, self.space.tangent_dim), bool)
        return np.array(python_numbers(self.free), bool)  # also under a transform

    @cached_property
    def is_held_in_part(self) -> bool:
        """Has a block both components that move and components that are held?"""
        entries = self.free_entries
        return bool((entries.any(1) & ~entries.all(1)).any())

    @property
    def bounds(self) -> tuple[str, str]:
        """The names of its lower and upper bounds among those of a solve."""
        return f"lower bound of {self.name}", f"upper bound of {self.name}"


@dataclass(frozen=True, eq=False)
class Slot:
    """The blocks of unknown number `unknown` that the blocks of a term refer to: (blocks,), or one for all of them."""

    unknown: int
    index: Tensor | int

    @property
    def is_shared(self) -> bool:
        """Do all blocks of the term refer to one block of the unknown?"""
        return isinstance(self.index, int)

    @property
    def blocks(self) -> np.ndarray | int:
        """The same on the host: (blocks,), or one for all of them."""
        return self.index if isinstance(self.index, int) else self.index.cpu().numpy()

    def of_block(self, number: int) -> int:
        """The block of the unknown that a block of the term refers to."""
        return self.index if isinstance(self.index, int) else int(self.index[number])


class TermKind(enum.Enum):
    """What the residual of a term means to the problem."""

    COST = "cost"
    """½ρ(‖r‖²) is a part of what is minimised."""
    EQUALITY = "equality"
    """r = 0 at a solution."""
    INEQUALITY = "inequality"
    """r ≤ 0 at a solution."""

    @property
    def is_constraint(self) -> bool:
        return self is not TermKind.COST


ROOT, SHIFT, FLOOR = "constraint.root", "constraint.shift", "constraint.floor"
"""The inputs of a constraint that a solver has made a cost of, per problem: (), (blocks, rows), ()."""


@dataclass(frozen=True, eq=False)
class Family:
    """Terms of the same code in the same state, whatever their counts: a problem that grows has one family per cost."""

    key: Callable[[], Hashable]
    """Equal for the members; asked for when a plan is made, not in every call."""
    known: MutableMapping[Hashable, Any]
    """What was found out about members, by their family and the shapes of one block; as long as the code lives."""
    indices: frozenset[str] = frozenset()
    """The inputs that only tell which blocks there are."""


@dataclass(frozen=True, eq=False)
class Term:
    """One cost function, for all its blocks.

    `residual(values, inputs)` and `jacobians(values, inputs)` are of ONE block; the residual any pytree of real or
    complex tensors, the Jacobians one (rows, tangent) tensor per slot. `whiten(r, inputs)`, `whiten_jacobian(J,
    inputs)` apply the weight.
    """

    name: str
    slots: tuple[Slot, ...]
    num_blocks: int
    residual: Callable[[tuple[Any, ...], Inputs], Any]
    jacobians: Callable[[tuple[Any, ...], Inputs], tuple[Tensor, ...]] | None = None
    curvature: Callable[[Any, tuple[Any, ...], Inputs], Tensor] | None = None
    """`curvature(w, values, inputs)` of one block: Σᵢ wᵢ ∇²rᵢ in the joint tangent, up to an antisymmetric part, for w
    of the residual's own form. Where it is given, `jacobians` are exact."""
    residual_and_jacobians: Callable[[tuple[Any, ...], Inputs], tuple[Any, tuple[Tensor, ...]]] | None = None
    """Both at once, where that is less work."""
    broadcasts: bool = False
    """May everything above and the weight be called with a leading axis of blocks, the residual a tensor of real rows?
    (Not `curvature`.)"""
    whiten: Callable[[Tensor, Inputs], Tensor] | None = None
    whiten_jacobian: Callable[[Tensor, Inputs], Tensor] | None = None
    loss: RobustLoss | None = None
    loss_inputs: Mapping[str, str] = field(default_factory=dict)
    """Names of the loss's parameters -> names of the inputs that hold them."""
    elementwise_loss: bool = False
    """Does the loss act on each entry of the residual (SciPy's meaning), or on the squared norm of a block?"""
    per_block: frozenset[str] = frozenset()
    """The inputs that have a leading axis of blocks."""
    key: Hashable = None
    """What a traced graph of this term depends on besides shapes: scalars, code, flags."""
    chunk: int | None = None
    """Linearize at most that many blocks at a time, where blocks share their variables (memory)."""
    is_of_library: bool = False
    """Is all of its code the library's own, so that it changes with its inputs alone?"""
    kind: TermKind = TermKind.COST
    num_rows: int | None = None
    """The real entries of the residual of a block, where that is known beforehand."""
    eager: str = ""
    """Why no graph of it may be kept between calls, in words; empty where one may."""
    family: Family | None = None
    hint: Callable[[Exception], str] | None = None
    """What to try where the residual fails in this way, in words; empty where nothing is known of it."""
    check_kept: Callable[[Sequence[Tensor]], None] | None = None
    """Raises UncollectedTensorError where the residual has kept a tensor of its evaluation at these leaves
    (`tracing.reading.kept`)."""

    def with_residual(self, residual: Callable[[tuple[Any, ...], Inputs], Any]) -> "Term":
        """The same term with its residual rewritten: a residual of one block, that nothing else stands in for."""
        return replace(self, residual=residual, residual_and_jacobians=None, broadcasts=False)


@dataclass(frozen=True, eq=False)
class System:
    """Unknowns and terms: minimise ½ Σ_terms Σ_blocks ρ(‖residual‖²)."""

    unknowns: tuple[Unknown, ...]
    terms: tuple[Term, ...]
    key: Hashable = None
    """What a plan for this system depends on besides its terms: indices, which blocks are free."""


def residual_vector(output: Any) -> tuple[Tensor, int]:
    """A residual of one block as a real vector, and how many of its leading entries are pairs (real, imaginary).

    A complex residual counts as two real ones, so that the cost is ½ Σ |r|². Complex leaves come first.
    """
    leaves = pytree.leaves(output)
    if len(leaves) == 1 and not leaves[0].is_complex():
        leaf = leaves[0]
        return (leaf if leaf.ndim == 1 else leaf.reshape(-1)), 0
    pairs = [torch.stack((leaf.real, leaf.imag), -1).reshape(-1) for leaf in leaves if leaf.is_complex()]
    reals = [leaf.reshape(-1) for leaf in leaves if not leaf.is_complex()]
    return torch.cat(pairs + reals), sum(len(pair) for pair in pairs) // 2


def residual_like(output: Any, vector: Tensor) -> Any:
    """A vector as made by `residual_vector`, in the form of a residual of one block."""
    leaves, structure = pytree.flatten(output)
    complex_first = [leaf for leaf in leaves if leaf.is_complex()] + [leaf for leaf in leaves if not leaf.is_complex()]
    pieces = iter(vector.split([leaf.numel() * (2 if leaf.is_complex() else 1) for leaf in complex_first]))
    found = {id(leaf): next(pieces) for leaf in complex_first}
    result = []
    for leaf in leaves:
        piece = found[id(leaf)]
        if leaf.is_complex():
            pair = piece.reshape(-1, 2)
            piece = torch.complex(pair[:, 0], pair[:, 1])
        result.append(piece.reshape(leaf.shape))
    return pytree.unflatten(result, structure)
