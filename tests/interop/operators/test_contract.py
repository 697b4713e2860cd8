"""What does not keep the contract is refused, and the message says what."""

import pytest
import torch
from torch.func import jacfwd, jacrev, vmap

from mslsq.interop.operators import OperatorError, wrap

X = torch.tensor([0.3, -1.2, 2.0], dtype=torch.float64)


def square(x):
    return x.square()


def right(inputs, cotangents):
    return (2 * inputs[0] * cotangents[0],)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda inputs, cotangents: (3 * inputs[0] * cotangents[0],),
        lambda inputs, cotangents: (cotangents[0] * 0,),
        lambda inputs, cotangents: (2 * inputs[0] * cotangents[0] * torch.tensor([1.0, 1.0, 1.001]),),
    ],
    ids=["factor", "silent zeros", "a thousandth in one entry"],
)
def test_a_wrong_backward_is_refused_with_both_numbers(wrong):
    with pytest.raises(OperatorError, match=r"square: backward is wrong for 'x': .*differences of its values"):
        jacrev(wrap(square, backward=wrong))(X)
    jacrev(wrap(square, backward=wrong, check=False))(X)  # at one's own risk


def test_a_wrong_jvp_and_a_wrong_second_are_refused():
    silent = wrap(square, backward=right, jvp=lambda inputs, tangents: tangents[0] * 0)
    with pytest.raises(OperatorError, match="jvp is wrong for 'x'"):
        jacfwd(silent)(X)
    bent = wrap(square, backward=right, second=lambda inputs, cotangents, tangents: (cotangents[0] * tangents[0],))
    with pytest.raises(OperatorError, match="second is wrong for 'x'"):
        jacfwd(jacrev(bent))(X)


def test_a_right_backward_passes_at_kinks_in_float32_and_where_some_lanes_are_nan():
    def absolute(x):
        return x.abs() + x.log().clamp_min(-50)

    def pulled(inputs, cotangents):
        (x,), (g,) = inputs, cotangents
        return ((x.sign() + 1 / x) * g,)

    operator = wrap(absolute, backward=pulled, lanes="batch")
    for dtype in (torch.float32, torch.float64):
        x = torch.tensor([[2.0], [-1.0], [0.5]], dtype=dtype)
        assert torch.isfinite(vmap(jacrev(operator))(x)).tolist() == [[[True]], [[True]], [[True]]]
    kinked = wrap(lambda x: x.abs(), backward=lambda inputs, cotangents: (inputs[0].sign() * cotangents[0],))
    assert jacrev(kinked)(torch.zeros(2)).tolist() == [[0.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("shift", [1, -1])
def test_a_lane_that_reads_its_neighbour_is_refused_whatever_the_number_of_lanes(count, shift):
    def neighbour(x):
        return torch.cat([x[shift:], x[-1:]]) if shift == 1 else torch.cat([x[:1], x[:shift]])

    with pytest.raises(OperatorError, match="a lane has other results"):
        vmap(wrap(neighbour, lanes="batch"))(torch.arange(1.0, 1.0 + count))


def test_lanes_that_know_of_each_other_are_refused():
    mixing = wrap(lambda x: x - x.mean(0), backward=lambda inputs, cotangents: cotangents, lanes="batch")
    with pytest.raises(OperatorError, match="a lane has other results"):
        vmap(mixing)(X[:, None])


def test_one_entry_per_lane_is_expected():
    with pytest.raises(OperatorError, match="lanes='loop'"):
        vmap(wrap(lambda x: x.sum(), lanes="batch"))(X[:, None])


@pytest.mark.parametrize(
    ("backward", "said"),
    [
        (lambda inputs, cotangents: cotangents[0], "one gradient per input"),
        (lambda inputs, cotangents: (None,), "returns None for 'x'"),
        (lambda inputs, cotangents: (cotangents[0].float(),), "float32"),
        (lambda inputs, cotangents: (cotangents[0][:1],), r"shape \(1,\)"),
    ],
)
def test_gradients_have_the_form_of_their_inputs(backward, said):
    with pytest.raises(OperatorError, match=said):
        jacrev(wrap(square, backward=backward))(X)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((X, X), "takes 1 tensors"),
        ((1.0,), "functools.partial"),
        ((X.to(torch.complex128),), "view_as_real"),
    ],
)
def test_other_arguments_are_refused(arguments, said):
    with pytest.raises(OperatorError, match=said):
        wrap(square)(*arguments)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"jvp": "row"}, "Did you mean 'rows'"),
        ({"jvp": "rows"}, "give that too"),
        ({"second": "differences"}, "give that too"),
        ({"shared": ("y",)}, "no input 'y'"),
        ({"lanes": "all"}, "lanes must be one of"),
    ],
)
def test_other_options_are_refused(options, said):
    with pytest.raises(OperatorError, match=said):
        wrap(square, **options)


