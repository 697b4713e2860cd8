"""A pose graph as plain data: poses, relative poses measured between them, and how well."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mslsq.initialization import chordal, spanning_tree
from mslsq.losses import RobustLoss
from mslsq.manifolds import SE2, SE3
from mslsq.problem import Between, Prior, Problem, Scale, SqrtInformation, Variable

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

    def from_edges(self) -> "PoseGraph":
        """The same graph with poses from a spanning tree of its edges; the first pose stays where it is."""
        tree = spanning_tree(self.first, self.second, self.measured, len(self.ids))
        return self.at(self.poses[0].normalized() @ tree)

    def from_chords(self) -> "PoseGraph":
        """The same graph with poses from two linear solves (`chordal`); the first pose stays where it is."""
        start = chordal(self.first, self.second, self.measured, len(self.ids), information=self.information)
        return self.at(self.poses[0].normalized() @ start)

    def problem(self, loss: RobustLoss | None = None, anchor_sigma: float = 1e-6) -> Problem:
        """½ Σ |log(measured⁻¹ a⁻¹ b)|² in the information's norm, over the variable `"pose"`.

        What the file fixes is held; where it fixes nothing, a `Prior` of standard deviation `anchor_sigma` holds the
        first pose.

        >>> graph = read_g2o("sphere2500.g2o.gz")  # doctest: +SKIP
        >>> solution = mslsq.solve(graph.problem(), {"pose": graph.poses})  # doctest: +SKIP
        """
        pose = Variable("pose", type(self.poses), count=len(self.ids))
        between = Between(
            pose[self.first],
            pose[self.second],
            measured=self.measured,
            weight=SqrtInformation.from_information(self.information),
            loss=loss,
        )
        if len(self.fixed):
            return Problem(between, pose.fixed(self.fixed))
        weight = Scale(torch.full((), 1 / anchor_sigma, dtype=self.information.dtype, device=self.information.device))
        return Problem(between, Prior(pose[[0]], target=self.poses[:1].normalized(), weight=weight))
