"""The connected parts of a problem: which free blocks the costs relate to each other, and how to call them."""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from mslsq.diagnostics.located import Located
from mslsq.problem.structure import components_of

SHOWN = 5
"""How many blocks a sentence names."""


class Part(NamedTuple):
    """One connected part: its blocks by variable, of which something moves, and their columns."""

    blocks: dict[str, Tensor]
    free: dict[str, Bool[Tensor, "blocks tangent"]]
    """Which of their components move."""
    columns: Int[Tensor, "columns"]
    """Of those, block by block."""


def parts_of(point: Located) -> list[Part]:
    """The connected parts, largest first."""
    system = point.stated.system
    unknowns = {unknown.name: unknown for unknown in system.unknowns}
    labels = components_of(system)
    count = max((int(label.max(initial=-1)) for label in labels), default=-1) + 1
    sizes = np.zeros(count, np.int64)
    members: list[dict[str, Tensor]] = [{} for _ in range(count)]
    for unknown, label in zip(system.unknowns, labels, strict=True):
        order = np.argsort(label, kind="stable")
        order = order[label[order] >= 0]
        found, starts = np.unique(label[order], return_index=True)
        for number, blocks in zip(found, np.split(order, starts[1:]), strict=True):
            members[number][unknown.name] = torch.as_tensor(blocks, device="cpu")
            sizes[number] += int(unknown.free_entries[blocks].sum())
    parts = []
    for number in np.argsort(-sizes, kind="stable"):
        blocks = members[number]
        free = {name: torch.from_numpy(unknowns[name].free_entries)[own] for name, own in blocks.items()}
        columns = [point.columns(name).cpu()[own][free[name]] for name, own in blocks.items()]
        parts.append(Part(blocks, free, torch.cat(columns)))
    return parts


def part_in_words(part: Part) -> str:
    return " with ".join(blocks_in_words(name, blocks.tolist()) for name, blocks in part.blocks.items())


def blocks_in_words(name: str, blocks: list[int]) -> str:
    if len(blocks) == 1:
        return f"{name}[{blocks[0]}]"
    shown = ", ".join(map(str, blocks[:SHOWN])) + (", ..." if len(blocks) > SHOWN else "")
    return f"{len(blocks)} blocks of {name} ({shown})"
