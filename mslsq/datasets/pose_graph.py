"""A pose graph as plain data: poses, relative poses measured between them, and how well."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mslsq.initialization import chordal, spanning_tree
from mslsq.losses import RobustLoss
from mslsq.manifolds import SE2, SE3
from mslsq.problem import Between, Prior, Problem, ProblemError, Scale, SqrtInformation, Variable
from mslsq.problem.structure import least_connected

__all__ = ["PoseGraph"]


@dataclass(frozen=True)
class PoseGraph:
    """Poses in the plane or in space and the edges between them; float64 on the CPU where it was read from a file."""

    name: str
    poses: SE2 | SE3
    """The start (poses,)."""
    first: Int[Tensor, "edges"]
    second: Int[Tensor, "edges"]
    """Each edge joins these two rows of `poses`."""
    measured: SE2 | SE3
    """The pose of `second` as seen from `first` (edges,)."""
    information: Float[Tensor, "edges tangent tangent"]
    """Inverse covariances, in the tangent's order (translation, rotation)."""
    ids: Int[Tensor, "poses"]
    """The numbers that the poses have in their file."""
    fixed: Int[Tensor, "fixed"]
    """Rows of `poses` that are to stay where they are."""

    @property
    def dimension(self) -> int:
        """2 or 3."""
        return 2 if isinstance(self.poses, SE2) else 3

    def at(self, poses: SE2 | SE3) -> "PoseGraph":
        """The same graph with its poses elsewhere: at a solution."""
        return replace(self, poses=poses)

    @property
    def part(self) -> Int[Tensor, "poses"]:
        """The first pose of the connected part that each pose is in: two parts have no edge between them, so that
        nothing is known of where they are to each other."""
        first, second = (index.detach().cpu().numpy() for index in (self.first, self.second))
        return torch.from_numpy(least_connected(len(self.ids), first, second)).to(self.first)

    def from_edges(self) -> "PoseGraph":
        """The same graph with poses from a spanning tree of its edges; the first pose stays where it is.

        All poses that are fixed stay, and of every connected part one: the first that is fixed, or else the first.
        """
        return self._anchored(spanning_tree(self.first, self.second, self.measured, len(self.ids)))

    def from_chords(self) -> "PoseGraph":
        """The same graph with poses from two linear solves (`chordal`); poses stay as in `from_edges`."""
        return self._anchored(
            chordal(self.first, self.second, self.measured, len(self.ids), information=self.information)
        )

    def _anchored(self, start: Any) -> "PoseGraph":
        """The graph at a start whose parts are moved to where one of their poses stands; what is fixed is put back."""
        poses: Any = self.poses
        own, part = torch.arange(len(self.ids), device="cpu").to(self.first), self.part
        fixed = torch.zeros_like(own, dtype=torch.bool).index_fill(0, self.fixed, True)
        before = torch.where(fixed, own, own + len(own))
        anchor = before.scatter_reduce(0, part, before, "amin")[part] % max(len(own), 1)
        moved = poses[anchor].normalized() @ (start[anchor].inverse() @ start)
        return self.at(type(poses)(torch.where(fixed[:, None], poses.storage, moved.storage)))

    def problem(self, loss: RobustLoss | None = None, anchor_sigma: float = 1e-6) -> Problem:
        """½ Σ |log(measured⁻¹ a⁻¹ b)|² in the information's norm, over the variable `"pose"`.

        What the file fixes is held; where it fixes nothing, a `Prior` of standard deviation `anchor_sigma` holds the
        first pose.

        Raises:
            ProblemError (a ValueError): the information of an edge is not positive definite; its poses are named.

        >>> graph = read_g2o("sphere2500.g2o.gz")  # doctest: +SKIP
        >>> solution = mslsq.solve(graph.problem(), {"pose": graph.poses})  # doctest: +SKIP
        """
        pose = Variable("pose", type(self.poses), count=len(self.ids))
        between = Between(
            pose[self.first],
            pose[self.second],
            measured=self.measured,
            weight=self._weight(),
            loss=loss,
        )
        if len(self.fixed):
            return Problem(between, pose.fixed(self.fixed))
        weight = Scale(torch.full((), 1 / anchor_sigma, dtype=self.information.dtype, device=self.information.device))
        return Problem(between, Prior(pose[[0]], target=self.poses[:1].normalized(), weight=weight))

    def _weight(self) -> SqrtInformation:
        try:
            return SqrtInformation.from_information(self.information)
        except ProblemError as error:
            wrong = torch.linalg.cholesky_ex(self.information).info.nonzero()[:, 0].tolist()
            i, j = (int(self.ids[end[wrong[0]]]) for end in (self.first, self.second))
            raise ProblemError(
                f"{self.name}: the information matrix of the edge from pose {i} to pose {j} is not positive definite "
                f"(one of {len(wrong)} such edges). For a direction that was not measured write a small number, not "
                "zero."
            ) from error
