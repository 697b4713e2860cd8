"""Derivatives of a residual are those of plain reverse mode, whatever PyTorch's batching rules are."""

import warnings

import pytest
import scipy.optimize
import torch
from torch import Tensor

import mslsq
from mslsq.linearize.agreement import NonDeterministicResidualError
from mslsq.linearize.ways import SlowResidualWarning, UndifferentiableResidualError
from mslsq.problem.errors import SecondDerivativeError

F64 = torch.float64
ONCE = mslsq.LevenbergMarquardt(max_steps=0)


def data(*shape: int, dtype: torch.dtype = F64) -> Tensor:
    return torch.rand(*shape, dtype=dtype, generator=torch.Generator().manual_seed(0)) + 0.5


def matrix(x: Tensor, d: Tensor) -> Tensor:
    """A general 3 x 3 matrix of three unknowns."""
    rows = [[2 + x[0], d[0] * x[1], x[2]], [x[1], 3 + x[2] * d[1], x[0] * x[1]], [d[2], x[0], 1.5 + x[1]]]
    return torch.stack([torch.stack([entry + 0 * x[0] for entry in row]) for row in rows])


OPERATORS = {
    "solve": lambda x, d: torch.linalg.solve(matrix(x, d), d),
    "solve_ex": lambda x, d: torch.linalg.solve_ex(matrix(x, d), d)[0],
    "det": lambda x, d: torch.linalg.det(matrix(x, d))[None],
    "slogdet": lambda x, d: torch.linalg.slogdet(matrix(x, d))[1][None],
    "logdet": lambda x, d: torch.logdet(matrix(x, d))[None],
    "inverse": lambda x, d: matrix(x, d).inverse()[0],
    "cdist": lambda x, d: torch.cdist(torch.outer(x, d), torch.outer(d, d)).ravel(),
    "as_strided": lambda x, d: (x * d).clone().as_strided((2,), (2,)),
    "no_grad": lambda x, d: x * without_gradient(x) * d,
    "detach": lambda x, d: x * x.sum().detach() * d,
}


def without_gradient(x: Tensor) -> Tensor:
    with torch.no_grad():
        return x.sum()


def in_residual(operator):
    def residual(x, d):
        return torch.cat([operator(x, d) - 0.1, x - 0.3 * d])

    return residual


