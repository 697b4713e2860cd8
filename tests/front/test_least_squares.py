"""`least_squares` answers what SciPy answers, in the types of its start, and says what is wrong with its arguments."""

# Wrong arguments on purpose.
# pyright: reportArgumentType=false

import numpy as np
import pytest
import scipy.optimize
import torch
from torch import nn

import mslsq
from mslsq.problem import ProblemError
from mslsq.tracing.inplace import InPlaceResidualWarning

F64 = torch.float64
T = torch.linspace(0, 1, 24, dtype=F64)
P = torch.tensor([2.0, -1.5, 0.3], dtype=F64)
START = torch.tensor([1.0, -1.0, 0.0], dtype=F64)


def noisy(seed: int = 0, size: float = 0.05) -> torch.Tensor:
    noise = torch.randn(24, generator=torch.Generator().manual_seed(seed), dtype=F64)
    return model(P, T) + size * noise


def model(p, t):
    return p[0] * torch.exp(p[1] * t) + p[2]


def residual(p, t, y):
    return model(p, t) - y


def scipy_answer(fun, start, **options):
    def numbers(x):
        return fun(torch.as_tensor(x, dtype=F64)).numpy()

    tight = {"ftol": 1e-15, "xtol": 1e-15, "gtol": 1e-15, "jac": "3-point", **options}
    return scipy.optimize.least_squares(numbers, start.numpy(), **tight)


TIGHT = mslsq.LevenbergMarquardt(ftol=1e-15, gtol=1e-12, xtol=1e-15, max_steps=300)

# ---- the answer ----------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", [mslsq.LevenbergMarquardt, mslsq.Dogleg, mslsq.GaussNewton])
def test_the_answer_is_scipys(solver):
    y = noisy()
    solution = mslsq.least_squares(residual, START, (T, y), solver=solver())
    expected = scipy_answer(lambda x: residual(x, T, y), START)
    assert bool(solution.converged)
    assert torch.allclose(solution.value, torch.as_tensor(expected.x), rtol=1e-5)
    assert float(solution.cost) == pytest.approx(expected.cost, rel=1e-10)


@pytest.mark.parametrize(
    ("loss", "name"),
    [(mslsq.Huber, "huber"), (mslsq.SoftL1, "soft_l1"), (mslsq.Cauchy, "cauchy"), (mslsq.Arctan, "arctan")],
)
def test_a_loss_acts_on_each_entry_as_in_scipy(loss, name):
    y = noisy().clone()
    y[3], y[17] = y[3] + 2.0, y[17] - 1.0
    solution = mslsq.least_squares(residual, START, (T, y), loss=loss(0.1), solver=TIGHT)
    expected = scipy_answer(lambda x: residual(x, T, y), P, loss=name, f_scale=0.1)
    # SciPy itself stops at about 1e-8 of the variables with its robust losses.
    assert float(solution.cost) == pytest.approx(expected.cost, rel=1e-8)
    assert torch.allclose(solution.value, torch.as_tensor(expected.x), rtol=1e-5, atol=1e-6)


def test_float32_stays_float32_and_converges():
    y = noisy().float()
    solution = mslsq.least_squares(residual, START.float(), (T.float(), y))
    expected = scipy_answer(lambda x: residual(x, T, y.double()), START)
    assert solution.value.dtype == solution.cost.dtype == torch.float32
    assert bool(solution.converged)
    assert torch.allclose(
        solution.value.double(), torch.as_tensor(expected.x), rtol=2e-3
    )  # √eps of float32, condition 10


@pytest.mark.parametrize("linear", [mslsq.linear.Cholesky(), mslsq.linear.QR()])
def test_both_linear_solvers_find_the_minimum(linear):
    y = noisy()
    expected = scipy_answer(lambda x: residual(x, T, y), START)
    solution = mslsq.least_squares(
        residual, START, (T, y), solver=mslsq.LevenbergMarquardt(linear_solver=linear, ftol=1e-15)
    )
    assert torch.allclose(solution.value, torch.as_tensor(expected.x), rtol=1e-6)


# ---- what x0, args and the residual may be -------------------------------------------------------


def test_a_pytree_start_comes_back_as_a_pytree():
    y = noisy()

    def of_tree(x, t, y):
        return {"fit": x["shape"][0] * torch.exp(x["shape"][1] * t) + x["offset"][0] - y}

    start = {"shape": START[:2], "offset": [START[2]]}
    solution = mslsq.least_squares(of_tree, start, (T, y))
    flat = mslsq.least_squares(residual, START, (T, y))
    assert solution.value["offset"][0].shape == ()
    assert torch.allclose(
        torch.cat((solution.value["shape"], solution.value["offset"][0][None])), flat.value, rtol=1e-9
    )


