"""Outcomes of two solves of one batch as one: of some problems that of the one, of the others that of the other."""

from dataclasses import fields, replace

import torch
from jaxtyping import Bool
from torch import Tensor

from mslsq.solution import History
from mslsq.solvers.constraint_terms import chosen
from mslsq.solvers.run import Outcome


def merged(mask: Bool[Tensor, "batch"], new: Outcome, old: Outcome) -> Outcome:
    """The new outcome of some problems, the old one of the others."""
    history = History(*[chosen(mask, *pair) for pair in zip(*map(_columns, _as_long(new, old)), strict=True)])
    names = ("cost", "status", "num_steps", "num_evaluations", "gradient_norm", "matrix")
    figures = {name: chosen(mask, getattr(new, name), getattr(old, name)) for name in names}
    values = tuple(chosen(mask, *pair) for pair in zip(new.values, old.values, strict=True))
    return replace(new, values=values, history=history, **figures)


def _columns(history: History) -> list[Tensor]:
    return [getattr(history, one.name) for one in fields(history)]


def _as_long(new: Outcome, old: Outcome) -> tuple[History, History]:
    """Histories of the same number of steps."""
    longest = max(new.history.cost.shape[1], old.history.cost.shape[1])

    def padded(history: History) -> History:
        rest = (0, longest - history.cost.shape[1])
        columns = {one.name: getattr(history, one.name) for one in fields(history)}
        return History(
            **{
                name: torch.nn.functional.pad(column, rest, value=False if column.dtype == torch.bool else torch.nan)
                for name, column in columns.items()
            }
        )

    return padded(new.history), padded(old.history)
