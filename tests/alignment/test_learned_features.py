"""`metric="learned"`: what its network knows by construction, maps of any size and model, and files of weights."""

import numpy as np
import pytest
import scipy.ndimage
import torch

from mslsq.alignment import MapStatus, align, metrics, synthetic
from mslsq.alignment.measures import corner_error
from mslsq.alignment.metrics import LearnedFeatures, WeightsError, learned
from mslsq.alignment.metrics.network import REACH, FeatureNetwork
from mslsq.alignment.pyramid import Level


def some(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def whole(values):
    return Level(values, torch.ones(values.shape[1:], dtype=torch.bool), 1)


def test_the_weights_that_ship_are_small_and_finite():
    assert learned.SHIPPED.stat().st_size < 200_000
    assert LearnedFeatures.load() == LearnedFeatures() == metrics.METRICS["learned"]
    assert all(bool(value.isfinite().all()) for value in learned.shipped().parameters())


def test_a_negative_has_the_same_features():
    values = some(1, 40, 52)
    one, other = (LearnedFeatures().level(whole(part)).raster for part in (values, -3 * values))
    assert one.std() > 0.05
    assert torch.allclose(one, other, atol=1e-5)


def test_features_turn_with_the_map_at_any_angle():
    turned = synthetic.make_pair("camera", "se2", seed=4, size=128, shift=0.0, degrees=45.0, noise=0.0)
    levels = [whole((image - image.mean())[None] / image.std()) for image in (turned.reference, turned.moving)]
    one, other = (LearnedFeatures().level(level) for level in levels)
    y, x = torch.meshgrid(*[torch.arange(40.0, 88.0, dtype=torch.float64)] * 2, indexing="ij")
    at = torch.stack([x, y, torch.ones_like(x)], -1) @ turned.transform.T
    there = torch.nn.functional.grid_sample(
        other.raster[None], (at[None, ..., :2] * 2 / 127 - 1), align_corners=True, mode="bicubic"
    )
    both = torch.stack([one.raster[0, 40:88, 40:88].flatten(), there.flatten()])
    assert torch.corrcoef(both)[0, 1] > 0.9


def test_a_feature_sees_no_farther_than_its_reach():
    network, values = FeatureNetwork(4).double(), some(1, 1, 64, 64)
    other = values.clone()
    other[..., 0] += 5.0
    changed = (network(values) != network(other)).any(2).flatten()
    assert bool(changed[REACH]) and not bool(changed[REACH + 1 :].any())


def test_strips_of_a_large_map_have_the_features_of_the_whole(monkeypatch):
    network, maps = learned.shipped(), some(2, 1, 150, 30).float()
    monkeypatch.setattr(learned, "STRIP", 32)
    assert torch.allclose(learned.in_strips(network, maps), network(maps), atol=1e-5)


def test_features_have_the_derivatives_of_finite_differences():
    torch.manual_seed(1)
    network = FeatureNetwork(3).double()
    values = some(1, 1, 9, 8).requires_grad_()
    assert torch.autograd.gradcheck(network, values, atol=1e-6)
    # and through all that is done to a level, in single precision
    level = whole(some(1, 24, 24)).raster.requires_grad_()
    LearnedFeatures().level(whole(level)).raster.square().sum().backward()
    assert bool(level.grad.isfinite().all()) and bool(level.grad.abs().max() > 0)


@pytest.mark.parametrize(
    ("model", "size", "within"), [("translation", 64, 0.3), ("sim2", 160, 0.2), ("affine", 160, 0.3)]
)
def test_negatives_of_any_size_are_placed_by_any_model(model, size, within):
    pair = synthetic.make_pair("coffee", model, seed=3, size=size, shift=6.0)
    moving = 1.0 - pair.moving[: size - 9]
    result = align([pair.reference, moving], model=model, metric=LearnedFeatures.load())
    assert result.metrics == ["", "learned"], result.message()
    assert corner_error(result.transforms[1], pair.transform, size, size) < within
    assert float(result.gain[1]) < 0


def test_a_map_of_classes_is_believed_by_its_lead_and_not_without_one():
    pair = synthetic.make_pair("coffee", "se2", seed=3, size=128, shift=8.0)
    smooth = scipy.ndimage.gaussian_filter(pair.moving.numpy(), 1.5)
    which = np.digitize(smooth, np.quantile(smooth, (0.25, 0.5, 0.75)))
    maps = pair.reference, scipy.ndimage.gaussian_filter(np.array([0.35, 1.0, 0.0, 0.65])[which], 0.8)
    result = align(maps, model="se2", metric="learned")
    assert corner_error(result.transforms[1], pair.transform, 128, 128) < 0.3, result.message()
    assert float(result.ncc[1]) < 0.5 and float(result.lead[1]) >= LearnedFeatures.sure
    # Where the place is said, no other is compared with it, and all of the agreement is asked.
    said = torch.stack([torch.eye(3, dtype=torch.float64), pair.transform])
    assert align(maps, model="se2", metric="learned", init=said).status[1] == MapStatus.LOW_CORRELATION


def test_channels_are_seen_one_by_one():
    values = some(1, 30, 34)
    one, both = (LearnedFeatures().level(whole(part)).raster for part in (values, torch.cat([values, -values])))
    assert both.shape == one.shape and torch.allclose(one, both, atol=1e-5)


def test_weights_are_read_as_they_were_written(tmp_path):
    network = FeatureNetwork(5).half().float()
    path = learned.write_weights(tmp_path / "mine.npz", network)
    metric = LearnedFeatures.load(path)
    values = some(1, 1, 20, 20).float()
    assert torch.equal(metric.network(values), network(values))
    assert metric != LearnedFeatures() and not any(p.requires_grad for p in metric.network.parameters())


class Harmful:
    def __reduce__(self):
        return (pytest.fail, ("a file of weights was run",))


def bad_files():
    good = {name: value.numpy() for name, value in FeatureNetwork(2).state_dict().items()}
    yield "there is none", None, "There are no weights"
    yield "text", b"weights", "it is no .npz of arrays"
    yield "cut", "cut", "it is no .npz of arrays"
    yield "other arrays", {"a": np.ones(3)}, "no weights of a FeatureNetwork: it has a"
    yield "pickled", good | {"head.bias": np.array([Harmful()])}, "it is no .npz of arrays"
    yield "another shape", good | {"head.bias": np.zeros(2, "f4")}, r"head.bias is \(2,\), not \(1,\)"
    yield "too few", {name: good[name] for name in good if name != "head.bias"}, "head.bias is None"
    yield "not finite", good | {"head.bias": np.full(1, np.nan, "f4")}, "head.bias holds what is no finite number"
    yield "integers", good | {"head.bias": np.ones(1, "i4")}, "is of dtype int32"
    yield "far too wide", good | {"first.bias": np.zeros(100_000, "f4")}, "no weights of a FeatureNetwork"


@pytest.mark.parametrize(("content", "says"), [case[1:] for case in bad_files()], ids=[case[0] for case in bad_files()])
def test_a_file_that_holds_no_weights_is_refused(content, says, tmp_path):
    path = tmp_path / "bad.npz"
    if isinstance(content, dict):
        np.savez(path, **content)
    elif content == "cut":
        path.write_bytes(learned.SHIPPED.read_bytes()[:2000])
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(WeightsError, match=says):
        LearnedFeatures.load(path)
