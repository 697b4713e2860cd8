"""The captured residual equals the original in value and in first and second derivatives, under nested transforms."""

import inspect
import itertools
import math

import numpy as np
import pytest
import torch
from torch.func import jacfwd, jacrev, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from mslsq import pytree
from mslsq.tracing.capture import CaptureError, InPlaceResidualWarning, capture, inplace_advice
from tests.differences import differences

F64 = torch.float64
MASK = torch.tensor([True, False, True, True])
INDEX = torch.tensor([2, 0])


def index_int(v):
    o = torch.zeros(3, dtype=F64)
    o[0], o[2] = v[0] * v[1], v[3].sin()
    return o


def index_negative(v):
    o = torch.ones(4, dtype=F64)
    o[-1] = v[0] ** 2
    o[-3] = v[1] * v[2]
    return o


def slice_plain(v):
    o = torch.zeros(6, dtype=F64)
    o[1:5] = v * v
    return o


def slice_open_and_negative(v):
    o = torch.zeros(6, dtype=F64)
    o[2:] = v.exp()
    o[:-4] = v[-2:] * v[:2]
    o[-3:-1] = v[1:3] ** 3
    return o


def slice_step(v):
    o = torch.zeros(8, dtype=F64)
    o[::2] = v**2
    o[1::3] = v[:3] * v[1:]
    return o


def slice_empty(v):
    o = torch.zeros(4, dtype=F64)
    o[3:2] = v[:0]
    o[:] = v**2
    return o


def ellipsis_matrix(v):
    o = torch.zeros(2, 3, 2, dtype=F64)
    o[..., 0, 1] = v[:2] * v[2:]
    o[1, ..., 0] = v[:3] ** 2
    return o


def none_axis(v):
    o = torch.zeros(2, 4, dtype=F64)
    o[None, 1] = v**2
    return o


def augmented_add(v):
    o = torch.zeros(4, dtype=F64)
    o += v * v
    o -= 0.5 * v.sin()
    return o


def augmented_index(v):
    o = torch.ones(4, dtype=F64)
    o[1:3] *= v[:2] * v[2:]
    o[0] /= 2.0 + v[0]
    o[1] += v[1] ** 3
    return o


def copy_method(v):
    o = torch.empty(4, dtype=F64)
    o.copy_(v**3)
    return o


def copy_casts_and_broadcasts(v):
    o = torch.zeros(3, 4, dtype=F64)
    o.copy_(v.to(torch.float32) ** 2)
    return o


def fill_method(v):
    o = torch.empty(4, dtype=F64)
    o.fill_(v[0] * v[1])
    return o * v


def index_put_method(v):
    o = torch.zeros(4, dtype=F64)
    o.index_put_((INDEX,), v[:2] * v[2:])
    return o


def index_put_accumulate(v):
    o = torch.full((4,), 2.0, dtype=F64)
    o.index_put_((torch.tensor([1, 1, 3, 0]),), v * v, accumulate=True)
    return o


def index_assign_list(v):
    o = torch.zeros(4, dtype=F64)
    o[[3, 1]] = v[:2] ** 2
    o[INDEX] = v[2:] ** 3
    return o


def index_add_method(v):
    o = torch.zeros(3, dtype=F64)
    o.index_add_(0, torch.tensor([0, 2, 0, 1]), v.sin())
    return o


def scatter_method(v):
    o = torch.zeros(4, dtype=F64)
    o.scatter_(0, torch.tensor([1, 0, 3, 2]), v**2)
    return o


def scatter_add_method(v):
    o = torch.zeros(2, dtype=F64)
    o.scatter_add_(0, torch.tensor([0, 1, 0, 1]), v**2)
    return o


def diagonal_copy(v):
    o = torch.zeros(4, 4, dtype=F64)
    o.diagonal().copy_(v**2)
    o.diagonal(1)[:] = v[:3] * v[1:]
    return o


def out_argument(v):
    o = torch.empty(4, dtype=F64)
    torch.mul(v, v.cos(), out=o)
    return o


def loop(v):
    o = torch.zeros(4, 4, dtype=F64)
    for i in range(4):
        for j in range(i):
            o[i, j] = v[i] * v[j]
    return o


