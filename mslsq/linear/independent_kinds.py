"""Which kinds of variables can be eliminated block by block: those of which no two blocks are in one cost function.

The points of a bundle adjustment meet cameras and never each other: of a symmetric matrix their part is block-diagonal.
"""

from collections.abc import Mapping
from itertools import combinations

import numpy as np
from jaxtyping import Bool, Int
from numpy import ndarray

from mslsq.linear.block_structure import BlockStructure
from mslsq.validation import suggestion

Kinds = Mapping[str, Int[ndarray, "count"]]
"""By the name of a variable the numbers of its blocks, -1 for those that are held fixed."""

MOST_KINDS = 12
"""Up to that many kinds all 2^n subsets are looked at; of more, kinds are taken greedily, the largest first."""


class EliminationError(ValueError):
    """The blocks that were named cannot be eliminated, or none can."""


def kinds_to_eliminate(
    asked: str | tuple[str, ...] | None,
    structure: BlockStructure,
    kinds: Kinds,
    *,
    solver: str,
    instead: str,
    at_most: int | None = None,
) -> tuple[str, ...]:
    """The kinds that were asked for, if they can be eliminated together, or else the best that can.

    Args:
        asked: names, or None to look for the best.
        solver, instead: the name of the solver, and what to do where it cannot eliminate; for messages.
        at_most: how many kinds are looked for; None is for a solver that can also do without a reduced system.

    Raises:
        EliminationError: there is no such kind, two of its blocks touch (the message says which), or nothing can be
            eliminated.
    """
    known = ", ".join(map(repr, kinds))
    if asked is None:
        names = independent_kinds(structure, kinds, at_most)
        if not names and at_most is None and (structure.rows == structure.cols).all():
            # No two blocks meet at all (all cameras are held, say): everything goes, and nothing is left to reduce.
            names = tuple(name for name, blocks in kinds.items() if (blocks >= 0).any())
        if not names:
            raise EliminationError(
                f"{solver}: none of {known} can be eliminated: of every kind some blocks are in one cost function with "
                f"each other, or nothing would be left. {instead[0].upper()}{instead[1:]}."
            )
        return names
    names = (asked,) if isinstance(asked, str) else asked
    for name in names:
        if name not in kinds:
            hint = suggestion(name, kinds)
            raise EliminationError(f"{solver}(eliminate={name!r}): no variable of that name among {known}.{hint}")
    chosen = blocks_of(structure, kinds, names)
    bad = np.flatnonzero((structure.rows != structure.cols) & chosen[structure.rows] & chosen[structure.cols])
    if len(bad):
        one, other = (_told(kinds, int(ends[bad[0]])) for ends in (structure.cols, structure.rows))
        raise EliminationError(
            f"{solver}(eliminate={names[0] if len(names) == 1 else names!r}): {one} and {other} are in one cost "
            "function, and blocks that touch cannot be eliminated block by block. Eliminate a kind whose blocks never "
            f"meet in a cost function, or {instead}."
        )
    return names


def blocks_of(structure: BlockStructure, kinds: Kinds, names: tuple[str, ...]) -> Bool[ndarray, "blocks"]:
    """Which blocks belong to these kinds."""
    chosen = np.zeros(len(structure.block_sizes), bool)
    for name in names:
        chosen[kinds[name][kinds[name] >= 0]] = True
    return chosen


def independent_kinds(structure: BlockStructure, kinds: Kinds, at_most: int | None = None) -> tuple[str, ...]:
    """The kinds of variables to eliminate: no two of their blocks touch, and the fewest unknowns are left; () for none.

    At least one block is left to the reduced system. Not more than `at_most` kinds are taken together.
    """
    owner = _owners(structure, kinds)
    names = list(kinds)
    coupled = np.zeros((len(names), len(names)), bool)
    apart = (structure.rows != structure.cols) & (owner[structure.rows] >= 0) & (owner[structure.cols] >= 0)
    coupled[owner[structure.rows[apart]], owner[structure.cols[apart]]] = True
    coupled |= coupled.T
    weights = np.bincount(owner[owner >= 0], structure.block_sizes[owner >= 0], minlength=len(names))
    whole = structure.num_unknowns
    able = [k for k in range(len(names)) if not coupled[k, k] and 0 < weights[k] < whole]
    able.sort(key=lambda k: -weights[k])
    at_most = len(able) if at_most is None else min(at_most, len(able))
    best: tuple[int, ...] = ()
    if len(able) > MOST_KINDS:
        for k in able:
            if len(best) < at_most and not coupled[k, list(best)].any() and weights[[*best, k]].sum() < whole:
                best = (*best, k)
    else:
        for count in range(1, at_most + 1):
            for chosen in combinations(able, count):
                if coupled[np.ix_(chosen, chosen)].any() or weights[list(chosen)].sum() >= whole:
                    continue
                if weights[list(chosen)].sum() > weights[list(best)].sum():
                    best = chosen
    return tuple(names[k] for k in best)


def _owners(structure: BlockStructure, kinds: Kinds) -> Int[ndarray, "blocks"]:
    """The kind of every block."""
    owner = np.full(len(structure.block_sizes), -1)
    for k, blocks in enumerate(kinds.values()):
        owner[blocks[blocks >= 0]] = k
    return owner


def _told(kinds: Kinds, block: int) -> str:
    for name, blocks in kinds.items():
        at = np.flatnonzero(blocks == block)
        if len(at):
            return f"{name}[{at[0]}]"
    return f"block {block}"
