"""The differentiable aligner: features of both images in, warp out, by one least-squares layer per pyramid level.

Two costs over one warp T. `FeatureDifference`: r(u) = w(u) · [F_moving(T u) - F_reference(u)] at pixels u of the
reference's level, with w² the product of both confidences, normalised to mean 1 and frozen during the solve (so that
turning to where nothing is trusted never pays). `Anchor`: the step away from the level's start, times a learned
`trust`: how far the level before is to be believed. Each level is a batch of independent problems, solved by
`mslsq.LeastSquaresLayer`; its start is a constant (as in PixLoc), so every level learns on its own.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

import mslsq
from mslsq.alignment.learned.network import FeatureLevel, FeaturePyramid
from mslsq.alignment.models import MODELS, Frame, Warp
from mslsq.alignment.sampling import sample, sample_with_gradient
from mslsq.validation import one_of


class FeatureDifference(mslsq.CostFunction):
    """The moving image's features under the warp, minus the reference's, at one pixel of the reference.

    Data per block: `point` (2,) in normalised coordinates, `target` (channels,). Shared: `coefficients` (channels,
    height, width) of the moving image's feature spline, `to_level` (3,): pixel of the level = to_level[0] · T n +
    to_level[1:].
    """

    def residual(
        self,
        warp: Warp,
        point: Float[Tensor, "2"],
        target: Float[Tensor, " channels"],
        coefficients: Float[Tensor, "channels height width"],
        to_level: Float[Tensor, "3"],
    ) -> Float[Tensor, " channels"]:
        return sample(coefficients, warp.act(point) * to_level[0] + to_level[1:]) - target

    def residual_and_jacobians(
        self,
        warp: Warp,
        point: Float[Tensor, "2"],
        target: Float[Tensor, " channels"],
        coefficients: Float[Tensor, "channels height width"],
        to_level: Float[Tensor, "3"],
    ) -> tuple[Float[Tensor, " channels"], tuple[Float[Tensor, "channels tangent"]]]:
        moved, depth = warp.act_and_depth(point)
        sampled, gradient = sample_with_gradient(coefficients, moved * to_level[0] + to_level[1:])
        return sampled - target, (warp.pull_back(to_level[0] * gradient, point, (moved, depth)),)

    def jacobians(self, warp: Warp, **data: Tensor) -> tuple[Float[Tensor, "channels tangent"]]:
        return self.residual_and_jacobians(warp, **data)[1]


class Anchor(mslsq.CostFunction):
    """The step from where the level started, in the tangent: half the reference's longer side, radians."""

    def residual(self, warp: Warp, start: Warp) -> Float[Tensor, " tangent"]:
        return start.local(warp)

    def jacobians(self, warp: Warp, start: Warp) -> tuple[Float[Tensor, "tangent tangent"]]:
        """Translations are turned (and scaled) from the frame of the warp into that of the start; angle and log scale
        just add. (By automatic differentiation this small cost took half of a training step.)"""
        ours, theirs = start.matrix(), warp.matrix()
        size = ours[0, 0] ** 2 + ours[1, 0] ** 2
        c = (ours[0, 0] * theirs[0, 0] + ours[1, 0] * theirs[1, 0]) / size
        s = (ours[0, 0] * theirs[1, 0] - ours[1, 0] * theirs[0, 0]) / size
        turn = torch.stack([c, -s, s, c]).unflatten(0, (2, 2))
        rest = warp.tangent_dim - 2
        return (
            torch.cat(
                [
                    functional.pad(turn, (0, rest)),
                    functional.pad(torch.eye(rest, dtype=c.dtype, device=c.device), (2, 0)),
                ]
            ),
        )


