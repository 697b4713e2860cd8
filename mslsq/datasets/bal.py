"""Bundle adjustment problems in the text format of BAL: reader and writer.

The header ``cameras points observations``; a line ``camera point u v`` per observation; then 9 numbers per camera
(rotation vector, translation, focal length, two of radial distortion) and 3 per point (Agarwal, Snavely, Seitz,
Szeliski, "Bundle adjustment in the large", ECCV 2010, https://grail.cs.washington.edu/projects/bal).
"""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mslsq.datasets.lines import integers, malformed, numbers, read_lines, write_lines
from mslsq.losses import RobustLoss
from mslsq.manifolds import Euclidean
from mslsq.problem import Problem, SnavelyReprojection, Variable

__all__ = ["BundleAdjustment", "read_bal", "write_bal"]


@dataclass(frozen=True)
class BundleAdjustment:
    """Cameras, points and where the ones saw the others; float64 on the CPU where it was read from a file."""

    name: str
    cameras: Float[Tensor, "cameras 9"]
    """As `mslsq.SnavelyReprojection` takes them."""
    points: Float[Tensor, "points 3"]
    camera: Int[Tensor, "observations"]
    point: Int[Tensor, "observations"]
    """Rows of `cameras` and `points`."""
    pixels: Float[Tensor, "observations 2"]
    """Measured from the middle of the picture, y up."""

    def at(self, cameras: Tensor, points: Tensor) -> "BundleAdjustment":
        """The same observations with cameras and points elsewhere: at a solution."""
        return replace(self, cameras=cameras, points=points)

    def problem(self, loss: RobustLoss | None = None) -> Problem:
        """½ Σ |predicted − measured pixel|² over the variables `"camera"` and `"point"`; the gauge is left free.

        >>> scene = read_bal("problem-49-7776-pre.txt.bz2")  # doctest: +SKIP
        >>> mslsq.solve(scene.problem(), {"camera": scene.cameras, "point": scene.points})  # doctest: +SKIP
        """
        camera = Variable("camera", Euclidean(9), count=len(self.cameras))
        point = Variable("point", Euclidean(3), count=len(self.points))
        return Problem(SnavelyReprojection(camera[self.camera], point[self.point], pixel=self.pixels, loss=loss))


def read_bal(path: str | Path) -> BundleAdjustment:
    """Read one problem; ``.gz`` and ``.bz2`` are decompressed.

    Raises:
        OSError: there is no such file.
        MalformedFileError (a ValueError): a line that is not understood, an index out of range, too few or too many
            numbers; the message names the file, the line, and what was expected.

    >>> scene = read_bal("shared/data/bal/problem-49-7776-pre.txt.bz2")  # doctest: +SKIP
    """
    path = Path(path).expanduser()
    lines = [(number, words) for number, line in enumerate(read_lines(path), start=1) if (words := line.split())]
    what = "'cameras points observations'"
    if not lines or len(lines[0][1]) != 3:
        malformed(path, lines[0][0] if lines else 1, f"the header {what}", " ".join(lines[0][1]) if lines else "")
    num_cameras, num_points, num_observations = integers(path, *lines[0], f"the header {what}")
    if not (num_cameras and num_points and num_observations):
        malformed(path, lines[0][0], f"the header {what}, none of them zero", " ".join(lines[0][1]))
    end = lines[-1][0]
    if len(lines) <= num_observations:
        malformed(path, end, f"{num_observations} observations; the file ends after {len(lines) - 1}")

    pairs, pixels = [], []
    what = "'camera point u v'"
    for number, words in lines[1 : num_observations + 1]:
        if len(words) != 4:
            malformed(path, number, what, " ".join(words))
        i, j = integers(path, number, words[:2], what)
        if i >= num_cameras or j >= num_points:
            malformed(path, number, f"a camera below {num_cameras} and a point below {num_points}", f"{i} {j}")
        pairs.append((i, j))
        pixels.append(numbers(path, number, words[2:], 2, what))

    values: list[float] = []
    for number, words in lines[num_observations + 1 :]:
        values += numbers(path, number, words, len(words), "parameters of cameras and points")
    expected = 9 * num_cameras + 3 * num_points
    if len(values) != expected:
        malformed(path, end, f"{expected} parameters after the observations; the file has {len(values)}")
    table = torch.tensor(values, dtype=torch.float64, device="cpu")
    index = torch.tensor(pairs, dtype=torch.int64, device="cpu")
    return BundleAdjustment(
        name=path.name.split(".")[0],
        cameras=table[: 9 * num_cameras].reshape(-1, 9),
        points=table[9 * num_cameras :].reshape(-1, 3),
        camera=index[:, 0].contiguous(),
        point=index[:, 1].contiguous(),
        pixels=torch.tensor(pixels, dtype=torch.float64, device="cpu"),
    )


def write_bal(path: str | Path, scene: BundleAdjustment) -> Path:
    """Write a problem, compressed by the suffix, with all digits of float64; the file is whole or not there."""
    lines = [f"{len(scene.cameras)} {len(scene.points)} {len(scene.pixels)}"]
    rows = zip(scene.camera.tolist(), scene.point.tolist(), scene.pixels.detach().cpu().tolist(), strict=True)
    lines += [f"{i} {j} {u!r} {v!r}" for i, j, (u, v) in rows]
    for table in (scene.cameras, scene.points):
        lines += [repr(value) for value in table.detach().cpu().reshape(-1).tolist()]
    return write_lines(Path(path).expanduser(), lines)
