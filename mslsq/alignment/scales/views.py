"""Depth seen by several views: what a pixel of one says about a pixel of another.

A pixel u of view i at depth D = s_i(u) d_i(u) is the point D K_i⁻¹ (u, 1) of its camera, at depth z in the camera of
view j, where it falls on π. If j sees the same point, z = s_j(π) d_j(π). In logs the residual of the pair of pixels is

    r = log z(x_i(u)) − log d_j(π(x_i(u))) − x_j(π),      x = log s.

A solve takes r for the log of a ratio: its derivative in x_i(u) as 1, as it is without translation. Parallax adds to
it, by the slope of the surface that π moves over; but slopes of measured depth are noisy, and their noise would count
as information on what nothing else tells, the common bending of all views (`fields.py`). On real depth the scales are
better without, and finding the pixels again before every solve takes parallax into account all the same.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mslsq import ProblemError
from mslsq.problem import ShapeError

EDGE = 0.05
"""Neighbouring depths that differ by more than this share are different surfaces."""


@dataclass(frozen=True)
class DepthViews:
    """Depth maps, their cameras, and where those stand."""

    depths: Float[Tensor, "views height width"]
    """Along the optical axis, in the unit of the poses; not positive or not finite where missing."""
    intrinsics: Float[Tensor, "views 3 3"]
    """Pixels; centres at integers, (x, y, 1)."""
    poses: Float[Tensor, "views 4 4"]
    """Camera to world; x to the right, y down, z forward."""

    @property
    def size(self) -> tuple[int, int]:
        return self.depths.shape[1], self.depths.shape[2]

    @property
    def valid(self) -> Bool[Tensor, "views height width"]:
        return torch.isfinite(self.depths) & (self.depths > 0)


def depth_views(depths: Tensor, intrinsics: Tensor, poses: Tensor) -> DepthViews:
    """Checked, and in float64. One matrix of intrinsics serves all views.

    Raises:
        ShapeError, ProblemError: shapes that do not agree, fewer than two views, a camera matrix that is none, a pose
            that is not a rotation and a translation.
    """
    if depths.ndim != 3 or not depths.is_floating_point():
        raise ShapeError(f"depths must be real, (views, height, width), not {depths.dtype} {tuple(depths.shape)}.")
    views, height, width = depths.shape
    if views < 2 or min(height, width) < 2:
        raise ProblemError(f"There must be two views of at least 2 x 2 pixels, not {views} of {height} x {width}.")
    if intrinsics.shape == (3, 3):
        intrinsics = intrinsics.expand(views, 3, 3)
    if intrinsics.shape != (views, 3, 3) or poses.shape != (views, 4, 4):
        raise ShapeError(
            f"intrinsics must have shape (3, 3) or ({views}, 3, 3) and poses ({views}, 4, 4), "
            f"not {tuple(intrinsics.shape)} and {tuple(poses.shape)}."
        )
    result = DepthViews(*(part.to(depths.device, torch.float64) for part in (depths, intrinsics, poses)))
    for view, (camera, pose) in enumerate(zip(result.intrinsics.cpu(), result.poses.cpu(), strict=True)):
        _check_camera(view, camera, pose)
    for view, has_depth in enumerate(result.valid.flatten(1).any(1).tolist()):
        if not has_depth:
            raise ProblemError(f"View {view} has no depth that is positive and finite: leave it out.")
    return result


def _check_camera(view: int, camera: Tensor, pose: Tensor) -> None:
    last = camera.new_tensor([0.0, 0.0, 1.0])
    if not bool(torch.isfinite(camera).all()) or not torch.equal(camera[2], last) or bool((camera.diag() <= 0).any()):
        raise ProblemError(
            f"intrinsics of view {view} must be finite, with positive focal lengths and a last row (0, 0, 1), "
            f"not {camera.tolist()}."
        )
    rotation = pose[:3, :3]
    identity = torch.eye(3, device="cpu").to(rotation)
    # Poses are often written with seven digits: 1e-3 leaves room for that, and none for a scale or for a reflection.
    proper = bool((rotation @ rotation.T - identity).abs().max() < 1e-3) and float(torch.linalg.cross(
        rotation[0], rotation[1]) @ rotation[2]) > 0  # fmt: skip
    if not proper or not torch.equal(pose[3], pose.new_tensor([0.0, 0.0, 0.0, 1.0])):
        raise ProblemError(
            f"The pose of view {view} must be a rotation and a translation, camera to world, with a last row "
            f"(0, 0, 0, 1), not {pose.tolist()}."
        )


class Sightings(NamedTuple):
    """On the CPU: pairs of pixels of two views that may see one point, and the log of the ratio of their depths."""

    first: Int[Tensor, " n"]
    """View i, and its pixel (x, y)."""
    at_first: Float[Tensor, "n 2"]
    second: Int[Tensor, " n"]
    """View j, and where the point falls on it."""
    at_second: Float[Tensor, "n 2"]
    log_ratio: Float[Tensor, " n"]
    """log z − log d_j(π): what x_j(π) should be, at the given x_i."""


def sightings(views: DepthViews, logs: Float[Tensor, "views height width"], stride: int) -> Sightings:
    """What every `stride`-th pixel of every view says about every other view, at the log-scales `logs`.

    Left out: what falls outside, behind the camera, on missing depth, or on an edge of depth; and pixels on an edge of
    their own view. Occlusion is left to the robust loss: nothing but the depths themselves tells it from a wrong scale.
    """
    height, width = views.size
    like = views.depths
    y, x = torch.meshgrid(
        torch.arange(0, height, stride, device=like.device),
        torch.arange(0, width, stride, device=like.device),
        indexing="ij",
    )
    place, pixel = (y * width + x).flatten(), torch.stack([x.flatten(), y.flatten()], 1).to(like.dtype)
    found, keeps = [], []
    for i in range(len(views.depths)):
        depth, inside = bilinear(views.depths[i], pixel)
        own = logs[i].flatten()[place]
        for j in range(len(views.depths)):
            if i != j:
                seen, keep = _seen_from(views, i, j, pixel, depth * own.exp())
                found.append(seen)
                keeps.append(keep & inside)
    columns = [
        torch.cat(parts).to(like.dtype).reshape(len(pixel) * len(found), -1) for parts in zip(*found, strict=True)
    ]
    sent = torch.cat([*columns, torch.cat(keeps).to(like.dtype)[:, None]], 1).cpu()  # the one question to a device
    sent = sent[sent[:, -1] > 0]
    return Sightings(sent[:, 0].long(), sent[:, 1:3], sent[:, 3].long(), sent[:, 4:6], sent[:, 6])


def _seen_from(views: DepthViews, i: int, j: int, pixel: Tensor, depth: Tensor) -> tuple[Sightings, Tensor]:
    """The pixels of view i, at their corrected depths, in view j; and which of them it sees."""
    motion = torch.linalg.inv_ex(views.poses[j]).inverse @ views.poses[i]
    homogeneous = torch.cat([pixel, torch.ones_like(pixel[:, :1])], 1)
    ray = homogeneous @ torch.linalg.inv_ex(views.intrinsics[i]).inverse.T @ motion[:3, :3].T
    point = ray * depth[:, None] + motion[:3, 3]
    camera = views.intrinsics[j]
    ahead = point[:, 2] > 1e-6 * depth
    z = torch.where(ahead, point[:, 2], 1.0)
    at = (point @ camera.T)[:, :2] / z[:, None]
    seen, inside = bilinear(views.depths[j], at)
    index = lambda view: torch.full(depth.shape, view, dtype=torch.int64, device=at.device)  # noqa: E731
    return Sightings(index(i), pixel, index(j), at, z.log() - seen.log()), inside & ahead


def bilinear(
    depth: Float[Tensor, "height width"], at: Float[Tensor, "n 2"]
) -> tuple[Float[Tensor, " n"], Bool[Tensor, " n"]]:
    """Depth at points (x, y), 1 where not all four neighbours have depth and are one surface; and where they are."""
    height, width = depth.shape
    x, y = at.unbind(1)
    inside = (x >= 0) & (x <= width - 1) & (y >= 0) & (y <= height - 1)
    x, y = torch.where(inside, x, 0), torch.where(inside, y, 0)
    left, top = x.floor().clamp(max=width - 2), y.floor().clamp(max=height - 2)
    fx, fy = x - left, y - top
    column, row = left.long(), top.long()
    a, b, c, d = (depth[row + dy, column + dx] for dy in (0, 1) for dx in (0, 1))
    four = torch.stack([a, b, c, d])
    known = (torch.isfinite(four) & (four > 0)).all(0)
    smooth = four.amax(0) < (1 + EDGE) * four.amin(0)
    value = (a * (1 - fx) + b * fx) * (1 - fy) + (c * (1 - fx) + d * fx) * fy
    keep = inside & known & smooth
    return torch.where(keep, value, 1.0), keep


def depths_in_view(views: DepthViews, reference: int, step: int = 1) -> Float[Tensor, "views rows columns"]:
    """Every view's depth as the camera of the reference sees it, on every `step`-th pixel; NaN where it sees nothing.

    Each pixel of a view is a point; of those that fall into a cell of the reference the ones within 5 % of the nearest
    are averaged, so that what lies behind does not shine through. Ratios of these maps are what `scale_sync` takes.
    """
    height, width = views.size
    rows, columns = -(-height // step), -(-width // step)
    y, x = torch.meshgrid(torch.arange(height, device="cpu"), torch.arange(width, device="cpu"), indexing="ij")
    pixel = torch.stack([x.flatten(), y.flatten(), torch.ones(height * width, device="cpu")], 1).to(views.depths)
    to_reference = torch.linalg.inv_ex(views.poses[reference]).inverse
    maps = []
    for i, depth in enumerate(views.depths):
        known = views.valid[i].flatten()
        ray = pixel[known] @ torch.linalg.inv_ex(views.intrinsics[i]).inverse.T
        motion = to_reference @ views.poses[i]
        point = (ray * depth.flatten()[known, None]) @ motion[:3, :3].T + motion[:3, 3]
        point = point[point[:, 2] > 0]
        at = (point @ views.intrinsics[reference].T)[:, :2] / point[:, 2:]
        cell = torch.floor((at + 0.5) / step).long()
        inside = ((cell >= 0) & (cell < cell.new_tensor([columns, rows]))).all(1)
        maps.append(_nearest(point[inside, 2], (cell[:, 1] * columns + cell[:, 0])[inside], rows * columns))
    return torch.stack(maps).reshape(-1, rows, columns)


def _nearest(depth: Float[Tensor, " n"], cell: Int[Tensor, " n"], cells: int) -> Float[Tensor, " cells"]:
    """The mean of the depths of every cell that are within 5 % of its nearest."""
    least = torch.full((cells,), torch.inf, device="cpu").to(depth).scatter_reduce(0, cell, depth, "amin")
    front = depth < (1 + EDGE) * least[cell]
    total = torch.zeros_like(least).index_add(0, cell[front], depth[front])
    count = torch.zeros_like(least).index_add(0, cell[front], torch.ones_like(depth[front]))
    return torch.where(count > 0, total / count.clamp(min=1), torch.nan)