def test_a_manifold_start_comes_back_as_its_element():
    truth = mslsq.SO3.exp(torch.tensor([0.3, -0.5, 0.9], dtype=F64))
    points = torch.randn(8, 3, generator=torch.Generator().manual_seed(1), dtype=F64)
    moved = truth.act(points)

    def registration(rotation, points, moved):
        return rotation.act(points) - moved

    identity = mslsq.SO3.exp(torch.zeros(3, dtype=F64))
    solution = mslsq.least_squares(registration, identity, (points, moved))
    assert isinstance(solution.value, mslsq.SO3)
    assert torch.allclose(solution.value.local(truth), torch.zeros(3, dtype=F64), atol=1e-7)


def test_a_batch_of_elements_in_one_leaf_is_one_problem():
    truth = mslsq.SE3.exp(0.4 * torch.randn(5, 6, generator=torch.Generator().manual_seed(2), dtype=F64))
    start = mslsq.SE3.exp(torch.zeros(5, 6, dtype=F64))
    solution = mslsq.least_squares(lambda x, target: x.local(target), start, (truth,))
    assert solution.value.shape == (5,) and solution.cost.shape == ()
    assert torch.allclose(solution.value.local(truth), torch.zeros(5, 6, dtype=F64), atol=1e-7)


def test_complex_residuals_count_as_pairs_of_reals():
    generator = torch.Generator().manual_seed(3)
    y = torch.randn(12, generator=generator, dtype=torch.complex128)
    t = T[:12]

    def wave(x, t, y):
        return torch.complex(x[0], x[1]) * torch.exp(1j * x[2] * t) - y

    def pairs(x, t, y):
        return torch.view_as_real(wave(x, t, y))

    start = torch.tensor([0.5, 0.2, 1.0], dtype=F64)
    a, b = (mslsq.least_squares(f, start, (t, y), solver=TIGHT) for f in (wave, pairs))
    assert float(a.cost) == pytest.approx(float(b.cost), rel=1e-12)
    assert torch.allclose(a.value, b.value, rtol=1e-7)
    assert float(a.cost) == pytest.approx(0.5 * float(wave(a.value, t, y).abs().square().sum()), rel=1e-12)


def test_a_loss_of_a_complex_entry_takes_its_modulus():
    y = torch.randn(12, generator=torch.Generator().manual_seed(4), dtype=torch.complex128)
    y[2] += 10

    def offset(x, y):
        return {"z": torch.complex(x[0], x[1]) - y, "r": x[0] - y.real[:3]}

    def cost(x):
        moduli = torch.cat(((torch.complex(x[0], x[1]) - y).abs() ** 2, (x[0] - y.real[:3]) ** 2))
        return 0.5 * mslsq.Cauchy(0.7).rho(moduli).sum()

    start = torch.zeros(2, dtype=F64)
    solution = mslsq.least_squares(offset, start, (y,), loss=mslsq.Cauchy(0.7), solver=TIGHT)
    assert float(solution.cost) == pytest.approx(float(cost(solution.value)), rel=1e-12)
    assert torch.func.grad(cost)(solution.value).abs().max() < 1e-7


def test_a_jacobian_of_the_users_gives_the_same_steps():
    y = noisy()

    def jac(p, t, y):
        e = torch.exp(p[1] * t)
        return torch.stack((e, p[0] * t * e, torch.ones_like(t)), -1)

    own = mslsq.least_squares(residual, START, (T, y), jac=jac)
    automatic = mslsq.least_squares(residual, START, (T, y))
    assert int(own.num_steps) == int(automatic.num_steps)
    assert torch.allclose(own.value, automatic.value, rtol=1e-12)


def test_a_wrong_jacobian_of_the_users_is_used():
    """So the one above is not passed by ignoring `jac`."""
    y = noisy()
    solver = mslsq.GaussNewton(max_steps=1)
    powers = T[:, None] ** torch.arange(3)
    wrong = mslsq.least_squares(residual, START, (T, y), jac=lambda p, t, y: powers, solver=solver)
    right = mslsq.least_squares(residual, START, (T, y), solver=solver)
    assert not torch.allclose(wrong.value, right.value)


def test_a_complex_residual_takes_a_complex_jacobian():
    y = torch.randn(12, generator=torch.Generator().manual_seed(5), dtype=torch.complex128)

    def line(x, t, y):
        return x[0] * t + 1j * x[1] * t - y

    def jac(x, t, y):
        return torch.stack((t.to(y.dtype), 1j * t), -1)

    start = torch.zeros(2, dtype=F64)
    own = mslsq.least_squares(line, start, (T[:12], y), jac=jac)
    assert torch.allclose(own.value, mslsq.least_squares(line, start, (T[:12], y)).value, rtol=1e-9)


