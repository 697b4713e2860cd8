"""What a caller gives: ratios of maps, and how much each is trusted, a chunk of cells at a time."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mslsq import ProblemError
from mslsq.alignment.scales.graph import Graph
from mslsq.problem import ShapeError

ENTRIES = 1 << 19
"""Ratios of the cells that are solved at a time: some hundred megabytes, however many there are."""


class Given(NamedTuple):
    """What a caller gave, cells flattened."""

    ratios: Float[Tensor, "pairs cells"]
    pairs: Int[Tensor, "pairs 2"]
    weight: Float[Tensor, "pairs cells"] | None
    graph: Graph


def chunks_of(given: Given) -> Iterator[slice]:
    """The cells, some at a time."""
    size = max(8, ENTRIES // len(given.ratios) // 8 * 8)
    for first in range(0, given.ratios.shape[1], size):
        yield slice(first, first + size)


def measured(
    given: Given, cells: slice | Tensor
) -> tuple[
    Float[Tensor, "measurements cells"], Float[Tensor, "measurements cells"], Bool[Tensor, "measurements cells"]
]:
    """Logs, weights (zero where missing) and what is observed, in the order of the graph's measurements."""
    graph = given.graph
    ratios = given.ratios[:, cells][graph.order]
    observed = torch.isfinite(ratios) & (ratios > 0)
    if given.weight is None:
        trust = observed.to(torch.float64)
    else:
        weight = given.weight[:, cells][graph.order].to(torch.float64)
        observed = observed & (weight > 0)
        trust = torch.where(observed, weight, 0)
    logs = torch.where(observed, ratios, 1).to(torch.float64).log() * graph.sign[:, None]
    return logs, trust, observed


def check(ratios: Tensor, pairs: Tensor, reference: int | None, weight: Tensor | None) -> int:
    """The number of maps, or an error that says what does not fit."""
    if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.is_floating_point():
        raise ShapeError(
            f"pairs must be integers of shape (pairs, 2), not {pairs.dtype} of shape {tuple(pairs.shape)}."
        )
    if ratios.ndim < 2 or len(ratios) != len(pairs):
        raise ShapeError(
            f"ratios must have shape (pairs, *cells) with one map of ratios per row of pairs ({len(pairs)}), "
            f"not {tuple(ratios.shape)}."
        )
    if not ratios.is_floating_point():
        raise ProblemError(f"ratios must be real floating point, not {ratios.dtype}.")
    if weight is not None and weight.shape != ratios.shape:
        raise ShapeError(f"weight must have the shape of ratios, {tuple(ratios.shape)}, not {tuple(weight.shape)}.")
    if len(pairs) == 0 or ratios.numel() == 0:
        raise ProblemError("There are no ratios.")
    if bool((pairs[:, 0] == pairs[:, 1]).any()) or int(pairs.min()) < 0:
        raise ProblemError("pairs must name two different maps, numbered from 0.")
    count = int(pairs.max()) + 1
    missing = torch.bincount(pairs.reshape(-1), minlength=count) == 0  # torch 2.9 has no `tolist` inside a derivative
    if bool(missing.any()):
        first = int(missing.int().argmax())
        raise ProblemError(f"No ratio mentions map {first}; maps are numbered 0 to {count - 1} without gaps.")
    if reference is not None and not 0 <= reference < count:
        raise ProblemError(f"reference must be one of the maps 0 to {count - 1}, or None, not {reference}.")
    _check_values(ratios, weight)
    return count


def _check_values(ratios: Tensor, weight: Tensor | None) -> None:
    try:
        observed = any(bool((torch.isfinite(part) & (part > 0)).any()) for part in ratios)
        sound = weight is None or all(bool((torch.isfinite(part) & (part >= 0)).all()) for part in weight)
    except RuntimeError as error:
        raise ProblemError(
            "scale_sync solves all cells at once and does not run under vmap: give it the mapped axis as one more "
            "axis of cells."
        ) from error
    if not observed:
        raise ProblemError("No ratio is positive and finite: nothing is observed.")
    if not sound:
        raise ProblemError("weight must be finite and not negative; 0 leaves a ratio out.")