class LearnedAligner(nn.Module):
    """A feature pyramid and, per level, a least-squares layer over the warp.

    Args:
        size: height and width of the images (the sampling grid is part of the problem).
        model: of the warp: "translation", "se2" or "sim2".
        strides, channels, width: of the `FeaturePyramid`.
        samples: reference pixels per side that are compared, at most: a level that has more takes every second of
            them, every third, ...
        max_steps: of Levenberg-Marquardt on each level.
        adjoint: how derivatives pass through the solves. `Unrolled()` also teaches solves that did not converge, as all
            do before anything is learned.

    `forward` goes from the coarsest level to the finest and returns the warp after each level, in normalised
    coordinates (`self.frame`), with derivatives into the network. `levels` and `solve_level` are its two halves, for
    training.
    """

    def __init__(
        self,
        size: int = 65,
        model: str = "se2",
        strides: Sequence[int] = (8, 4, 2),
        channels: int = 6,
        width: int = 12,
        samples: int = 17,
        max_steps: int = 6,
        adjoint: mslsq.Adjoint | None = None,
    ):
        super().__init__()
        if size < 4 * strides[0] + 1:
            raise ValueError(f"size={size} is too small for stride {strides[0]}: at least {4 * strides[0] + 1} pixels.")
        one_of("LearnedAligner: model", model, ("translation", "se2", "sim2"))
        self.size, self.kind, self.samples = size, MODELS[model], samples
        self.network = FeaturePyramid(tuple(strides), channels, width)
        self.log_trust = nn.Parameter(torch.zeros(len(strides)))
        solver = mslsq.LevenbergMarquardt(max_steps=max_steps, ftol=1e-3, xtol=1e-4, gtol=1e-6, trace="never")
        self.layers = nn.ModuleList(
            mslsq.LeastSquaresLayer(self._problem(stride, channels), solver, adjoint or mslsq.Unrolled())
            for stride in strides
        )

    @property
    def frame(self) -> Frame:
        """The normalised coordinates of the warps, in the module's own dtype and device."""
        return Frame(self.size, self.size, self.log_trust.detach())

    def _problem(self, stride: int, channels: int) -> mslsq.Problem:
        count = (self.size - 1) // stride + 1
        at = stride * torch.arange(0, count, self._every(count), dtype=torch.get_default_dtype())
        pixels = torch.stack(torch.meshgrid(at, at, indexing="xy"), -1).reshape(-1, 2)
        centre = (self.size - 1) / 2
        warp = mslsq.Variable("warp", self.kind)
        return mslsq.Problem(
            FeatureDifference(
                warp,
                point=self.frame.normalise(pixels),
                target=torch.zeros(len(pixels), channels),
                coefficients=mslsq.Shared(torch.zeros(channels, count, count)),
                to_level=mslsq.Shared(torch.tensor([self.frame.half, centre, centre]) / stride),
                weight=mslsq.Scale(torch.ones(len(pixels))),
                name="features",
            ),
            Anchor(warp, start=self.kind.identity(1), weight=mslsq.Scale(torch.ones(())), name="anchor"),
        )

    def _every(self, count: int) -> int:
        return -(-count // self.samples)

    def levels(
        self, reference: Float[Tensor, "batch size size"], moving: Float[Tensor, "batch size size"]
    ) -> list[tuple[FeatureLevel, FeatureLevel]]:
        """Features of both, coarsest level first."""
        both = self.network(torch.cat([reference, moving]))
        count = len(reference)
        return [
            (
                FeatureLevel(level.features[:count], level.confidence[:count], level.stride),
                FeatureLevel(level.features[count:], level.confidence[count:], level.stride),
            )
            for level in both
        ]

    def solve_level(self, number: int, pair: tuple[FeatureLevel, FeatureLevel], start: Warp) -> mslsq.Solution:
        """One batched solve from `start` (batch,), which is taken as a constant."""
        fixed, moving = pair
        layer = self.layers[number]
        assert isinstance(layer, mslsq.LeastSquaresLayer)  # ModuleList forgets the type
        cost = layer.problem["features"]
        start = self.kind(start.storage.detach())
        every = self._every(fixed.features.shape[-1])
        weight = self._weight(fixed.confidence[:, ::every, ::every].flatten(1), moving.confidence, start, cost)
        count = weight.shape[-1]
        # The anchor weighs against the mean of the samples, whatever their number.
        trust = count**0.5 * torch.exp(self.log_trust[number])
        data = {
            "features": {
                "target": smoothed(fixed.features)[..., ::every, ::every].flatten(2).mT,
                "coefficients": moving.features,
                "weight": weight,
            },
            "anchor": {"start": self.kind(start.storage[:, None]), "weight": trust},
        }
        dims = {"features": {"target": 0, "coefficients": 0, "weight": 0}, "anchor": {"start": 0, "weight": None}}
        return layer({"warp": start}, data, in_dims=({"warp": 0}, dims))

    def _weight(
        self,
        fixed: Float[Tensor, "batch n"],
        moving: Float[Tensor, "batch height width"],
        start: Warp,
        cost: mslsq.CostFunction,
    ) -> Float[Tensor, "batch n"]:
        """sqrt of the product of both confidences at the start, zero outside the moving image; mean square one."""
        points, to_level = cost.get_buffer("point"), cost.get_buffer("to_level")
        at = self.kind(start.storage[:, None]).act(points) * to_level[0] + to_level[1:]
        height, width = moving.shape[-2:]
        scaled = 2 * at / at.new_tensor([width - 1, height - 1]) - 1
        seen = functional.grid_sample(moving[:, None], scaled[:, None], align_corners=True)[:, 0, 0]
        inside = (scaled.abs() <= 1).all(-1)
        product = torch.where(inside, fixed * seen, 0)
        return (product / product.mean(-1, keepdim=True).clamp(min=1e-6) + 1e-8).sqrt()

    def forward(
        self,
        reference: Float[Tensor, "batch size size"],
        moving: Float[Tensor, "batch size size"],
        start: Warp | None = None,
    ) -> list[Warp]:
        warp = (
            self.kind.identity(len(reference), dtype=reference.dtype, device=reference.device)
            if start is None
            else start
        )
        found = []
        for number, pair in enumerate(self.levels(reference, moving)):
            warp = self.solve_level(number, pair, warp).value["warp"]
            found.append(warp)
        return found


def smoothed(
    coefficients: Float[Tensor, "batch channels height width"],
) -> Float[Tensor, "batch channels height width"]:
    """The cubic B-spline of these coefficients at its own knots: (1, 4, 1)/6 along both axes, mirrored outside."""
    padded = functional.pad(coefficients, (1, 1, 1, 1), mode="reflect")
    rows = (padded[..., :-2, :] + 4 * padded[..., 1:-1, :] + padded[..., 2:, :]) / 6
    return (rows[..., :-2] + 4 * rows[..., 1:-1] + rows[..., 2:]) / 6
