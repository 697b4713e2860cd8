"""Warp's kernels as residuals: right under every transform of the first order, or refused with the rewrite."""

import importlib.util
from pathlib import Path

import pytest
import torch
from torch.func import hessian, jacfwd, jacrev, vmap

import mslsq
import mslsq.interop

pytest.importorskip("warp", reason="no Warp: pip install 'mslsq[warp]'", exc_type=ImportError)

HERE = Path(__file__).parent


def loaded(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


kernels = loaded(HERE / "kernels.py")
operator, cost, WarpError = mslsq.interop.warp.operator, mslsq.interop.warp.cost, mslsq.interop.warp.WarpError
X = torch.tensor([[0.3, -1.2], [1.1, 0.4], [-0.8, 2.0]], dtype=torch.float64)
S = torch.tensor([0.7, 1.3, -0.4], dtype=torch.float64)


def polar(x, s):
    return torch.stack([x[0] ** 2 * s, x[1] * x[0].sin()])


FORMS = {
    "Warp's adjoint": {},
    "adjoint by hand": {"adjoint": kernels.polar_adjoint},
    "tangent kernel": {"tangent": kernels.polar_tangent},
    "rows": {"tangent": "rows"},
    "differences": {"tangent": "differences"},
}
TRANSFORMS = {
    "plain": lambda f: f(X[0], S[0]),
    "vmap": lambda f: vmap(f)(X, S),
    "vmap of vmap": lambda f: vmap(vmap(f), (0, None))(torch.stack([X, 2 * X]), S),
    "vmap of jacrev": lambda f: vmap(jacrev(f))(X, S),
    "vmap of jacrev in s": lambda f: vmap(jacrev(f, 1))(X, S),
    "jacrev of vmap": lambda f: jacrev(lambda x: vmap(f)(x, S))(X),
    "one scale for all": lambda f: jacrev(lambda s: vmap(f, (0, None))(X, s))(S[1]),
    "lanes last": lambda f: vmap(jacrev(f), (-1, 0))(X.T, S),
    "a slice": lambda f: vmap(jacrev(f))(X.repeat_interleave(2, 0)[::2], S),
}
FORWARD = {
    "vmap of jacfwd": lambda f: vmap(jacfwd(f))(X, S),
    "jacfwd of vmap": lambda f: jacfwd(lambda s: vmap(f)(X, s))(S),
    "jacfwd": lambda f: jacfwd(f)(X[0], S[0]),
}


@pytest.mark.parametrize("form", FORMS)
def test_transforms_of_the_first_order_are_those_of_pytorch(form):
    function = operator(kernels.polar, **FORMS[form])
    for name, transform in TRANSFORMS.items() if "tangent" not in FORMS[form] else FORWARD.items():
        found, expected = transform(function), transform(polar)
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8, msg=lambda m, n=name: f"{n}: {m}")


def test_forward_mode_without_a_tangent_is_refused_by_name():
    with pytest.raises(NotImplementedError, match=r"polar has no derivative in forward mode: give tangent="):
        jacfwd(operator(kernels.polar))(X[0], S[0])


