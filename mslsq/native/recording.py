"""From a recorded graph of PyTorch's operations to scalars.

Every tensor becomes an array of nodes. What only moves numbers (views, cat, stack, constant indices) costs nothing.
What depends on no input is computed at once, by PyTorch. `rules` has a function for each operation; one that has none
is refused by its name.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from mslsq.native import rules
from mslsq.native.arrays import Array, each, input_array, kind_of, of_constants
from mslsq.native.pairs import Pair
from mslsq.native.scalars import Kind, NotScalarError, Program, Scalar
from mslsq.private import is_operator, operator_name, returns_a_view, writes, written_arguments
from mslsq.tracing.graph import attribute_of

REWRITTEN = ("as_real", "as_complex", "conj")
"""Functions that a captured graph has in the place of views of complex numbers (`tracing.rewrites`)."""

HARMLESS_WRITES = ("squeeze_", "unsqueeze_", "t_", "transpose_")
"""They change a shape, and no number."""


def recorded(program: Program, graph: fx.GraphModule, inputs: Sequence[Array]) -> list[np.ndarray]:
    """What a graph returns, as arrays of Scalars, from arrays for its inputs.

    Raises:
        NotScalarError: an operation has no rule.
    """
    return Recorder(program, graph).outputs(inputs)


def inputs_of(tensors: Sequence[Tensor]) -> list[Array]:
    """Arrays for all inputs of a program, numbered in their order."""
    return [input_array(number, tensor) for number, tensor in enumerate(tensors)]


class Recorder:
    """The values of a graph's nodes, and what rules need to make more of them."""

    def __init__(self, program: Program, graph: fx.GraphModule):
        self.program, self._graph = program, graph
        self._values: dict[fx.Node, Any] = {}
        self.node: fx.Node
        """The one whose rule is at work."""

    def outputs(self, inputs: Sequence[Array]) -> list[np.ndarray]:
        remaining = iter(inputs)
        for node in self._graph.graph.nodes:
            if node.op == "placeholder":
                self._values[node] = next(remaining)
            elif node.op == "get_attr":
                self._values[node] = attribute_of(self._graph, node).detach()
            elif node.op == "output":
                outputs = node.args[0] if isinstance(node.args[0], (list, tuple)) else [node.args[0]]
                return [self.reals(self._given(output)) for output in outputs]
            else:
                self._values[node] = self._computed(node)
        raise AssertionError("a graph ends with its output")

    def _computed(self, node: fx.Node) -> Any:
        self.node = node
        args, kwargs = self._given(node.args), self._given(dict(node.kwargs))
        name = operator_name(node.target) if is_operator(node.target) else getattr(node.target, "__name__", "")
        if name == "getitem":
            return args[0][args[1]]
        if not is_operator(node.target) and name not in REWRITTEN:
            raise NotScalarError(f"it calls {node.target}")
        is_write = is_operator(node.target) and writes(node.target)
        if is_write and name not in HARMLESS_WRITES and not _writes_into_its_own(node):
            raise NotScalarError(f"{name} writes in place")
        if not _has_arrays((args, kwargs)):
            with torch.no_grad():
                return node.target(*args, **kwargs)  # pyright: ignore[reportCallIssue]
        # Of views PyTorch has copying variants by that name; what copies itself (`index_copy`) is a rule of its own.
        rule = rules.RULES.get(name) or rules.RULES.get(name.removesuffix("_copy").removesuffix("_"))
        if rule is None:
            raise NotScalarError(f"{name} has no form in scalars")
        try:
            result = rule(self, *args, **kwargs)
        except (TypeError, ValueError, LookupError, AttributeError) as error:  # arguments that the rule does not know
            raise NotScalarError(f"{name} has no form in scalars with these arguments ({error})") from error
        if is_write:  # what is written is read from there, too
            written = node.args[0]
            assert isinstance(written, fx.Node)
            self._values[written] = result
        return result

    def _given(self, value: Any) -> Any:
        if isinstance(value, fx.Node):
            return self._values[value]
        if isinstance(value, (list, tuple)):
            return [self._given(part) for part in value]
        if isinstance(value, dict):
            return {key: self._given(part) for key, part in value.items()}
        return value

    # ---- what rules use

    @property
    def dtype(self) -> torch.dtype:
        """Of the node's result."""
        return self.node.meta["val"].dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the node's result."""
        return tuple(self.node.meta["val"].shape)

    def common_dtype(self, *places: int) -> torch.dtype:
        """What PyTorch converts these arguments of the node to before it compares them."""
        args: list[Any] = [self.node.args[k] for k in places]
        values = [arg.meta["val"] if isinstance(arg, fx.Node) else arg for arg in args]
        return torch.result_type(*values) if len(values) > 1 else values[0].dtype

    def scalars(self, value: Any, dtype: torch.dtype | None = None) -> np.ndarray:
        """Any argument as an array of Scalars, converted to a dtype in which something is computed."""
        if dtype not in (None, self.program.dtype, torch.int64, torch.bool, self.program.dtype.to_complex()):
            raise NotScalarError(f"it computes in {dtype}, the variables are of {self.program.dtype}")
        return self.moved(value, dtype)

    def moved(self, value: Any, dtype: torch.dtype | None = None) -> np.ndarray:
        """Any argument as an array of Scalars, converted to a dtype that may be narrower than the program's: numbers
        that are only moved are the same in both."""
        if isinstance(value, Array):
            found, own = value.scalars(self.program), value.dtype
        else:
            if isinstance(value, (float, complex)):  # no rounding to the default dtype, but to the one that is wanted
                is_real = isinstance(value, float)
                exact = torch.float64 if is_real else torch.complex128
                if dtype and (dtype.is_floating_point or dtype.is_complex):
                    exact = dtype.to_real() if is_real else dtype.to_complex()
                value = torch.tensor(value, dtype=exact, device="cpu")
            tensor = (value if isinstance(value, Tensor) else torch.as_tensor(value, device="cpu")).detach()
            found, own = of_constants(self.program, tensor), tensor.dtype
        return found if dtype is None else self._converted(found, own, dtype)

    def _converted(self, scalars: np.ndarray, own: torch.dtype, dtype: torch.dtype) -> np.ndarray:
        """Scalars of one dtype as those of another. NotScalarError where that would round."""
        if dtype.is_complex and not own.is_complex:
            zero = self.constant(0)
            return each(lambda x: Pair(x, zero), self._converted(scalars, own, dtype.to_real()))
        if own.is_complex:
            if not dtype.is_complex or dtype != self.program.dtype.to_complex():
                raise NotScalarError(f"it converts {own} to {dtype}")
            return scalars
        kind, wanted = kind_of(own), kind_of(dtype)
        if wanted == "integer" and dtype != torch.int64 and own != dtype:
            raise NotScalarError(f"it converts to {dtype}")
        if wanted == "real":
            wider = torch.promote_types(own, dtype) if kind == "real" else dtype
            if wider != dtype or torch.promote_types(dtype, self.program.dtype) != self.program.dtype:
                raise NotScalarError(f"it rounds {own} to {dtype}")
            if kind == "integer" and dtype != self.program.dtype:
                raise NotScalarError(f"it rounds {own} to {dtype}")
        if kind == wanted:
            return scalars
        if wanted == "boolean":
            return each(lambda x: x.apply("ne", 0), scalars)
        if kind == "boolean":
            one, zero = self.constant(1, wanted), self.constant(0, wanted)
            return each(lambda x: x.choose(one, zero), scalars)
        if kind == "integer" and self.program.looks_up_integers:
            return each(_real_unless_missing, scalars)
        return each(lambda x: x.apply(wanted), scalars)

    def reals(self, value: Any) -> np.ndarray:
        """An output of the graph."""
        return self.scalars(value, self.program.dtype)

    def array(self, entries: np.ndarray, dtype: torch.dtype | None = None) -> Array:
        """A result."""
        return Array(np.asarray(entries, dtype=object), self.dtype if dtype is None else dtype)

    def constant(self, value: float, kind: Kind = "real") -> Scalar:
        return self.program.constant(value, kind)


def _real_unless_missing(x: Scalar) -> Scalar:
    """NaN of what was looked up outside of a table: the least integer."""
    return x.is_equal(-(2**63)).choose(math.nan, x.apply("real"))


def _writes_into_its_own(node: fx.Node) -> bool:
    """Does it write into the result of one other operation alone, of which nothing is a view? PyTorch's kernels that
    are made of others do (`rms_norm`, `isclose`)."""
    written = node.args[0]
    if not isinstance(written, fx.Node) or not is_operator(written.target):
        return False
    if len(written_arguments(node.target, node.args)) != 1 or returns_a_view(written.target):
        return False
    users = [user for user in written.users if user is not node and is_operator(user.target)]
    same = written.meta["val"].dtype == node.meta["val"].dtype and written.meta["val"].shape == node.meta["val"].shape
    return same and not any(returns_a_view(user.target) or writes(user.target) for user in users)


def _has_arrays(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_has_arrays, value))
    if isinstance(value, dict):
        return any(map(_has_arrays, value.values()))
    return isinstance(value, Array)
