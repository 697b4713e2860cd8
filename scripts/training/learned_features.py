"""The experiment `learned_features`: the network of `metric="learned"`, trained on two modalities of one scene.

Writes `learned.npz`, which `mslsq.alignment.metrics.LearnedFeatures.load` reads. Figures are of pairs of the same
stream that were not trained on; what the weights are worth is measured by `benchmarks/metrics.py`, on other pictures
and other kinds of change.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mslsq.alignment.metrics import NormalizedGradients
from mslsq.alignment.metrics.learned import network_inputs, write_weights
from mslsq.alignment.metrics.network import FeatureNetwork
from mslsq.alignment.pyramid import Level
from training.feature_loss import FeatureLoss, feature_loss
from training.loop import Schedule
from training.modalities import ModalityBatch, modality_batch

AWAY = 1.5
"""Pixels, each way: where a step of Gauss-Newton starts."""

Maps = Callable[[Level], Tensor]


class LearnedFeaturesTask:
    """The task: features that agree at the truth and nowhere else."""

    def __init__(self, options: dict[str, Any], schedule: Schedule, seed: int):
        torch.manual_seed(seed)
        self.seed, self.batch, self.options = seed, schedule.batch, options
        self.module = FeatureNetwork(options["width"])

    def loss(self, step: int, generator: torch.Generator) -> tuple[Tensor, dict[str, float]]:
        found = self.judged(modality_batch(self.batch, self.seed, step), generator)
        return found.total, figures_of(found)

    def judged(self, pairs: ModalityBatch, generator: torch.Generator) -> FeatureLoss:
        """The loss of a batch."""
        away = AWAY * (2 * torch.rand((len(pairs.reference), 2), generator=generator) - 1)
        both = (pairs.reference, pairs.reference_mask), (pairs.moving, pairs.moving_mask)
        features = [self.module(inputs_of(*maps)) for maps in both]
        return feature_loss(features[0], features[1], pairs, away)

    def evaluate(self, folder: Path, report: Callable[[str], None]) -> tuple[dict[str, Any], list[Path]]:
        """The weights, and figures of new pairs beside those of normalised gradients."""
        path = write_weights(folder / "learned.npz", self.module)
        edges = NormalizedGradients()
        rows: dict[str, list[dict[str, float]]] = {"learned": [], "gradients": []}
        with torch.no_grad():
            for number in range(self.options["test_batches"]):
                pairs = modality_batch(self.batch, self.seed + 1_000_003, number)
                generator = torch.Generator().manual_seed(number)
                state = generator.get_state()
                rows["learned"].append(figures_of(self.judged(pairs, generator)))
                generator.set_state(state)
                away = AWAY * (2 * torch.rand((len(pairs.reference), 2), generator=generator) - 1)
                by_edges = [
                    torch.stack([edges.level(level).raster for level in levels_of(*maps)])
                    for maps in ((pairs.reference, pairs.reference_mask), (pairs.moving, pairs.moving_mask))
                ]
                rows["gradients"].append(figures_of(feature_loss(by_edges[0], by_edges[1], pairs, away)))
                report(f"batch {number + 1} of {self.options['test_batches']}")
        figures: dict[str, Any] = {"parameters": sum(p.numel() for p in self.module.parameters())}
        for name, found in rows.items():
            for key in found[0]:
                figures[f"{key}_{name}"] = sum(row[key] for row in found) / len(found)
        return figures | {"bytes": path.stat().st_size}, [path]


def figures_of(found: FeatureLoss) -> dict[str, float]:
    return {"agreement": float(found.agreement), "found": float(found.found), "step_error_px": float(found.step_error)}


def levels_of(maps: Tensor, masks: Tensor) -> list[Level]:
    """Every map of a batch as a level of a pyramid."""
    return [Level(values[None], mask, 1) for values, mask in zip(maps, masks, strict=True)]


def inputs_of(maps: Tensor, masks: Tensor) -> Tensor:
    """What the network is given of a batch, as an alignment would."""
    return torch.cat([network_inputs(level) for level in levels_of(maps, masks)])
