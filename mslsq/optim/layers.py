"""Rows of the Jacobian from linear layers: one backward pass gives those of all samples.

Where a sample's residual depends on its own row of the batch alone, the derivative of the summed residuals in the
output of a layer holds the derivative of each sample's residual in its own output. The row of the Jacobian is then its
outer product with the layer's input (the trick of I. Goodfellow, "Efficient per-example gradient computations", 2015).
Whether it is so is not known here; `Jacobian` compares with the graph.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.overrides import TorchFunctionMode

from mslsq.optim.jacobian import Block
from mslsq.private import is_wrapped


class Call(NamedTuple):
    """One use of a linear layer."""

    input: Tensor
    weight: Tensor
    bias: Tensor | None
    output: GradientEdge
    """The place in the graph, not the tensor: an activation may write into that afterwards."""


class Recording(TorchFunctionMode):
    """Keeps every call of `torch.nn.functional.linear` whose result has a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if torch.compiler.is_compiling():  # nothing can be kept there without a break in the compiled graph
            return result
        if func is torch.nn.functional.linear and result.requires_grad and not is_wrapped(result):
            given = dict(zip(("input", "weight", "bias"), args, strict=False)) | kwargs
            edge = get_gradient_edge(result)
            self.calls.append(Call(given["input"].detach(), given["weight"], given.get("bias"), edge))
        return result


class LayerRows:
    """Rows by the recorded calls, for each returned tensor of its own; its first axis is that of the samples."""

    name = "layers"
    required = False

    def __init__(self, parts: list[Tensor], parameters: list[Tensor], calls: list[Call]):
        self.parts, self.parameters = parts, parameters
        ours = {id(parameter) for parameter in parameters}
        self.calls = [call for call in calls if id(call.weight) in ours or id(call.bias) in ours]

    @property
    def is_worth_it(self) -> bool:
        """Are all parameters those of linear layers, and the backward passes half of the other ways' at most?"""
        used = {id(tensor) for call in self.calls for tensor in (call.weight, call.bias)}
        rows, columns = (sum(tensor.numel() for tensor in tensors) for tensors in (self.parts, self.parameters))
        passes = sum(part.numel() // max(len(part), 1) for part in self.parts)
        return 2 * passes <= min(rows, columns) and all(id(parameter) in used for parameter in self.parameters)

    def blocks(self, rows: int) -> Iterator[Block]:
        """
        Raises:
            LookupError: a layer's input has no axis of the samples.
        """
        start = 0
        for part in self.parts:
            yield from self._blocks_of(part, rows, start)
            start += part.numel()

    def _blocks_of(self, part: Tensor, rows: int, start: int) -> Iterator[Block]:
        samples = len(part)
        if part.numel() == 0:
            return
        if not part.requires_grad:
            columns = sum(parameter.numel() for parameter in self.parameters)
            yield slice(start, start + part.numel()), part.new_zeros(part.numel(), columns)
            return
        outputs = part.numel() // samples
        cotangents = self._cotangents(part, samples)
        together = max(1, rows // outputs)
        for first in range(0, samples, together):
            which = slice(first, min(first + together, samples))
            block = self._rows_of(cotangents, which, outputs, part)
            yield slice(start + which.start * outputs, start + which.stop * outputs), block

    @torch.enable_grad()
    def _cotangents(self, part: Tensor, samples: int) -> list[tuple[Call, Tensor]]:
        """Per call that the part depends on (outputs, samples, ..., features) of the derivative in what it returned."""
        edges = [call.output for call in self.calls]
        if not edges:  # torch 2.9 refuses derivatives in nothing
            return []
        passes = [
            torch.autograd.grad(column, edges, torch.ones_like(column), retain_graph=True, allow_unused=True)
            for column in part.reshape(samples, -1).unbind(1)
        ]
        found = []
        for call, derivatives in zip(self.calls, zip(*passes, strict=True), strict=True):
            present = [d for d in derivatives if d is not None]
            if not present:
                continue
            if present[0].dim() < 2 or len(present[0]) != samples:
                raise LookupError
            found.append((call, torch.stack([torch.zeros_like(present[0]) if d is None else d for d in derivatives])))
        return found

    def _rows_of(self, cotangents: list[tuple[Call, Tensor]], which: slice, outputs: int, like: Tensor) -> Tensor:
        count = (which.stop - which.start) * outputs
        pieces: dict[int, Tensor] = {}
        for call, derivative in cotangents:
            here, inputs = derivative[:, which], call.input[which]
            inner = here.reshape(*here.shape[:2], -1, here.shape[-1])  # (outputs, samples, times, features)
            if call.bias is not None:
                _add(pieces, call.bias, inner.sum(2).transpose(0, 1).reshape(count, -1))
            own = torch.einsum("knto,nti->nkoi", inner, inputs.reshape(len(inputs), -1, inputs.shape[-1]))
            _add(pieces, call.weight, own.reshape(count, -1))
        flat = [pieces.get(id(p), like.new_zeros(())).expand(count, p.numel()) for p in self.parameters]
        return torch.cat(flat, 1)


def _add(pieces: dict[int, Tensor], parameter: Tensor, piece: Tensor) -> None:
    before = pieces.get(id(parameter))
    pieces[id(parameter)] = piece if before is None else before + piece