def loop_over_arange(v):
    o = torch.zeros(4, dtype=F64)
    for i in torch.arange(3):
        o[i] = v[i + 1] * v[i]
    return o


def new_zeros(v):
    o = v.new_zeros(2, 4)
    o[0] = v**2
    o[1, 1:] = v[1:] * v[0]
    return o


def full_reduced(v):
    o = torch.full((5,), 3.0, dtype=F64)
    o[2] = v.sum()
    o.mul_(v[0]).add_(v[1] ** 2)
    return o


def writes_into_views(v):
    o = torch.zeros(4, 2, dtype=F64)
    top, column = o[:2], o.t()[1]
    top[0] = v[:2] ** 2
    column.mul_(v).add_(v.sin())
    o.view(-1)[5] = v[0] * v[3]
    return o.reshape(8) * 2.0


def chained(v):
    a = torch.zeros(4, dtype=F64)
    a[:2] = v[2:] ** 2
    b = a.clone()
    b[2:] = a[:2] * v[:2]
    a.mul_(b)
    return torch.cat([a, b])


def constant_mask(v):
    o = torch.zeros(4, dtype=F64)
    o[MASK] = v[MASK] ** 2
    o[~MASK] = -1.0
    return o


def data_mask_fill(v):
    o = v**3
    o[v > 0.5] = 0.0
    o.masked_fill_(v < 0.1, 1.0)
    return o


def writes_into_its_input(v):
    v *= v
    v[0] += v[1]
    return v.sin()


def triangular(v):
    i = torch.tril_indices(2, 2)
    o = torch.zeros(2, 2, dtype=F64)
    o[i[0], i[1]] = v[:3] * v[3]
    return o


def swapped_rows(v):
    o = torch.stack([v, v**2])
    o[[0, 1]] = o[[1, 0]].clone()
    return o.transpose(0, 1).contiguous().view(-1)


def complex_buffer(v):
    z = torch.zeros(3, dtype=torch.complex128)
    z[0] = torch.complex(v[0], v[1] * v[2])
    z[1:] = torch.exp(1j * v[2:])
    z.imag[2] = v[0] ** 2
    return z


def complex_strided(v):
    z = torch.zeros(4, 4, dtype=torch.complex128)
    z.diagonal().copy_(torch.polar(v, v * v))
    z[::3, 1] = v[:2] * 1j
    return z


def complex_views(v):
    z = torch.view_as_complex(v.reshape(2, 2)).clone()
    z[0] *= z[1].conj()
    return torch.view_as_real(z.conj() * z[0])


KINDS = [value for value in list(globals().values()) if inspect.isfunction(value) and value.__module__ == __name__]


def batch(size=5, entries=4):
    return torch.rand(size, entries, dtype=F64, generator=torch.Generator().manual_seed(0)) + 0.05


def one_by_one(function, x):
    return torch.stack([function(entry.clone()) for entry in x])


def real(function):
    """Complex outputs as pairs of reals, as the engine takes them (`jacfwd` refuses complex outputs)."""

    def pairs(v):
        out = function(v)
        return torch.view_as_real(out) if out.is_complex() else out

    return pairs


def jacobian_of_the_literal_code(residual, x):
    """Of one entry, without vmap: forward mode, and central differences where it refuses (`out=`)."""
    function = real(lambda v: residual(v * 1.0))
    if residual is writes_into_its_input:  # eager forward mode of `v *= v` uses the overwritten v: wrong in torch 2.13
        return differences(function, x), 1e-7
    try:
        return jacfwd(function)(x), 1e-12
    except RuntimeError:
        return differences(function, x), 1e-7


