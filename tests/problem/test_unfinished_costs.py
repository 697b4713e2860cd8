"""Classes of costs that cannot work are refused where they are made or first used, with what to write."""

# Wrong on purpose.
# pyright: reportArgumentType=false, reportCallIssue=false, reportIncompatibleMethodOverride=false

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

import mslsq
from mslsq.errors import DeviceError, ProblemError

F64 = torch.float64
X = mslsq.Variable("x", mslsq.Euclidean(2), count=3)
POSE = mslsq.Variable("pose", mslsq.SE3, count=3)
POSES = torch.tensor([[0.0, 0, 0, 0, 0, 0, 1]], dtype=F64).expand(3, 7)


class Silent(mslsq.CostFunction):
    def __init__(self, x):
        self.scale = 2.0

    def residual(self, x):
        return self.scale * x


class ModuleAlone(Silent):
    def __init__(self, x):
        nn.Module.__init__(self)


class Early(Silent):
    def __init__(self, x):
        self.net = nn.Linear(2, 2)
        super().__init__(x)


@dataclasses.dataclass(eq=False)
class Fields(mslsq.CostFunction):
    x: mslsq.Variable
    target: torch.Tensor

    def residual(self, x, target):
        return x - target


@dataclasses.dataclass(eq=False)
class Again(Fields):
    def __post_init__(self):
        mslsq.CostFunction.__init__(self, self.x, target=self.target)


class Late(mslsq.CostFunction):
    def forward(self, x):
        return x


class NoSelf(mslsq.CostFunction):
    def residual(x):
        return x


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Silent(X), ["Silent", "super().__init__("]),
        (lambda: ModuleAlone(X), ["ModuleAlone", "super().__init__("]),
        (lambda: Early(X), ["Early", "'net'", "super().__init__("]),
        (lambda: Fields(X, torch.zeros(3, 2)), ["Fields", "@dataclass"]),
        (lambda: Again(X, torch.zeros(3, 2)), ["'again'", "'target'", "self.target"]),
        (lambda: NoSelf(X), ["no_self", "self, missing?"]),
    ],
)
def test_a_cost_that_is_not_complete_says_what_is_missing(make, words):
    with pytest.raises(ProblemError) as caught:
        mslsq.Problem(make())
    for word in words:
        assert word in str(caught.value)


def test_check_jacobian_and_a_constraint_say_so_too():
    for use in (mslsq.Equality, mslsq.check_jacobian, repr):
        with pytest.raises(ProblemError, match=r"Silent.*super\(\)"):
            use(Silent(X))


def test_a_residual_that_is_called_otherwise_is_found():
    with pytest.raises(NotImplementedError, match=r"Late must define residual\(self.*'forward'"):
        Late(X)


def test_slots_are_refused():
    with pytest.raises(ProblemError, match=r"Slotted.*__slots__"):

        class Slotted(mslsq.CostFunction):
            __slots__ = ("scale",)


class Relative(mslsq.CostFunction):
    def residual(self, a, b, measured):
        return (measured.inverse() @ (a.inverse() @ b)).log()


@pytest.mark.parametrize("kind", [mslsq.Between, Relative])
@pytest.mark.parametrize(
    ("measured", "words"),
    [(POSES[:2], "measured=mslsq.SE3(...)"), (torch.eye(4).expand(2, 4, 4), "measured=mslsq.SE3.from_matrix(...)")],
)
def test_numbers_in_the_place_of_elements_are_told_how_to_become_some(kind, measured, words):
    with pytest.raises(ProblemError) as caught:
        mslsq.Problem(kind(POSE[[0, 1]], POSE[[1, 2]], measured=measured))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Relative(POSE[0], POSE[1], POSES[:1]), ["'relative'", "not Tensor", "measured=..."]),
        (lambda: mslsq.Prior(POSE[0], mslsq.SE3(POSES[:1]), 0.1), ["'prior'", "not SE3, float", "target=..."]),
        (
            lambda: mslsq.Between(POSE[0], POSE[1], measured=mslsq.SE3(POSES[0])),
            ["single element of SE3", "(blocks, 7)"],
        ),
        (lambda: mslsq.Problem([mslsq.Prior(POSE, target=mslsq.SE3(POSES))]), ["mslsq.Problem(*costs)"]),
        (lambda: POSE.fixed("0"), ["'pose'", "not '0'"]),
        (lambda: mslsq.Variable("x", 2), ["mslsq.Euclidean(2)"]),
    ],
)
def test_what_is_given_in_another_librarys_way_is_told_ours(make, words):
    with pytest.raises(ValueError) as caught:
        make()
    for word in words:
        assert word in str(caught.value)


def test_a_jacobian_of_numpy_is_not_called_a_residual_without_derivative():
    def jac(p):
        return torch.from_numpy(-np.exp(-p.numpy())[:, None])

    with pytest.raises(mslsq.errors.UndifferentiableResidualError, match=r"Jacobian that was given for.*jac="):
        mslsq.least_squares(lambda p: torch.exp(-p) - 1, torch.ones(1), jac=jac)


def test_a_layer_says_at_once_what_its_options_are():
    problem = mslsq.Problem(mslsq.Prior(X, target=torch.zeros(3, 2)))
    with pytest.raises(TypeError, match=r"adjoint must be an Adjoint.*Implicit\(\)"):
        mslsq.LeastSquaresLayer(problem, adjoint="implicit")
    with pytest.raises(TypeError, match=r"LeastSquaresLayer has no option 'backward_mode'.*Implicit\(\)"):
        mslsq.LeastSquaresLayer(problem, backward_mode="implicit")
    with pytest.raises(TypeError, match="solver must be a Solver"):
        mslsq.LeastSquaresLayer(problem, solver="lm")


def test_a_start_without_numbers_is_refused():
    nowhere = torch.ones(3, 2, device="meta")
    with pytest.raises(DeviceError, match="x0 is on the device meta"):
        mslsq.least_squares(lambda p: p - 1, nowhere)
    with pytest.raises(DeviceError, match="'x': the start is on the device meta"):
        mslsq.solve(mslsq.Problem(mslsq.Prior(X, target=nowhere)), {"x": nowhere})
    with pytest.raises(ProblemError, match=r"args\[0\] is on meta, the start on cpu"):
        mslsq.least_squares(lambda p, y: p - y, torch.ones(3, 2), (nowhere,))


class Proxy:
    """Answers nothing that it does not find in what it has not."""

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def __call__(self, p):
        return p - 1


class Anything(Proxy):
    def __getattr__(self, name):
        return 3


@pytest.mark.parametrize("kind", [Proxy, Anything])
def test_a_residuals_own_getattr_is_not_asked(kind):
    assert torch.allclose(mslsq.least_squares(kind(), torch.zeros(2)).value, torch.ones(2))
