"""The transforms that agree best with all links: a pose graph whose poses are the warps of the model.

One frame of normalised coordinates serves all warps, that of the reference; a link is compared in the frame of the map
that it was measured on, F. With S the matrix from the common frame to F, a link from map a to map b says

    S W_b W_a⁻¹ S⁻¹ = measured · R(ξ),   ξ normal with the link's covariance.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.stats
import torch
from jaxtyping import Float, Int
from torch import Tensor

import mslsq
from mslsq.alignment.joint.links import LEAST_TOLERANCE, TOLERANCE, Link, information
from mslsq.alignment.linking import Linker
from mslsq.alignment.models import MODELS, Frame, Warp
from mslsq.alignment.tangents import change

CONFIDENCE = 0.999
"""A link whose residual is likelier to be larger than this, if it were true, is none."""


class Linkage(mslsq.CostFunction):
    """ξ of one link between two maps, a tangent vector.

    Data per block: `measured` (3, 3) in the normalised coordinates of the first map's own frame, `into` (3, 3) from the
    common normalised coordinates to these, and `out_of`, its inverse.
    """

    def residual(
        self,
        a: Warp,
        b: Warp,
        measured: Float[Tensor, "3 3"],
        into: Float[Tensor, "3 3"],
        out_of: Float[Tensor, "3 3"],
    ) -> Float[Tensor, " tangent"]:
        return disagreement(a, b, measured, into, out_of)


def disagreement(
    a: Warp,
    b: Warp,
    measured: Float[Tensor, "*links 3 3"],
    into: Float[Tensor, "*links 3 3"],
    out_of: Float[Tensor, "*links 3 3"],
) -> Float[Tensor, "*links tangent"]:
    """ξ of links, for any number of them."""
    kind = type(a)
    between = into @ b.matrix() @ adjugate(a.matrix()) @ out_of
    return kind.from_matrix(measured).local(kind.from_matrix(between))


def adjugate(matrix: Float[Tensor, "*batch 3 3"]) -> Float[Tensor, "*batch 3 3"]:
    """The inverse up to scale, which a homogeneous matrix does not have."""
    rows = matrix.unbind(-2)
    return torch.stack([torch.linalg.cross(rows[k - 2], rows[k - 1]) for k in range(3)], -1)


@dataclass(frozen=True)
class Graph:
    """Links between the maps of one alignment, and the frame that their warps are stated in, that of the reference."""

    linker: Linker
    links: Sequence[Link]
    frame: Frame
    known: Mapping[int, Float[Tensor, "3 3"]]
    """The transforms (pixels) of the maps that are held: the reference, and what was placed before."""

    def restricted(self, links: Sequence[Link]) -> "Graph":
        """The same with some of the links."""
        return replace(self, links=links)

    @property
    def kind(self) -> type[Warp]:
        return MODELS[self.linker.options.model]

    def into(self, index: int) -> Float[Tensor, "3 3"]:
        """From the common normalised coordinates to those of a map's own frame."""
        return change(self.frame, self.linker.frame(index))

    def tolerance(self, link: Link) -> float:
        """Pixels that links of a loop may be apart."""
        return max(LEAST_TOLERANCE, TOLERANCE * 2 * self.linker.frame(link.fixed).half)

    def problem(self, tolerant: bool) -> mslsq.Problem:
        """All links as one cost named `linkage`, whitened; what is known is held. `tolerant`: by covariances that allow
        for bent maps, to tell wrong links; else by the links' own."""
        pose = mslsq.Variable("pose", self.kind, count=len(self.linker.maps))
        first, second = self.ends
        weight = mslsq.SqrtInformation(self.roots(tolerant))
        data: dict[str, Any] = self.data
        cost = Linkage(pose[first], pose[second], weight=weight, name="linkage", **data)
        linked = {index for link in self.links for index in link.pair}
        held = [i for i in range(len(self.linker.maps)) if i not in linked or i in self.known]
        return mslsq.Problem(cost, pose.fixed(held))

    @property
    def ends(self) -> tuple[Int[Tensor, " links"], Int[Tensor, " links"]]:
        """The fixed and the moving map of every link."""
        return torch.tensor([link.fixed for link in self.links], device="cpu"), torch.tensor(
            [link.moving for link in self.links], device="cpu"
        )

    @property
    def data(self) -> dict[str, Tensor]:
        """What `Linkage` is given."""
        into = torch.stack([self.into(link.fixed) for link in self.links])
        measured = torch.stack([link.linked.placed.warp for link in self.links])
        return {"measured": measured, "into": into, "out_of": torch.linalg.inv(into)}

    def roots(self, tolerant: bool) -> Float[Tensor, "links tangent tangent"]:
        """The upper factor of every link's information."""
        parts = []
        for link in self.links:
            frame = self.linker.frame(link.fixed)
            tolerance = self.tolerance(link) if tolerant else EXACT * 2 * frame.half
            parts.append(information(link, frame, self.linker.options.model, tolerance))
        return torch.linalg.cholesky(torch.stack(parts), upper=True)

    def whitened(self, poses: Warp, tolerant: bool = True) -> Float[Tensor, " links"]:
        """The norm of every link's residual."""
        first, second = self.ends
        apart = disagreement(self.kind(poses.storage[first]), self.kind(poses.storage[second]), **self.data)
        return torch.einsum("ekt,et->ek", self.roots(tolerant), apart).norm(dim=-1)


