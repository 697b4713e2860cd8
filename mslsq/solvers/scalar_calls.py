"""What a function that is recorded as scalars calls: linearizations and linear systems, functions of C++."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mslsq.native.arrays import Array, each
from mslsq.native.linearizing_text import Source
from mslsq.native.recording import recorded
from mslsq.native.scalars import Program, Scalar
from mslsq.native.steps_text import Call
from mslsq.solvers.scalar_system import Sums
from mslsq.tracing.graph import distinct, graph_of

Answer = Callable[[str, tuple[Tensor, ...]], Sequence[Tensor]]
"""What a call of that name returns for these tensors."""

Function = Callable[[list[Tensor], Answer], Sequence[Tensor]]
"""What is recorded: it calls by the second argument."""


class _Called(NamedTuple):
    """A call that has been made: of what, with which tensors, and what came back."""

    name: str
    arguments: tuple[Tensor, ...]
    results: tuple[Tensor, ...]


@dataclass(frozen=True)
class Callees:
    """What may be called, of problems with these sums.

    Args:
        functions: in C++, by the names under which they are called.
        size: of the vector that "mixed" returns.
    """

    sums: Sums
    dtype: torch.dtype
    functions: Mapping[str, str]
    size: int = 0

    @property
    def _columns(self) -> int:
        return self.sums.components * self.sums.size

    def _places(self, name: str) -> list[np.ndarray]:
        """Of every tensor that a call returns, where its entries are among the numbers; -1 for what is zero."""
        columns, cost = np.arange(self._columns), np.asarray(0)
        if name == "solve":
            return [columns, np.asarray(self._columns)]  # the step, and was it found?
        if name == "factor":
            first = self.sums.matrix().min()
            lower = np.where(np.tri(self.sums.size, dtype=bool), self.sums.matrix() - first, -1)
            return [lower, np.asarray(self.sums.count - first)]  # the factor, and is there one?
        if name in ("linearize", "curve"):
            return [cost, 1 + columns, self.sums.matrix()]  # cost, gradient and matrix
        return [np.arange(self.size) if name == "mixed" else columns]

    def example(self, name: str) -> list[Tensor]:
        """What a call returns, of the right shapes; matrices are unit matrices."""
        found = [torch.ones(1, *places.shape, dtype=self.dtype, device="cpu") for places in self._places(name)]
        return [x * torch.eye(self.sums.size, dtype=self.dtype, device="cpu") if x.ndim == 4 else x for x in found]

    def results(self, program: Program, name: str, number: int) -> list[Array]:
        """What call `number` returns, as inputs of a program."""

        def scalar(place: int) -> Scalar:
            return program.constant(0, "real") if place < 0 else program.input(1 + number, int(place), "real")

        return [Array(each(scalar, places[None]), self.dtype) for places in self._places(name)]

    def count(self, name: str) -> int:
        """How many numbers a call returns."""
        return 1 + max(int(places.max()) for places in self._places(name))

    def _arguments(self, arrays: list[np.ndarray]) -> tuple[Scalar, ...]:
        """What a call is given: of matrices the lower triangles."""
        rows, columns = np.tril_indices(self.sums.size)
        flat = [array[..., rows, columns] if array.ndim == 4 else array for array in arrays]
        return tuple(x for array in flat for x in array.reshape(-1))

    def recorded(
        self, program: Program, function: Function, example: Sequence[Tensor], arrays: Sequence[Array]
    ) -> tuple[tuple[Call, ...], list[np.ndarray]]:
        """`function(tensors, answer)` with its calls: what they return are inputs of its graph, what they are given are
        outputs. Returns the calls in their order, and what the function returns."""
        called: list[_Called] = []

        def noted(name: str, arguments: tuple[Tensor, ...]) -> list[Tensor]:
            called.append(_Called(name, arguments, tuple(self.example(name))))
            return list(called[-1].results)

        function(list(example), noted)  # which calls it makes does not depend on numbers
        names = [call.name for call in called]
        results = [x for call in called for x in call.results]
        given = [*arrays, *(a for number, name in enumerate(names) for a in self.results(program, name, number))]

        def flat(*leaves: Tensor) -> Any:
            tensors, returned = list(leaves[: len(example)]), iter(leaves[len(example) :])
            arguments: list[Tensor] = []

            def answer(name: str, tensors: tuple[Tensor, ...]) -> list[Tensor]:
                arguments.extend(tensors)
                return [next(returned) for _ in self._places(name)]

            found = function(tensors, answer)
            return [*arguments, *found]

        graph = graph_of(flat, distinct([*example, *results]), guarded=True, functional=True)
        outputs = iter(recorded(program, graph, given))
        calls = [
            Call(
                self.functions[call.name],
                self._arguments([next(outputs) for _ in call.arguments]),
                Source(f"r{number}", 0, self.count(call.name)),
            )
            for number, call in enumerate(called)
        ]
        return tuple(calls), list(outputs)