def plain_gradient(residual, x: Tensor, *args: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    return torch.autograd.grad(0.5 * (residual(x, *args) ** 2).sum(), x)[0]


@pytest.mark.filterwarnings("ignore::mslsq.linearize.ways.SlowResidualWarning")
@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("name", OPERATORS)
def test_the_first_gradient_is_that_of_plain_reverse_mode(name, batch):
    residual, d, x = in_residual(OPERATORS[name]), data(batch, 3), 0.3 + 0.1 * data(3)
    solution = mslsq.least_squares(residual, x, (d,), in_dims=(None, 0), solver=ONCE)
    for found, own in zip(solution.gradient_norm, d, strict=True):
        assert torch.allclose(found, plain_gradient(residual, x, own).abs().max(), rtol=1e-10)


@pytest.mark.filterwarnings("ignore::mslsq.linearize.ways.SlowResidualWarning")
@pytest.mark.parametrize("name", ["solve", "det", "slogdet", "cdist", "as_strided"])
def test_every_problem_of_a_batch_reaches_scipys_minimum(name):
    residual, d = in_residual(OPERATORS[name]), 0.4 * data(6, 3)
    start = torch.full((3,), 0.2, dtype=F64)
    solution = mslsq.least_squares(residual, start, (d,), in_dims=(None, 0))
    for b in range(len(d)):
        expected = scipy.optimize.least_squares(
            lambda x, b=b: residual(torch.from_numpy(x), d[b]).numpy(),
            start.numpy(),
            method="lm",
            xtol=1e-14,
            ftol=1e-15,
        )
        assert abs(float(solution.cost[b]) - expected.cost) <= 1e-9 * expected.cost + 1e-14


def moved_system(x: Tensor, d: Tensor) -> Tensor:
    rows = [[2 + x[0], d[0] * x[1], x[2]], [x[1], 3 + x[2] * d[1], x[0] * x[1]], [d[2], x[0], 1.5 + x[1]]]
    return torch.stack([torch.stack(row) for row in rows])


OF_SYSTEM = {
    "solve": torch.linalg.solve,
    "det": lambda m, d: torch.linalg.det(m)[None],
    "slogdet": lambda m, d: torch.linalg.slogdet(m)[1][None],
    "inv": lambda m, d: torch.linalg.inv(m)[0],
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", OF_SYSTEM)
def test_forty_problems_end_in_minima_no_worse_than_scipys(name):
    """In the same ones but for a `det` of three minima: there `trf` ends at 0.80864, and at 0.79987, as `lm` and
    `dogbox` and all methods here, with `x_scale="jac"`."""
    generator = torch.Generator().manual_seed(0)
    d = 0.5 * torch.randn(40, 3, dtype=F64, generator=generator)

    def residual(x, d):
        return torch.cat([0.3 * OF_SYSTEM[name](moved_system(x, d), d) - 0.1, x - 0.3 * d])

    solution = mslsq.least_squares(residual, torch.zeros(3, dtype=F64), (d,), in_dims=(None, 0))
    assert bool(solution.converged.all())
    others = 0
    for b, own in enumerate(d):
        found = scipy.optimize.least_squares(
            lambda x, own=own: residual(torch.from_numpy(x), own).numpy(), [0.0] * 3, xtol=1e-14, ftol=1e-14, gtol=1e-14
        )
        assert float(solution.cost[b]) <= found.cost * (1 + 1e-9) + 1e-14
        others += float((solution.value[b] - torch.from_numpy(found.x)).abs().max()) > 1e-4
    assert others == (name == "det")


def exact_derivative(residual, x: Tensor, d: Tensor) -> Tensor:
    """∂Σx*/∂d by the implicit function theorem, plain reverse mode."""
    x, d = x.detach().requires_grad_(), d.detach().requires_grad_()
    (g,) = torch.autograd.grad(0.5 * (residual(x, d) ** 2).sum(), x, create_graph=True)
    hessian = torch.stack([torch.autograd.grad(entry, x, retain_graph=True)[0] for entry in g])
    return torch.autograd.grad(g, d, -torch.linalg.solve(hessian, torch.ones_like(x)))[0]


@pytest.mark.filterwarnings("ignore::mslsq.linearize.ways.SlowResidualWarning")
@pytest.mark.parametrize(
    ("name", "trace"),
    [*((name, "never") for name in ("solve", "det", "slogdet", "as_strided")), ("det", "always")],
)
def test_derivatives_of_the_solution_are_exact(name, trace):
    residual, d = in_residual(OPERATORS[name]), (0.4 * data(3)).requires_grad_()
    solver = mslsq.GaussNewton(gtol=1e-13, ftol=0, xtol=1e-15, max_steps=200, trace=trace)
    solution = mslsq.least_squares(residual, torch.full((3,), 0.2, dtype=F64), (d,), solver=solver)
    (found,) = torch.autograd.grad(solution.value.sum(), d)
    assert bool(solution.differentiable)
    assert torch.allclose(found, exact_derivative(residual, solution.value, d), rtol=1e-6)


def test_an_ordinary_residual_is_neither_rewritten_nor_looped_over(capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mslsq.least_squares(
            lambda x, d: torch.exp(x) * d - 1,
            torch.zeros(3, dtype=F64),
            (data(4, 3),),
            in_dims=(None, 0),
            solver=mslsq.LevenbergMarquardt(verbose=True),
        )
    said = capsys.readouterr().out
    assert "rewritten" not in said and "block by block" not in said and "not checked" not in said


@pytest.mark.parametrize("kink", [torch.abs, torch.relu, lambda x: torch.maximum(x, x.roll(1)), torch.sign])
def test_kinks_and_ties_at_the_start_are_no_difference(kink):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solution = mslsq.least_squares(lambda x: torch.cat([kink(x) - 0.5, x - 2]), torch.zeros(3, dtype=F64))
    assert solution.cost.isfinite()


@pytest.mark.filterwarnings("ignore::mslsq.tracing.inplace.InPlaceResidualWarning")
def test_no_grad_means_the_same_in_forward_and_in_reverse_mode():
    """Many rows: forward mode, which PyTorch lets ignore `no_grad`; few rows: reverse mode; in place: rewritten."""

    def in_place(x, d):
        r = torch.zeros_like(x)
        r[:] = x * without_gradient(x) * d
        return r

    residuals = [OPERATORS["no_grad"], lambda x, d: OPERATORS["no_grad"](x, d).sum()[None], in_place]
    x, d = data(7), data(7)
    for residual in residuals:
        solution = mslsq.least_squares(residual, x, (d,), solver=ONCE)
        assert torch.allclose(solution.gradient_norm, plain_gradient(residual, x, d).abs().max(), rtol=1e-12)


class Doubled(torch.autograd.Function):
    """2x, which has no derivative in forward mode, and whose batched backward is wrong."""

    @staticmethod
    def forward(x):
        return 2 * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.shape = inputs[0].shape

    @staticmethod
    def backward(ctx, g):
        return 2 * g

    @staticmethod
    def vmap(info, in_dims, x):
        return 3 * x, in_dims[0]  # wrong


def test_an_operator_of_the_users_with_a_wrong_batching_rule_is_found_out_and_announced():
    with pytest.warns(SlowResidualWarning, match="3 blocks"):
        solution = mslsq.least_squares(
            lambda x, y: Doubled.apply(x) - y, torch.ones(2, dtype=F64), (data(3, 2),), in_dims=(None, 0)
        )
    assert bool(solution.converged.all())
    assert torch.allclose(solution.value, data(3, 2) / 2)


class Bare(torch.autograd.Function):
    """x² without a derivative."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)


class Summed(Bare):
    @staticmethod
    def backward(ctx, g):
        return (2 * ctx.saved_tensors[0] * g).sum()


class OldStyle(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        return 2 * ctx.saved_tensors[0] * g


@pytest.mark.parametrize(
    ("function", "words"),
    [(Bare, "either the backward or vjp method"), (Summed, "invalid gradient"), (OldStyle, "setup_context")],
)
def test_a_function_of_the_users_that_lacks_a_rule_is_told_which_it_needs(function, words):
    with pytest.raises(UndifferentiableResidualError) as caught:
        mslsq.least_squares(lambda x: function.apply(x) - 1, data(3))
    assert words in str(caught.value)
    assert "forward mode" not in str(caught.value)
    assert "generate_vmap_rule = True" in str(caught.value)


def test_a_counter_inside_a_residual_is_an_error_that_names_it():
    class Calls:
        number = 0

    def counting(x):
        Calls.number += 1
        return x - Calls.number

    with pytest.raises(NonDeterministicResidualError, match="counting"):
        mslsq.least_squares(counting, torch.ones(2, dtype=F64))


@pytest.mark.filterwarnings("ignore::mslsq.linearize.ways.SlowResidualWarning")
def test_the_users_random_state_is_untouched():
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    mslsq.least_squares(
        in_residual(OPERATORS["det"]), torch.full((3,), 0.2, dtype=F64), (data(2, 3),), in_dims=(None, 0)
    )
    assert torch.equal(torch.rand(4), expected)


class Halved(torch.autograd.Function):
    """x/2 with a derivative of the first order only."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x / 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return HalvedBackward.apply(g)


class HalvedBackward(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(g):
        return g / 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        raise NotImplementedError("the derivative for 'halved_backward' is not implemented.")


def test_a_missing_second_derivative_is_an_error_that_names_it():
    y = torch.ones(2, dtype=F64, requires_grad=True)
    with pytest.raises(SecondDerivativeError, match=r"halved_backward(.|\n)*Detached"):
        mslsq.least_squares(lambda x, y: Halved.apply(x) ** 2 - y, torch.ones(2, dtype=F64), (y,))
    solution = mslsq.least_squares(lambda x, y: Halved.apply(x) ** 2 - y, torch.ones(2, dtype=F64), (y.detach(),))
    assert torch.allclose(solution.value, torch.full((2,), 2.0, dtype=F64))


@pytest.mark.parametrize("operator", ["cholesky", "inv"])
@pytest.mark.parametrize("bad", [0, 1])
@pytest.mark.parametrize("trace", ["never", "always"])
def test_a_matrix_that_cannot_be_factored_fails_alone(operator, trace, bad):
    """`cholesky_ex` leaves half a factor of an indefinite matrix, with finite numbers."""

    def residual(x: Tensor, y: Tensor) -> Tensor:
        A = torch.stack([torch.stack([x[0], x[1]]), torch.stack([x[1], x[2]])])
        return getattr(torch.linalg, operator)(A).reshape(-1)[torch.tensor([0, 2, 3])] - y

    x = torch.tensor([[1.0, 0.2, 1.0], [1.0, 1.0, 1.0], [2.0, 0.1, 0.5]], dtype=F64)
    x[1, 1] = 3.0 if operator == "cholesky" else 1.0
    x = x.roll(bad - 1, 0)
    y = torch.tensor([0.9, 0.3, 1.1], dtype=F64)
    solver = mslsq.LevenbergMarquardt(trace=trace)
    solution = mslsq.least_squares(residual, x, (y,), solver=solver, in_dims=(0, None))
    assert solution.status[bad] == mslsq.Status.NON_FINITE
    for lane in {0, 1, 2} - {bad}:
        alone = mslsq.least_squares(residual, x[lane], (y,), solver=solver)
        assert bool(solution.converged[lane])
        assert torch.allclose(solution.value[lane], alone.value, rtol=1e-6)


def test_a_scalar_is_not_rolled_along_the_lanes():
    """PyTorch rolls it to its neighbour, and twice to where it was: the number of lanes does not show that."""
    for shift in range(1, 6):

        def residual(x: Tensor, y: Tensor, shift: int = shift) -> Tensor:
            return torch.cat([torch.roll(x.sum().exp(), shift).reshape(1) - y, x])

        for batch in (2, 3, 6):
            x, y = data(batch, 3), data(batch, 1)
            solution = mslsq.least_squares(residual, x, (y,), in_dims=0, solver=ONCE)
            costs = torch.stack([0.5 * residual(a, b).square().sum() for a, b in zip(x, y, strict=True)])
            assert torch.allclose(solution.cost, costs, rtol=1e-12)


@pytest.mark.filterwarnings("ignore::mslsq.linearize.ways.SlowResidualWarning")
def test_what_changes_unseen_is_checked_in_every_solve():
    """Forward mode of a complex `logcumsumexp` is right for small numbers and NaN for large ones."""

    class Model:
        pass

    x = torch.tensor([[0.3, 0.9], [0.7, -0.2], [0.1, 0.4]], dtype=F64)
    for number in range(10):
        model = Model()
        model.offset = 0.1 * number if number < 8 else 1e4
        model.rows = 2 + (number > 8)

        def residual(x: Tensor, model: Model = model) -> Tensor:
            sums = torch.logcumsumexp(torch.complex(x + model.offset, x), 0).real - model.offset
            return torch.cat([sums, x])[: model.rows]

        solution = mslsq.least_squares(residual, x, in_dims=0, solver=ONCE)
        expected = torch.stack([plain_gradient(residual, one).abs().amax() for one in x])
        assert torch.allclose(solution.gradient_norm, expected, rtol=1e-9), number


def test_control_flow_operators_are_refused_with_what_to_write():
    """PyTorch's own error names a class of this library's."""

    def branches(x, d):
        return torch.cond(d.sum() > 0, lambda x: x - 1, lambda x: x + 1, (x,))

    with pytest.raises(UndifferentiableResidualError, match=r"'branches'.*'cond'.*torch\.where"):
        mslsq.least_squares(branches, torch.zeros(3, dtype=F64), (data(3),))


def test_a_branch_beside_an_operator_that_is_rewritten_is_named_with_its_line():
    def residual(p):
        scaled = torch.nn.functional.layer_norm(p, p.shape)
        return scaled * 2 if p[0] > 0 else scaled

    with pytest.raises(mslsq.errors.CaptureError, match=r"(?s)if p\[0\] > 0 else scaled.*torch\.where"):
        mslsq.least_squares(residual, torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64))