UNLIKELY = 0.99
"""Less than this χ² is taken for noise."""

EXACT = 1e-6
"""Of the reference's longer side: covariances alone may be of rank less than full in rounding."""


def excess(graph: Graph, poses: Warp) -> float:
    """χ² of the links over its degrees of freedom, where noise alone (one time in a hundred) would not have it: maps
    are bent or tilted, and every covariance is too small by this factor (Birge, 1932). Else 1."""
    moved = {index for link in graph.links for index in link.pair} - set(graph.known)
    freedom = (len(graph.links) - len(moved)) * graph.kind.tangent_dim
    squares = float(graph.whitened(poses, tolerant=False).square().sum())
    return squares / freedom if freedom > 0 and squares > scipy.stats.chi2.ppf(UNLIKELY, freedom) else 1.0


def spread_of_links(graph: Graph, poses: Warp) -> Float[np.ndarray, "maps tangent tangent"]:
    """The covariances of the warps as the links have them; zero for what is known, and for maps without a link."""
    problem = graph.problem(tolerant=False)
    return mslsq.covariance(problem, {"pose": poses}, "pose").numpy(force=True)


def threshold(kind: type[Warp]) -> float:
    """The largest whitened residual of a link that is believed."""
    return float(scipy.stats.chi.ppf(CONFIDENCE, kind.tangent_dim))


def solved(graph: Graph, poses: Warp, tolerant: bool = False) -> Warp:
    """The poses by plain least squares over all links."""
    solver = mslsq.LevenbergMarquardt(max_steps=50)
    return mslsq.solve(graph.problem(tolerant), {"pose": poses}, solver=solver).value["pose"]


def truncated_cost(graph: Graph, poses: Warp) -> float:
    """Σ min(r², c²) over links, of their whitened residuals."""
    return float(graph.whitened(poses).square().clamp(max=threshold(graph.kind) ** 2).sum())


def robustly_solved(graph: Graph, starts: Sequence[Warp]) -> tuple[Warp, Float[Tensor, " links"]]:
    """The poses that most links agree with, and which do (1, the others 0).

    Plain least squares from the first start, where that contradicts no link. Else graduated non-convexity over links,
    from the start of the least truncated cost; and, as nothing guarantees that it ends at the best minimum, beside it
    plain least squares over the links that agree with that start. The lesser truncated cost decides.
    """
    most = threshold(graph.kind)
    plain = solved(graph, starts[0], tolerant=True)
    if bool((graph.whitened(plain) <= most).all()):
        return plain, torch.ones(len(graph.links), device="cpu")
    start = min(starts, key=lambda poses: truncated_cost(graph, poses))
    solver = mslsq.GraduatedNonConvexity(mslsq.LevenbergMarquardt(max_steps=50), scale=most)
    found = [mslsq.solve(graph.problem(tolerant=True), {"pose": start}, solver=solver).value["pose"]]
    agreeing = [link for link, apart in zip(graph.links, graph.whitened(start).tolist(), strict=True) if apart <= most]
    if agreeing:
        found.append(solved(graph.restricted(agreeing), start, tolerant=True))
    best = min(found, key=lambda poses: truncated_cost(graph, poses))
    return best, (graph.whitened(best) <= most).to(torch.float64)
