"""The Jacobian of evaluated residuals in the parameters: products with it, and its rows in blocks.

Four ways to the rows, exact all of them; the first that applies is taken.

==========  ==========================================  ===========================================================
way         needs                                       cost, in passes over the batch
==========  ==========================================  ===========================================================
samples     a `PerSample` closure                       a few: reverse mode of one sample, under `vmap`
layers      parameters in linear layers alone           one backward pass per output of a sample, and outer products
columns     fewer parameters than residuals             two backward passes per parameter, batched
rows        nothing                                     one backward pass per residual, batched
==========  ==========================================  ===========================================================

1,000 residuals, 501 parameters, a network of two hidden layers in float64, one thread: 3.4, 1.5, 124 and 186 ms, beside
0.5 for one gradient.
"""

from collections.abc import Iterator
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from mslsq.optim.errors import NO_GRAPH, ResidualError
from mslsq.optim.numbers import Number, Numbers
from mslsq.optim.parameters import joined

Block = tuple[slice, Float[Tensor, "rows n"]]

CHUNK = 32
"""Rows or columns of one batched pass on a CPU, where 16 to 64 are fastest; on an accelerator eight times as many."""


class RowSource(Protocol):
    """A way to compute rows that sees more than the graph."""

    name: str
    required: bool
    """Is it an error if it fails, or disagrees with the graph? Else the next way is taken."""

    def blocks(self, rows: int) -> Iterator[Block]:
        """All rows in blocks of at most about `rows`; which rows of the Jacobian, and the rows."""
        ...


