"""Capture: the residual of one block as an out-of-place graph.

Writes such as `error[a:b] = ...` fail under `vmap`, because the tensor they write into has no batch axis. So the
residual is recorded on one block under `functionalize`, and the graph is rewritten until every `torch.func`
transform is right on it (`rewrites`). What a trace cannot hold, such as Python branches on data, is refused with the
line at fault.
"""

import ast
import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from mslsq import pytree
from mslsq.tracing.graph import graph_of
from mslsq.tracing.guard import REMEDIES, DataDependentError
from mslsq.tracing.inplace import InPlaceResidualWarning, MutationRecorder, SourceLine, inplace_advice, is_users
from mslsq.tracing.operators import Composed, without_fused_modules
from mslsq.tracing.remedies import INSTEAD, is_of_autograd
from mslsq.tracing.rewrites import make_transformable

__all__ = ["CaptureError", "Captured", "InPlaceResidualWarning", "SourceLine", "capture", "inplace_advice"]


class CaptureError(RuntimeError):
    """A residual cannot be recorded as a graph. `line` is the user's line at fault, where one is known."""

    def __init__(self, message: str, line: SourceLine | None = None) -> None:
        super().__init__(message)
        self.line = line


class Captured:
    """A residual as a graph of out-of-place operations: called like the original, safe under every transform.

    `graph` takes and returns flat tensors; it is None where the residual holds a `torch.autograd.Function`, whose own
    derivative a graph would lose: then the original is called. `in_place` are the user's lines that write into tensors.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        graph: fx.GraphModule | None,
        structures: tuple[pytree.Structure, pytree.Structure] | None,
        in_place: tuple[SourceLine, ...],
    ) -> None:
        self.function = function
        self.graph = graph
        self.structures = structures
        self.in_place = in_place

    def __call__(self, *args: Any) -> Any:
        if self.graph is None or self.structures is None:
            return self.function(*args)
        leaves, structure = pytree.flatten(args)
        expected, output = self.structures
        if structure != expected:
            raise TypeError(f"captured with inputs of structure {expected}, called with {structure}")
        return pytree.unflatten(self.graph.forward(*leaves), output)


def capture(function: Callable[..., Any], example: tuple[Any, ...], *, name: str) -> Captured:
    """The residual of one block, recorded on `example`, as an out-of-place function.

    Args:
        function: `function(*example)` returns a tensor (real or complex) or a pytree of tensors. It is run twice.
        example: one unbatched set of inputs, pytrees of tensors; any strides, any dtype. It is never written to.
        name: the cost's, for messages.

    The graph holds for the example's shapes, dtypes and devices, and for the Python values seen: the caller keys its
    cache on them. Tensors that are not in `example` become constants (see `inputs.collect`). Tracing is not thread
    safe: the caller holds the lock.

    Raises:
        CaptureError: Python looks at the value of an input (a branch, `.item()`, a mask index, NumPy), or random
            numbers are drawn. The message names the cost, the line, and what to write instead. Errors of the residual
            itself on the example pass through unchanged.

    Example:
        >>> def residual(x):
        ...     r = torch.zeros(2, dtype=x.dtype)
        ...     r[0], r[1] = x[0] * x[1], x[1] - 1.0
        ...     return r
        >>> captured = capture(residual, (torch.rand(2),), name="toy")
        >>> torch.func.vmap(torch.func.jacfwd(captured))(torch.rand(5, 2)).shape
        torch.Size([5, 2, 2])
    """
    leaves, structure = pytree.flatten(example)
    recorder = MutationRecorder()
    try:
        with recorder, without_fused_modules():
            output = pytree.flatten(function(*pytree.unflatten([private(leaf) for leaf in leaves], structure)))[1]
    except RuntimeError as error:
        if is_of_autograd(error):
            raise explain(error, name) from error
        raise

    def flat_function(*flat: Any) -> list[Any]:
        with Composed():
            return pytree.leaves(function(*pytree.unflatten(flat, structure)))

    try:
        with torch.enable_grad():  # so that the user's own `no_grad` can be told
            graph = graph_of(flat_function, [private(leaf) for leaf in leaves], guarded=True, functional=True)
        graph = make_transformable(graph, [private(leaf) for leaf in leaves])
    except Exception as error:
        if "custom_function_call" in str(error) and not recorder.mutates:
            return Captured(function, None, None, ())
        raise explain(error, name) from error
    return Captured(function, graph, (structure, output), tuple(recorder.lines))


def private(leaf: Any) -> Any:
    """A copy in a plain layout: the residual may write to it, and `view` of it always works."""
    return leaf.detach().clone(memory_format=torch.contiguous_format) if isinstance(leaf, Tensor) else leaf


def explain(error: Exception, name: str) -> CaptureError:
    """The error that names the cost, the construct, the line and the remedy."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_users(frame.filename)]
    line = SourceLine(frames[-1].filename, frames[-1].lineno or 1) if frames else None
    if isinstance(error, DataDependentError) or "not allocated" in str(error):
        what, instead = REMEDIES[construct_at(line, getattr(error, "construct", "value"))]
    elif "custom_function_call" in str(error):
        what = "a torch.autograd.Function in a residual that also writes in place"
        instead = "out-of-place code (torch.cat, torch.stack, torch.where) around the autograd.Function"
    elif is_of_autograd(error):
        what = "a derivative by torch.autograd, which does not work under vmap and inside of other derivatives"
        instead = INSTEAD
    elif "mutating a non-functional tensor" in str(error):
        what = "a write into a tensor that exists outside the residual"
        instead = "a new tensor made inside it: torch.zeros_like, x.clone(), torch.cat or torch.stack"
    else:
        what = f"something PyTorch cannot trace ({type(error).__name__}: {str(error).splitlines()[0]})"
        instead = "plain out-of-place torch operations on tensors"
    place = f"\n  {line}\n    {line.text}" if line else ""
    return CaptureError(
        f"The residual of cost '{name}' cannot be captured as a graph.{place}\n"
        f"  It has {what}.\n  Write instead: {instead}.",
        line,
    )


def construct_at(line: SourceLine | None, construct: str) -> str:
    """Which way of asking for a value stands on the line: a branch, `.item()`, or `torch.tensor([...])`."""
    if construct != "value" or line is None:
        return construct
    statement = line.statement()
    text = line.text
    if "torch.tensor(" in text or "torch.as_tensor(" in text:
        return "tensor"
    if "np." in text or "numpy" in text:
        return "numpy"
    if any(word in text for word in (".item(", "float(", "int(", "bool(", "complex(", "range(")):
        return "item"
    if "math." in text:
        return "math"
    if any(word in text for word in ("torch.full(", "torch.full_like(", ".new_full(")):
        return "full"
    branches = (ast.If, ast.While, ast.Assert)
    parts = [] if statement is None else [statement, *ast.walk(statement)]
    if any(isinstance(part, (*branches, ast.IfExp, ast.BoolOp, ast.Compare, ast.Not)) for part in parts):
        return "branch"
    return "branch" if any(word in text for word in ("max(", "min(", "sorted(", " in ")) else construct
