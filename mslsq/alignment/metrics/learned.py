"""Learned features: what a small network makes of a map, trained to be the same where two modalities show one scene."""

import zipfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.alignment.metrics.gradients import inner
from mslsq.alignment.metrics.local import LocalCorrelation
from mslsq.alignment.metrics.metric import Metric
from mslsq.alignment.metrics.network import REACH, FeatureNetwork
from mslsq.alignment.pyramid import Level

SHIPPED = Path(__file__).with_name("learned.npz")

WIDEST = 256
"""Channels: a file that asks for more is none of ours."""

STRIP = 256
"""Rows that pass the network at once, so that a large map takes no more memory than its strips."""


class WeightsError(ValueError):
    """A file of weights is missing, is none, or does not fit the network; the message says which."""


@dataclass(frozen=True)
class LearnedFeatures(Metric):
    """One feature per pixel of `FeatureNetwork`, the same for a map and its negative, in every rotation, and, so far as
    it was learned, in other modalities, light and noise.

    The network sees the map relative to what is around it (`LocalCorrelation`), on every level of the pyramid by
    itself, so that any size will do. Features of several channels are averaged. Values beyond the mask are replaced by
    the local mean; what is within two pixels of them is not compared (one, where two leave nothing).

    Args:
        network: None for the weights that ship; `load` reads others.

    >>> from mslsq.alignment import align, metrics, synthetic
    >>> pair = synthetic.make_pair("camera", "translation", seed=1, size=128)
    >>> learned = metrics.LearnedFeatures.load()
    >>> result = align([pair.reference, 1 - pair.moving], model="translation", metric=learned)
    >>> bool((result.transforms[1] - pair.transform).abs().max() < 0.2)
    True
    """

    network: FeatureNetwork | None = None
    name: ClassVar[str] = "learned"
    words: ClassVar[str] = "learned features"
    relief: ClassVar[tuple[float, float]] = (0.4, 0.6)
    """Of two modalities features correlate by 0.1 to 0.5 at the true place, and lead all others by 2 to 5 there; maps
    without a match led by 0.6 at the most (the half "choose" of `benchmarks/metrics.py`)."""

    sure: ClassVar[float] = 2.0
    """Of 144 pairs without a match (18 kinds, the half "choose") one was asked for a lead, and had 0.25; of 47 others
    none more than 0.55. Of 30 with one 14 that are right had 2.2 and more, 7 of them less than 3."""

    coarse: ClassVar[bool] = False
    """A map with a lead of 2.96 was placed 5 px off by its finest level, where it shows little but noise, though its
    coarser ones agreed by 0.86."""

    arcs: ClassVar[bool] = False
    """The borders of regions, which these show, bend evenly for the most part; what is asked of them was chosen with
    every piece counted."""

    @staticmethod
    def load(path: str | Path | None = None) -> "LearnedFeatures":
        """The metric with the weights of a file, as `scripts/train.py +experiment=learned_features` writes it.

        Args:
            path: of an .npz; None for the weights that ship.

        Raises:
            WeightsError: there is no such file, or it does not hold the weights of a `FeatureNetwork`.
        """
        if path is None:
            shipped()
            return LearnedFeatures()
        return LearnedFeatures(read_weights(Path(path)))

    def level(self, level: Level) -> Level:
        network = self.network or shipped()
        features = in_strips(network, network_inputs(level)).mean(0)
        beside = inner(level.mask)
        farther = inner(beside)
        mask = farther if bool(farther.any()) else beside
        return Level(features.to(level.raster.dtype), mask, level.factor)


def network_inputs(level: Level) -> Float[Tensor, "channels 1 height width"]:
    """What the network is given of a level: values relative to what is around them, zero where none are known."""
    local = LocalCorrelation().level(level).raster
    return torch.where(level.mask, local, torch.zeros_like(local)).float()[:, None]


def in_strips(
    network: FeatureNetwork, maps: Float[Tensor, "channels 1 height width"]
) -> Float[Tensor, "channels 1 height width"]:
    """The network of a map, by strips of rows with as much around them as a feature sees."""
    height, found = maps.shape[-2], []
    for first in range(0, height, STRIP):
        above = max(first - REACH, 0)
        seen = network(maps[..., above : first + STRIP + REACH, :])
        found.append(seen[..., first - above : first - above + STRIP, :])
    return torch.cat(found, -2)


@lru_cache(maxsize=1)
def shipped() -> FeatureNetwork:
    """The network with the weights of the package."""
    return read_weights(SHIPPED)


def read_weights(path: Path) -> FeatureNetwork:
    """A network from an .npz of arrays by the names of its parameters; nothing in the file is run."""
    if not path.is_file():
        raise WeightsError(
            f"There are no weights at {path}: scripts/train.py +experiment=learned_features writes some."
        )
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (ValueError, OSError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise WeightsError(
            f"{path} holds no weights: it is no .npz of arrays ({type(error).__name__}: {error})."
        ) from error
    return network_of(arrays, path)


def network_of(arrays: dict[str, np.ndarray], path: Path) -> FeatureNetwork:
    """A network of these parameters, checked: names, shapes, numbers that are finite."""
    bias = arrays.get("first.bias")
    if bias is None or bias.ndim != 1 or not 1 <= len(bias) <= WIDEST:
        raise WeightsError(f"{path} holds no weights of a FeatureNetwork: it has {', '.join(arrays) or 'no arrays'}.")
    with torch.device("cpu"):  # whatever the default device is
        network = FeatureNetwork(len(bias))
    expected = {name: tuple(value.shape) for name, value in network.state_dict().items()}
    given = {name: value.shape for name, value in arrays.items()}
    if given != expected:
        wrong = sorted(name for name in expected | given if given.get(name) != expected.get(name))
        listed = ", ".join(f"{name} is {given.get(name)}, not {expected.get(name)}" for name in wrong)
        raise WeightsError(f"{path} does not fit a FeatureNetwork of width {len(bias)}: {listed}.")
    for name, value in arrays.items():
        if value.dtype.kind != "f" or not np.isfinite(value).all():
            raise WeightsError(f"{path}: {name} holds what is no finite number, or is of dtype {value.dtype}.")
    network.load_state_dict({name: torch.from_numpy(value.astype(np.float32)) for name, value in arrays.items()})
    return network.requires_grad_(False)


def write_weights(path: Path, network: FeatureNetwork) -> Path:
    """The parameters in half precision."""
    arrays = {name: value.numpy(force=True).astype(np.float16) for name, value in network.state_dict().items()}
    with open(path, "wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    return path
