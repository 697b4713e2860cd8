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