def test_second_derivatives_are_refused_by_name_or_by_differences():
    with pytest.raises(NotImplementedError, match="polar has no second derivative"):
        hessian(operator(kernels.polar, tangent="rows"))(X[0], S[0])
    found = vmap(hessian(operator(kernels.polar, second="differences")))(X, S)
    torch.testing.assert_close(found, vmap(hessian(polar))(X, S), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kernel", kernels.RIGHT, ids=lambda kernel: kernel.key)
def test_right_kernels_pass(kernel):
    x = torch.tensor([0.7, 1.3])
    function = operator(kernel)
    step = 1e-2
    expected = (vmap(function)(x + step) - vmap(function)(x - step)) / (2 * step)
    torch.testing.assert_close(vmap(jacrev(function))(x), expected, rtol=2e-3, atol=2e-3)


def test_the_gradient_of_components_is_that_of_all_of_them():
    gradient = torch.func.grad(lambda x: operator(kernels.components)(x).sum())
    assert float(gradient(torch.tensor(0.5))) == pytest.approx(2 + 3 + 4)


@pytest.mark.parametrize("kernel", kernels.WRONG, ids=lambda kernel: kernel.key)
def test_what_warp_differentiates_wrongly_is_found_in_the_source(kernel):
    with pytest.raises(WarpError, match=r"silently wrong\. Write instead") as raised:
        operator(kernel, constants={"n": 3} if "loop" in kernel.key else {})
    assert kernels.WRONG[kernel] in str(raised.value)


@pytest.mark.parametrize("kernel", [*kernels.WRONG, kernels.undocumented], ids=lambda kernel: kernel.key)
def test_and_by_differences_where_the_source_shows_nothing(kernel, monkeypatch):
    from mslsq.interop.warp import kernel_operator

    monkeypatch.setattr(kernel_operator, "refuse_wrong_patterns", lambda signature: None)
    function = operator(kernel, constants={"n": 3} if "loop" in kernel.key else {})
    with pytest.raises(mslsq.interop.operators.OperatorError, match="backward is wrong for 'x'"):
        vmap(jacrev(function))(torch.tensor([0.7, 1.3]))


def test_constants_and_outputs_of_two_axes():
    function = operator(kernels.moments, constants={"n": 3}, shapes={"y": (2,)})
    x = torch.tensor([[1.0, 2.0, 3.0], [0.5, -1.0, 2.0]])
    torch.testing.assert_close(vmap(function)(x), torch.stack([x.sum(1), x.square().sum(1)], 1))
    torch.testing.assert_close(vmap(jacrev(function))(x), torch.stack([torch.ones_like(x), 2 * x], 1))


def test_shared_arrays_have_no_lanes():
    function = operator(kernels.sampled, shared=("table",))
    table, at = torch.tensor([0.0, 1.0, 4.0, 9.0]), torch.tensor([0.5, 1.25, 2.75, 1.75])
    torch.testing.assert_close(vmap(function, (0, None))(at, table), torch.tensor([0.5, 1.75, 7.75, 3.25]))
    slopes = vmap(jacrev(function), (0, None))(at, table)
    torch.testing.assert_close(slopes, torch.tensor([1.0, 3.0, 5.0, 3.0]))
    found = torch.func.grad(lambda t: vmap(function, (0, None))(at, t).sum())(table)
    torch.testing.assert_close(found, torch.tensor([0.5, 0.5 + 0.75 + 0.25, 0.25 + 0.25 + 0.75, 0.75]))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: operator(lambda x: x), "decorated with @warp.kernel"),
        (lambda: operator(kernels.moments, shapes={"y": (2,)}), "constants={'n': ...}"),
        (lambda: operator(kernels.moments, constants={"n": 3}), "shapes={'y'"),
        (lambda: operator(kernels.moments, constants={"n": 3, "m": 1}), "no number 'm'; it has n"),
        (lambda: operator(kernels.sampled, shared=("tabel",)), "Did you mean 'table'"),
        (lambda: operator(kernels.sampled, shared=("at", "table")), "all inputs are shared"),
        (lambda: operator(kernels.sampled, outputs=("z",)), "no array 'z'"),
        (lambda: operator(kernels.without_backward), "enable_backward=False"),
        (lambda: operator(kernels.polar, adjoint=kernels.polar_tangent), "adj_x, adj_scale, adj_y"),
        (lambda: operator(kernels.polar, tangent=kernels.polar_adjoint), "tan_x, tan_scale, tan_y"),
        (lambda: operator(kernels.polar)(X[0].float(), S[0].float()), "nothing is rounded silently"),
        (lambda: operator(kernels.polar)(X[0, :1], S[0]), r"'x' has the axes \(lanes, 2\)"),
        (lambda: operator(kernels.polar, second="autograd"), "second must be one of"),
    ],
)
def test_mistakes_are_named(call, said):
    with pytest.raises(WarpError, match=said):
        call()


