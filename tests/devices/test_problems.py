"""Problems of cost functions on another device: the CPU's numbers, whatever solves the normal equations."""

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor

import mslsq
from mslsq.alignment import align, synthetic
from mslsq.datasets import ring_graph
from tests.devices.claimed import NAME, REAL, Device, assert_same, there
from tests.devices.doors import LINEAR, Scene, normal
from tests.devices.elsewhere import elsewhere

pytestmark = pytest.mark.fake_cuda


def adjusted(place: Any, loss: Any = None, **options: Any) -> tuple[Scene, mslsq.Solution]:
    scene = Scene(place, loss=loss)
    return scene, scene.solved(**options)


def unmoved(tree: Any) -> Any:
    return tree


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", LINEAR)
@elsewhere
def test_bundle_adjustment_and_its_gradient(name: str, device: Device):
    def gradient(place: Any) -> tuple[Any, Tensor | None]:
        scene, solution = adjusted(place, solver=mslsq.LevenbergMarquardt(linear_solver=LINEAR[name]))
        solution.value["point"].square().sum().backward()
        return solution.value, scene.pixel.grad

    # Elsewhere conjugate gradients make other iterations (`iterative.allowance`): the end is another within tolerances.
    assert_same(gradient(there), gradient(unmoved), rtol=1e-6 if LINEAR[name].iterates else 1e-7)


@elsewhere
def test_what_is_told_of_a_solution(device: Device):
    def told(place: Any) -> tuple[Any, ...]:
        scene, solution = adjusted(place)
        problem = scene.problem
        mslsq.explain(problem, solution.value)
        return (
            mslsq.covariance(problem, solution, "camera"),
            mslsq.covariance(problem, solution, ["camera", "point"]),
            mslsq.evaluate(problem, solution.value).cost,
            problem.residuals(solution.value),
        )

    assert_same(told(there), told(unmoved))


@elsewhere
def test_numbers_and_indices_follow_the_data(device: Device):
    """`Huber(0.001)`, `Scale(100.0)` and `cameras[:2]` are made on the CPU, whatever the data are on."""
    options = {"loss": mslsq.Huber(0.001), "solver": mslsq.LevenbergMarquardt(max_steps=4)}
    assert_same(adjusted(there, **options)[1].value, adjusted(unmoved, **options)[1].value)


@elsewhere
def test_a_problem_is_moved_with_its_indices(device: Device):
    graph = ring_graph(laps=2, per_lap=6).graph
    problem = graph.problem(loss=mslsq.Huber(1.0))
    expected = mslsq.solve(problem, {"pose": graph.poses})
    problem.to(f"{NAME}:0")
    indices = [block.index for cost in problem for block in cost.references if isinstance(block.index, Tensor)]
    assert indices and all(index.device.type == NAME for index in indices)
    found = mslsq.solve(problem, {"pose": there(graph.poses)})
    assert_same((found.value, found.cost), (expected.value, expected.cost))


@pytest.mark.skipif(REAL is not None, reason="counted on the claimed device alone")
@elsewhere
def test_an_index_of_a_device_is_asked_once_for_both_of_its_ends(device: Device):
    blocks, index = mslsq.Variable("pose", mslsq.Euclidean(2), count=3), there(torch.tensor([2, 0, 1]))
    device.transfers.clear()
    kept = blocks[index].index
    assert isinstance(kept, Tensor) and kept.device.type == NAME
    assert device.transfers.total() == 1
    with pytest.raises(mslsq.errors.IndexRangeError, match="entry 1 of the index is 3"):
        blocks[there(torch.tensor([0, 3]))]


@elsewhere
def test_data_on_two_devices_are_refused_by_name(device: Device):
    pose = mslsq.Variable("pose", mslsq.Euclidean(2), count=3)
    prior = mslsq.Prior(pose, target=normal(0, 3, 2), name="here")
    moved = mslsq.Prior(pose, target=there(normal(0, 3, 2)), name="there")
    with pytest.raises(mslsq.errors.DeviceError, match=r"there.to\('cpu'\)"):
        mslsq.Problem(prior, moved)


@pytest.mark.skipif(find_spec("imageio") is None, reason="the bundled rasters need the extra align")
@elsewhere
def test_maps_are_aligned_on_the_cpu_wherever_they_are(device: Device):
    pair = synthetic.make_pair("camera", "translation", seed=1, size=64)
    maps, options = [pair.reference, pair.moving], {"model": "translation"}
    found, known = align(there(maps), **options), align(maps, **options)
    torch.testing.assert_close(found.transforms, known.transforms, rtol=0, atol=0)
