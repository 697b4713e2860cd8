"""What an alignment is judged by: masked correlation, overlap, and the mean error of the reference's corners."""

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mslsq.alignment.pyramid import half_gaussian, masked_blur
from mslsq.kernels import Kernel, may_read

_DEVIATIONS = Kernel("deviations", "nnTT?d")
_BOTH_DEVIATIONS = Kernel("both_deviations", "nnnTT?nTd")
_SPREAD = Kernel("spread", "nTd")
_CENTROID = Kernel("centroid", "nn?l")


def masked_ncc(
    a: Float[Tensor, "*batch channels n"], b: Float[Tensor, "*batch channels n"], mask: Bool[Tensor, "*batch n"]
) -> Float[Tensor, "*batch"]:
    """Normalised cross-correlation of `a` and `b` over the samples where `mask` is true, in [-1, 1].

    Every channel has its own mean; the channels' covariances are added before normalising. 0 where either side is
    constant.

    >>> a = torch.rand(1, 50, dtype=torch.float64)
    >>> round(float(masked_ncc(a, 3 * a - 1, torch.ones(50, dtype=torch.bool))), 6)
    1.0
    """
    tiny = torch.finfo(a.dtype).tiny
    if _may_be_summed(a, b, mask):
        return a.new_tensor(ncc_of(a, b, mask))
    weight = mask[..., None, :].to(a.dtype)
    count = weight.sum(-1, keepdim=True).clamp(min=1.0)
    a, b = torch.where(weight > 0, a, torch.zeros_like(a)), torch.where(weight > 0, b, torch.zeros_like(b))
    a = weight * (a - a.sum(-1, keepdim=True) / count)
    b = weight * (b - b.sum(-1, keepdim=True) / count)
    energy = (a * a).sum((-2, -1)) * (b * b).sum((-2, -1))
    product = (a * b).sum((-2, -1))
    return torch.where(energy > tiny, product / energy.clamp(min=tiny).sqrt(), torch.zeros_like(product))


def _may_be_summed(a: Tensor, b: Tensor, mask: Tensor) -> bool:
    return a.ndim == 2 and a.dtype == b.dtype and may_read(a, b, mask)


def ncc_of(a: Float[Tensor, "channels n"], b: Float[Tensor, "channels n"], mask: Bool[Tensor, " n"]) -> float:
    """`masked_ncc` as a number."""
    if not _may_be_summed(a, b, mask):
        return float(masked_ncc(a, b, mask))
    sums = np.empty(3)
    _DEVIATIONS(*a.shape, a.contiguous(), b.contiguous(), mask.contiguous(), sums)
    return _correlation(sums.tolist(), torch.finfo(a.dtype).tiny)


def _correlation(sums: list[float], tiny: float) -> float:
    """From the sums of squared deviations of both, and of the deviations' products."""
    energy = sums[0] * sums[1]
    return sums[2] / energy**0.5 if energy > tiny else 0.0


def ncc_and_detail(
    a: Float[Tensor, "channels height width"],
    b: Float[Tensor, "channels height width"],
    mask: Bool[Tensor, "height width"],
    sigma: float,
) -> tuple[float, float]:
    """`masked_ncc` of two rasters, and that of their detail: what a Gaussian of `sigma` takes away of what the mask
    leaves."""
    if may_read(a, b, mask) and a.dtype == b.dtype:
        half, sums = half_gaussian(sigma, a.dtype), torch.empty(6, dtype=torch.float64, device="cpu")
        rasters = a.contiguous(), b.contiguous(), mask.contiguous()
        _BOTH_DEVIATIONS(*a.shape, *rasters, len(half) - 1, half, sums)
        tiny = torch.finfo(a.dtype).tiny
        found = sums.tolist()
        return _correlation(found[:3], tiny), _correlation(found[3:], tiny)
    detail = [(one - masked_blur(one, mask, sigma)[0]).flatten(1) for one in (a, b)]
    known = mask.reshape(-1)
    return float(masked_ncc(a.flatten(1), b.flatten(1), known)), float(masked_ncc(detail[0], detail[1], known))


def project(transform: Float[Tensor, "3 3"], points: Float[Tensor, "n 2"]) -> Float[Tensor, "n 2"]:
    """Pixels (x, y) through a 3 x 3 matrix; points on or behind the horizon become NaN.

    >>> project(torch.diag(torch.tensor([2.0, 2.0, 1.0])), torch.tensor([[1.0, 3.0]])).tolist()
    [[2.0, 6.0]]
    """
    homogeneous = points @ transform[:, :2].T + transform[:, 2]
    depth = homogeneous[:, 2:]
    ahead = depth > 1e-9
    warped = homogeneous[:, :2] / torch.where(ahead, depth, torch.ones_like(depth))
    return torch.where(ahead, warped, torch.full_like(warped, float("nan")))


