"""Whole solves as C++: their start, their step, and what linearizes between. `steps.h` has the loop around them, for a
GPU `cuda_steps.h`."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from mslsq.native.linearizing_text import Linearizing, Source, reader
from mslsq.native.scalars import Program, Scalar
from mslsq.native.tables import Layout, Table
from mslsq.native.text import function_text, statements


@dataclass(frozen=True)
class Call:
    """A function of C++ that a step calls: `function(in, arguments, results)`, all vectors.

    Attributes:
        results: by which the step reads what it returns, and how many numbers these are.
    """

    function: str
    arguments: tuple[Scalar, ...]
    results: Source


@dataclass(frozen=True)
class Stepping:
    """A step, or the start.

    Attributes:
        program: of the state and of what calls return.
        calls: in their order.
        state: the state that follows, by place; only what changes.
        record: what the history keeps; what a mapping returns.
        returning: a call behind all others, whose results are the record.
    """

    program: Program
    sources: Mapping[int, Source]
    calls: tuple[Call, ...]
    state: tuple[tuple[int, Scalar], ...]
    record: tuple[Scalar, ...]
    returning: Call | None = None

    def text(self, name: str) -> str:
        """`name(in, s, record)`, with the state s as it is and as it will be."""
        program, read = self.program, reader(self.sources)
        lines: list[str] = []
        known: set[int] = set()

        def compute(scalars: Iterable[Scalar]) -> None:
            needed = [n for n in program.needed(x.number for x in scalars) if n not in known]
            known.update(needed)
            lines.extend(statements(program, needed, read))

        def call(one: Call, results: str) -> None:
            compute(one.arguments)
            given, own = f"{one.results.array}_of", one.results.array
            lines.append(f"const V {given}[] = {{{', '.join(f'v{x.number}' for x in one.arguments)}}};")
            lines.extend([f"V {own}[{one.results.size}];"] * (results == own))
            lines.append(f"{one.function}(in, {given}, {results});")

        for one in self.calls:
            call(one, one.results.array)
        if self.returning is not None:
            call(self.returning, "record")
        compute(self._outputs)
        lines += [f"s[{place}] = v{x.number};" for place, x in self.state]
        lines += [f"record[{k}] = v{x.number};" for k, x in enumerate(self.record)]
        return function_text(f"static void {name}(const Inputs& in, V* s, V* record)", lines)

    @property
    def _outputs(self) -> list[Scalar]:
        return [*(x for _, x in self.state), *self.record]

    @property
    def count(self) -> int:
        """How many operations this takes, but for the calls."""
        arguments = [x for call in self.calls for x in call.arguments]
        return self.program.count(x.number for x in (*arguments, *self._outputs))


@dataclass(frozen=True)
class Bending:
    """What bends the steps of a problem that creeps.

    Attributes:
        pulled: Jᵀr″ along a tangent that follows the values.
        step: that is bent by it.
    """

    pulled: Linearizing
    step: Stepping

    def text(self, name: str) -> str:
        """Both in C++; they call what `Functions.text` has."""
        return "\n".join([self.pulled.text(f"{name}_pull"), self.step.text(f"{name}_bent")])


class Linearized(Protocol):
    """What linearizes a problem: `Linearizing`, or Python (`native.called_back`)."""

    def text(self, name: str, loops: int = 1) -> str: ...

    def count(self, loops: int = 1) -> int: ...


@dataclass(frozen=True)
class Functions:
    """What a problem is solved by, for whatever runs it."""

    linearization: Linearized
    start: Stepping
    step: Stepping
    bending: Bending | None = None
    """None where steps are straight, or all alike."""

    def text(self, name: str, loops: int = 1) -> str:
        """Linearization, start and step in C++; `loops` as `Linearizing.text` has them."""
        steps = self.start.text(f"{name}_start"), self.step.text(f"{name}_step")
        return "\n".join([self.linearization.text(name, loops), *steps])

    def count(self, loops: int = 1) -> int:
        """How many operations `text` takes, with loops as often as they go round."""
        return self.linearization.count(loops) + self.start.count + self.step.count


def mapping_text(name: str, called: Mapping[str, Linearizing], function: Stepping, table: Table) -> str:
    """A program of the processor that maps a function over problems; `called` are the linearizations that it calls, by
    their names."""
    parts = [linearizing.text(own) for own, linearizing in called.items()]
    return "\n".join([*parts, function.text(f"{name}_of_one"), table.text(name), f"MAPS({name})"])


def solving_text(name: str, functions: Functions, layout: Layout) -> str:
    """A program of the processor around these functions."""
    parts, bent = [functions.text(name)], "0"
    if functions.bending is not None:
        parts, bent = [*parts, functions.bending.text(name)], f"{name}_bent"
    return "\n".join([*parts, layout.text(name), f"SOLVES({name}, {bent})"])