def test_names_come_from_the_signature_or_are_asked_for():
    with pytest.raises(OperatorError, match="inputs="):
        wrap(lambda *tensors: tensors[0])
    assert repr(wrap(lambda *tensors: tensors[0], inputs=("x",), name="first")) == "<operator first(x)>"


def test_results_that_are_no_numbers_with_derivatives_are_refused():
    for function, said in ((lambda x: None, "must return a tensor"), (lambda x: x > 0, "bool")):
        with pytest.raises(OperatorError, match=said):
            wrap(function)(X)


def test_a_result_that_is_the_input_itself_is_copied():
    operator = wrap(lambda x: x, backward=lambda inputs, cotangents: cotangents)
    result = operator(X)
    assert torch.equal(result, X) and result.data_ptr() != X.data_ptr()
    assert torch.equal(jacrev(operator)(X), torch.eye(3, dtype=X.dtype))


def test_autograd_that_does_not_reach_an_input_is_refused():
    broken = wrap(lambda x, y: x * y.detach(), backward="autograd", check=False)
    with pytest.raises(OperatorError, match="no way from the result to 'y'"):
        jacrev(broken, (0, 1))(X, X)
    blind = wrap(lambda x: torch.from_numpy(x.detach().numpy() ** 2), backward="autograd")
    with pytest.raises(OperatorError, match="autograd does not see"):
        jacrev(blind)(X)


def test_shapes_are_known_without_numbers():
    from torch._subclasses.fake_tensor import FakeTensorMode

    operator = wrap(
        lambda x: x[:2] * 2, backward=lambda inputs, cotangents: (torch.cat([2 * cotangents[0], X[:1] * 0]),)
    )
    with FakeTensorMode() as mode:
        x = mode.from_tensor(X)
        assert operator(x).shape == (2,)
        assert jacrev(operator)(x).shape == (2, 3)


def test_a_first_call_where_nothing_can_be_measured_does_not_count_as_a_check():
    """At NaN and infinity there are no differences: the next call of that shape is looked at."""
    for nowhere in (torch.nan, torch.inf):
        tripled = wrap(square, backward=lambda inputs, cotangents: (3 * inputs[0] * cotangents[0],))
        jacrev(tripled)(torch.full((3,), nowhere, dtype=torch.float64))
        with pytest.raises(OperatorError, match="backward is wrong for 'x'"):
            jacrev(tripled)(X)


def test_an_operator_that_changes_its_inputs_is_refused():
    def doubled(x):
        x *= 2
        return x.sum()[None]

    def by_numpy(x):
        x.numpy()[0] = 5.0
        return x.sum()[None]

    for function in (doubled, by_numpy):
        with pytest.raises(OperatorError, match="changes its input 'x'"):
            wrap(function)(X.clone())
    with pytest.raises(OperatorError, match="changes its input 'x'"):
        vmap(wrap(lambda x: x.mul_(2).sum(-1), lanes="batch", name="lanes"))(torch.ones(4, 3))


def test_an_operator_that_is_random_is_refused():
    with pytest.raises(OperatorError, match="called again with the same inputs it gives other values"):
        wrap(lambda x: x + 0.1 * torch.rand_like(x), backward=lambda inputs, cotangents: cotangents)(X)
    noisy = wrap(lambda x: x + 0.1 * torch.rand_like(x), backward=lambda inputs, cotangents: cotangents, check=False)
    noisy(X)  # at one's own risk


def test_sparse_tensors_are_refused():
    with pytest.raises(OperatorError, match=r"'x' is torch.sparse_coo, not dense"):
        wrap(square, backward=right)(torch.eye(3).to_sparse())


def test_values_of_less_precision_than_their_inputs_are_measured_as_those():
    rounded = wrap(lambda x: x.float().square(), backward=lambda i, c: ((2 * i[0] * c[0]),))
    torch.testing.assert_close(jacrev(rounded)(X), torch.diag(2 * X).float(), check_dtype=False)
    wrong = wrap(lambda x: x.float().square(), backward=lambda i, c: ((2.1 * i[0] * c[0]),))
    with pytest.raises(OperatorError, match="backward is wrong"):
        jacrev(wrong)(X)


def test_an_error_inside_says_in_which_operator_it_was():
    with pytest.raises(IndexError) as caught:
        wrap(lambda p: p[1] * p[0], lanes="batch", name="pair")(torch.ones(2))
    assert "In the operator pair, called with p (1, 2) (lanes='batch'" in caught.value.__notes__[0]
