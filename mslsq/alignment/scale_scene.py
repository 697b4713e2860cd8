"""A scale synchronisation to try, with known truth or from a user's file; and what is written."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.ndimage import gaussian_filter
from torch import Tensor

from mslsq.alignment.synthetic import base_raster
from mslsq.validation import number

RATIO_KEYS, VIEW_KEYS = ("ratios", "pairs"), ("depths", "intrinsics", "poses")


@dataclass(frozen=True)
class RatioScene:
    """Ratios of maps, and the true scales where they are known."""

    name: str
    ratios: Float[Tensor, "pairs height width"]
    pairs: Int[Tensor, "pairs 2"]
    truth: Float[Tensor, "maps height width"] | None


@dataclass(frozen=True)
class ViewScene:
    """Depths of views with their cameras and poses, and the true scales where they are known."""

    name: str
    depths: Float[Tensor, "views height width"]
    intrinsics: Float[Tensor, "*views 3 3"]
    poses: Float[Tensor, "views 4 4"]
    truth: Float[Tensor, "views height width"] | None


def synthetic_ratios(
    maps: int = 8,
    size: tuple[int, int] = (64, 64),
    noise: float = 0.01,
    outliers: float = 0.2,
    missing: float = 0.2,
    seed: int = 0,
) -> RatioScene:
    """All ordered pairs of `maps` depth maps of one scene, each wrong by a smooth scale field.

    The depth is matplotlib's elevation raster. Map i is depth / m_i with m_i between about 0.5 and 2, every observed
    ratio of two maps carries `noise` (relative), a share `outliers` of them is off by a factor of e or so, a share
    `missing` is not observed: whole patches, as where two views do not overlap.

    Raises:
        ValueError: fewer than two maps, an empty size, shares that are not in [0, 1).
    """
    height, width = size
    if maps < 2 or height < 1 or width < 1:
        raise ValueError(f"needs at least two maps of at least one cell, not {maps} of {height} x {width}.")
    for name, share in (("noise", noise), ("outliers", outliers), ("missing", missing)):
        number(name, share, least=0, below=1)
    random = np.random.default_rng(seed)

    def smooth(count: int, sigma: float) -> np.ndarray:
        fields = np.stack(
            [gaussian_filter(random.standard_normal((height, width)), sigma, mode="wrap") for _ in range(count)]
        )
        return fields / fields.std()

    elevation = base_raster("elevation")
    rows = np.linspace(0, elevation.shape[0] - 1, height).astype(int)
    columns = np.linspace(0, elevation.shape[1] - 1, width).astype(int)
    depth = 1.0 + elevation[np.ix_(rows, columns)] / np.ptp(elevation)
    scales = np.exp(0.35 * smooth(maps, max(height, width) / 8))
    scales = scales / scales[:1]
    seen = depth / scales
    pairs = np.array([(i, j) for i in range(maps) for j in range(maps) if i != j])
    ratios = seen[pairs[:, 0]] / seen[pairs[:, 1]] * (1 + noise * random.standard_normal((len(pairs), height, width)))
    wrong = random.random(ratios.shape) < outliers
    ratios = np.where(wrong, ratios * np.exp(random.standard_normal(ratios.shape)), ratios)
    patches = smooth(len(pairs), max(height, width) / 16)
    ratios = np.where(patches < np.quantile(patches, missing), np.nan, ratios)
    return RatioScene("synthetic", torch.from_numpy(ratios), torch.from_numpy(pairs), torch.from_numpy(scales))


def read_scene(path: str | Path) -> RatioScene | ViewScene:
    """A .npz of ratios, or of views.

    Ratios: `ratios` (pairs, height, width), `pairs` (pairs, 2) and, where known, `truth` (maps, height, width). Views:
    `depths` (views, height, width), `intrinsics` (3, 3) or one for each, `poses` (views, 4, 4), `truth` where known.

    Raises:
        ValueError: not such a file; the message names it and what is missing or of the wrong form.
    """
    file = Path(path)
    try:
        with np.load(file) as archive:
            content = {key: archive[key] for key in archive.files}
    except FileNotFoundError:
        raise ValueError(f"{file} does not exist.") from None
    except Exception as error:
        raise ValueError(f"{file} cannot be read as .npz: {error}") from None
    needed = VIEW_KEYS if "depths" in content else RATIO_KEYS
    for key in needed:
        if key not in content:
            raise ValueError(
                f"{file} has no array {key!r}; it has {', '.join(content) or 'nothing'}. Ratios come as "
                f"{' and '.join(RATIO_KEYS)}, views as {', '.join(VIEW_KEYS)}."
            )
    if needed is VIEW_KEYS:
        parts = {key: _real(file, content, key) for key in VIEW_KEYS}
        truth = _truth(file, content, tuple(parts["depths"].shape))
        return ViewScene(file.name, parts["depths"], parts["intrinsics"], parts["poses"], truth)
    pairs = content["pairs"]
    if pairs.dtype.kind not in "iu" or pairs.ndim != 2 or pairs.shape[1] != 2 or not len(pairs):
        raise ValueError(f"{file}: pairs must be integers (pairs, 2), not {pairs.dtype} {pairs.shape}.")
    ratios = _real(file, content, "ratios")
    shape = (int(pairs.max()) + 1, *ratios.shape[1:])
    return RatioScene(file.name, ratios, torch.from_numpy(pairs.astype(np.int64)), _truth(file, content, shape))


def _real(file: Path, content: dict[str, np.ndarray], key: str) -> Tensor:
    if content[key].dtype.kind not in "fiu":
        raise ValueError(f"{file}: {key} must be real numbers, not {content[key].dtype}.")
    return torch.from_numpy(content[key].astype(np.float64))


def _truth(file: Path, content: dict[str, np.ndarray], shape: tuple[int, ...]) -> Tensor | None:
    if "truth" not in content:
        return None
    if content["truth"].shape != shape:
        raise ValueError(f"{file}: truth must have shape {shape}, not {content['truth'].shape}.")
    return _real(file, content, "truth")


def relative_error(truth: Tensor, scales: Tensor) -> Float[Tensor, "maps height width"]:
    """Of scales, 0.01 for one percent."""
    return (scales / truth - 1).abs()