def test_a_cost_over_poses_finds_where_they_are():
    torch.manual_seed(0)
    beacons = 5 * torch.randn(30, 3)
    truth = torch.randn(3, 3)
    k = torch.arange(3).repeat_interleave(10)
    measured = torch.linalg.vector_norm(truth[k] - beacons, dim=-1)
    pose = mslsq.Variable("pose", mslsq.SE3, count=3)
    start = mslsq.SE3.identity(3)
    ranges = cost(kernels.distance)(pose[k], beacon=beacons, measured=measured)
    assert ranges.name == "distance"
    problem = mslsq.Problem(ranges, mslsq.Prior(pose, target=start, weight=1e-3))
    solution = mslsq.solve(problem, {"pose": start})
    assert solution.converged
    torch.testing.assert_close(solution.value["pose"].translation, truth, rtol=1e-4, atol=1e-5)


def image_problem(second=None):
    y, x = torch.meshgrid(torch.arange(40.0), torch.arange(50.0), indexing="ij")
    image = torch.sin(0.3 * x) + torch.cos(0.2 * y) + 0.3 * torch.sin(0.15 * x * 0.2 * y)
    at = torch.cartesian_prod(torch.arange(5.0, 40.0, 2), torch.arange(5.0, 30.0, 2)) + 0.25
    shift = mslsq.Variable("shift", mslsq.Euclidean(2))
    sampled = operator(kernels.sampled_image, shared=("image",))
    truth = torch.tensor([1.3, -0.7])
    seen = vmap(sampled, (None, 0, 0, None))(truth, at, torch.zeros(len(at)), image)
    kind = cost(kernels.sampled_image, shared=("image",), second=second)
    return mslsq.Problem(kind(shift, at=at, seen=seen, image=mslsq.Shared(image))), seen, truth


def test_a_picture_is_found_where_it_was_moved_to():
    problem, _, truth = image_problem()
    solution = mslsq.solve(problem, {"shift": torch.zeros(2)})
    torch.testing.assert_close(solution.value["shift"], truth, rtol=0, atol=1e-4)


def test_derivatives_through_a_solve_by_differences_of_the_adjoint():
    problem, seen, _ = image_problem(second="differences")

    def found(seen):
        return mslsq.solve(problem, {"shift": torch.zeros(2)}, data={"sampled_image": {"seen": seen}}).value["shift"]

    torch.manual_seed(0)
    direction = torch.randn_like(seen)
    leaf = seen.clone().requires_grad_()
    gradient = torch.autograd.grad(found(leaf)[0], leaf)[0] @ direction
    measured = (found(seen + 1e-2 * direction) - found(seen - 1e-2 * direction))[0] / 2e-2
    assert float(gradient) == pytest.approx(float(measured), rel=2e-2)
    with pytest.raises(mslsq.errors.SecondDerivativeError, match="second="):
        mslsq.solve(image_problem()[0], {"shift": torch.zeros(2)}, data={"sampled_image": {"seen": leaf}})


@pytest.mark.cuda
def test_on_cuda_the_same():
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    function = operator(kernels.polar)
    found = vmap(jacrev(function))(X.cuda(), S.cuda())
    torch.testing.assert_close(found.cpu(), vmap(jacrev(polar))(X, S))


def test_a_kernel_whose_lanes_know_of_each_other_is_refused():
    operator = mslsq.interop.warp.operator(kernels.first_of_all)
    with pytest.raises(ValueError, match="a lane has other results"):
        vmap(operator)(torch.tensor([1.5, 2.5]))


def test_a_rule_that_is_missing_is_called_as_warp_s_interface_calls_it():
    operator = mslsq.interop.warp.operator(kernels.first_of_all)
    with pytest.raises(NotImplementedError, match="give tangent="):
        jacfwd(operator)(torch.tensor(1.5))
    with pytest.raises(NotImplementedError, match=r"tangent=|second='differences'"):
        hessian(operator)(torch.tensor(1.5))
