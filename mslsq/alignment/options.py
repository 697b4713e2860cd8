"""The options of `align`, each checked: what was given, what makes sense, and the nearest name."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from torch import Tensor

from mslsq.alignment.models import MODELS
from mslsq.alignment.objective import LOSSES

VALUES = ("gain_bias", "gain", "bias", "none")
INITS = ("auto", "search", "phase", "identity")


class AlignmentOptionError(ValueError):
    """An option of `align` has a value that makes no sense; the message says which values do."""


@dataclass(frozen=True)
class Options:
    """How to align; `align` documents each."""

    model: str = "sim2"
    value: str = "gain_bias"
    loss: str | None = "cauchy"
    init: str = "auto"
    min_overlap: float = 0.15
    min_ncc: float = 0.5
    min_detail: float = 0.45
    prefilter: float = 1.0
    max_steps: int = 30


def checked_options(
    maps: list[Any],
    model: str,
    reference: int,
    masks: Sequence[Any] | None,
    value: str,
    levels: int | str,
    loss: str | None,
    init: Any,
    min_overlap: float,
    min_ncc: float,
    min_detail: float,
    prefilter: float,
    max_steps: int,
) -> Options:
    """Every option checked, or an error that says what was given and what makes sense."""

    def one_of(name: str, given: Any, allowed: Sequence[Any]) -> None:
        if given not in allowed:
            near = get_close_matches(str(given), [str(a) for a in allowed], 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise AlignmentOptionError(
                f"align: {name}={given!r}; {name} is one of {', '.join(map(repr, allowed))}.{hint}"
            )

    def within(name: str, given: Any, low: float, high: float) -> None:
        if isinstance(given, bool) or not isinstance(given, (int, float)) or not low <= given <= high:
            raise AlignmentOptionError(f"align: {name}={given!r}; {name} is a number from {low:g} to {high:g}.")

    if not maps:
        raise AlignmentOptionError("align: no maps were given; give at least two rasters.")
    if isinstance(reference, bool) or not isinstance(reference, int) or not 0 <= reference < len(maps):
        raise AlignmentOptionError(f"align: reference={reference!r}; reference is an index from 0 to {len(maps) - 1}.")
    if masks is not None and len(masks) != len(maps):
        raise AlignmentOptionError(
            f"align: {len(masks)} masks for {len(maps)} maps; give one per map (None for all valid)."
        )
    loss = None if loss in (None, "l2", "none") else loss
    one_of("model", model, list(MODELS))
    one_of("value", value, VALUES)
    one_of("loss", loss, [None, "l2", *LOSSES])
    if isinstance(init, Tensor):
        if tuple(init.shape) != (len(maps), 3, 3):
            raise AlignmentOptionError(
                f"align: init of shape {tuple(init.shape)}; starts have shape ({len(maps)}, 3, 3)."
            )
        init = "given"
    else:
        one_of("init", init, INITS)
    if levels != "auto" and (isinstance(levels, bool) or not isinstance(levels, int) or not 1 <= levels <= 12):
        raise AlignmentOptionError(f"align: levels={levels!r}; levels is 'auto' or an integer from 1 to 12.")
    within("min_overlap", min_overlap, 0.01, 1.0)
    within("min_ncc", min_ncc, -1.0, 1.0)
    within("min_detail", min_detail, -1.0, 1.0)
    within("prefilter", prefilter, 0.0, 10.0)
    if isinstance(max_steps, bool) or not isinstance(max_steps, int) or not 1 <= max_steps <= 1000:
        raise AlignmentOptionError(f"align: max_steps={max_steps!r}; max_steps is an integer from 1 to 1000.")
    return Options(model, value, loss, init, min_overlap, min_ncc, min_detail, prefilter, max_steps)