class Jacobian:
    """J of a residual with a graph. Its graph must not be used while the parameters hold other values.

    Args:
        residual: (m,) with its graph.
        parameters: leaves; one without influence has zero columns.
        sources: better ways to compute rows, the best first; they are compared with the graph before they are believed.
        numbers: of the step.
    """

    def __init__(
        self, residual: Float[Tensor, "m"], parameters: list[Tensor], sources: list[RowSource], numbers: Numbers
    ):
        self.residual, self.parameters = residual, parameters
        self.sources, self._numbers = list(sources), numbers
        self._doubt: tuple[RowSource, Number] | None = None
        self.num_rows, self.num_columns = len(residual), sum(p.numel() for p in parameters)
        self._pullback: tuple[Tensor, Tensor] | None = None

    def transposed(self, u: Float[Tensor, "m"]) -> Float[Tensor, "n"]:
        """Jᵀu, by one backward pass."""
        return self._gradients(u, batched=False)

    def product(self, v: Float[Tensor, "n"]) -> Float[Tensor, "m"]:
        """J v, as the derivative of u ↦ Jᵀu, which is linear: two backward passes, no forward mode."""
        try:
            u, pulled = self._linear_pullback()
            (product,) = torch.autograd.grad(pulled, u, v, retain_graph=True)
        except RuntimeError as error:
            raise ResidualError(
                "LevenbergMarquardt: products with the Jacobian differentiate the backward pass, and an operator of "
                'the closure has none that can be: use system="normal" or "dual", or write the residual without it '
                "(torch.compile, attention kernels and custom autograd functions are such)."
            ) from error
        return product.detach()

    def blocks(self, memory: int) -> tuple[str, Iterator[Block]]:
        """The rows in blocks that take at most `memory` bytes, or a single row, and the name of the way. Where reading
        numbers costs a wait, `rows_are_right` is to be called once they are read."""
        rows = max(1, memory // (self.residual.element_size() * max(self.num_columns, 1)))
        for source in list(self.sources):
            found = self._compared(source, rows)
            if found is not None and (not self._numbers.are_here or self.rows_are_right()):
                return source.name, found
        whole_fits = rows >= self.num_rows
        if whole_fits and 2 * self.num_columns < self.num_rows and self._is_twice_differentiable():
            return "columns", iter([(slice(0, self.num_rows), self._by_columns())])
        return "rows", self._by_rows(min(rows, self._chunk()))

    def rows_are_right(self) -> bool:
        """Did the rows of a source agree with the graph, where some were taken? The source is not asked again if not.

        Raises:
            ResidualError: they did not, and the user had said how rows are to be had.
        """
        doubt, self._doubt = self._doubt, None
        if doubt is None or doubt[1].value:
            return True
        source, _ = doubt
        if source.required:
            raise ResidualError(
                "LevenbergMarquardt: the derivative of the samples one by one is not that of all together. The "
                "residual of a `PerSample` must be a function of its own sample and of the parameters alone. With "
                "dropout and a batch too large for `memory`, give `chunk_size`."
            )
        self.sources.remove(source)
        return False

    def _compared(self, source: RowSource, rows: int) -> Iterator[Block] | None:
        """The blocks of a source, doubted until it is known whether its Jᵀu is that of the graph, for a u without any
        pattern. It is another one where, for instance, samples depend on each other (batch normalisation), or a
        parameter is used in other places too."""
        u = irregular(self.residual, 1)[0]
        found = torch.zeros(self.num_columns, dtype=u.dtype, device=u.device)
        kept: list[Block] = []
        try:
            for which, block in source.blocks(rows):
                found += block.T @ u[which]
                if rows >= self.num_rows:
                    kept.append((which, block))
        except (RuntimeError, LookupError):
            if source.required:
                raise
            return None
        self._doubt = source, self._agree(found, self.transposed(u))
        return iter(kept) if kept else source.blocks(rows)

    def _agree(self, found: Tensor, expected: Tensor) -> Number:
        """For each parameter tensor, which may be of another size than the rest. Whether what is expected is finite is
        asked elsewhere."""
        sizes = [parameter.numel() for parameter in self.parameters]
        eps = torch.finfo(expected.dtype).eps
        rounding = 100 * eps * expected.norm()
        pairs = zip(found.split(sizes), expected.split(sizes), strict=True)
        near = [(one - other).norm() <= eps**0.5 * other.norm() + rounding for one, other in pairs]
        return self._numbers.later(torch.stack(near).all() | ~expected.norm().isfinite())

    def _chunk(self) -> int:
        return CHUNK if self.residual.device.type == "cpu" else 8 * CHUNK

    def _by_rows(self, count: int) -> Iterator[Block]:
        for start in range(0, self.num_rows, count):
            which = slice(start, min(start + count, self.num_rows))
            yield which, self._gradients(_unit_vectors(which, self.residual), batched=True)

    def _by_columns(self) -> Float[Tensor, "m n"]:
        u, pulled = self._linear_pullback()
        columns = self.residual.new_empty(self.num_columns, self.num_rows)
        for start in range(0, self.num_columns, self._chunk()):
            which = slice(start, min(start + self._chunk(), self.num_columns))
            units = _unit_vectors(which, pulled)
            (columns[which],) = torch.autograd.grad(pulled, u, units, retain_graph=True, is_grads_batched=True)
        return columns.T

    @torch.enable_grad()
    def _linear_pullback(self) -> tuple[Tensor, Tensor]:
        """u, and Jᵀu with the graph that leads to it; built once."""
        if self._pullback is None:
            u = torch.zeros_like(self.residual, requires_grad=True)
            gradients = torch.autograd.grad(self.residual, self.parameters, u, create_graph=True, allow_unused=True)
            pulled = [torch.zeros_like(p) if g is None else g for g, p in zip(gradients, self.parameters, strict=True)]
            self._pullback = u, joined(pulled)
        return self._pullback

    def _is_twice_differentiable(self) -> bool:
        """Some operators have a backward pass that is not differentiable in its cotangent, or cannot be batched."""
        try:
            u, pulled = self._linear_pullback()
            torch.autograd.grad(pulled, u, torch.ones_like(pulled)[None], retain_graph=True, is_grads_batched=True)
        except RuntimeError:
            return False
        return True

    def _gradients(self, u: Tensor, *, batched: bool) -> Tensor:
        try:
            gradients = torch.autograd.grad(
                self.residual, self.parameters, u, retain_graph=True, allow_unused=True, is_grads_batched=batched
            )
        except RuntimeError as error:
            if "second time" in str(error):
                raise ResidualError(
                    "LevenbergMarquardt: the graph of the residuals is gone. The closure must compute residuals from "
                    "the parameters at every call, and must not call backward() or autograd.grad on what it returns "
                    "without retain_graph=True."
                ) from error
            if not batched:
                raise
            return torch.stack([self._gradients(one, batched=False) for one in u])  # no batching rule for an operator
        if all(gradient is None for gradient in gradients):
            raise ResidualError(NO_GRAPH)
        if not batched:
            return joined([_or_zeros(g, p) for g, p in zip(gradients, self.parameters, strict=True)])
        flat = [
            u.new_zeros(len(u), p.numel()) if g is None else g.to_dense().reshape(len(u), -1)
            for g, p in zip(gradients, self.parameters, strict=True)
        ]
        return torch.cat(flat, 1)


def irregular(like: Tensor, count: int, seed: int = 0) -> Tensor:
    """(count, len(like)) normal numbers that disturb no generator of the user."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, len(like), generator=generator, dtype=like.dtype, device="cpu").to(
        like.device, non_blocking=True
    )


def _or_zeros(gradient: Tensor | None, parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if gradient is None else gradient


def _unit_vectors(which: slice, like: Tensor) -> Tensor:
    units = like.new_zeros(which.stop - which.start, len(like))
    units.diagonal(which.start).fill_(1)
    return units
