"""The `>>>` examples in the docstrings of the public names run as they are written, in a scene with the names that they
assume: poses, points, indices, a problem. An example that states no output need only run."""

import doctest
import inspect
import warnings
from typing import Any

import pytest
import torch

import mslsq
from mslsq.alignment import align

PUBLIC = {name: getattr(mslsq, name) for name in mslsq.__all__ if callable(getattr(mslsq, name))} | {"align": align}
PUBLIC |= {f"linear.{name}": getattr(mslsq.linear, name) for name in mslsq.linear.__all__}
EXAMPLES = {name: doctest.DocTestParser().get_examples(inspect.getdoc(what) or "") for name, what in PUBLIC.items()}
MAIN = [
    "least_squares",
    "curve_fit",
    "solve",
    "Variable",
    "CostFunction",
    "cost",
    "Shared",
    "Problem",
    "Prior",
    "Between",
    "Difference",
    "Reprojection",
    "SnavelyReprojection",
    "LeastSquaresLayer",
    "RobustLoss",
    "covariance",
    "check_jacobian",
    "explain",
    "align",
]


def scene(name: str) -> dict[str, Any]:
    """What examples take for granted. `explain` shows a chain of planar poses, the others a graph of poses in space."""
    generator = torch.Generator().manual_seed(0)
    group: Any = mslsq.SE2 if name == "explain" else mslsq.SE3
    poses = group.random(5, generator=generator)
    i, j = torch.tensor([0, 1, 2, 3]), torch.tensor([1, 2, 3, 4])
    pose, point = mslsq.Variable("pose", group, count=5), mslsq.Variable("point", mslsq.Euclidean(3), count=5)
    between = mslsq.Between(pose[i], pose[j], measured=poses[i].between(poses[j]))
    problem = mslsq.Problem(between) if name == "explain" else mslsq.Problem(between, pose.fixed([0]))

    @mslsq.cost
    def sampled(warp: Any, image: Any, pixel: Any) -> Any:
        return image[0, :1] * warp[:1] - pixel[:1]

    return {
        "torch": torch,
        "mslsq": mslsq,
        **{known: getattr(mslsq, known) for known in mslsq.__all__ if known != "cost"},
        "generator": generator,
        "pose": pose,
        "poses": poses,
        "point": point,
        "height": mslsq.Variable("height", mslsq.Euclidean(1), count=5),
        "levelled": torch.zeros(4, 1),
        "sigma": torch.ones(1),
        "i": i,
        "j": j,
        "T_ij": poses[i].between(poses[j]),
        "T0": poses,
        "uv": torch.zeros(4, 2),
        "Sampled": sampled,
        "warp": mslsq.Variable("warp", mslsq.Euclidean(2)),
        "image": torch.ones(4, 4),
        "pixels": torch.zeros(6, 2),
        "cost": between,
        "problem": problem,
        "solution": mslsq.solve(problem, {"pose": poses}) if name == "covariance" else None,
        "network": lambda images: poses[i].between(poses[j]).retract(images),
        "images": torch.zeros(4, 6, requires_grad=True),
        "loss": lambda found: found.translation.square().sum(),
    }


class Lenient(doctest.OutputChecker):
    """No output stated: any will do."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        return not want or super().check_output(want, got, optionflags)


@pytest.mark.parametrize("name", [name for name, examples in EXAMPLES.items() if examples])
def test_the_examples_of_a_docstring_run(name):
    test = doctest.DocTest(EXAMPLES[name], scene(name), name, None, 0, None)
    runner = doctest.DocTestRunner(Lenient(), optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    report: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        result = runner.run(test, out=report.append)
    assert result.failed == 0, "".join(report)


@pytest.mark.parametrize("name", MAIN)
def test_the_main_names_have_an_example(name):
    assert EXAMPLES[name]


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_says_what_it_is(name):
    own = PUBLIC[name].__doc__
    assert own and not own.startswith(f"{name}(")  # a dataclass without a docstring gets its signature for one
