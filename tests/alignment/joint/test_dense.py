"""The solve of all maps from all pixels: its derivatives, its passes, its standard errors."""

import numpy as np
import pytest
import torch

from mslsq.alignment import synthetic
from mslsq.alignment.descent import UNFINISHED, step_matrix
from mslsq.alignment.joint.dense import Dense, settle, weights_of
from mslsq.alignment.joint.overlap import Overlap
from mslsq.alignment.joint.sandwich import covariance
from mslsq.alignment.joint.state import Coordinates, State
from mslsq.alignment.linking import Linker
from mslsq.alignment.models import MODELS
from mslsq.alignment.mosaics import cut
from mslsq.alignment.options import Options
from mslsq.alignment.prepared import prepare
from mslsq.alignment.tangents import adjoint


def base():
    raster = synthetic.base_raster("camera")
    return (raster - raster.min()) / np.ptp(raster)


def dense_of(model, value="gain_bias", loss=None, seed=0):
    """Three maps at the truth (values near it), and what is to be solved."""
    mosaic = cut(base(), [(200, 200), (230, 210), (215, 240)], 72, seed, model=model)
    linker = Linker(prepare(mosaic.maps, None)[0], Options(model=model, value=value, loss=loss), "auto")
    frame = linker.frame(0)
    coordinates = Coordinates(frame, {i: linker.frame(i) for i in range(3)}, MODELS[model])
    random = np.random.default_rng(seed)
    warps = frame.from_pixels(mosaic.transforms).numpy()
    state = State(warps / warps[:, 2:, 2:], 0.1 * random.standard_normal((3, 2)))
    pairs = [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)]
    overlaps = [Overlap.of(linker, *pair, coordinates.between(state, *pair), reference=0) for pair in pairs]
    free = np.ones((3, MODELS[model].tangent_dim + 2))
    free[0], free[:, -2:] = 0, free[:, -2:] * overlaps[0].freedom
    free[0] = 0
    return Dense(overlaps, weights_of(overlaps), coordinates, free, linker.options.correlated), state


@pytest.mark.parametrize("model", list(MODELS))
def test_the_adjoint_carries_a_step_across(model):
    kind = MODELS[model]
    random = np.random.default_rng(0)
    X = np.array([[1.3, 0, 0.2], [0, 1.3, -0.4], [0, 0, 1]]) @ step_matrix(
        kind, 0.3 * random.standard_normal(kind.tangent_dim)
    )
    xi = 1e-5 * random.standard_normal(kind.tangent_dim)
    turned = X @ step_matrix(kind, xi) @ np.linalg.inv(X)
    expected = step_matrix(kind, adjoint(X, kind.tangent_dim) @ xi)
    np.testing.assert_allclose(turned / turned[2, 2], expected, atol=1e-9)  # second order in 1e-5


@pytest.mark.parametrize("model", list(MODELS))
def test_the_gradient_is_that_of_finite_differences(model):
    dense, state = dense_of(model)
    gradient = dense.system(state).gradient.reshape(dense.free.shape)
    h = 1e-6
    for index, k in [(0, 0), (1, 1), (2, dense.free.shape[1] - 3), (1, -2), (0, -2), (2, -1), (0, -1)]:
        step = np.zeros(dense.free.shape)
        step[index, k] = h
        kind = dense.coordinates.kind
        both = [dense.system(state.moved(kind, sign * step)).cost for sign in (1, -1)]
        assert (both[0] - both[1]) / (2 * h) == pytest.approx(gradient[index, k], rel=2e-4, abs=1e-2)


@pytest.mark.parametrize("loss", [None, "cauchy"])
def test_a_pass_by_samples_is_that_of_the_kernel(loss, monkeypatch):
    from mslsq.alignment import passes

    dense, state = dense_of("affine", loss=loss)
    overlap = dense.overlaps[1]
    if loss is not None:
        overlap = Overlap(**{**vars(overlap), "loss": "cauchy"})
    at = dense.coordinates.between(state, 1, 0)
    by_kernel = overlap.normal_equations(at)
    monkeypatch.setattr(passes, "knows", lambda *_: False)
    by_samples = overlap.normal_equations(at)
    assert by_samples.cost == pytest.approx(by_kernel.cost, rel=1e-9)
    np.testing.assert_allclose(by_samples.gradient, by_kernel.gradient, rtol=1e-7, atol=1e-7)
    if loss is None:  # the kernel keeps some of a loss's curvature
        np.testing.assert_allclose(by_samples.matrix, by_kernel.matrix, rtol=1e-9, atol=1e-7)


def test_no_gauge_changes_the_cost():
    dense, state = dense_of("sim2")
    cost = dense.system(state).cost
    louder = State(state.warps, np.stack([state.values[:, 0] + 0.3, np.exp(0.3) * state.values[:, 1] - 0.2], -1))
    assert dense.system(louder).cost == pytest.approx(cost, rel=1e-12)


@pytest.mark.parametrize(("value", "held"), [("gain_bias", []), ("gain", [-1]), ("bias", [-2]), ("none", [-1, -2])])
def test_the_solve_moves_what_is_free_alone(value, held):
    dense, state = dense_of("sim2", value=value)
    settled = settle(dense, state, 50)
    assert settled.status not in UNFINISHED
    assert settled.costs[-1] < settled.costs[0] or value == "none"
    np.testing.assert_array_equal(settled.state.warps[0], state.warps[0])
    for k in held:
        np.testing.assert_array_equal(settled.state.values[:, k], state.values[:, k])


def test_standard_errors_are_symmetric_positive_and_zero_for_what_is_held():
    dense, state = dense_of("sim2")
    state = settle(dense, state, 50).state
    spread = covariance(dense, state, {0: np.zeros((4, 4))}).reshape(12, 12)
    free = dense.free[:, :-2].reshape(-1) > 0
    assert np.abs(spread[~free]).max() == 0 and not spread[:, ~free].any()
    np.testing.assert_allclose(spread, spread.T, atol=1e-12 * spread.max())
    assert np.linalg.eigvalsh(spread[np.ix_(free, free)]).min() > 0
    assert torch.tensor(spread).isfinite().all()


def test_errors_of_a_map_that_is_held_are_those_of_what_hangs_on_it():
    """Where all maps see the same, a shift of the one that is held shifts all others alike."""
    dense, state = dense_of("translation")
    state = settle(dense, state, 50).state
    own = covariance(dense, state, {0: np.zeros((2, 2))})
    shaken = covariance(dense, state, {0: np.diag([4e-4, 9e-4])}) - own
    for one, other in [(1, 1), (1, 2), (2, 2)]:
        np.testing.assert_allclose(shaken[one, :, other], np.diag([4e-4, 9e-4]), rtol=0.05, atol=2e-5)