def test_aux_is_returned_at_the_solution():
    y = noisy()

    def with_aux(p, t, y):
        return residual(p, t, y), {"model": model(p, t)}

    solution, aux = mslsq.least_squares(with_aux, START, (T, y), has_aux=True)
    assert torch.equal(aux["model"], model(solution.value, T))
    ys = torch.stack([noisy(seed) for seed in range(3)])
    solutions, auxes = mslsq.least_squares(with_aux, START, (T, ys), has_aux=True, in_dims=(None, None, 0))
    assert torch.allclose(auxes["model"], torch.stack([model(p, T) for p in solutions.value]))


def test_aux_of_a_batch_with_an_argument_that_is_no_tensor():
    ys = torch.stack([noisy(seed) for seed in range(3)])

    def with_aux(p, y, scale):
        return scale * residual(p, T, y), p.sum()

    solutions, aux = mslsq.least_squares(with_aux, START.expand(3, 3), (ys, 2.0), has_aux=True, in_dims=0)
    assert torch.allclose(aux, solutions.value.sum(-1))


def test_a_module_may_be_the_residual_or_an_argument():
    class Fit(nn.Module):
        def __init__(self):
            super().__init__()
            self.target = nn.Parameter(noisy())

        def forward(self, p):
            return residual(p, T, self.target)

    module = Fit()
    expected = mslsq.least_squares(residual, START, (T, module.target.detach()))
    inside = mslsq.least_squares(module, START)
    given = mslsq.least_squares(lambda p, m: m(p), START, (module,))
    assert torch.allclose(inside.value, expected.value, rtol=1e-10)
    assert torch.allclose(given.value, expected.value, rtol=1e-10)
    # Gradients reach the parameter both ways, and are those of a solve with the parameter as an argument.
    target = module.target.detach().clone().requires_grad_()
    (reference,) = torch.autograd.grad(mslsq.least_squares(residual, START, (T, target)).value.sum(), target)
    for solution in (inside, given):
        (gradient,) = torch.autograd.grad(solution.value.sum(), module.target)
        assert torch.allclose(gradient, reference, rtol=1e-6, atol=1e-9)


def test_a_residual_may_write_into_its_arguments_without_harm():
    y = noisy()
    kept = y.clone()

    def greedy(p, t, y):
        y -= model(p, t)
        return y

    with pytest.warns(InPlaceResidualWarning):
        solution = mslsq.least_squares(greedy, START, (T, y))
    assert torch.equal(y, kept)
    assert torch.allclose(solution.value, mslsq.least_squares(residual, START, (T, y)).value, rtol=1e-9)


@pytest.mark.filterwarnings("ignore::mslsq.tracing.inplace.InPlaceResidualWarning")
@pytest.mark.parametrize("mapped", [True, False])
def test_a_write_that_does_not_depend_on_x_does_not_add_up_over_steps(mapped):
    y = noisy()
    kept = y.clone()

    def doubling(p, t, y):
        y *= 2.0
        return residual(p, t, 0.5 * y)

    if mapped:
        solution = mslsq.least_squares(doubling, START[None], (T, y[None]), in_dims=(0, None, 0))
    else:
        solution = mslsq.least_squares(doubling, START, (T, y))
    assert torch.equal(y, kept)
    assert torch.allclose(solution.value.reshape(3), mslsq.least_squares(residual, START, (T, y)).value, rtol=1e-9)


def test_numpy_arguments_are_constants_that_are_not_confused():
    """Their printed form, in which NumPy leaves out the middle, is the same for both."""
    t = np.linspace(0, 1, 2000)
    a, b = np.exp(t), np.exp(t)
    b[1000] += 500.0

    def constant(x, y):
        return x - torch.as_tensor(y)

    solver = mslsq.GaussNewton(trace="always")
    for y in (a, b, a):
        solution = mslsq.least_squares(constant, torch.zeros(1, dtype=F64), (y,), solver=solver)
        assert float(solution.value) == pytest.approx(y.mean(), rel=1e-12)


def test_a_residual_in_a_narrower_dtype_is_widened_not_the_other_way():
    solution = mslsq.least_squares(lambda x: (x - P).float(), START)
    assert solution.value.dtype == solution.cost.dtype == F64
    assert torch.allclose(solution.value, P, rtol=1e-6)


def test_a_residual_of_which_a_part_is_constant_is_solved():
    solution = mslsq.least_squares(lambda x: {"a": x - P, "b": P}, START)
    assert torch.allclose(solution.value, P)
    assert float(solution.cost) == pytest.approx(0.5 * float(P @ P))


def test_a_scalar_start():
    one, two = torch.tensor(1.0, dtype=F64), torch.tensor(2.0, dtype=F64)
    solution = mslsq.least_squares(lambda x, y: x * x - y, one, (two,))
    assert solution.value.shape == () and float(solution.value) == pytest.approx(2**0.5)


