"""Whole solves as C++: how a problem is linearized, its start and its step. `steps.h` has the loop around them, for a
GPU `cuda_steps.h`.

The linearization adds up what the rows of the residual contribute: those that are copies of one another in a loop.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from mslsq.native.copies import Copies, affine
from mslsq.native.operations import OPERATIONS
from mslsq.native.scalars import Node, Program, Scalar
from mslsq.native.text import statements

DATA, INTEGERS, SHARED = "data", "integers", "shared"


@dataclass(frozen=True)
class Source:
    """Where an input is found in C++."""

    array: str
    """`DATA`, `INTEGERS` or `SHARED`, or the name of an array of vectors."""
    first: int
    """The place of its first entry there; of a shared one which it is."""
    size: int
    is_real: bool = True

    def read(self, entry: str, kind: str) -> str:
        """The expression of an entry."""
        if self.array == SHARED:
            type_ = "real" if self.is_real else "long"
            text = f"same((const {type_}*)in.shared[{self.first}] + {entry})"
        else:
            array = f"in.{self.array}" if self.array in (DATA, INTEGERS) else self.array
            text = f"{array}[{self.first} + {entry}]"
        return f"mask_({text} != 0)" if kind == "boolean" else text


@dataclass(frozen=True)
class Part:
    """Rows of the residual that are copies of one, or a single one."""

    copies: Copies
    sums: tuple[tuple[int, Scalar], ...]
    """What one of them adds to which of the sums..."""
    scattered: tuple[tuple[tuple[int, ...], Scalar], ...] = ()
    """... and, by copy, to which of the places of what is scattered."""

    @property
    def scalars(self) -> list[Scalar]:
        """All that one of them adds."""
        return [x for _, x in (*self.sums, *self.scattered)]


@dataclass(frozen=True)
class Linearizing:
    """The sums of all parts at the values that a program is given, and at what else the parts read with them.

    Attributes:
        sources: of the inputs, by number.
        initial: what each sum begins with.
        scattered: how many numbers stand behind the sums, to which copies add in places of their own.
    """

    program: Program
    sources: Mapping[int, Source]
    parts: Sequence[Part]
    initial: Sequence[float]
    scattered: int = 0

    @property
    def size(self) -> int:
        """How many numbers that are."""
        return len(self.initial) + self.scattered

    def text(self, name: str, loops: int = 1) -> str:
        """`name_linearize(in, x, model)`.

        Args:
            loops: over the same rows, each of which adds up its share of the sums, and computes again what they have in
                common: for where there are fewer registers than sums.
        """
        program, read = self.program, reader(self.sources)
        varying = {part.copies.number: _varying(program, part) for part in self.parts if part.copies.leaves}
        inside = set[int]().union(*varying.values())
        outputs = [x.number for part in self.parts for x in part.scalars]
        lines = [f"V a{k} = splat((real){value!r});" for k, value in enumerate(self.initial)]
        lines += [f"for (long k = {len(self.initial)}; k < {self.size}; k++) model[k] = V{{}};"] * bool(self.scattered)
        lines += statements(program, (n for n in program.needed(outputs) if n not in inside), read)
        tables: list[str] = []
        for part in self.parts:
            prefix = f"{name}_{part.copies.number}"
            if not part.copies.leaves:
                # Copies without leaves read the same, and add to the same places.
                lines += [f"a{k} = a{k} + v{x.number};" for k, x in part.sums] * len(part.copies.members)
                lines += self._scattering(prefix, part, tables) * len(part.copies.members)
                continue
            own = varying[part.copies.number]
            leaf = _leaf_reader(prefix, part.copies, self.sources, tables)
            for first, sums in enumerate(_divided(part.sums, loops)):
                # What is scattered is not taken apart: the first loop has it.
                scalars = [x for _, x in sums] if first else [*[x for _, x in sums], *[x for _, x in part.scattered]]
                body = statements(
                    program,
                    (n for n in program.needed(x.number for x in scalars) if n in own),
                    lambda node, operands, part=part, leaf=leaf: (
                        leaf(node) if _is_leaf(node, part.copies) else read(node, operands)
                    ),
                )
                body += [] if first else self._scattering(prefix, part, tables)
                lines += _loop(len(part.copies.members), body, sums)
        lines += [f"model[{k}] = a{k};" for k in range(len(self.initial))]
        heading = f"SEPARATE void {name}_linearize(const Inputs& in, const V* x, V* model)"
        return "\n".join([*dict.fromkeys(tables), _function(heading, lines)])

    def _scattering(self, prefix: str, part: Part, tables: list[str]) -> list[str]:
        """The statements of copy i that add what is scattered."""
        lines = []
        for number, (places, x) in enumerate(part.scattered):
            at = f"{len(self.initial)} + {_place(f'{prefix}_to{number}', places, tables)}"
            lines.append(f"model[{at}] = model[{at}] + v{x.number};")
        return lines

    def count(self, loops: int = 1) -> int:
        """How many operations that takes, those of a loop in each of its rounds."""
        outside, total = set[int](), 0
        for part in self.parts:
            own, rounds = _varying(self.program, part), len(part.copies.members)
            for sums in _divided(part.sums, loops if own else 1):
                needed = self.program.needed(x.number for _, x in sums)
                operations = {n for n in needed if self.program.nodes[n].operation in OPERATIONS}
                outside |= operations - own
                total += rounds * (len(operations & own) + len(sums))
        return total + len(outside)


def _divided(sums: tuple[tuple[int, Scalar], ...], loops: int) -> list[tuple[tuple[int, Scalar], ...]]:
    """Sums in groups of equal sizes."""
    count = max(1, min(loops, len(sums)))
    ends = [len(sums) * k // count for k in range(count + 1)]
    return [sums[begin:end] for begin, end in itertools.pairwise(ends)]


def _loop(count: int, body: Sequence[str], sums: Sequence[tuple[int, Scalar]]) -> list[str]:
    """Add up over all copies: first within runs of about √count, whose sums are then added. Of 32 rows that halves the
    rounding, by which gradients are told from zero."""
    run = round(count**0.5)
    within = [*body, *(f"b{k} = b{k} + v{x.number};" for k, x in sums)]
    return [
        f"for (long first = 0; first < {count}; first += {run}) {{",
        *(f"    V b{k} = V{{}};" for k, _ in sums),
        f"    const long end = first + {run} < {count} ? first + {run} : {count};",
        "    for (long i = first; i < end; i++) {",
        *(f"        {line}" for line in within),
        "    }",
        *(f"    a{k} = a{k} + b{k};" for k, _ in sums),
        "}",
    ]


def _varying(program: Program, part: Part) -> set[int]:
    """The nodes of a part that are others in each copy."""
    found: set[int] = set()
    for number in program.needed(x.number for x in part.scalars):
        node = program.nodes[number]
        if _is_leaf(node, part.copies) or any(operand in found for operand in node.operands):
            found.add(number)
    return found


def _is_leaf(node: Node, copies: Copies) -> bool:
    return node.operation == "input" and node.detail[0] == copies.number


def reader(sources: Mapping[int, Source]) -> Callable[[Node, list[str]], str]:
    """The expression of an input, or of a lookup with its operands."""

    def read(node: Node, operands: list[str]) -> str:
        source = sources[node.detail[0]]
        if node.operation == "lookup":
            type_ = "real" if source.is_real else "long"
            return f"lookup((const {type_}*)in.shared[{source.first}], {operands[0]}, 1, 0)"
        return source.read(str(node.detail[1]), node.kind)

    return read


def _leaf_reader(name: str, copies: Copies, sources: Mapping[int, Source], tables: list[str]) -> Callable[[Node], str]:
    """The expression of a number of which copy i has its own; what is not evenly spaced goes to a table."""

    def read(node: Node) -> str:
        number = node.detail[1]
        leaf = copies.leaves[number]
        if leaf.tensor is None:
            return f"splat({_table(f'{name}_{number}', 'real', [_literal(x) for x in leaf.entries], tables)})"
        return sources[leaf.tensor].read(_place(f"{name}_{number}", leaf.entries, tables), leaf.kind)

    return read


def _place(name: str, entries: Sequence[float], tables: list[str]) -> str:
    """The expression of a place, of each copy i its own."""
    spaced = affine(entries)
    if spaced is None:
        return _table(name, "int", [f"{x}" for x in entries], tables)
    first, step = spaced
    return f"{first} + i * {step}" if step else f"{first}"


def _table(name: str, type_: str, entries: Sequence[str], tables: list[str]) -> str:
    """The expression of what a table of this name has for copy i."""
    tables.append(f"static const {type_} {name}[] = {{{', '.join(entries)}}};")
    return f"{name}[i]"


def _literal(value: float) -> str:
    if value != value:
        return '(real)__builtin_nan("")'
    if abs(value) == float("inf"):
        return f"{'-' if value < 0 else ''}(real)__builtin_inf()"
    return f"(real){value.hex()}"


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
        return _function(f"static void {name}(const Inputs& in, V* s, V* record)", lines)

    @property
    def _outputs(self) -> list[Scalar]:
        return [*(x for _, x in self.state), *self.record]

    @property
    def count(self) -> int:
        """How many operations this takes, but for the calls."""
        arguments = [x for call in self.calls for x in call.arguments]
        return self.program.count(x.number for x in (*arguments, *self._outputs))


def _function(heading: str, lines: Sequence[str]) -> str:
    return f"{heading} {{\n    " + "\n    ".join(lines) + "\n}"


@dataclass(frozen=True)
class Layout:
    """Where the numbers of a problem are.

    Attributes:
        unknowns: numbers of each unknown.
        own: by input of which each problem has its own part, how many numbers, and whether they are real.
        shared: how many inputs all problems share.
        state: numbers of the state, and the places of some; `creep` is -1 where nothing is said to creep.
        matrix: the place of every entry of the matrix in the state, row by row.
    """

    unknowns: tuple[int, ...]
    own: tuple[tuple[int, bool], ...]
    shared: int
    state: int
    cost: int
    status: int
    steps: int
    matrix: tuple[int, ...]
    creep: int = -1
    patience: float = 0.0
    """A problem creeps whose number at `creep` is at least that."""

    def text(self, name: str) -> str:
        """The tables of it."""
        own = [(size, True) for size in self.unknowns] + list(self.own)
        data = sum(size for size, is_real in self.own if is_real)
        integers = sum(size for size, is_real in self.own if not is_real)
        sizes = (self.state, data, integers, len(own), len(self.unknowns))
        sizes += (self.cost, self.status, self.steps, self.creep, len(self.matrix), self.patience)
        return "\n".join(
            [
                f"static const Sizes {name}_sizes = {{{', '.join(map(str, sizes))}}};",
                f"static const Own {name}_own[] = {{{', '.join(f'{{{n}, {int(real)}}}' for n, real in own)}}};",
                f"static const long {name}_places[] = {{{', '.join(map(str, self.matrix)) or '0'}}};",
            ]
        )


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


@dataclass(frozen=True)
class Table:
    """What a program that maps a function over problems is given, and returns.

    Attributes:
        own: by tensor of which each problem has its own part, how many numbers, and whether they are real.
        arguments: how many of these are read as the state of the function, one behind the other.
        outputs: numbers of a problem in each tensor that is returned.
        sums: how many numbers behind them are added up over problems.
    """

    own: tuple[tuple[int, bool], ...]
    arguments: int
    outputs: tuple[int, ...]
    sums: int = 0

    def text(self, name: str) -> str:
        """The tables of it."""
        given, data = self.own[: self.arguments], self.own[self.arguments :]
        sizes = [len(self.own), self.arguments, sum(size for size, _ in given)]
        sizes += [sum(size for size, is_real in data if is_real == wanted) for wanted in (True, False)]
        sizes += [len(self.outputs), sum(self.outputs), self.sums]
        own = ", ".join(f"{{{size}, {int(is_real)}}}" for size, is_real in self.own)
        return "\n".join(
            [
                f"static const Extents {name}_extents = {{{', '.join(map(str, sizes))}}};",
                f"static const Own {name}_own[] = {{{own}}};",
                f"static const long {name}_outputs[] = {{{', '.join(map(str, self.outputs)) or '0'}}};",
            ]
        )


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
