"""`wrap`: a function that PyTorch cannot look into becomes an operator that every transform gets right."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from mslsq.interop.operators.autograd_rules import backward_of, second_of
from mslsq.interop.operators.contract import Contract
from mslsq.interop.operators.errors import OperatorError
from mslsq.interop.operators.functions import Forward, connect
from mslsq.interop.operators.registered import Registered
from mslsq.private import is_functionalizing, tensors_of_operator
from mslsq.validation import one_of, suggestion


class Operator:
    """What `wrap` returns: called with one lane's tensors, like any function of PyTorch."""

    def __init__(self, contract: Contract) -> None:
        self._contract = contract
        self._registered = Registered(contract)
        connect(self._registered)

    def __call__(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        """The values of one lane; `torch.func.vmap` makes it many.

        Raises:
            OperatorError: the tensors are not what the operator takes, or it does not keep its contract.
        """
        self._look_at(inputs)
        lanes = [x[None] for x in inputs]
        # What is captured gets the derivatives of `Forward` afterwards (`functions.connect`).
        results = (
            self._registered("forward", lanes) if is_functionalizing() else Forward.apply(self._registered, *lanes)
        )
        values = tuple(one[0] for one in results)
        return values[0] if self._registered.running.returns_one else values

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the tensors that it takes."""
        return self._contract.inputs

    def __repr__(self) -> str:
        return f"<operator {self._contract.name}({', '.join(self._contract.inputs)})>"

    def _look_at(self, inputs: tuple[Any, ...]) -> None:
        contract = self._contract
        if len(inputs) != len(contract.inputs):
            raise OperatorError(
                f"{contract.name} takes {len(contract.inputs)} tensors ({', '.join(contract.inputs)}), not "
                f"{len(inputs)}."
            )
        for name, x in zip(contract.inputs, inputs, strict=True):
            if not isinstance(x, Tensor):
                raise OperatorError(
                    f"{contract.name}: {name!r} must be a tensor, not {type(x).__name__}. Numbers that stay the same "
                    "belong into the function (functools.partial)."
                )
            if x.layout != torch.strided:
                raise OperatorError(f"{contract.name}: {name!r} is {x.layout}, not dense; pass x.to_dense().")
            if x.is_complex():
                raise OperatorError(f"{contract.name}: {name!r} is complex; pass torch.view_as_real(x).")
            if x.device != inputs[0].device:
                raise OperatorError(
                    f"{contract.name}: {contract.inputs[0]!r} is on {inputs[0].device}, {name!r} on {x.device}; move "
                    "one to the other."
                )


def wrap(
    function: Callable[..., Any],
    *,
    backward: Callable[..., Any] | Literal["autograd"] | None = None,
    jvp: Callable[..., Any] | Literal["rows", "differences"] | None = None,
    second: Callable[..., Any] | Literal["autograd", "differences"] | None = None,
    lanes: Literal["batch", "loop"] = "loop",
    shared: Sequence[str] = (),
    inputs: Sequence[str] | None = None,
    name: str | None = None,
    check: bool = True,
) -> Operator:
    """Make a C++, CUDA, Triton or any other opaque function of tensors part of residuals.

    The result can be called under `vmap`, `grad`, `jacrev`, `jacfwd`, `make_fx` and nestings of them, in a residual or
    elsewhere. The functions get detached tensors, contiguous, all on one device; they may read raw pointers. They must
    not keep or change them, and must be deterministic. Wrap once, at the level of a module: every operator stays
    registered with PyTorch.

    Args:
        function: `function(*inputs)` returns a tensor of floating point or a tuple of them.
        backward: `backward(inputs, cotangents)` takes two tuples and returns one gradient (Jᵀ·cotangents) per input;
            None for inputs of integers. "autograd": the function's own, by `torch.autograd.grad`. Without it nothing
            differentiates the operator in reverse mode.
        jvp: `jvp(inputs, tangents)` returns J·tangents in the form of the results; "rows": from `backward`, exact, with
            one pass per row; "differences": central differences, good to some 1e-10 in float64 and 1e-4 in float32.
            Without it forward mode raises.
        second: `second(inputs, cotangents, tangents)` returns the derivative of `backward(inputs, cotangents)` along
            `tangents` of the inputs (one per input, zeros where an input stays). "autograd": the function's own double
            backward; "differences" of `backward`. Derivatives *through* a solve need it; a solve does not.
        lanes: "loop": the functions take one lane, and `vmap` calls them once per lane. "batch": every tensor has a
            leading axis, one entry per lane, and `vmap` of any depth is one call.
        shared: names of inputs that have no such axis with lanes="batch": the same in all lanes, as an image is. Their
            gradient is that of all lanes together. Where `vmap` maps one all the same, lanes are called one by one.
        inputs: the names of the tensors, for messages; by default the parameters of `function`, or what the schema of a
            PyTorch operator says.
        name: how messages and recorded graphs call it; `function.__name__` by default.
        check: compare `backward`, `jvp` and `second` with differences at the first call of every shape, and refuse what
            is wrong.

    Raises:
        OperatorError (a ValueError): an argument does not fit. When the operator is called: it takes other tensors,
            returns something else than it promised, or its derivatives are wrong.
        NotImplementedError: a transform needs a rule that was not given; the message names it.

    >>> square = mslsq.interop.operators.wrap(
    ...     lambda x: x.square(), backward=lambda inputs, cotangents: (2 * inputs[0] * cotangents[0],), name="square"
    ... )
    >>> torch.func.jacrev(square)(torch.tensor([1.0, 3.0]))
    tensor([[2., 0.],
            [0., 6.]])
    """
    one_of("wrap: lanes", lanes, ("batch", "loop"), OperatorError)
    for what, rule, known in (
        ("backward", backward, ("autograd",)),
        ("jvp", jvp, ("rows", "differences")),
        ("second", second, ("autograd", "differences")),
    ):
        if not callable(rule):
            one_of(f"wrap: {what}", rule, (None, *known), OperatorError)
    known = tensors_of_operator(function)
    called = name or (known[0] if known else getattr(function, "__name__", type(function).__name__))
    if not callable(function):
        raise OperatorError(f"wrap: {function!r} cannot be called.")
    if inputs is None:
        inputs = known[1] if known and known[1] else _parameters(function, called)
    names = tuple(inputs)
    for one in shared:
        if one not in names:
            raise OperatorError(
                f"wrap: {called} has no input {one!r}.{suggestion(one, names)} It has {', '.join(names)}."
            )
    if jvp == "rows" and backward is None:
        raise OperatorError(f"wrap: {called} has jvp='rows', which takes its numbers from backward=; give that too.")
    if second is not None and backward is None:
        raise OperatorError(f"wrap: {called} has second=, the derivative of backward=; give that too.")
    return Operator(
        Contract(
            name=called,
            inputs=names,
            forward=function,
            backward=backward_of(called, names, function) if backward == "autograd" else _unasked(backward),
            jvp="rows" if jvp is None and second is not None else jvp,
            second=second_of(called, names, function) if second == "autograd" else _unasked(second),
            shared=frozenset(names.index(one) for one in shared),
            one_lane=lanes == "loop",
            check=check,
        )
    )


def _unasked(rule: Any) -> Any:
    """A user's rule, which is not told whose gradients are wanted."""
    if not callable(rule):
        return rule

    def all_gradients(*arguments: Any) -> Any:
        return rule(*arguments[:-1])

    return all_gradients


def _parameters(function: Callable[..., Any], called: str) -> tuple[str, ...]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        parameters = []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = tuple(one.name for one in parameters if one.kind in kinds and one.default is inspect.Parameter.empty)
    if not names:
        raise OperatorError(
            f"wrap: the tensors that {called} takes cannot be read from its signature: give inputs=('x', 'y')."
        )
    return names