# ---- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: mslsq.least_squares(3.0, START), ["residual must be callable"]),
        (lambda: mslsq.least_squares(residual, START, T), ["args must be a tuple", "args=(t,)"]),
        (lambda: mslsq.least_squares(residual, [1.0, 2.0], (T, T)), ["x0[0]", "float", "torch.tensor"]),
        (lambda: mslsq.least_squares(residual, np.ones(3), (T, T)), ["x0", "ndarray", "torch"]),
        (lambda: mslsq.least_squares(residual, START.long(), (T, T)), ["x0", "int64", "float64"]),
        (lambda: mslsq.least_squares(residual, START.to(torch.complex128), (T, T)), ["complex", "view_as_real"]),
        (lambda: mslsq.least_squares(residual, START[:0], (T, T)), ["x0 has no entries"]),
        (lambda: mslsq.least_squares(residual, {}, (T, T)), ["x0 is empty"]),
        (lambda: mslsq.least_squares(lambda x: x[0], [START, START.float()]), ["float64", "float32", "one dtype"]),
        (lambda: mslsq.least_squares(lambda x: x[:0], START), ["residual is empty"]),
        (lambda: mslsq.least_squares(lambda x: 3.0, START), ["must be a tensor", "float"]),
        (lambda: mslsq.least_squares(lambda x: x > 0, START), ["floating point", "bool"]),
        (lambda: mslsq.least_squares(lambda x: x, START, has_aux=True), ["pair (residual, aux)"]),
        (lambda: mslsq.least_squares(lambda x: x, START, loss="huber"), ["mslsq.Huber(1.0)"]),
        (lambda: mslsq.least_squares(residual, START, (T, T), in_dims=(0, 0)), ["in_dims", "vmap"]),
        (lambda: mslsq.least_squares(residual, START, (T, T), in_dims=(None, 2, None)), ["axis 2", "(24,)"]),
        (lambda: mslsq.least_squares(residual, START, (T, T[:3]), in_dims=(None, 0, 0)), ["different sizes", "24"]),
        (lambda: mslsq.least_squares(lambda x, y: x - y, START, (T[:0],), in_dims=(None, 0)), ["batch is empty"]),
        (lambda: mslsq.least_squares(residual, START.float(), (T, T)), ["float32", "float64", "convert"]),
    ],
)
def test_a_wrong_argument_is_an_error_that_says_what_and_what_to_do(call, words):
    with pytest.raises(ProblemError) as caught:
        call()
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("shape", [(3, 24), (23, 3), (24,), (24, 2), (2, 24, 3)])
def test_a_jacobian_of_a_wrong_shape_is_an_error(shape):
    def jac(p, t, y):
        return p.new_ones(shape) * p[0]

    with pytest.raises(ProblemError, match=r"\(24, 3\)|\(\*residual, 3\)"):
        mslsq.least_squares(residual, START, (T, noisy()), jac=jac)


def test_solvers_and_adjoints_are_objects_not_classes_or_names():
    with pytest.raises(TypeError, match=r"Did you mean GaussNewton\(\)"):
        mslsq.least_squares(residual, START, (T, T), solver=mslsq.GaussNewton)
    with pytest.raises(TypeError, match="adjoint must be"):
        mslsq.least_squares(residual, START, (T, T), adjoint="implicit")


def test_an_error_inside_the_residual_is_the_users_own():
    class OwnError(Exception):
        pass

    def broken(p):
        raise OwnError("the user's")

    with pytest.raises(OwnError, match="the user's"):
        mslsq.least_squares(broken, START)


@pytest.mark.parametrize("trace", ["never", "always"])
def test_an_operation_without_a_forward_derivative_is_differentiated_in_reverse(trace):
    # PyTorch has no forward mode of grid_sample, and the residual has more rows than unknowns
    places = torch.linspace(-0.8, 0.8, 12, dtype=torch.float64)
    grid = torch.stack(torch.meshgrid(places, places, indexing="xy"), -1)
    ramp = torch.linspace(-1, 1, 21, dtype=torch.float64)
    image = ramp[None, :] ** 2 + ramp[:, None] * 0.5 + ramp[None, :]

    def moved(p, image):
        return torch.nn.functional.grid_sample(image[None, None], (grid + p)[None], align_corners=True)[0, 0]

    shifts = torch.tensor([[0.05, -0.03], [-0.1, 0.02]], dtype=torch.float64)
    seen = torch.stack([moved(shift, image) for shift in shifts])
    solver = mslsq.LevenbergMarquardt(trace=trace)
    start = torch.zeros(2, dtype=torch.float64)
    solution = mslsq.least_squares(
        lambda p, seen: moved(p, image) - seen, start, (seen,), in_dims=(None, 0), solver=solver
    )
    assert bool(solution.converged.all())
    torch.testing.assert_close(solution.value, shifts, atol=1e-9, rtol=0)
