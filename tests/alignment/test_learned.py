"""Learned features for alignment: pairs, pyramid, costs, and derivatives through the whole of it."""

from typing import Any

import numpy as np
import pytest
import torch

import mslsq
from mslsq.alignment.learned import (
    TEST,
    TRAIN,
    FeatureLevel,
    FeaturePyramid,
    LearnedAligner,
    PairSource,
    corner_errors,
    training_loss,
)
from mslsq.alignment.learned.layer import Anchor, smoothed
from mslsq.alignment.learned.pairs import DETAIL, resampled, weakest_slope
from mslsq.alignment.models import MODELS
from mslsq.alignment.sampling import sample_at

pytest.importorskip("imageio")


def slopes(image):
    return np.hypot(*np.gradient(image))


def test_no_image_is_both_trained_and_tested_on():
    assert not set(TRAIN) & set(TEST)


def test_a_batch_is_a_function_of_seed_and_number():
    source = PairSource(("camera",), size=33)
    one, again, other = source.batch(3, 5, 2), source.batch(3, 5, 2), source.batch(3, 5, 3)
    assert torch.equal(one.reference, again.reference) and torch.equal(one.moving, again.moving)
    assert one.kinds == again.kinds
    assert not torch.equal(one.reference, other.reference)


def test_the_true_warp_brings_edges_together_whatever_the_appearance():
    batch = PairSource(TRAIN, noise=0.0).batch(24, 1, 0)
    better = 0
    for reference, moving, truth in zip(batch.reference, batch.moving, batch.transform, strict=True):
        fixed, moved = reference.double().numpy(), moving.double().numpy()
        back = resampled(moved, np.linalg.inv(truth.double().numpy()), 0, len(fixed))
        inner = np.s_[14:-14, 14:-14]  # inside whatever the warp moved in from beyond the border
        agreement = [np.corrcoef(slopes(fixed)[inner].ravel(), slopes(m)[inner].ravel())[0, 1] for m in (moved, back)]
        better += agreement[1] > agreement[0]
    assert better >= 20


def test_pairs_hold_something_to_align_by():
    batch = PairSource(("astronaut",), noise=0.0).batch(8, 0, 0)  # a quarter of this picture is smooth
    for crop in (*batch.reference, *batch.moving):
        assert weakest_slope(crop.double().numpy()) > DETAIL


@pytest.mark.parametrize("size", [33, 50])
def test_the_pyramid_keeps_the_first_pixel_and_the_stride(size):
    levels = FeaturePyramid(strides=(8, 4, 2, 1), channels=3, width=8)(torch.rand(2, size, size + 3))
    for level in levels:
        assert level.features.shape == (2, 3, (size - 1) // level.stride + 1, (size + 2) // level.stride + 1)
        assert level.features.norm(dim=1).allclose(torch.ones(()))
        assert ((level.confidence > 0) & (level.confidence < 1)).all()


def test_targets_are_the_spline_at_its_own_knots():
    coefficients = torch.rand(2, 3, 7, 9, dtype=torch.float64)
    y, x = torch.meshgrid(torch.arange(7.0), torch.arange(9.0), indexing="ij")
    points = torch.stack([x, y], -1).reshape(-1, 2).double()
    expected = torch.stack([sample_at(c, points) for c in coefficients]).reshape(2, 3, 7, 9)
    assert smoothed(coefficients).allclose(expected)


@pytest.mark.parametrize("model", ["translation", "se2", "sim2"])
def test_the_anchor_knows_its_jacobian(model):
    kind = MODELS[model]
    generator = torch.Generator().manual_seed(0)
    start, warp = (
        kind.identity(dtype=torch.float64).retract(
            torch.randn(kind.tangent_dim, generator=generator, dtype=torch.float64)
        )
        for _ in range(2)
    )
    zero = torch.zeros(kind.tangent_dim, dtype=torch.float64)
    expected = torch.func.jacfwd(lambda delta: start.local(warp.retract(delta)))(zero)
    anchor: Any = None  # it uses nothing of itself
    (found,) = Anchor.jacobians(anchor, warp, start)
    assert found.allclose(expected, atol=1e-12)


def tiny(**options):
    torch.manual_seed(0)
    return LearnedAligner(size=33, strides=(4, 2), channels=3, width=8, samples=9, **options).double()


def doubled(batch):
    return batch.reference.double(), batch.moving.double()


def test_an_image_on_itself_stays_where_it_is():
    aligner = tiny()
    image, _ = doubled(PairSource(("camera",), size=33).batch(2, 0, 0))
    for warp in aligner(image, image):
        assert warp.matrix().allclose(torch.eye(3, dtype=torch.float64), atol=1e-9)


def test_derivatives_in_features_and_confidence_agree_with_finite_differences():
    # Solved to the end; one level, features and confidence of both images at once.
    aligner = tiny(adjoint=mslsq.Implicit(order=1))
    solver = mslsq.LevenbergMarquardt(max_steps=200, ftol=0, xtol=1e-14, gtol=1e-12, trace="never")
    layer: Any = aligner.layers[0]
    layer.solver = solver
    reference, moving = doubled(PairSource(("camera",), size=33, shift=1.0, degrees=2.0).batch(2, 0, 0))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():  # the network's rectifiers have kinks, which differences do not forgive
        levels, _ = aligner.levels(reference, moving)
    directions = [0.1 * torch.randn(level.features.shape, generator=generator).double() for level in levels]

    def answer(amount):
        pair = [
            FeatureLevel(level.features + amount * d, (level.confidence + 0.1 * amount * d[:, 0]), level.stride)
            for level, d in zip(levels, directions, strict=True)
        ]
        solution = aligner.solve_level(0, (pair[0], pair[1]), aligner.kind.identity(2, dtype=torch.float64))
        assert solution.converged.all()
        return (solution.value["warp"].storage * torch.tensor([1.0, 2.0, 3.0, 4.0])).sum()

    amount = torch.zeros((), dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(answer(amount), amount)
    step = 1e-4
    with torch.no_grad():
        expected = (answer(amount + step) - answer(amount - step)) / (2 * step)
    assert abs(float(found - expected)) < 1e-4 * abs(float(expected))


def test_every_parameter_learns_from_the_corner_error():
    aligner = tiny()
    source = PairSource(("camera", "brick"), size=33, shift=2.0)
    batch = source.batch(4, 0, 0)
    batch = type(batch)(*doubled(batch), batch.transform.double(), batch.kinds, batch.images)
    loss, errors = training_loss(aligner, batch, torch.Generator().manual_seed(0))
    loss.backward()
    for name, parameter in aligner.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name
    assert len(errors) == 2
    assert errors[0].shape == (4,)


def test_corner_errors_are_pixels():
    aligner = tiny()
    truth = torch.eye(3, dtype=torch.float64).repeat(1, 1, 1)
    truth[0, 0, 2] = 3.0
    assert float(corner_errors(aligner, aligner.kind.identity(1, dtype=torch.float64), truth)) == pytest.approx(3.0)
