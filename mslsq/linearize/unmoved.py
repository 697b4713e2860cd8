"""Finds variables that a residual changes with and has no derivative in: `.data`, `.detach()`, `torch.tensor(x)`,
`no_grad` or the backward of a function cut it. A solve leaves them at their start, and ends at what is no minimum."""

import contextlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mslsq.linearize.cuts import CutDerivativeWarning
from mslsq.linearize.one_block import OneBlock
from mslsq.private import gradients
from mslsq.problem.system import Inputs, System, residual_vector

LONG, SHORT = {8: (1e-4, 1e-5), 4: (1e-2, 1e-3)}, 0.3
"""Two steps of central differences, relative to 1 + |x|, by the bytes of a number; slopes that differ by more than this
share are none: those of a kink, a jump, or an even power at zero."""
MANY = 100
"""In units of rounding, the change of a residual that counts."""
NAMED = 4
"""The entries that a message names."""


class NonFiniteDerivativeWarning(UserWarning):
    """A residual is finite at the start, and its derivative is not."""


@dataclass
class _Block:
    """The first block of a term, by slots: which entries of the tangent its derivative is zero in."""

    term: OneBlock
    storages: tuple[Tensor, ...]
    inputs: Inputs
    is_still: list[Tensor]


@dataclass
class Influence:
    """What the terms of a system, evaluated one after the other, say of derivatives in each of its unknowns."""

    system: System
    _moved: dict[int, Tensor] = field(default_factory=dict)
    """By unknown, the entries of the tangent in which some term has a derivative."""
    _blocks: list[_Block] = field(default_factory=list)

    def note(self, term: OneBlock, storages: tuple[Tensor, ...], inputs: Inputs, output: Any) -> None:
        """Take down where the residual of a first block has no derivative; `storages` are leaves of its graph."""
        gradients = _gradients(output, storages)
        if gradients is None:
            self.note_unknown(term)
            return
        if not all(bool(torch.isfinite(gradient).all()) for gradient in gradients):
            self.note_unknown(term)
            if bool(torch.isfinite(residual_vector(output)[0]).all()):
                warnings.warn(_of_not_finite(term.term.name), NonFiniteDerivativeWarning, stacklevel=2)
            return
        still = []
        for slot, gradient in zip(term.term.slots, gradients, strict=True):
            unknown = self.system.unknowns[slot.unknown]
            zero = gradient == 0
            zero = zero if unknown.space.is_euclidean else zero.all().expand(unknown.space.tangent_dim)
            still.append(zero)
            self._move(slot.unknown, ~zero)
        if any(bool(zero.any()) for zero in still):
            self._blocks.append(_Block(term, tuple(x.detach() for x in storages), inputs, still))

    def note_unknown(self, term: OneBlock) -> None:
        """Take a term for one that has a derivative in all of its variables."""
        for slot in term.term.slots:
            space = self.system.unknowns[slot.unknown].space
            self._move(slot.unknown, torch.ones(space.tangent_dim, dtype=torch.bool, device="cpu"))

    def _move(self, unknown: int, entries: Tensor) -> None:
        entries = entries.cpu()
        self._moved[unknown] = self._moved[unknown] | entries if unknown in self._moved else entries

    def warn(self) -> None:
        """Warn of entries without any derivative that residuals do change with. Where nothing at all has a derivative,
        `NoInfluenceWarning` says so at the end of the solve."""
        if not any(bool(entries.any()) for entries in self._moved.values()):
            return
        for block in self._blocks:
            names = self._cut(block)
            if names:
                warnings.warn(_advice(block.term.term.name, names), CutDerivativeWarning, stacklevel=2)

    def _cut(self, block: _Block) -> list[str]:
        """The names of entries that are cut in this block, the first few."""
        still, places = [], []
        for slot, zero in zip(block.term.term.slots, block.is_still, strict=True):
            unknown = self.system.unknowns[slot.unknown]
            free = torch.from_numpy(unknown.free_entries[slot.of_block(0)]).to(zero.device)
            free = free & (not unknown.is_bounded)  # no point outside is evaluated
            still.append(zero & free & ~self._moved[slot.unknown].to(zero.device))
            shape = len(still[-1]) if unknown.space.is_euclidean else 0
            places += [f"{unknown.name}[{entry}]" if shape > 1 else unknown.name for entry in range(len(still[-1]))]
        joint = torch.cat(still)
        if not bool(joint.any()) or not _changes(block, joint):
            return []
        names: list[str] = []
        for entry in joint.nonzero()[: 4 * NAMED].flatten().tolist():
            alone = torch.zeros_like(joint)
            alone[entry] = True
            if len(names) < NAMED and places[entry] not in names and _changes(block, alone):
                names.append(places[entry])
        return names or ["its variables"]


