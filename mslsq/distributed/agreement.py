"""Do all ranks mean the same problem? Compared before anything is solved, by checksums, and said in words."""

import hashlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from mslsq.distributed.group import Together
from mslsq.distributed.statement import SharedStatement
from mslsq.levels import backward_may_come
from mslsq.ranks import RanksDifferError
from mslsq.solvers import Solver
from mslsq.solvers.solver import AROUND

SAMPLE = 1 << 16
"""Bytes at either end of a large tensor of blocks that are compared."""

LOCAL = AROUND - {"max_steps", "early_stop"}
"""Options that may differ between ranks: they change nothing that is exchanged."""


def check_agreement(ranks: Together, shared: SharedStatement, solver: Solver) -> None:
    """Compare what must be the same, and what must not.

    Raises:
        RanksDifferError: on every rank.
    """
    whole = shared.whole
    variables = [
        (unknown.name, type(unknown.space).__name__, unknown.space.storage_dim, unknown.count, str(start.tensor.dtype))
        for unknown, start in zip(whole.system.unknowns, whole.starts, strict=True)
    ]
    held = [unknown.free_entries.tobytes() for unknown in whole.system.unknowns]
    options = {name: value for name, value in vars(solver).items() if name not in LOCAL}
    differentiated = [
        (term.name, leaf.name, tuple(leaf.tensor.shape), _bytes(leaf.tensor))
        for term, leaves in zip(whole.system.terms, whole.leaves, strict=True)
        for leaf in leaves
        if shared.is_replicated(leaf) and backward_may_come(leaf.tensor)
    ]
    compared = {
        "the variables (names, manifolds, counts, dtypes)": (variables, variables),
        "the blocks that are held fixed": (held, "see Variable.fixed"),
        "the start": ([_bytes(start.tensor) for start in whole.starts], "broadcast it from one rank"),
        "the solver and its options": (repr((type(solver).__name__, sorted(options.items(), key=str))), solver),
        "the shared tensors that require grad": (repr(differentiated), [name[:3] for name in differentiated]),
    }
    own = torch.tensor(
        [[_number(content) for content, _ in compared.values()] + [_number(_blocks(shared))]], device="cpu"
    )
    table = torch.cat([row.cpu() for row in ranks.gathered(own)])
    same = (table == table[0]).all(0).tolist()
    if not all(same[:-1]):
        what = [name for name, is_same in zip(compared, same, strict=False) if not is_same]
        said = ranks.objects(str(compared[what[0]][1]))
        raise RanksDifferError(
            f"distributed.solve: {' and '.join(what)} must be the same on every rank. "
            + " ".join(f"Rank {rank}: {words[:300]}." for rank, words in enumerate(said))
        )
    _check_blocks(ranks, shared.holds_whole, same[-1])


def _check_blocks(ranks: Together, holds_whole: bool, are_same: bool) -> None:
    """Are blocks the same on all ranks where they should be, and only there?"""
    (says_whole,), (says_part,) = ranks.any(holds_whole), ranks.any(not holds_whole)
    if says_whole and says_part:
        raise RanksDifferError("distributed.solve: `holds` must be the same on every rank: 'whole' or 'part'.")
    if holds_whole and not are_same:
        raise RanksDifferError(
            "distributed.solve: the ranks hold different blocks, but holds='whole' means that each has stated the "
            "whole problem. Where each has stated its own part pass holds='part'."
        )
    if not holds_whole and are_same and ranks.count > 1:
        raise RanksDifferError(
            "distributed.solve: with holds='part' all ranks have stated the same blocks, each of which would count "
            f"{ranks.count} times. Where each has stated the whole problem pass holds='whole'."
        )


def _blocks(shared: SharedStatement) -> list[Any]:
    """What tells the blocks of the caller apart from those of another rank."""
    found: list[Any] = []
    for term, leaves in zip(shared.whole.system.terms, shared.whole.leaves, strict=True):
        indices = [slot.index if isinstance(slot.index, int) else _sample(slot.index) for slot in term.slots]
        found.append((term.name, term.num_blocks, indices, [_sample(leaf.tensor) for leaf in leaves]))
    return found


def _sample(tensor: Tensor) -> bytes:
    flat = tensor.detach().reshape(-1)
    count = SAMPLE // flat.element_size()
    return _bytes(flat if len(flat) <= 2 * count else torch.cat((flat[:count], flat[-count:])))


def _bytes(tensor: Tensor) -> bytes:
    plain = torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor.detach()
    return plain.contiguous().reshape(-1).view(torch.uint8).cpu().numpy().tobytes() if plain.numel() else b""


def _number(content: Any) -> int:
    """A checksum that fits an int64."""
    digest = hashlib.blake2b(digest_size=7)
    for part in _parts(content):
        digest.update(part)
    return int.from_bytes(digest.digest(), "big")


def _parts(content: Any) -> Iterable[bytes]:
    if isinstance(content, bytes):
        yield str(len(content)).encode()
        yield content
    elif isinstance(content, (list, tuple)):
        for entry in content:
            yield from _parts(entry)
        yield b";"
    else:
        yield repr(content).encode()
