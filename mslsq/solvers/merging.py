"""Outcomes of two solves of one batch as one: of some problems that of the one, of the others that of the other."""

from dataclasses import replace

from jaxtyping import Bool
from torch import Tensor

from mslsq.solution import History, padded
from mslsq.solvers.constraint_terms import chosen
from mslsq.solvers.run import Outcome


def merged(mask: Bool[Tensor, "batch"], new: Outcome, old: Outcome) -> Outcome:
    """The new outcome of some problems, the old one of the others."""
    pairs = zip(new.history.columns, old.history.columns, strict=True)
    history = History(*[chosen(mask, *_as_long(*pair)) for pair in pairs])
    names = ("cost", "status", "num_steps", "num_evaluations", "gradient_norm", "matrix")
    figures = {name: chosen(mask, getattr(new, name), getattr(old, name)) for name in names}
    values = tuple(chosen(mask, *pair) for pair in zip(new.values, old.values, strict=True))
    return replace(new, values=values, history=history, **figures)


def _as_long(new: Tensor, old: Tensor) -> tuple[Tensor, Tensor]:
    """Columns of histories of the same number of steps."""
    longest = max(new.shape[1], old.shape[1])
    return padded(new, longest - new.shape[1]), padded(old, longest - old.shape[1])