def common_share(
    transform: Float[Tensor, "3 3"],
    points: Float[Tensor, "n 2"],
    valid: Bool[Tensor, " n"],
    known: float,
    others: float,
) -> float:
    """Of the smaller map's area, the share that both have in common, at most 1, whatever their scales are.

    `valid` says which of the points (x, y) lie on data of both under the transform; `known` of them lie on data of the
    first, and the other map's data are as many points as `others` under a transform of scale 1.

    >>> import torch
    >>> twice = torch.diag(torch.tensor([2.0, 2.0, 1.0]))
    >>> common_share(twice, torch.zeros(30, 2), torch.ones(30, dtype=torch.bool), known=60, others=160)
    0.75
    """
    count = int(valid.count_nonzero())
    if count == 0:
        return 0.0
    x, y = points[valid].mean(0).tolist()
    return share_of(transform.tolist(), (x, y), count, known, others)


def share_of(
    transform: list[list[float]], middle: tuple[float, float], count: float, known: float, others: float
) -> float:
    """`common_share` of `count` points, at least one, from their mean."""
    (a, b, c), (d, e, f), (g, h, i) = transform
    depth = g * middle[0] + h * middle[1] + i
    volume = a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g)
    area = max(abs(volume) / max(abs(depth), 1e-9) ** 3, 1e-12)  # of a point, in the other map
    return min(count / max(min(known, others / area), 1.0), 1.0)


def centroid(mask: Bool[Tensor, "rows columns"]) -> tuple[int, int, int]:
    """How many samples are true, and the sums of their rows and of their columns.

    >>> centroid(torch.tensor([[True, False, True], [False, True, False]]))
    (3, 1, 3)
    """
    if may_read(mask):
        found = torch.empty(3, dtype=torch.int64, device="cpu")
        _CENTROID(*mask.shape, mask.contiguous(), found)
        return tuple(found.tolist())
    rows, columns = mask.sum(1), mask.sum(0)
    weighted = [int(one @ torch.arange(len(one), device=one.device)) for one in (rows, columns)]
    return int(rows.sum()), weighted[0], weighted[1]


def corners(height: int, width: int, like: Tensor) -> Float[Tensor, "4 2"]:
    """The centres of the four corner pixels, (x, y)."""
    return like.new_tensor([[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]])


def corner_error(found: Float[Tensor, "3 3"], truth: Float[Tensor, "3 3"], height: int, width: int) -> float:
    """Mean distance in pixels between the images of the reference's four corners under two warps; inf where one has
    none.

    >>> eye = torch.eye(3, dtype=torch.float64)
    >>> shifted = eye.clone(); shifted[0, 2] = 3.0
    >>> corner_error(eye, shifted, 20, 30)
    3.0
    """
    at = corners(height, width, truth)
    distance = (project(found.to(truth), at) - project(truth, at)).norm(dim=-1)
    return float(torch.where(distance.isnan(), torch.full_like(distance, float("inf")), distance).mean())


def middle_of(values: Float[np.ndarray, " n"]) -> float:
    """The median, of an even number the mean of the two in the middle; there is one at least. (`quantile` of a tensor
    takes 70 µs.)

    >>> middle_of(np.array([3.0, 1.0, 2.0, 7.0]))
    2.5
    """
    ordered, count = np.sort(values), len(values)
    return 0.5 * float(ordered[(count - 1) // 2] + ordered[count // 2])


def nmad(values: Tensor) -> float:
    """1.4826 times the median absolute deviation from the median; NaN of nothing."""
    return nmad_and_deviation(values)[0]


def nmad_and_deviation(values: Tensor) -> tuple[float, float]:
    """`nmad` and the standard deviation, which is 0 of a single number; NaN of nothing."""
    count = values.numel()
    if count == 0:
        return float("nan"), float("nan")
    if may_read(values) and values.dtype in (torch.float32, torch.float64):
        found = torch.empty(4, dtype=torch.float64, device="cpu")
        _SPREAD(count, values.contiguous(), found)
        _, away, _, deviation = found.tolist()
        return 1.4826 * away, deviation
    away = (values - values.median()).abs().median()
    return 1.4826 * float(away), float(values.std()) if count > 1 else 0.0


def summary(values: Float[np.ndarray, " n"]) -> dict[str, float]:
    """Count, mean, median, NMAD (of an even number with the middle of two as the median) and RMSE of numbers.

    >>> summary(np.array([1.0, 2.0, 3.0]))["median"]
    2.0
    """
    if len(values) == 0:
        return {"count": 0, **dict.fromkeys(("mean", "median", "nmad", "rmse"), float("nan"))}
    median = float(np.median(values))
    return {
        "count": len(values),
        "mean": float(values.mean()),
        "median": median,
        "nmad": 1.4826 * float(np.median(np.abs(values - median))),
        "rmse": float(np.sqrt(np.mean(values**2))),
    }
