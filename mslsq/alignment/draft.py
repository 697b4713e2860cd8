"""An `Alignment` while it is made: entries are written map by map."""

from typing import Any

import torch
from torch import Tensor

from mslsq.alignment.bends import Bend
from mslsq.alignment.models import MODELS
from mslsq.alignment.pairwise import Placed
from mslsq.alignment.result import Alignment, MapStatus, empty


class Draft:
    """The entries of all maps: NaN until a map is placed. Of the reference they are there from the start."""

    def __init__(self, states: list[MapStatus], reasons: list[str], reference: int, model: str, like: Tensor):
        self.states, self.reasons, self.reference, self.model = states, reasons, reference, model
        self.metrics = [""] * len(states)
        self.fitting = [""] * len(states)
        self.bends: list[Bend | None] = [None] * len(states)
        self.entries = empty(len(states), reference, model, MODELS[model].tangent_dim, like)
        self.known = [reference]
        if states[reference].ok:
            self.says(reference, MapStatus.REFERENCE)
        else:
            self._without_reference()

    @property
    def waiting(self) -> list[int]:
        """The usable maps beside those that are known: the reference, and what was placed before."""
        return [i for i, state in enumerate(self.states) if i not in self.known and state.ok]

    def keep(self, previous: Alignment) -> None:
        """The maps that were placed before stay where they are."""
        for index in previous.aligned:
            for name, entry in self.entries.items():
                entry[index] = getattr(previous, name)[index]
            self.metrics[index] = previous.metrics[index]
            self.fitting[index] = previous.fitting[index] if previous.fitting else ""
            self.says(index, MapStatus(int(previous.status[index])), previous.reasons[index])
        self.known = previous.aligned

    def says(self, index: int, status: MapStatus, reason: str = "") -> None:
        """What became of a map."""
        self.states[index], self.reasons[index] = status, reason or status.sentence

    def leave(self, index: int, best: Placed) -> None:
        """Why a map has no place: as the best that was tried has it, which may name a model that fits."""
        self.says(index, best.status, best.reason)
        self.fitting[index] = best.fitting

    def place(
        self, index: int, transform: Tensor, gain: Tensor, bias: Tensor, covariance: Tensor, sigma: Tensor | float
    ) -> None:
        """A map's transform from the reference, its values and its standard errors."""
        entries = self.entries
        entries["transforms"][index] = transform / transform[2, 2]
        entries["gain"][index], entries["bias"][index] = gain, bias
        entries["covariance"][index], entries["corner_sigma"][index] = covariance, sigma

    def believe(self, index: int, parent: int, link: Placed, remark: str = "", metric: str = "squared") -> None:
        """Why a map's place is believed: its link to another map, by a metric. A `remark` ends its reason."""
        entries, self.metrics[index], self.fitting[index] = self.entries, metric, link.fitting
        entries["ncc"][index], entries["detail"][index], entries["overlap"][index] = link.ncc, link.detail, link.overlap
        entries["lead"][index], entries["parent"][index] = link.lead, parent
        through = "" if parent == self.reference else f" Placed through map {parent}."
        self.says(index, MapStatus.ALIGNED, link.reason + through + remark)

    def take_back(self, index: int, status: MapStatus, why: str) -> None:
        """Leave out a map that has been placed. The model that fits it is still one to try."""
        self._blank(index)
        self.metrics[index], self.bends[index] = "", None
        self.says(index, status, f"{status.sentence} {why}")

    def _blank(self, index: int) -> None:
        for entry in self.entries.values():
            entry[index] = -1 if entry.dtype == torch.int64 else float("nan")

    def _without_reference(self) -> None:
        self._blank(self.reference)
        why = f"{MapStatus.NO_REFERENCE.sentence} ({self.reasons[self.reference]})"
        for index in self.waiting:
            self.says(index, MapStatus.NO_REFERENCE, why)

    def finished(self, **described: Any) -> Alignment:
        """The result; `described` are its fields that are not entries of maps."""
        status = torch.tensor([int(state) for state in self.states], device="cpu")
        return Alignment(
            **self.entries,
            status=status,
            reference=self.reference,
            model=self.model,
            reasons=self.reasons,
            metrics=self.metrics,
            fitting=self.fitting,
            bends=self.bends,
            **described,
        )
