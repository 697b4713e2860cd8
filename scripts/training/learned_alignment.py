"""The experiment `learned_alignment`: features that see through changes of appearance, trained through the solve.

Compared, on images that were not trained on, with the intensity aligner and its defaults.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import mslsq
from mslsq.alignment import align
from mslsq.alignment.learned import TEST, TRAIN, LearnedAligner, PairBatch, PairSource, corner_errors, training_loss
from mslsq.alignment.measures import corner_error
from mslsq.validation import one_of
from training import pictures
from training.loop import Schedule

ADJOINTS: dict[str, Callable[[], mslsq.Adjoint]] = {
    "unrolled": mslsq.Unrolled,
    "implicit": lambda: mslsq.Implicit(order=1, failed="zero"),
    "gauss_newton": lambda: mslsq.Implicit(hessian="gauss_newton", order=1, failed="zero"),
}
SOURCE = ("size", "model", "shift", "degrees", "noise")
NETWORK = ("size", "model", "strides", "channels", "width", "samples", "max_steps")
SUCCESS = 1.0
"""Pixels."""


class LearnedAlignment:
    """The task: pairs of training images, the robustified corner error after every level."""

    def __init__(self, options: dict[str, Any], schedule: Schedule, seed: int):
        one_of("learned_alignment.adjoint", options["adjoint"], list(ADJOINTS))
        torch.manual_seed(seed)
        self.seed, self.batch, self.options = seed, schedule.batch, options
        self.module = LearnedAligner(**{k: options[k] for k in NETWORK}, adjoint=ADJOINTS[options["adjoint"]]())
        settings = {name: options[name] for name in SOURCE}
        self.training, self.testing = PairSource(TRAIN, **settings), PairSource(TEST, **settings)

    def loss(self, step: int, generator: torch.Generator) -> tuple[Tensor, dict[str, float]]:
        batch = self.training.batch(self.batch, self.seed, step)
        loss, errors = training_loss(self.module, batch, generator)
        strides = self.options["strides"]
        figures = {f"median_px_{s}": float(e.median()) for s, e in zip(strides, errors, strict=True)}
        return loss, {**figures, "below_1px": float((errors[-1] < SUCCESS).float().mean())}

    def evaluate(self, folder: Path, report: Callable[[str], None]) -> tuple[dict[str, Any], list[Path]]:
        """Figures on unseen images, and pictures of them."""
        pairs = self.testing.batch(self.options["test_pairs"], self.seed + 1_000_003, 0)
        begin = time.perf_counter()
        errors, warps = self.learned_errors(pairs)
        outcomes = {"start": self.start_errors(pairs), "learned": errors}
        seconds = {"learned": time.perf_counter() - begin}
        if self.options["intensity"]:
            begin = time.perf_counter()
            outcomes["intensity"] = intensity_errors(pairs, self.options["model"], report)
            seconds["intensity"] = time.perf_counter() - begin
        figures = summary(pairs, outcomes)
        figures["test_seconds_per_pair"] = {k: v / len(pairs.kinds) for k, v in seconds.items()}
        figures["parameters"] = sum(p.numel() for p in self.module.parameters())
        written = [
            pictures.success(outcomes, pairs.kinds, folder / "success.png"),
            pictures.pairs(self.module, pairs, warps, outcomes, folder / "pairs.png"),
        ]
        return figures, written

    def learned_errors(self, pairs: PairBatch) -> tuple[Tensor, Tensor]:
        """Corner errors and transforms in pixels, in batches."""
        errors, transforms = [], []
        self.module.eval()
        with torch.no_grad():
            for start in range(0, len(pairs.kinds), self.batch):
                part = slice(start, start + self.batch)
                warp = self.module(pairs.reference[part], pairs.moving[part])[-1]
                errors.append(corner_errors(self.module, warp, pairs.transform[part]))
                transforms.append(self.module.frame.to_pixels(warp.matrix()))
        self.module.train()
        return torch.cat(errors), torch.cat(transforms)

    def start_errors(self, pairs: PairBatch) -> Tensor:
        return corner_errors(self.module, self.module.kind.identity(len(pairs.kinds)), pairs.transform)


def intensity_errors(pairs: PairBatch, model: str, report: Callable[[str], None]) -> Tensor:
    """Corner errors of `mslsq.alignment.align` with its defaults; infinite where it leaves the map out."""
    errors = []
    for number, (reference, moving, truth) in enumerate(
        zip(pairs.reference, pairs.moving, pairs.transform, strict=True)
    ):
        found = align([reference, moving], model=model).transforms[1]
        height, width = reference.shape
        errors.append(corner_error(found, truth.double(), height, width) if found.isfinite().all() else float("inf"))
        report(f"intensity aligner: pair {number + 1} of {len(pairs.kinds)}")
    return torch.tensor(errors)


def summary(pairs: PairBatch, outcomes: dict[str, Tensor]) -> dict[str, Any]:
    """Success rates and medians, altogether and by kind of change and image."""
    figures: dict[str, Any] = {"test_pairs": len(pairs.kinds)}
    for name, errors in outcomes.items():
        figures[f"success_1px_{name}"] = float((errors < SUCCESS).float().mean())
        figures[f"median_error_px_{name}"] = float(errors.median())
    for title, labels in (("by_kind", pairs.kinds), ("by_image", pairs.images)):
        figures[title] = {}
        for label in sorted(set(labels)):
            which = torch.tensor([other == label for other in labels])
            figures[title][label] = {"pairs": int(which.sum())} | {
                name: float((errors[which] < SUCCESS).float().mean()) for name, errors in outcomes.items()
            }
    return figures
