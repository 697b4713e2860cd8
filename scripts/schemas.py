"""The options of every script, with their types: Hydra refuses a name or a value that does not fit.

The defaults, and what each option is for, stand in `configs/`, whose files name their schema first in `defaults`.
"""

from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING


@dataclass
class AlignmentOptions:
    """What `mslsq.alignment.align` is called with."""

    model: str = MISSING
    metric: str = MISSING
    value: str = MISSING
    levels: int | str = MISSING
    loss: str | None = MISSING
    init: str = MISSING
    min_overlap: float = MISSING
    min_ncc: float = MISSING
    min_detail: float = MISSING
    min_lead: float = MISSING
    prefilter: float = MISSING
    max_steps: int = MISSING
    joint: bool | str = MISSING
    pixel_sizes: Any = MISSING  # a number per map, "files", or nothing
    scale_range: list[float] | None = MISSING


@dataclass
class Bundled:
    rasters: Any = MISSING  # a name or several
    count: int = MISSING
    size: int = MISSING
    model: str = MISSING
    shift: float = MISSING
    degrees: float = MISSING
    noise: float = MISSING
    seed: int = MISSING


@dataclass
class ScaleSync:
    file: str | None = MISSING
    grid: list[int] = MISSING
    maps: int = MISSING
    size: list[int] = MISSING
    noise: float = MISSING
    outliers: float = MISSING
    missing: float = MISSING
    seed: int = MISSING


@dataclass
class Dem:
    reference: str | None = MISSING
    dem: str | None = MISSING
    mask: str | None = MISSING
    buffer: float = MISSING
    pixel_size: Any = MISSING  # a number, or [dx, dy]
    bias: str = MISSING
    loss: str | None = MISSING
    min_overlap: float = MISSING
    max_shift: Any = MISSING  # metres, or "auto"
    find_changes: bool = MISSING
    block: int = MISSING
    seed: int = MISSING


@dataclass
class Maps:
    task: str = MISSING
    maps: Any = MISSING  # a file or several
    masks: Any = MISSING
    nodata: float | None = MISSING
    pairs: str | None = MISSING
    n_jobs: int = MISSING
    reference: int | str = MISSING
    georeference: str = MISSING


@dataclass
class Align(AlignmentOptions, Maps):  # in the order of the file: fields of the last base come first
    """`scripts/align.py`."""

    output: str = MISSING
    memory: str = MISSING
    overviews: bool = MISSING
    mosaic: str = MISSING
    threads: int = MISSING
    strict: bool = MISSING
    quiet: bool = MISSING
    resume: str | None = MISSING
    bundled: Bundled = field(default_factory=Bundled)
    scale_sync: ScaleSync = field(default_factory=ScaleSync)
    dem: Dem = field(default_factory=Dem)


@dataclass
class Synthetic:
    shape: str = MISSING
    laps: int = MISSING
    per_lap: int = MISSING
    sigma_translation: float = MISSING
    sigma_rotation: float = MISSING
    seed: int = MISSING


@dataclass
class Solve:
    """`scripts/solve.py`."""

    task: str = MISSING
    file: str | None = MISSING
    init: str = MISSING
    loss: str = MISSING
    loss_scale: float = MISSING
    max_steps: int = MISSING
    ftol: float = MISSING
    initial_damping: float | None = MISSING
    linear_solver: str = MISSING
    dtype: str = MISSING
    compile: bool = MISSING
    threads: int = MISSING
    strict: bool = MISSING
    quiet: bool = MISSING
    synthetic: Synthetic = field(default_factory=Synthetic)


@dataclass
class LearnedAlignment:
    size: int = MISSING
    model: str = MISSING
    shift: float = MISSING
    degrees: float = MISSING
    noise: float = MISSING
    strides: list[int] = MISSING
    channels: int = MISSING
    width: int = MISSING
    samples: int = MISSING
    max_steps: int = MISSING
    adjoint: str = MISSING
    test_pairs: int = MISSING
    intensity: bool = MISSING


@dataclass
class LearnedFeatures:
    width: int = MISSING
    test_batches: int = MISSING


@dataclass
class PoseGraphWeights:
    poses: int = MISSING
    closures: int = MISSING
    outliers: float = MISSING
    hidden: int = MISSING
    test_graphs: int = MISSING


@dataclass
class Train:
    """`scripts/train.py`."""

    task: str = MISSING
    seed: int = MISSING
    threads: int = MISSING
    steps: int = MISSING
    minutes: float = MISSING
    batch: int = MISSING
    learning_rate: float = MISSING
    checkpoint_every: int = MISSING
    resume: str | None = MISSING
    quiet: bool = MISSING
    learned_alignment: LearnedAlignment = field(default_factory=LearnedAlignment)
    learned_features: LearnedFeatures = field(default_factory=LearnedFeatures)
    pose_graph_weights: PoseGraphWeights = field(default_factory=PoseGraphWeights)


def register() -> None:
    """Tells Hydra the schemas: `align_options`, `solve_options`, `train_options`."""
    for schema in (Align, Solve, Train):
        ConfigStore.instance().store(name=f"{schema.__name__.lower()}_options", node=schema)