def _gradients(output: Any, leaves: Sequence[Tensor]) -> list[Tensor] | None:
    """Of a sum of the residual's entries with irregular weights; zero where a column of the Jacobian is. None where it
    cannot be taken."""
    with contextlib.suppress(Exception):  # whatever the backward of a user's function raises, a solve will say
        vector = residual_vector(output)[0]
        if not vector.requires_grad:
            return [torch.zeros_like(leaf) for leaf in leaves]
        weights = 1 + 0.5 * torch.sin(1 + 1.7 * torch.arange(len(vector), dtype=vector.dtype, device=vector.device))
        found = gradients((vector,), leaves, (weights,), retain_graph=True)
        zeros = [torch.zeros_like(leaf) for leaf in leaves]
        return [zero if gradient is None else gradient for zero, gradient in zip(zeros, found, strict=True)]
    return None


def _changes(block: _Block, entries: Tensor) -> bool:
    """Has the residual a slope along these entries of its joint tangent, by central differences of two lengths?"""
    size = torch.stack([x.abs().amax() for x in block.storages if x.numel()]).amax()
    signs = torch.where(torch.arange(len(entries), device=entries.device) % 3 == 1, -0.8, 1.0).to(size.dtype)
    direction = torch.where(entries, signs, 0) * (1 + size)
    slopes, rounding = [], MANY * torch.finfo(size.dtype).eps
    for length in LONG[size.element_size()]:
        with contextlib.suppress(Exception):
            ends = [_residual(block, sign * length * direction) for sign in (1, -1)]
            change = (ends[0] - ends[1]) / 2
            if not bool(torch.isfinite(change).all()) or change.abs().amax() <= rounding * (1 + ends[0].abs().amax()):
                return False
            slopes.append(change / length)
    if len(slopes) < 2:
        return False
    return bool((slopes[0] - slopes[1]).abs().amax() <= SHORT * slopes[0].abs().amax())


@torch.no_grad()
def _residual(block: _Block, delta: Tensor) -> Tensor:
    storages = block.term._retracted(block.storages, delta)
    inputs = {name: tensor.clone() for name, tensor in block.inputs.items()}
    return residual_vector(block.term.term.residual(block.term.values_of_block(storages), inputs))[0]


def _of_not_finite(term: str) -> str:
    return (
        f"The residual of {term!r} is finite at the start and its derivative is not, so no step can be taken. Often a "
        "branch of torch.where that is not used divides by zero or takes a logarithm of it, which makes the derivative "
        "NaN (0 · inf): make the argument safe, too: torch.where(t > 0, log(torch.where(t > 0, t, 1.0)), 0.0). Else a "
        "root, a norm or a power has no derivative at zero: start elsewhere, or write sqrt(x² + ε²)."
    )


def _advice(term: str, names: Sequence[str]) -> str:
    them = "them" if len(names) > 1 else "it"
    return (
        f"The residual of {term!r} changes with {', '.join(names)}, and its derivative there is zero: something lets "
        "none through (.data, .detach(), torch.tensor(x), torch.no_grad(), the backward of an autograd.Function). The "
        f"solve leaves {them} at the start. Compute with the tensor itself; what is meant to be constant belongs into "
        "the arguments or data."
    )
