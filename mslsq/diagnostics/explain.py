"""What is wrong with a problem, in words: what is not finite, not connected, not determined, badly scaled."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.adjoint.compiling import outside_compiled_regions
from mslsq.diagnostics.gauge import motions_without_effect
from mslsq.diagnostics.located import Located, located, machine_epsilon
from mslsq.diagnostics.parts import SHOWN, Part, blocks_in_words, part_in_words, parts_of
from mslsq.problem import Problem
from mslsq.problem.system import Unknown

LARGEST = 5000
"""Columns of a connected part up to which its rank is worked out: a dense eigendecomposition, a minute at that size."""
BADLY_SCALED = 1e6
"""Ratio of column lengths that is worth a word; the solvers scale columns, but tolerances on steps mix their units."""


class Explanation(str):
    """The words (this is a string: print it), and the figures behind them as attributes."""

    rank: int | None
    """Of the Jacobian; None where it was not worked out."""
    num_columns: int
    gauge_freedoms: int
    """Directions in which several blocks move together without any effect."""
    unconstrained: list[tuple[str, int, int]]
    """(variable, block, number of directions of it that have no effect)."""
    num_parts: int
    """Connected parts of the free blocks."""
    non_finite: list[tuple[str, int]]
    """(cost, block) where residual or Jacobian is NaN or infinite."""
    condition: float | None
    """Of the Jacobian with columns of length one, on what is determined."""

    def __repr__(self) -> str:
        return str(self)


@outside_compiled_regions
def explain(
    problem: Problem, values: Mapping[str, Any], data: Mapping[str, Mapping[str, Any]] | None = None
) -> Explanation:
    """Say in words what a problem determines at these values, and what it does not.

    Arguments are those of `mslsq.solve` (one problem, no batch). The rank is that of the weighted Jacobian with robust
    losses, its columns scaled to length one, by a dense eigendecomposition of each connected part. In float32
    directions that have an effect below about 1e-2 of the largest count as without one; ask in float64
    (`problem.double()`).

    >>> print(mslsq.explain(problem, {"pose": T0}))
    12 residuals; variables pose (5 x SE2).
    15 columns, rank 12. Condition of the scaled Jacobian on what is determined: ...
    3 directions of gauge freedom: the whole may be shifted (2) and turned (1) without any effect; hold a block,
    pose.fixed([0]), or add a Prior.
    """
    point = located(problem, values, data, dense=True)
    parts = parts_of(point)
    lines = [_size_in_words(point)]
    result: dict[str, Any] = {
        "rank": None,
        "num_columns": sum(len(part.columns) for part in parts),
        "gauge_freedoms": 0,
        "unconstrained": [],
        "num_parts": len(parts),
        "non_finite": _non_finite(point),
        "condition": None,
    }
    lines += _non_finite_in_words(result["non_finite"])
    lines += _parts_in_words(point, parts)
    largest = max((len(part.columns) for part in parts), default=0)
    if result["non_finite"]:
        lines.append("The rank is not worked out while something is not finite.")
    elif max(largest, point.structure.size) > LARGEST:
        lines.append(
            f"The rank is not worked out: a connected part has {largest} columns, dense algebra stops at {LARGEST}."
        )
    else:
        lines += _rank(point, parts, result)
    explanation = Explanation("\n".join(lines))
    for name, value in result.items():
        setattr(explanation, name, value)
    return explanation


# ---- structure ------------------------------------------------------------


def _size_in_words(point: Located) -> str:
    rows = sum(block.rows * block.term.num_blocks for block in point.linearizer.blocks)
    unknowns = ", ".join(
        f"{u.name} ({u.count} x {u.space.name}" + _fixed_in_words(u) + ")" for u in point.stated.system.unknowns
    )
    return f"{rows} residuals; variables {unknowns}."


def _fixed_in_words(unknown: Unknown) -> str:
    free = unknown.free_entries
    whole = int((~free.any(1)).sum())
    part = int((~free.all(1)).sum()) - whole
    return (f", {whole} fixed" if unknown.free is not None and (whole or not part) else "") + (
        f", {part} fixed in part" if part else ""
    )


def _parts_in_words(point: Located, parts: list[Part]) -> list[str]:
    """Which parts nothing connects, and which blocks no cost refers to."""
    lines = []
    used = {
        name: torch.zeros(v.num_blocks, dtype=torch.bool, device="cpu") for name, v in point.problem.variables.items()
    }
    for cost in point.problem:
        for reference in cost.references:
            used[reference.variable.name][reference.index] = True
    for name, mask in used.items():
        unused = [part.blocks[name] for part in parts if name in part.blocks]
        alone = torch.cat(unused) if unused else torch.zeros(0, dtype=torch.int64, device="cpu")
        alone = alone[~mask[alone]].sort().values.tolist()
        if alone:
            lines.append(f"No cost refers to {blocks_in_words(name, alone)}: index it by a cost, or hold it fixed.")
    connected = [part for part in parts if any(used[name][blocks].any() for name, blocks in part.blocks.items())]
    if len(connected) > 1:
        some = "; ".join(part_in_words(part) for part in connected[:3])
        more = "; ..." if len(connected) > 3 else ""
        lines.append(
            f"{len(connected)} disconnected parts, which no cost relates to each other: {some}{more}. "
            "Each has a gauge of its own; independent problems are fine."
        )
    return lines


# ---- finiteness ------------------------------------------------------------


def _non_finite(point: Located) -> list[tuple[str, int]]:
    """(cost, block) where residual or Jacobian is not finite."""
    found = []
    for block, residual, jacobian in zip(point.linearizer.blocks, point.residuals(), point.jacobians(), strict=True):
        finite = torch.isfinite(residual[0]).all(0) & torch.isfinite(jacobian[0]).all(0).all(0)
        found += [(block.term.name, number) for number in (~finite).nonzero()[:, 0].tolist()]
    return found


def _non_finite_in_words(found: list[tuple[str, int]]) -> list[str]:
    by_cost: dict[str, list[int]] = {}
    for name, block in found:
        by_cost.setdefault(name, []).append(block)
    return [
        f"Cost {name!r}: residual or Jacobian is NaN or infinite in {blocks_in_words(name, blocks)}. "
        "Look at its data and at the start of its variables."
        for name, blocks in by_cost.items()
    ]


# ---- rank ------------------------------------------------------------


def _rank(point: Located, parts: list[Part], result: dict[str, Any]) -> list[str]:
    """Rank, gauge and scale of every part; fills in the figures."""
    matrix = point.linearization().matrix[0].cpu()
    rank, lines, conditions = 0, [], []
    for part in parts:
        scaled, lengths = _scaled_hessian(point, matrix, part)
        eigenvalues, vectors = torch.linalg.eigh(scaled)
        threshold = machine_epsilon(matrix) * 10 * max(len(eigenvalues), 10)
        determined = eigenvalues > threshold
        rank += int(determined.sum())
        if bool(determined.any()):
            kept = eigenvalues[determined]
            conditions.append(float((kept.max() / kept.min()).sqrt()))
        null = vectors[:, ~determined]
        loose = _unconstrained(point, part, scaled, threshold)
        result["unconstrained"] += loose
        collective = null.shape[1] - sum(directions for _, _, directions in loose)
        if collective > 0:
            result["gauge_freedoms"] += collective
            lines.append(_gauge_in_words(point, part, scaled, lengths, null, collective, threshold, len(parts)))
    result["rank"] = rank
    result["condition"] = max(conditions, default=None)
    first = f"{result['num_columns']} columns, rank {rank}"
    first += "." if rank < result["num_columns"] else ": everything is determined."
    if result["condition"] is not None:
        first += f" Condition of the scaled Jacobian on what is determined: {result['condition']:.1e}."
    return [first, *_unconstrained_in_words(point, result["unconstrained"]), *lines, *_scale_in_words(point, matrix)]


def _scaled_hessian(point: Located, matrix: Tensor, part: Part) -> tuple[Float[Tensor, "n n"], Float[Tensor, "n"]]:
    """JᵀJ of a part, its columns brought to length one, and the lengths (one where a column is zero)."""
    size = max(point.structure.size, 1)
    component, place = part.columns // size, part.columns % size
    own = matrix[component[0]][place][:, place]
    diagonal = own.diagonal()
    lengths = torch.where(diagonal > 0, diagonal, 1).sqrt()
    return own / (lengths[:, None] * lengths), lengths


def _unconstrained(point: Located, part: Part, scaled: Tensor, threshold: float) -> list[tuple[str, int, int]]:
    """Blocks that have, by themselves, directions without any effect."""
    found, start = [], 0
    for name, blocks in part.blocks.items():
        free = part.free[name]
        index = torch.full(free.shape, -1, device="cpu")
        index[free] = start + torch.arange(int(free.sum()), device="cpu")
        both = free[:, :, None] & free[:, None, :]
        # What is held stands there with a one on the diagonal.
        own = torch.where(
            both, scaled[index[:, :, None], index[:, None, :]], torch.eye(free.shape[1], device="cpu").to(scaled)
        )
        missing = (torch.linalg.eigvalsh(own) <= threshold).sum(-1)
        found += [(name, int(blocks[k]), int(missing[k])) for k in missing.nonzero()[:, 0].tolist()]
        start += int(free.sum())
    return found


def _unconstrained_in_words(point: Located, found: list[tuple[str, int, int]]) -> list[str]:
    groups: dict[tuple[str, int], list[int]] = {}
    for name, block, directions in found:
        groups.setdefault((name, directions), []).append(block)
    lines = []
    for (name, directions), blocks in groups.items():
        d = point.problem.variables[name].space.tangent_dim
        share = "no effect on any residual" if directions == d else f"no effect in {directions} of {d} directions"
        verb = "has" if len(blocks) == 1 else "have"
        lines.append(
            f"Unconstrained: {blocks_in_words(name, sorted(blocks))} {verb} {share}. "
            "Add measurements or a Prior, or hold it fixed."
        )
    return lines


def _gauge_in_words(
    point: Located,
    part: Part,
    scaled: Tensor,
    lengths: Tensor,
    null: Tensor,
    collective: int,
    threshold: float,
    num_parts: int,
) -> str:
    """What the directions are in which several blocks move together."""
    which = "" if num_parts == 1 else f" of the part {part_in_words(part)}"
    plural = "s" if collective > 1 else ""
    counts = motions_without_effect(point, part, scaled, lengths, threshold)
    words = {"shift": "shifted", "turn": "turned", "scale": "scaled"}
    moves = [f"{words[kind]} ({count})" for kind, count in counts.items() if count]
    known = sum(counts.values())
    name = next(iter(part.blocks))
    first = int(part.blocks[name][0])
    single = point.problem.variables[name].count is None
    hold = f"{name}.fixed({'' if single else f'[{first}]'})"
    if moves and known >= collective:
        joined = " and ".join(moves) if len(moves) < 3 else f"{', '.join(moves[:-1])} and {moves[-1]}"
        enough = f"hold a block, {hold}" + (", and a distance" if counts["scale"] else "")
        return (
            f"{collective} direction{plural} of gauge freedom{which}: the whole may be {joined} without any effect; "
            f"{enough}, or add a Prior."
        )
    return (
        f"{collective} direction{plural} of gauge freedom{which}: combinations that have no effect, most of them in "
        f"{_participants(point, part, null)}. Hold a block, for instance {hold}, or add a Prior."
    )


def _participants(point: Located, part: Part, null: Tensor) -> str:
    """The blocks that move most in the directions without effect."""
    weights, start = [], 0
    share = (null * null).sum(1)
    for name, blocks in part.blocks.items():
        free = part.free[name]
        owner, stop = free.nonzero()[:, 0], start + int(free.sum())
        per_block = share.new_zeros(len(blocks)).index_add(0, owner, share[start:stop])
        weights += [(float(w), f"{name}[{int(b)}]") for w, b in zip(per_block, blocks, strict=True)]
        start = stop
    weights.sort(key=lambda pair: -pair[0])
    return ", ".join(label for _, label in weights[:SHOWN])


def _scale_in_words(point: Located, matrix: Tensor) -> list[str]:
    """Which columns are longest and shortest, where they differ a lot."""
    lengths = matrix.diagonal(dim1=-2, dim2=-1).reshape(-1).sqrt()
    entries = []
    for name in point.problem.variables:
        columns = point.columns(name).cpu()
        free = columns < point.structure.num_columns
        places, of_variable = free.nonzero(), lengths[columns[free]]
        positive = of_variable > 0
        if not bool(positive.any()):
            continue
        for pick in (of_variable.argmax(), torch.where(positive, of_variable, torch.inf).argmin()):
            block, entry = places[int(pick)].tolist()
            entries.append((float(of_variable[pick]), f"{name}[{block}], entry {entry}"))
    if not entries:
        return []
    longest, shortest = max(entries), min(entries)
    if longest[0] < BADLY_SCALED * shortest[0]:
        return []
    return [
        f"Badly scaled: the columns of the Jacobian have lengths from {shortest[0]:.1e} ({shortest[1]}) to "
        f"{longest[0]:.1e} ({longest[1]}). Choose units in which the variables are of similar influence."
    ]