@pytest.mark.sampled(12)
@pytest.mark.parametrize("residual", KINDS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("layout", ["batch first", "batch last"])
def test_an_in_place_residual_has_the_values_and_derivatives_of_a_loop(residual, layout):
    x, in_dims = batch(), 0
    captured = capture(residual, (x[0],), name="kind")
    pairs = real(captured)
    values = one_by_one(residual, x)
    jacobians, tolerances = zip(*[jacobian_of_the_literal_code(residual, entry) for entry in x], strict=True)
    jacobian = torch.stack(jacobians)
    # A residual that goes through float32 has Jacobians rounded to it, in an order that differs between modes.
    tolerance = 1e-6 if residual is copy_casts_and_broadcasts else max(tolerances)
    close = {"rtol": tolerance, "atol": tolerance}
    # Central differences of the first derivative: h²/6 · f⁗ ≈ 1e-9, rounding 1e-16/h = 1e-11; of differences 1e-6.
    second = None
    if residual is not copy_casts_and_broadcasts:
        second = torch.stack(
            [differences(lambda v: jacobian_of_the_literal_code(residual, v)[0], entry) for entry in x]
        )
    if layout == "batch last":
        x, in_dims = x.t().contiguous(), -1
    torch.testing.assert_close(vmap(captured, in_dims)(x), values, rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(vmap(jacfwd(pairs), in_dims)(x), jacobian, **close)
    torch.testing.assert_close(vmap(jacrev(pairs), in_dims)(x), jacobian, **close)
    if second is not None:
        loose = {"rtol": 1e-6, "atol": 1e-7 if max(tolerances) < 1e-9 else 1e-4}
        for outer, inner in itertools.product((jacfwd, jacrev), repeat=2):
            torch.testing.assert_close(vmap(outer(inner(pairs)), in_dims)(x), second, **loose)


def pairwise_maps(maps, ratios):
    """The shape of Theseus issue 650: every ordered pair of maps fills its stretch of one zero vector."""
    count, size = maps.shape
    error = torch.zeros(1, count * (count - 1) * size, dtype=maps.dtype)
    for k, (i, j) in enumerate(itertools.permutations(range(count), 2)):
        error[:, k * size : (k + 1) * size] = ratios[k] * maps[i] - maps[j]
    return error


def test_the_residual_of_theseus_issue_650_has_the_right_jacobian():
    generator = torch.Generator().manual_seed(1)
    maps = torch.rand(4, 3, 5, dtype=F64, generator=generator)
    ratios = torch.rand(4, 6, 1, dtype=F64, generator=generator)
    captured = capture(pairwise_maps, (maps[0], ratios[0]), name="scale")
    jacobian = vmap(jacrev(captured))(maps, ratios)
    expected = torch.zeros(4, 1, 30, 3, 5, dtype=F64)
    for k, (i, j) in enumerate(itertools.permutations(range(3), 2)):
        for c in range(5):
            expected[:, 0, 5 * k + c, i, c] += ratios[:, k, 0]
            expected[:, 0, 5 * k + c, j, c] -= 1.0
    torch.testing.assert_close(jacobian, expected, rtol=0, atol=0)
    torch.testing.assert_close(vmap(jacfwd(captured))(maps, ratios), expected, rtol=0, atol=0)
    assert len(captured.in_place) == 1
    with pytest.raises((RuntimeError, ValueError), match="vmap"):
        vmap(jacrev(pairwise_maps))(maps, ratios)


@pytest.mark.parametrize("residual", [index_int, slice_step, diagonal_copy, writes_into_views, complex_strided])
@pytest.mark.parametrize("transform", [jacfwd, jacrev])
def test_the_transformed_graph_can_be_traced_again_and_replayed_on_other_data(residual, transform):
    x = batch()
    function = vmap(transform(real(capture(residual, (x[0],), name="again"))))
    replay = make_fx(function)(x)
    replay.graph.eliminate_dead_code()
    replay.recompile()
    torch.testing.assert_close(replay(x + 0.1), function(x + 0.1), rtol=1e-14, atol=1e-14)


def test_many_writes_into_one_tensor_are_one_operation():
    captured = capture(pairwise_maps, (torch.rand(5, 7, dtype=F64), torch.rand(20, 1, dtype=F64)), name="scale")
    assert captured.graph is not None
    assert sum(node.target is torch.ops.aten.cat.default for node in captured.graph.graph.nodes) == 1
    assert not any("zeros" in str(node.target) for node in captured.graph.graph.nodes)


def overlapping(v):
    o = torch.ones(6, dtype=F64)
    o[1:5] = v
    o[2:4] = v[:2] ** 2
    o[3:] = v[:3] ** 3
    o[0] = o[1] * o[3]
    o[2:3] += o[4:5]
    return o


def test_writes_that_overlap_keep_their_order():
    x = batch()
    captured = capture(overlapping, (x[0],), name="overlap")
    torch.testing.assert_close(vmap(captured)(x), one_by_one(overlapping, x))
    expected = torch.stack([differences(overlapping, v) for v in x])
    torch.testing.assert_close(vmap(jacfwd(captured))(x), expected, rtol=1e-7, atol=1e-8)


class Pair:
    """Stands for a manifold element: a registered pytree node."""

    def __init__(self, storage):
        self.storage = storage


pytree.register(Pair, lambda p: ([p.storage], None), lambda c, _: Pair(c[0]), lambda p: ["storage"])


def test_inputs_and_outputs_are_any_pytrees():
    def residual(pair, data):
        o = torch.zeros(3, dtype=F64)
        o[data["index"]] = pair.storage.sum() * data["weight"][0]
        return {"a": o, "b": Pair(pair.storage * 2)}

    data = {"index": torch.tensor([2, 0]), "weight": (torch.tensor(3.0, dtype=F64),)}
    captured = capture(residual, (Pair(torch.ones(2, dtype=F64)), data), name="pair")
    out = captured(Pair(torch.tensor([1.0, 2.0], dtype=F64)), {**data, "index": torch.tensor([1, 1])})
    assert out["a"].tolist() == [0, 9, 0] and isinstance(out["b"], Pair) and out["b"].storage.tolist() == [2, 4]
    mapped = vmap(captured, in_dims=(0, None))(Pair(torch.ones(7, 2, dtype=F64)), data)
    assert mapped["a"].shape == (7, 3) and mapped["b"].storage.shape == (7, 2)
    with pytest.raises(TypeError, match="structure"):
        captured(torch.ones(2, dtype=F64), data)


@pytest.mark.parametrize("transform", [jacfwd, jacrev])
def test_an_integer_input_indexes_like_a_number(transform):
    """0-d integer tensors index without `.item()`: per-block data, and indices computed from the variables."""

    def residual(v, i):
        o = torch.zeros(2, 3, dtype=F64)
        o[1, i] = v[i] * v[i - 1]
        o[0, 1:] = v[v.argmax()] * v[:2]
        return o + v.reshape(2, 2)[:, i - 1, None]

    x, i = batch(3), torch.tensor([1, 2, 1])
    captured = capture(residual, (x[0], i[0]), name="indexed")
    expected = torch.stack([residual(*entry) for entry in zip(x, i, strict=True)])
    torch.testing.assert_close(vmap(captured)(x, i), expected)
    loop = torch.stack([jacrev(lambda v, k=int(k): residual(v, k))(v) for v, k in zip(x, i, strict=True)])
    torch.testing.assert_close(vmap(transform(captured))(x, i), loop)


def test_a_computed_index_may_be_written_to():
    def residual(v):
        k = torch.floor(v[0] * 2).long()
        o = torch.zeros(4, 4, dtype=F64)
        o[k, 1:3] = v[1:3]
        o[0, k] += v[0] ** 2
        o[-k - 1] *= 2.0
        o[k] = o[k] * v
        return o

    x = batch() + 0.01  # no entry within a difference step of a jump of floor
    captured = capture(residual, (x[0],), name="bins")
    expected = torch.stack([differences(residual, v) for v in x])
    torch.testing.assert_close(vmap(jacrev(captured))(x), expected, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(vmap(jacfwd(captured))(x), expected, rtol=1e-7, atol=1e-9)


def square(v):
    return v.reshape(3, 3) + 2.0 * torch.eye(3, dtype=v.dtype)


FACTORIZATIONS = {
    "solve": lambda v: torch.linalg.solve(square(v), v[:3]),
    "solve columns": lambda v: torch.linalg.solve(square(v), v[:6].reshape(3, 2)),
    "solve from the right": lambda v: torch.linalg.solve(square(v), v[:6].reshape(2, 3), left=False),
    "solve a batch of vectors": lambda v: torch.linalg.solve(
        square(v)[:2, None, :2] + square(v)[:2, :2], v[:4].view(2, 2)
    ),
    "det": lambda v: torch.linalg.det(square(v) - 4.0),
    "slogdet": lambda v: torch.linalg.slogdet(square(v) - 4.0)[1],
    "lu_solve": lambda v: torch.linalg.lu_solve(*torch.linalg.lu_factor(square(v)), v[:3, None]),
    "lu_solve adjoint": lambda v: torch.linalg.lu_solve(*torch.linalg.lu_factor(square(v)), v[:3, None], adjoint=True),
    "lu_solve right": lambda v: torch.linalg.lu_solve(*torch.linalg.lu_factor(square(v)), v[None, :3], left=False),
}


@pytest.mark.parametrize("name", FACTORIZATIONS)
def test_solves_and_determinants_are_right_where_pytorchs_are_silently_wrong(name):
    residual, x = FACTORIZATIONS[name], batch(3, 9)
    captured = capture(residual, (x[0],), name="linalg")
    torch.testing.assert_close(vmap(captured)(x), one_by_one(residual, x))
    first = torch.stack([jacrev(residual)(v) for v in x])
    second = torch.stack([jacrev(jacrev(residual))(v) for v in x])
    for transform in (jacfwd, jacrev):
        torch.testing.assert_close(vmap(transform(captured))(x), first)
        torch.testing.assert_close(vmap(jacfwd(transform(captured)))(x), second)
        torch.testing.assert_close(vmap(jacrev(transform(captured)))(x), second)


def test_a_singular_block_does_not_stop_the_others():
    captured = capture(FACTORIZATIONS["solve"], (batch(1, 9)[0],), name="singular")
    x = batch(3, 9)
    x[1] = -2.0 * torch.eye(3, dtype=F64).reshape(-1)
    out = vmap(captured)(x)
    torch.testing.assert_close(out[[0, 2]], one_by_one(FACTORIZATIONS["solve"], x[[0, 2]]))
    assert not out[1].isfinite().all()


def test_no_grad_and_detach_cut_the_derivative_forward_and_reverse():
    def residual(v):
        with torch.no_grad():
            weight = v.sin()
        o = torch.zeros(4, dtype=F64)
        o[:] = weight * v.detach() * v.data * v
        return o

    x = batch()
    expected = torch.stack([torch.diag(v.sin() * v**2) for v in x])
    captured = capture(residual, (x[0],), name="weighted")
    for transform in (jacfwd, jacrev):
        torch.testing.assert_close(vmap(transform(captured))(x), expected)


def test_views_are_fine_as_examples_and_as_inputs():
    def residual(m):
        o = torch.zeros(6, dtype=F64)
        o[:] = (m @ m.t()).view(-1)[:1] + m.reshape(-1)
        return o

    x = torch.rand(2, 4, 3, dtype=F64).transpose(0, 2)  # (3, 4, 2)
    captured = capture(residual, (x[:, 0].t(),), name="views")
    entries = x.permute(1, 2, 0)
    expected = torch.stack([residual(m.contiguous()) for m in entries])
    torch.testing.assert_close(vmap(captured)(entries), expected)
    torch.testing.assert_close(vmap(captured, in_dims=1, out_dims=-1)(x.transpose(0, 2)), expected.t())


def test_the_example_is_not_written_to():
    x = torch.ones(4, dtype=F64)
    capture(writes_into_its_input, (x,), name="inputs")(x)
    assert torch.equal(x, torch.ones(4, dtype=F64))


def test_a_graph_keeps_the_default_dtype_it_was_traced_with():
    captured = capture(lambda v: torch.zeros(2) + v[0].float(), (batch()[0],), name="dtype")
    torch.set_default_dtype(torch.float64)
    try:
        assert captured(batch()[0]).dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


def test_modules_and_linear_algebra_are_captured():
    network = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.LayerNorm(3), torch.nn.GELU()).double()

    def residual(v):
        o = torch.zeros(3, 3, dtype=F64)
        o[:] = torch.einsum("i,j->ij", network(v), v[:3])
        return torch.linalg.cholesky(o @ o.T + torch.eye(3, dtype=F64))

    x = batch()
    captured = capture(residual, (x[0],), name="network")
    expected = torch.stack([jacrev(residual)(v) for v in x])
    torch.testing.assert_close(vmap(jacfwd(captured))(x), expected)
    torch.testing.assert_close(vmap(jacrev(captured), in_dims=-1)(x.t().contiguous()), expected)


class Twice(torch.autograd.Function):
    """Its derivative is deliberately not that of its value, so that losing it shows."""

    @staticmethod
    def forward(x):
        return 2 * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return 7 * g


def test_a_custom_derivative_survives():
    captured = capture(lambda v: Twice.apply(v), (batch()[0],), name="custom")
    assert captured.graph is None
    assert torch.equal(jacrev(captured)(batch()[0]), 7 * torch.eye(4, dtype=F64))

    def in_place(v):
        o = torch.zeros(4, dtype=F64)
        o[:] = Twice.apply(v)
        return o

    with pytest.raises(CaptureError, match=r"autograd.Function"):
        capture(in_place, (batch()[0],), name="custom")


def branch(v):
    if v[0] > 0.5:  # at fault
        return v
    return -v


def branch_deep(v):
    def inner(x):
        return x if x.sum() > 0 else -x  # at fault

    return inner(v) + inner(-v)


def loop_until(v):
    while v.norm() > 0.1:  # at fault
        v = v / 2
    return v


def item(v):
    return v * v[0].item()  # at fault


def to_float(v):
    return v * float(v[1])  # at fault


def to_int(v):
    return v * int(v.argmax())  # at fault


def f_string(v):
    return v * len(f"{v[0]:.3f}")  # at fault


def math_function(v):
    return v * math.exp(v[0])  # at fault


def filled(v):
    return v * torch.full((4,), v[0])  # at fault


def tensor_of_tensors(v):
    return torch.tensor([v[0], v[1]])  # at fault


def mask_get(v):
    return v[v > 0.01].sin()  # at fault


def mask_set(v):
    o = torch.zeros(4, dtype=F64)
    o[v > -1.0] = v * 2.0  # at fault
    return o


def nonzero(v):
    return v[torch.nonzero(v > 0.5)[:, 0]]  # at fault


def one_argument_where(v):
    return v[torch.where(v > 0.5)[0]]  # at fault


def to_numpy(v):
    return v * torch.from_numpy(np.sin(v.detach().numpy()))  # at fault


def numpy_function(v):
    return v * np.sin(v.detach())  # at fault


def to_list(v):
    return v * v.tolist()[0]  # at fault


def python_max(v):
    return v * max(v[0], v[1])  # at fault


def random(v):
    return v + torch.randn(4, dtype=F64)  # at fault


def dropout(v):
    return torch.nn.functional.dropout(v, 0.5)  # at fault


BUFFER = torch.zeros(4, dtype=F64)


def captured_write(v):
    BUFFER[0] = v[0]  # at fault
    return BUFFER * 1.0


@pytest.mark.parametrize(
    ("residual", "remedy"),
    [
        (branch, "torch.where"),
        (branch_deep, "torch.where"),
        (loop_until, "torch.where"),
        (item, "leave it a tensor"),
        (to_float, "leave it a tensor"),
        (to_int, "leave it a tensor"),
        (f_string, "print(x)"),
        (math_function, "of that name in torch"),
        (filled, "value.expand"),
        (tensor_of_tensors, "torch.stack"),
        (mask_get, "torch.where"),
        (mask_set, "torch.where"),
        (nonzero, "compute the indices outside"),
        (one_argument_where, "compute the indices outside"),
        (to_numpy, "in torch"),
        (numpy_function, "in torch"),
        (to_list, "in torch"),
        (python_max, "torch.where"),
        (random, "draw them outside"),
        (dropout, "eval"),
        (captured_write, "clone"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_cannot_be_captured_names_the_cost_the_line_and_the_remedy(residual, remedy):
    with pytest.raises(CaptureError) as info:
        capture(residual, (batch()[0],), name="pose_prior")
    message, line = str(info.value), info.value.line
    assert "'pose_prior'" in message and remedy in message
    assert line is not None and line.text.endswith("# at fault") and line.text in message
    assert f"{__file__}:{line.line}" in message


def test_values_that_do_not_depend_on_the_inputs_may_steer_python():
    table = torch.tensor([3.0, 1.0])

    def residual(v):
        grid = torch.linspace(0, 1, 4, dtype=F64)
        o = torch.zeros(4, dtype=F64)
        if grid.sum() > 1.0 and table[0] > table.max().item() - 1 and (torch.zeros_like(v) == 0).all():
            o[grid.nonzero()[:, 0]] = v[1:] * float(grid[1])
        if grid.tolist()[0] == 0.0 and table.numpy()[0] > 2:
            o[0] = v[0]
        return o

    x = batch()
    torch.testing.assert_close(vmap(capture(residual, (x[0],), name="grid"))(x), one_by_one(residual, x))


def test_an_error_of_the_residual_itself_passes_through():
    with pytest.raises(RuntimeError, match="size") as info:
        capture(lambda v: v + torch.ones(3), (batch()[0],), name="wrong")
    assert not isinstance(info.value, CaptureError)


def test_the_advice_shows_each_line_and_its_idiomatic_form():
    def residual(v):
        o = torch.zeros(8, dtype=F64)
        o[:4] = v * 2.0
        o[4] = v[0]
        o += 1.0
        o.mul_(v[0])
        torch.sin(o, out=o)
        o.view(2, 4).diagonal().copy_(v[:2])
        o[0], o[1] = v[0], v[1]
        return o

    captured = capture(residual, (batch()[0],), name="toy")
    text = inplace_advice(captured.in_place, "toy")
    start = inspect.getsourcelines(residual)[1]
    for offset, source, form in [
        (2, "o[:4] = v * 2.0", "o = torch.cat([v * 2.0, ...], dim=-1)"),
        (3, "o[4] = v[0]", "o = torch.stack([v[0], ...], dim=-1)"),
        (4, "o += 1.0", "o = o + 1.0"),
        (5, "o.mul_(v[0])", "o = o.mul(v[0])"),
        (6, "torch.sin(o, out=o)", "torch.sin(o)"),
        (7, "diagonal().copy_", "torch.diag(v[:2])"),
        (8, "o[0], o[1] = v[0], v[1]", "o = torch.stack([v[0], v[1], ...], dim=-1)"),
    ]:
        assert f"{__file__}:{start + offset}" in text and source in text and form in text, text
    assert "torch.einsum" in text and "'toy'" in text
    assert issubclass(InPlaceResidualWarning, UserWarning)


def test_there_is_no_advice_for_out_of_place_code_nor_for_pytorchs_own_writes():
    norm = torch.nn.BatchNorm1d(4).double()
    captured = capture(lambda v: norm(torch.stack([v, v * 2])).cumsum(0), (batch()[0],), name="clean")
    assert inplace_advice(captured.in_place, "clean") == ""


def test_there_is_no_advice_for_what_an_installed_package_writes(tmp_path):
    # It is rewritten all the same, but the user cannot write it otherwise.
    file = tmp_path / "site-packages" / "package.py"
    code = "def residual(v):\n    o = v.new_zeros(4)\n    o[:] = v * v\n    return o\n"
    names: dict = {}
    exec(compile(code, str(file), "exec"), names)
    captured = capture(names["residual"], (batch()[0],), name="packaged")
    assert inplace_advice(captured.in_place, "packaged") == ""
    torch.testing.assert_close(vmap(jacfwd(captured))(batch()), torch.diag_embed(2 * batch()))


def test_writes_of_kernels_that_are_made_of_others_are_kept():
    # `padding_mode="circular"` fills an empty tensor below `functionalize`; the graph returned it unfilled.
    def padded(v):
        return torch.nn.functional.pad(v[None, None], (2, 1), mode="circular")[0, 0] * v[0]

    v = batch()[0]
    captured = capture(padded, (v,), name="circular")
    torch.testing.assert_close(captured(v), padded(v))
    torch.testing.assert_close(jacfwd(captured)(v), jacrev(padded)(v))
    torch.testing.assert_close(jacfwd(jacfwd(captured))(v), jacrev(jacrev(padded))(v))
    torch.testing.assert_close(vmap(jacrev(captured))(batch()), torch.stack([jacrev(padded)(v) for v in batch()]))
